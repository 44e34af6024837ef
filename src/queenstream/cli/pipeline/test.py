"""``queen pipeline test``: a pipeline's own tests, or what comes out of records from a file."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queenstream.cli.pipeline.finder import Loader, parse
from queenstream.cli.pipeline.options import PipelineFile, refused_with_code
from queenstream.cli.support.exit_codes import FAILED, INTERRUPTED
from queenstream.cli.support.help import help_text
from queenstream.cli.support.output import Column, Output, Printer, amount, compact, note, quiet_pipe
from queenstream.errors import ConfigError

if TYPE_CHECKING:
    from queenstream.testing import PipelineDriver

HELP = help_text(
    "Run the tests of a pipeline, or try it on records.",
    "queen pipeline test jobs.py",
    "queen pipeline test jobs.py --input events.ndjson",
    "queen pipeline test jobs.py --input orders=a.ndjson --input users=b.ndjson",
    more="Tests are the functions test_… of the file, and of test_FILE beside it; pytest runs them, with the "
    "fixtures of queenstream.testing, and is told what comes after --, such as -k late. With --input nothing "
    "is read or written but what is printed: every row that would go to a sink, with the sink's name.",
)
PLUGIN = "queenstream.testing.pytest_plugin"
_BATCH = 1_000  # records that arrive together
_ROWS = (Column("SINK", "sink"), Column("ROW", "row", compact, cut=True))


def check(
    target: PipelineFile,
    more: Annotated[
        list[str] | None, typer.Argument(metavar="[-- PYTEST…]", help="What pytest is told besides.")
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--input", metavar="[SOURCE=]FILE", help="Records, one JSON value a line; - is standard input."
        ),
    ] = None,
    output: Output = None,
) -> None:
    """Test a pipeline."""
    if given:
        with quiet_pipe(), refused_with_code():
            try_out(Loader(target), given, Printer(output))
        return
    found = parse(target)
    files = [
        path for path in (found.file, found.file.with_name(f"test_{found.file.name}")) if _has_tests(path)
    ]
    if not files:
        raise ConfigError(
            f"{found.shown} has no functions test_…, and there are none in test_{found.file.name}; write "
            "one, or give --input records.ndjson to see what comes out"
        )
    code = _run_tests(files, more or [])
    if code:
        raise typer.Exit(code)


def try_out(loader: Loader, given: Sequence[str], out: Printer) -> None:
    """Send records from files through the pipeline, and print what its sinks would have got."""
    from queenstream.testing import PipelineDriver

    with PipelineDriver(loader.load()) as driver:
        for each in given:
            source, file = _input(each, [read.name for read in driver.plan.inputs])
            records = _records(file)
            while batch := list(islice(records, _BATCH)):
                driver.send(*batch, source=source)
        driver.end()
        out.rows(_rows(driver), _ROWS, empty="nothing came out")
        stats = driver.stats()
        if out.for_people:
            told = (amount(stats.records, "record"), amount(stats.rows, "row"), f"{stats.late:,} late")
            note(f"{', '.join(told)}, {stats.failed:,} failed")


def _rows(driver: PipelineDriver) -> Iterator[dict[str, Any]]:
    """What is in each sink, dead letters last."""
    names = [write.name for write in driver.plan.sinks] + [each.slug for each in driver.plan.dead_letters]
    for name in dict.fromkeys(names):
        for row in driver.rows(name):
            yield {"sink": name, "row": _plain(row)}


def _plain(row: Any) -> Any:
    """A row as it is printed; an object of a class that JSON does not know by its fields, or as text."""
    import msgspec

    def fields(value: Any) -> Any:
        dump = getattr(value, "model_dump", None)
        return repr(value) if dump is None else dump()

    return msgspec.to_builtins(row, enc_hook=fields)


def _input(written: str, sources: Sequence[str]) -> tuple[str | None, str]:
    """``users=users.ndjson``: a source and a file; without a source, it is the only one."""
    source, mark, file = written.partition("=")
    if mark and not Path(written).exists():
        return source, file
    if len(sources) > 1:
        raise ConfigError(f"--input {written}: for which source? write it like {sources[0]}={written}")
    return None, written


def _records(file: str) -> Iterator[Any]:
    import msgspec

    try:
        with contextlib.ExitStack() as stack:
            lines = sys.stdin.buffer if file == "-" else stack.enter_context(Path(file).open("rb"))
            for number, line in enumerate(lines, 1):
                if line.strip():
                    try:
                        yield msgspec.json.decode(line)
                    except msgspec.DecodeError as error:
                        raise ConfigError(f"{file}:{number} is no JSON ({error}); mend that line") from None
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}; check its name") from None


def _has_tests(path: Path) -> bool:
    """Whether a file has tests: found without running it, as pytest will do that."""
    import ast

    if not path.is_file():
        return False
    try:
        parsed = ast.parse(path.read_bytes(), str(path))
    except SyntaxError:
        return True  # pytest shows where
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return any(isinstance(node, kinds) and node.name.startswith("test_") for node in parsed.body)


def _run_tests(files: Sequence[Path], more: Sequence[str]) -> int:
    """Let pytest run them; gives our exit code."""
    from importlib import metadata

    try:
        import pytest
    except ModuleNotFoundError:
        raise ConfigError("tests are run by pytest; install it with pip install pytest") from None
    installed = any(each.value == PLUGIN for each in metadata.entry_points(group="pytest11"))
    fixtures = [] if installed else ["-p", PLUGIN]
    code = pytest.main([*fixtures, *map(str, files), *more])
    if code == pytest.ExitCode.INTERRUPTED:
        return INTERRUPTED
    return FAILED if code else 0
