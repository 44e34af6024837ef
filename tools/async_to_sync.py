"""Makes the client's ``_sync`` folder from its ``_async`` folder, so that the two cannot drift apart.

    python tools/async_to_sync.py            write the files
    python tools/async_to_sync.py --check    write nothing; exit 1 and name the files that differ

The client is written once, with ``async``. What differs by more than spelling (sockets, locks, threads)
stands in ``transport.py``, by hand in both folders. The rest is translated token by token: names by
``NAMES``, text in strings and comments by ``TEXT``, what needs its surroundings by ``RULES``; then ruff
tidies the result.

>>> translate("async def one(queue: AsyncQueue) -> AsyncMessage:\\n    return await anext(queue)\\n")
'def one(queue: Queue) -> Message:\\n    return next(queue)\\n'
"""

from __future__ import annotations

import argparse
import io
import itertools
import keyword
import re
import subprocess
import sys
import tokenize
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLIENT = ROOT / "src" / "queenstream" / "client"
BY_HAND = "transport.py"
COMMAND = "python tools/async_to_sync.py"
MARK = "# Generated from "
LOOSENED = "lint.extend-safe-fixes = ['SIM117', 'UP028']"
OPENING, CLOSING = frozenset("([{"), frozenset(")]}")

# A name that is not here loses the prefix ``Async``, if it has it; the others stay as they are.
NAMES = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "_async": "_sync",
    "AbstractAsyncContextManager": "AbstractContextManager",
    "StopAsyncIteration": "StopIteration",
    "aclose": "close",
    "aclosing": "closing",
    "aiter": "iter",
    "anext": "next",
    "asynccontextmanager": "contextmanager",
}
_PREFIXED = re.compile(r"(_*)Async(?=[A-Z])")

# What has no counterpart: it is refused, so that nobody ships a client that only looks synchronous.
REFUSED = {"asyncio": f"move it to {BY_HAND}, which is written by hand for both clients"}


class Untranslatable(Exception):
    """A file uses something that has no synchronous form; the message says where, and what to do."""


def renamed(name: str) -> str:
    """The synchronous counterpart of a name, which may be the name itself.

    >>> renamed("AsyncIterator"), renamed("_AsyncPuller"), renamed("Asynchronous"), renamed("__aenter__")
    ('Iterator', '_Puller', 'Asynchronous', '__enter__')
    """
    return NAMES.get(name) or _PREFIXED.sub(r"\1", name)


# Strings and comments are prose and examples; there is no grammar to go by.
TEXT: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"(?<!\w)\(await ((?:[\w.]+\([^()]*\))+)\)(?=[.\[])"), r"\1"),
    (re.compile(r"\bawait (?=[\w(\[{])"), ""),
    (re.compile(r"\basync (?=(with|for|def)\b)"), ""),
    (re.compile(r"\w+"), lambda match: renamed(match[0])),
)


@dataclass(slots=True)
class Token:
    """A token, with what stands between it and the one before: spaces, or a line that goes on."""

    kind: int
    before: str
    text: str
    line: int


def read(source: str) -> list[Token]:
    """The tokens of ``source``; written one after the other, they are the source again."""
    starts = [0, *itertools.accumulate(len(line) for line in io.StringIO(source))]
    tokens: list[Token] = []
    at = 0
    for kind, _, (row, column), (last_row, last_column), _ in tokenize.generate_tokens(
        io.StringIO(source).readline
    ):
        # By position, not by the token's own text: that of an f-string's part has its braces undoubled.
        start = min(starts[min(row - 1, len(starts) - 1)] + column, len(source))
        end = min(starts[min(last_row - 1, len(starts) - 1)] + last_column, len(source))
        tokens.append(Token(kind, source[at:start], source[start:end], row))
        at = end
    return tokens


def translate(source: str) -> str:
    """The synchronous form of a module, not tidied yet."""
    tokens = read(source)
    for index in range(len(tokens)):
        for rule in RULES:
            rule(tokens, index)
    return "".join(token.before + token.text for token in tokens)


# Each rule looks at one token and may change it or those after it; a token that goes stays as an empty one.
# Left to right, so that what a rule finds before its token is already translated.


def _drop(tokens: list[Token], index: int) -> None:
    """Take a token away; what follows stands in its place."""
    tokens[index].text = ""
    tokens[index + 1].before = ""


