"""The synchronous client is what the asynchronous one makes it, and how that is made."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest
from tools.async_to_sync import BY_HAND, CLIENT, MARK, Untranslatable, main, read, translate


def test_the_client_of_the_tree_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().out


# The rules


@pytest.mark.parametrize(
    ("written", "made"),
    [
        ("async def f(): await g()", "def f(): g()"),
        ("async with a as b, c: pass", "with a as b, c: pass"),
        ("async for x in y: pass", "for x in y: pass"),
        ("z = [x async for x in y if await x]", "z = [x for x in y if x]"),
        ("z = {await k: await v for k in y}", "z = {k: v for k in y}"),
        ("return await first(await second())", "return first(second())"),
        ("async def f() -> AsyncQueen: pass", "def f() -> Queen: pass"),
        ("x: AsyncIterator[AsyncMessage]", "x: Iterator[Message]"),
        ("x: _AsyncPuller", "x: _Puller"),
        ("x = Asynchronous", "x = Asynchronous"),
        ("def f() -> AsyncGenerator[int, None]: pass", "def f() -> Generator[int, None, None]: pass"),
        (
            "x: AsyncGenerator[dict[str, int], tuple[int, int]]",
            "x: Generator[dict[str, int], tuple[int, int], None]",
        ),
        ("from collections.abc import AsyncGenerator", "from collections.abc import Generator"),
        ("x: Callable[[AsyncMessage], Awaitable[None]]", "x: Callable[[Message], None]"),
        ("x: Awaitable[Awaitable[list[int]]] | None", "x: list[int] | None"),
        ("x: Coroutine[Any, Any, dict[str, int]]", "x: dict[str, int]"),
        ("x: Coroutine[dict[int, int], Any, AsyncQueen]", "x: Queen"),
        ("async def __aenter__(self): pass", "def __enter__(self): pass"),
        ("async def __aexit__(self): pass", "def __exit__(self): pass"),
        ("def __aiter__(self): return aiter(self.x)", "def __iter__(self): return iter(self.x)"),
        ("async def __anext__(self): raise StopAsyncIteration", "def __next__(self): raise StopIteration"),
        ("async with aclosing(x) as y: await anext(y)", "with closing(x) as y: next(y)"),
        ("await connection.aclose()", "connection.close()"),
        ("@asynccontextmanager\nasync def f(): yield", "@contextmanager\ndef f(): yield"),
        (
            "from queenstream.client._async.retry import Calls",
            "from queenstream.client._sync.retry import Calls",
        ),
        ("from ._async import x", "from ._sync import x"),
    ],
)
def test_code(written: str, made: str) -> None:
    assert translate(written + "\n") == made + "\n"


@pytest.mark.parametrize(
    ("written", "made"),
    [
        ("(await f()).x", "f().x"),
        ("return (await a.b(c, [d]))[0]", "return a.b(c, [d])[0]"),
        ("x = g((await f()).y)", "x = g(f().y)"),
        ("g(await f()).x", "g(f()).x"),
        ("a[0](await f()).x", "a[0](f()).x"),
        ("(await f() or g()).x", "(f() or g()).x"),
        ("(await f() + 1).real", "(f() + 1).real"),
    ],
)
def test_parentheses_go_only_where_they_hold_nothing_together(written: str, made: str) -> None:
    assert translate(written + "\n") == made + "\n"


@pytest.mark.parametrize(
    ("written", "made"),
    [
        ('"""``await queen.push(1)``"""', '"""``queen.push(1)``"""'),
        ('"""``(await queen.dlq("q").list()).total``"""', '"""``queen.dlq("q").list().total``"""'),
        ("# async with AsyncQueen() as queen:", "# with Queen() as queen:"),
        ('"async for message in messages"', '"for message in messages"'),
        ('"async def handler(window)"', '"def handler(window)"'),
        ('"use `async with`, or await close()"', '"use `with`, or close()"'),
        ('"it can be awaited, asynchronously"', '"it can be awaited, asynchronously"'),
        ('f"{await f()} {{braces}} {AsyncQueen}"', 'f"{f()} {{braces}} {Queen}"'),
        ("x = 1  # AsyncQueen's", "x = 1  # Queen's"),
    ],
)
def test_text(written: str, made: str) -> None:
    assert translate(written + "\n") == made + "\n"


def test_what_has_no_synchronous_form_is_refused() -> None:
    with pytest.raises(
        Untranslatable, match=r"line 3: asyncio has no synchronous form; move it to transport\.py"
    ):
        translate('"""asyncio may be talked about."""\n\nimport asyncio\n')
    with pytest.raises(Untranslatable, match="line 1: write Coroutine"):
        translate("x: Coroutine[int]\n")


@pytest.mark.parametrize("path", sorted((CLIENT / "_async").rglob("*.py")), ids=lambda path: path.name)
def test_tokens_give_the_file_again(path: Path) -> None:
    source = path.read_text("utf-8")
    assert "".join(token.before + token.text for token in read(source)) == source


@pytest.mark.parametrize(
    "path",
    sorted(path for path in (CLIENT / "_sync").rglob("*.py") if path.name != BY_HAND),
    ids=lambda path: path.name,
)
def test_nothing_asynchronous_is_left(path: Path) -> None:
    source = path.read_text("utf-8")
    place = path.relative_to(CLIENT / "_sync").as_posix()
    assert source.startswith(f"{MARK}_async/{place} by `python tools/async_to_sync.py`")
    waiting = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)
    for node in ast.walk(ast.parse(source)):
        assert not isinstance(node, waiting), f"{path.name}, line {node.lineno}"
        assert not (isinstance(node, ast.comprehension) and node.is_async), path.name


# The command

SOURCE = '''\
"""One class."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator


