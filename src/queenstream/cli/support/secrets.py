"""Secrets on the command line, hidden from the process list.

Every user of a machine may read the arguments of its processes, and only a process's own user its
environment. So a command that is called with a password or a token starts itself anew, with ``***`` in its
place and the real arguments in the environment. The secret shows for the moment until then: a variable or a
file never does.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence

_VARIABLE = "QUEENSTREAM_ARGUMENTS"
_HIDDEN = "***"
_OPTION = re.compile(r"(--pg|--token)(?:=(.*))?", re.DOTALL)
# To the last @: a password may hold an @ or a / that somebody forgot to encode.
_PASSWORD = re.compile(r"(?is)(//[^:/@]*:).*(?=@)|(password=)[^&]*")


def hide_secrets() -> None:
    """Call first: goes on with the real arguments once the process list shows none of their secrets."""
    real = os.environ.pop(_VARIABLE, None)
    if real is not None:
        sys.argv[1:] = json.loads(real)
        return
    given = sys.argv[1:]
    masked = mask(given)
    original = sys.orig_argv
    if masked == given or original[len(original) - len(given) :] != given:
        return  # nothing to hide, or the arguments are not those of this process
    os.environ[_VARIABLE] = json.dumps(given)
    os.execv(sys.executable, [*original[: len(original) - len(given)], *masked])  # noqa: S606 - itself


def mask(arguments: Sequence[str]) -> list[str]:
    """The arguments with their secrets hidden.

    >>> mask(["up", "--pg", "postgresql://me:pw@db/queen", "--port=7000"])
    ['up', '--pg', 'postgresql://me:***@db/queen', '--port=7000']
    >>> mask(["up", "--pg=postgresql://me:p@s/s@db/queen?password=pw"])
    ['up', '--pg=postgresql://me:***@db/queen?password=***']
    >>> mask(["status", "--token=eyJ"])
    ['status', '--token=***']
    """
    shown: list[str] = []
    option = None
    for argument in arguments:
        if option is not None:
            shown.append(_mask_value(option, argument))
            option = None
            continue
        match = _OPTION.fullmatch(argument)
        if match is None:
            shown.append(argument)
        elif match[2] is None:
            option = match[1]
            shown.append(argument)
        else:
            shown.append(f"{match[1]}={_mask_value(match[1], match[2])}")
    return shown


def _mask_value(option: str, value: str) -> str:
    if option == "--token":
        return _HIDDEN
    return _PASSWORD.sub(lambda match: f"{match[1] or match[2]}{_HIDDEN}", value)