def _closing(tokens: list[Token], opening: int) -> int:
    """Where the bracket is that closes the one at ``opening``."""
    depth = 0
    for index in range(opening, len(tokens)):
        if tokens[index].kind == tokenize.OP:
            depth += (tokens[index].text in OPENING) - (tokens[index].text in CLOSING)
            if depth == 0:
                return index
    raise Untranslatable(f"line {tokens[opening].line}: a bracket is not closed; the file does not parse")


def _subscript(tokens: list[Token], index: int, *names: str) -> tuple[int, int] | None:
    """The brackets of ``Name[…]``, if the token is one of these names with brackets."""
    token, following = tokens[index], tokens[min(index + 1, len(tokens) - 1)]
    if token.kind == tokenize.NAME and token.text in names and following.text == "[":
        return index + 1, _closing(tokens, index + 1)
    return None


def _refuse(tokens: list[Token], index: int) -> None:
    token = tokens[index]
    if token.kind == tokenize.NAME and token.text in REFUSED:
        raise Untranslatable(
            f"line {token.line}: {token.text} has no synchronous form; {REFUSED[token.text]}"
        )


def _unwrap_groups(tokens: list[Token], index: int) -> None:
    """``(await x()).y`` needs its parentheses, ``x().y`` does not."""
    if tokens[index].text != "(" or tokens[index + 1].text != "await":
        return
    before = next((token for token in reversed(tokens[:index]) if token.text.strip()), None)
    is_call = before is not None and (
        before.text in (")", "]") or (before.kind == tokenize.NAME and not keyword.iskeyword(before.text))
    )
    end = _closing(tokens, index)
    if is_call or tokens[end + 1].text not in (".", "[") or not _is_primary(tokens[index + 2 : end]):
        return
    _drop(tokens, index)
    tokens[end].text = ""


def _is_primary(tokens: Sequence[Token]) -> bool:
    """Names, dots and calls on one line: nothing that parentheses would hold together."""
    depth = 0
    for token in tokens:
        if token.kind == tokenize.OP and token.text in OPENING:
            depth += 1
        elif token.kind == tokenize.OP and token.text in CLOSING:
            depth -= 1
        elif (
            depth == 0
            and token.text != "."
            and (token.kind != tokenize.NAME or keyword.iskeyword(token.text))
        ):
            return False
    return True


def _drop_keywords(tokens: list[Token], index: int) -> None:
    """``async def``, ``async with``, ``async for`` and ``await``, wherever they stand."""
    token = tokens[index]
    if token.kind != tokenize.NAME:
        return
    if token.text == "await" or (token.text == "async" and tokens[index + 1].text in ("def", "with", "for")):
        _drop(tokens, index)


def _unwrap_awaitables(tokens: list[Token], index: int) -> None:
    """``Awaitable[X]`` and ``Coroutine[Any, Any, X]`` are ``X`` when nothing is awaited."""
    found = _subscript(tokens, index, "Awaitable", "Coroutine")
    if found is None:
        return
    opening, closing = found
    first = opening + 1
    if tokens[index].text == "Coroutine":
        commas = _commas(tokens, opening, closing)
        if len(commas) < 2:
            raise Untranslatable(f"line {tokens[index].line}: write Coroutine[Any, Any, X] with all three")
        first = commas[1] + 1
    for position in range(index, first):
        _drop(tokens, position)
    tokens[closing].text = ""


def _commas(tokens: list[Token], opening: int, closing: int) -> list[int]:
    """The commas between the brackets that are in no others."""
    found, index = [], opening + 1
    while index < closing:
        if tokens[index].text == ",":
            found.append(index)
        index = _closing(tokens, index) + 1 if tokens[index].text in OPENING else index + 1
    return found


def _return_of_generators(tokens: list[Token], index: int) -> None:
    """``AsyncGenerator[X, None]`` has no type for what it returns, ``Generator[X, None, None]`` has."""
    found = _subscript(tokens, index, "AsyncGenerator")
    if found is not None:
        last = tokens[found[1]]
        last.text = ", None" + last.text


def _rename(tokens: list[Token], index: int) -> None:
    if tokens[index].kind == tokenize.NAME:
        tokens[index].text = renamed(tokens[index].text)


