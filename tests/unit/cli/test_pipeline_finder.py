"""Which pipeline of a file is meant, and what is said when there is none to be had."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from queenstream.cli.pipeline.finder import Loader, parse
from queenstream.cli.pipeline.options import python_files
from queenstream.cli.pipeline.watch import Watcher
from queenstream.errors import ConfigError
from queenstream.pipeline.errors import PipelineError

HEAD = "from queenstream import Memory, Pipeline\n"
WHOLE = "{0} = Pipeline('{1}').source(Memory([{{'n': 1}}])).to(print)\n"
PART = "{0} = Pipeline('{1}').source(Memory([{{'n': 1}}]))\n"


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder to be in, and an interpreter that forgets what was imported from it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "jobs", raising=False)  # of a test of another folder
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def found(written: str) -> str:
    return Loader(written).load().name


def refused(written: str) -> str:
    with pytest.raises(ConfigError) as caught:
        Loader(written).load()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_only_pipeline_of_a_file() -> None:
    Path("jobs.py").write_text(HEAD + WHOLE.format("totals", "user-totals"))
    assert found("jobs.py") == found("./jobs.py") == found("jobs") == "user-totals"
    assert found("jobs.py:totals") == found("jobs.py:user-totals") == found("jobs:totals") == "user-totals"


def test_what_others_go_on_from_is_not_meant() -> None:
    """A beginning without a sink, and a second name of the same pipeline."""
    Path("jobs.py").write_text(
        HEAD + PART.format("base", "shop") + "totals = base.filter('n > 0').to(print)\nalias = totals\n"
    )
    for written in ("jobs.py", "jobs.py:alias", "jobs.py:shop"):
        assert [node.kind for node in Loader(written).load().plan().nodes] == ["read", "filter", "write"]
    with pytest.raises(PipelineError):
        Loader("jobs.py:base").load().plan()


def test_several_have_to_be_named() -> None:
    Path("jobs.py").write_text(HEAD + WHOLE.format("a", "first") + WHOLE.format("b", "second"))
    said = refused("jobs.py")
    assert said == "jobs.py has 2 pipelines, a (jobs.py:2), b (jobs.py:3); say which one, as in jobs.py:a"
    assert found("jobs.py:b") == found("jobs.py:second") == "second"
    assert "there is no pipeline 'c' in jobs.py; name one of a (jobs.py:2), b (jobs.py:3)" in refused(
        "jobs.py:c"
    )


def test_none() -> None:
    Path("jobs.py").write_text("x = 1\n")
    assert "there is no pipeline in jobs.py; write one" in refused("jobs.py")
    assert "there is no file none.py" in refused("none.py")
    assert "there is no file x/none" in refused("x/none")
    assert "there is no file and no module none" in refused("none")
    assert "there is no file and no module not-a-name" in refused("not-a-name")
    Path("folder").mkdir()
    assert "folder is a folder" in refused("folder")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = (\n", "jobs.py:1: SyntaxError: '(' was never closed"),
        ("import json\n\ny = json.loads('{')\n", "jobs.py:3: JSONDecodeError"),
        (
            "import no_such_package\n",
            "jobs.py:1: ModuleNotFoundError: No module named 'no_such_package'; install",
        ),
        ("import sys\nsys.exit(3)\n", "jobs.py:2: SystemExit: 3; put what is only for a script under if"),
        (HEAD + "p = Pipeline('p').source(Memory([1])).window('soon')\n", "jobs.py:2: "),
        ("import helper\n", "helper.py:1: ZeroDivisionError: division by zero"),
    ],
)
def test_a_file_that_cannot_be_imported(text: str, said: str) -> None:
    """The user's line, and what to do; never a traceback."""
    Path("helper.py").write_text("1 / 0\n")
    Path("jobs.py").write_text(text)
    told = refused("jobs.py")
    assert told.startswith(f"cannot load jobs.py: {said}"), told


def test_a_definition_that_is_wrong_says_all_problems() -> None:
    Path("jobs.py").write_text(HEAD + PART.format("p", "p") + "p.plan()\n")
    with pytest.raises(PipelineError) as caught:
        Loader("jobs.py").load()
    assert "jobs.py:2" in str(caught.value)