class AsyncThing:
    """``async with AsyncThing()``."""

    async def each(self, fn: Callable[[int], Awaitable[int]]) -> AsyncIterator[int]:
        for number in self.numbers():
            yield await fn(number)

    def numbers(self) -> Iterator[int]:
        yield 1
'''
MADE = '''\
# Generated from _async/thing.py by `python tools/async_to_sync.py`; do not edit.
"""One class."""

from __future__ import annotations

from collections.abc import Callable, Iterator


class Thing:
    """``with Thing()``."""

    def each(self, fn: Callable[[int], int]) -> Iterator[int]:
        for number in self.numbers():
            yield fn(number)

    def numbers(self) -> Iterator[int]:
        yield 1
'''


@pytest.fixture
def client(tmp_path: Path) -> Path:
    """A client with a file to translate and one by hand, up to date."""
    for folder in ("_async", "_sync"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / BY_HAND).write_text(f"import {folder}\nimport asyncio\n")
    (tmp_path / "_async" / "thing.py").write_text(SOURCE)
    assert main([], tmp_path) == 0
    return tmp_path


def test_a_file_is_translated_tidied_and_says_where_it_is_from(
    client: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (client / "_sync" / "thing.py").read_text() == MADE
    assert (client / "_sync" / BY_HAND).read_text() == "import _sync\nimport asyncio\n"
    assert main(["--check"], client) == 0
    assert main([], client) == 0
    assert capsys.readouterr().out == ""  # nothing differs, nothing is written


def test_check_names_what_differs_and_changes_nothing(
    client: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    changed = MADE.replace("yield 1", "yield 2")
    (client / "_sync" / "thing.py").write_text(changed)
    shutil.copy(client / "_async" / "thing.py", client / "_async" / "other.py")
    (client / "_sync" / "stray.py").write_text("x = 1\n")
    assert main(["--check"], client) == 1
    assert capsys.readouterr().out.splitlines()[1:] == [
        "other.py: missing",
        "thing.py: differs",
        "stray.py: extra, there is no _async/stray.py",
        "run: python tools/async_to_sync.py",
    ]
    assert (client / "_sync" / "thing.py").read_text() == changed


def test_writing_removes_what_it_made_and_nothing_else(client: Path) -> None:
    (client / "_async" / "thing.py").unlink()
    (client / "_sync" / "stray.py").write_text("x = 1\n")
    assert main([], client) == 0
    assert sorted(path.name for path in (client / "_sync").glob("*.py")) == ["stray.py", BY_HAND]
    assert main(["--check"], client) == 1


def test_a_file_that_cannot_be_translated_is_named(client: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (client / "_async" / "thing.py").write_text("import asyncio\n")
    assert main([], client) == 1
    assert capsys.readouterr().err.startswith("thing.py, line 1: asyncio has no synchronous form")
    assert (client / "_sync" / "thing.py").read_text() == MADE