def _rewrite_text(tokens: list[Token], index: int) -> None:
    token = tokens[index]
    if token.kind in _TEXTS:
        for pattern, replacement in TEXT:
            token.text = pattern.sub(replacement, token.text)


# From Python 3.12 on, an f-string is several tokens; before, it is one string.
_TEXTS = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}

RULES: tuple[Callable[[list[Token], int], None], ...] = (
    _refuse,
    _unwrap_groups,
    _drop_keywords,
    _unwrap_awaitables,
    _return_of_generators,
    _rename,
    _rewrite_text,
)


def _ruff(source: str, path: Path, *arguments: str) -> str:
    """``source`` after a pass of ruff, which is told that it is the file ``path``."""
    settings = ("--quiet", "--config", str(ROOT / "pyproject.toml"), "--stdin-filename", str(path), "-")
    command = [sys.executable, "-m", "ruff", *arguments, *settings]
    done = subprocess.run(  # noqa: S603 - arguments are a list and no shell parses them
        command, input=source, capture_output=True, text=True, check=False, cwd=ROOT
    )
    if done.returncode:
        raise Untranslatable(f"{path.name}: ruff cannot read the result: {done.stderr.strip()}")
    return done.stdout


def generated(source: Path, target: Path) -> str:
    """What the file ``target`` has to hold, made from ``source``."""
    try:
        body = translate(source.read_text("utf-8"))
    except Untranslatable as error:
        raise Untranslatable(f"{source.name}, {error}") from None
    place = "/".join(source.parts[max(n for n, name in enumerate(source.parts) if name == "_async") :])
    head = f"{MARK}{place} by `{COMMAND}`; do not edit.\n"
    # Everything that ruff can put right by itself: above all, imports that nothing needs any more. The rules
    # of ``LOOSENED`` count as safe: what they find could not be written otherwise with ``async``.
    rules = ("--fix-only", "--exit-zero", "--extend-select", "PYI016", "--config", LOOSENED)
    return _ruff(_ruff(head + body, target, "check", *rules), target, "format")


def wanted(client: Path) -> dict[Path, str]:
    """Every file of ``_sync`` that is generated, with what it has to hold."""
    sources = sorted(path for path in (client / "_async").rglob("*.py") if path.name != BY_HAND)
    targets = [client / "_sync" / path.relative_to(client / "_async") for path in sources]
    return {target: generated(source, target) for source, target in zip(sources, targets, strict=True)}


def extra(client: Path, files: dict[Path, str]) -> list[Path]:
    """What lies in ``_sync`` and comes from nowhere."""
    there = sorted((client / "_sync").rglob("*.py"))
    return [path for path in there if path not in files and path.name != BY_HAND]


def differences(client: Path) -> list[str]:
    """What is wrong with ``_sync``, one line for each file; empty when all is well."""
    files = wanted(client)
    found = []
    for path, text in files.items():
        if not path.exists():
            found.append(f"{path.name}: missing")
        elif path.read_text("utf-8") != text:
            found.append(f"{path.name}: differs")
    return found + [f"{path.name}: extra, there is no _async/{path.name}" for path in extra(client, files)]


def write(client: Path) -> list[str]:
    """Bring ``_sync`` up to date; the names of the files that changed.

    A file that was generated once and has no source any more goes; one that somebody wrote is left alone.
    """
    files = wanted(client)
    changed = [p for p, text in files.items() if not p.exists() or p.read_text("utf-8") != text]
    for path in changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files[path], "utf-8")
    gone = [path for path in extra(client, files) if path.read_text("utf-8").startswith(MARK)]
    for path in gone:
        path.unlink()
    return [path.name for path in changed + gone]


def main(arguments: Sequence[str] | None = None, client: Path = CLIENT) -> int:
    """The command; its exit code."""
    parser = argparse.ArgumentParser(description="Make the synchronous client from the asynchronous one.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file differs")
    check = parser.parse_args(arguments).check
    try:
        lines = differences(client) if check else write(client)
    except Untranslatable as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if check and lines:
        lines = [
            "the synchronous client is not what the asynchronous one makes it:",
            *lines,
            f"run: {COMMAND}",
        ]
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 1 if check and lines else 0


if __name__ == "__main__":
    sys.exit(main())