def test_what_a_file_prints_is_no_answer(capsys: pytest.CaptureFixture[str]) -> None:
    Path("jobs.py").write_text(HEAD + "print('hello')\n" + WHOLE.format("p", "p"))
    assert found("jobs.py") == "p"
    assert capsys.readouterr() == ("", "hello\n")


def test_a_file_of_a_package() -> None:
    """It may import what is beside it, in either way."""
    Path("shop").mkdir()
    Path("shop/__init__.py").touch()
    Path("shop/names.py").write_text("NAME = 'from-package'\n")
    Path("shop/jobs.py").write_text(
        HEAD + "from .names import NAME\np = Pipeline(NAME).source(Memory([1])).to(print)\n"
    )
    assert found("shop/jobs.py") == found("shop.jobs") == "from-package"
    loader = Loader("shop.jobs")
    loader.load()
    assert {path.name for path in loader.files()} == {"__init__.py", "names.py", "jobs.py"}


def test_a_file_with_the_name_of_something_else() -> None:
    """The standard library's module of that name stays what it was."""
    import queue

    Path("queue.py").write_text(HEAD + WHOLE.format("p", "mine"))
    assert found("queue.py") == "mine"
    assert sys.modules["queue"] is queue
    Path("a-job.v2.py").write_text(HEAD + WHOLE.format("p", "odd"))
    assert found("a-job.v2.py") == "odd"


def test_loading_again_takes_what_is_beside_it_too() -> None:
    Path("names.py").write_text("NAME = 'first'\n")
    Path("jobs.py").write_text(
        HEAD + "import names\np = Pipeline(names.NAME).source(Memory([1])).to(print)\n"
    )
    loader = Loader("jobs.py")
    assert loader.load().name == "first"
    Path("names.py").write_text("NAME = 'other'\n")
    assert loader.load().name == "other"


def test_what_works_stays_when_loading_again_fails() -> None:
    Path("names.py").write_text("NAME = 'first'\n")
    Path("jobs.py").write_text(
        HEAD + "import names\np = Pipeline(names.NAME).source(Memory([1])).to(print)\n"
    )
    loader = Loader("jobs.py")
    loader.load()
    kept = sys.modules["jobs"], sys.modules["names"]
    Path("names.py").write_text("NAME = \n")
    with pytest.raises(ConfigError, match=r"names.py:1: SyntaxError"):
        loader.load()
    assert (sys.modules["jobs"], sys.modules["names"]) == kept
    Path("jobs.py").write_text("import fresh\n" + HEAD + WHOLE.format("p", "p"))
    Path("fresh.py").write_text("1 / 0\n")
    with pytest.raises(ConfigError, match=r"fresh.py:1: ZeroDivisionError"):
        loader.load()
    assert Path("fresh.py").resolve() in loader.files()


def test_a_file_has_changed_when_it_rests() -> None:
    file = Path("jobs.py").resolve()
    file.write_text("1\n")
    files = {file}
    watcher = Watcher(lambda: files)
    assert not watcher.changed()
    file.write_text("22\n")
    assert not watcher.changed()  # somebody may still write
    assert watcher.changed()
    assert not watcher.changed()
    file.unlink()
    assert [watcher.changed(), watcher.changed()] == [False, True]
    beside = Path("beside.py").resolve()
    beside.write_text("1\n")
    files.add(beside)
    assert [watcher.changed(), watcher.changed()] == [False, False]  # imported later: no change
    beside.write_text("22\n")
    assert [watcher.changed(), watcher.changed()] == [False, True]


def test_the_shell_is_offered_python_files() -> None:
    for name in ("jobs.py", "notes.txt", "shop/orders.py", ".hidden.py"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
    assert python_files("") == ["jobs.py", "shop/"]
    assert python_files("jo") == ["jobs.py"]
    assert python_files("shop/") == ["shop/orders.py"]
    assert python_files("nowhere/") == []


def test_targets() -> None:
    Path("odd:name.py").touch()
    assert (parse("odd:name.py").name, parse("odd:name.py:p").name) == (None, "p")
