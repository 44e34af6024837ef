"""What CI runs sees the base system, the programs that it names and where packages come from, only."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.pages import ROOT

MAKEFILE = """
check:
\t@env >checked
test:
\t@ls -A $$HOME >home; cp $$HOME/.npmrc .; command -v program-of-this-machine >found || true
\t@python3 -c 'import sys; print(sys.executable)' >python
"""


def test_ci_has_an_empty_home_and_only_the_programs_that_it_names(tmp_path: Path) -> None:
    clone, home, programs = (tmp_path / name for name in ("clone", "home", "programs"))
    for folder in (clone / ".ci", home, programs):
        folder.mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", clone / ".ci" / "run")
    (clone / "Makefile").write_text(MAKEFILE)
    (home / ".npmrc").write_text("fund=false\n")
    (home / ".gitconfig").write_text("")
    for name, runs in {"program-of-this-machine": "true", "python3": sys.executable}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {runs} "$@"\n')
        (programs / name).chmod(0o755)
    carried = {"PIP_INDEX_URL": "http://127.0.0.1:1/simple", "https_proxy": "http://127.0.0.1:2"}
    dropped = {"PIP_CACHE_DIR": str(home), "SOME_TOKEN": "hush", "QUEENSTREAM_CACHE": str(home)}
    path = f"{programs}:{os.environ['PATH']}"
    subprocess.run(
        [clone / ".ci" / "run"],
        env={**os.environ, **carried, **dropped, "HOME": str(home), "PATH": path},
        check=True,
        timeout=60,
    )
    environment = dict(line.split("=", 1) for line in (clone / "checked").read_text().splitlines())
    assert environment.items() >= carried.items()
    assert dropped.keys().isdisjoint(environment)
    assert str(programs) not in environment["PATH"]
    assert (clone / "found").read_text() == ""
    assert (clone / "home").read_text().split() == [".npmrc", "bin"]
    assert (clone / ".npmrc").read_text() == "fund=false\n"
    assert (clone / "python").read_text().strip() != sys.executable, "a Python, not its environment"
    assert not Path(environment["HOME"]).exists(), "it is removed at the end"
