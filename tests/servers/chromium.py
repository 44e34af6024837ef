"""The browser of the console's tests: one version of Chromium, its libraries and fonts, from npm packages.

What the machine has is never used, so results do not depend on it. ``tests/browser/package-lock.json`` pins
the version; the package holds the binary, compressed, so nothing is downloaded from anywhere else.

>>> browser = Chromium(folder())  # doctest: +SKIP
>>> playwright.chromium.launch(executable_path=browser.executable, env=browser.environment)  # doctest: +SKIP
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.servers import cache

_SOURCE = Path(__file__).parents[1] / "browser"
_FILES = (".npmrc", "package.json", "package-lock.json", "fonts.conf")
_SECONDS = 600
# The package unpacks into the temporary folder; with this setting, the shared libraries as well.
_UNPACK = 'import("@sparticuz/chromium").then((it) => it.default.executablePath())'
_WITH_LIBRARIES = {"AWS_EXECUTION_ENV": "AWS_Lambda_nodejs20.x"}


@dataclass(frozen=True)
class Chromium:
    """An unpacked Chromium."""

    folder: Path

    @property
    def executable(self) -> Path:
        """The program."""
        return self.folder / "chromium"

    @property
    def environment(self) -> dict[str, str | float | bool]:
        """Ours, with the libraries and fonts that came with the program."""
        return {
            **os.environ,
            "LD_LIBRARY_PATH": str(self.folder / "al2023" / "lib"),
            "FONTCONFIG_FILE": str(self.folder / "fonts" / "fonts.conf"),
        }


def folder() -> Path:
    """Where it is unpacked; fetched once for each content of the lock file."""
    key = hashlib.sha256(b"".join((_SOURCE / name).read_bytes() for name in _FILES)).hexdigest()[:8]
    return cache.provide(f"chromium-{key}", _fetch)


def _fetch(folder: Path) -> None:
    if platform.machine() != "x86_64":
        raise cache.Unavailable(
            f"@sparticuz/chromium has x86_64 builds only; this machine is {platform.machine()}"
        )
    npm = shutil.which("npm")
    if npm is None:
        raise cache.Unavailable(
            "Chromium comes with npm, and there is none on the path: install Node.js 20.19 or newer"
        )
    with tempfile.TemporaryDirectory(prefix=".npm-", dir=folder.parent) as made:
        work = Path(made)
        for name in _FILES:
            shutil.copy(_SOURCE / name, work / name)
        _run([npm, "ci", "--ignore-scripts", "--loglevel=error", "--no-progress"], work)
        _run(["node", "--eval", _UNPACK], work, TMPDIR=str(folder), **_WITH_LIBRARIES)
        fonts = folder / "fonts"
        shutil.copy(work / "fonts.conf", fonts / "fonts.conf")
        shutil.copytree(work / "node_modules" / "dejavu-fonts-ttf" / "ttf", fonts / "dejavu")
    found = ", ".join(sorted(each.name for each in folder.iterdir()))
    if not (folder / "chromium").is_file() or not (folder / "al2023" / "lib").is_dir():
        raise cache.Unavailable(
            f"@sparticuz/chromium did not unpack a program and its libraries, but {found}"
        )


def _run(command: list[str], folder: Path, **more: str) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, **more}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise cache.Unavailable(f"npm did not fetch Chromium within {_SECONDS} s") from None
    if done.returncode:
        raise cache.Unavailable(
            f"npm could not fetch Chromium: {(done.stderr or done.stdout).strip()[-500:]}"
        )


def required() -> Chromium:
    """Chromium for a test: without it the test fails with the reason, or is left out if the user said so."""
    return Chromium(cache.required("a browser", folder))
