"""The set-up step of ``make test``: obtains what the tests start, or lists all that is missing.

``python -m tests.servers`` prints one line for each thing that it cannot obtain, with the remedy, and exits
with 1, so that this comes before the first test.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial

from tests.servers import cache, chromium, maven

_SECONDS = 60


def _version(program: str, option: str) -> tuple[int, ...]:
    """The first version that a program prints."""
    done = subprocess.run([program, option], capture_output=True, text=True, timeout=_SECONDS, check=False)
    found = re.search(r"\d+(\.\d+)*", done.stdout + done.stderr)
    return tuple(int(each) for each in found[0].split(".")) if found else ()


def _check_program(name: str, remedy: str, option: str = "", least: tuple[int, ...] = ()) -> None:
    program = shutil.which(name)
    if program is None:
        raise cache.Unavailable(f"{name} is not on the path: {remedy}")
    if least and (found := _version(program, option)) < least:
        written = ".".join(map(str, found)) or "of an unknown version"
        raise cache.Unavailable(f"{program} is {written}: {remedy}")


_NODE = "install Node.js 20.19 or newer with npm; it builds the console and fetches the browser"
_JAVA = (
    "install a JDK of Java 17 or newer (apt-get install openjdk-17-jdk-headless); it runs Kafka and Cassandra"
)
_MAVEN = "install Maven (apt-get install maven); it fetches Kafka and Cassandra"


def requirements() -> Iterator[Callable[[], object]]:
    """What has to succeed, in the order in which one thing needs another."""
    yield partial(_check_program, "node", _NODE, "--version", (20, 19))
    yield partial(_check_program, "npm", _NODE)
    yield partial(_check_program, "java", _JAVA, "-version", (17,))
    yield partial(_check_program, "keytool", _JAVA)
    yield partial(_check_program, "mvn", _MAVEN)
    for name in maven.names():
        yield partial(maven.jars, name)
    yield chromium.folder


def find_missing() -> list[str]:
    """What cannot be obtained, and what to do about it."""
    missing = []
    for obtain in requirements():
        try:
            obtain()
        except cache.Unavailable as error:
            missing.append(str(error))
    return missing


def main() -> int:
    """Obtain everything; 1 if something is missing."""
    missing = [] if cache.opted_out() else find_missing()
    if missing:
        lines = "\n".join(f"  - {each}" for each in missing)
        sys.stderr.write(
            f"The tests cannot start; this is missing:\n{lines}\n"
            f"Or run them without servers and browser: {cache.OPT_OUT}=1 make test\n"
        )
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
