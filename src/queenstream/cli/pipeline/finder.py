"""From ``jobs.py:totals`` to the pipeline that is meant: the file is imported, and looked through.

>>> loader = Loader("jobs.py:totals")  # doctest: +SKIP
>>> loader.load()  # doctest: +SKIP
<Pipeline 'totals'>
>>> loader.files()  # what it was made from; loading again takes them as they are then  # doctest: +SKIP
{PosixPath('/home/ann/jobs.py'), PosixPath('/home/ann/prices.py')}
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import keyword
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import queenstream
from queenstream.errors import ConfigError, QueenstreamError

if TYPE_CHECKING:
    from queenstream.pipeline.builder import Pipeline

_OURS = str(Path(queenstream.__file__).parent)


@dataclass(frozen=True)
class Target:
    """Where a pipeline is written: ``module`` is imported from ``root``; ``name`` says which one in it."""

    shown: str
    root: Path
    module: str
    file: Path
    name: str | None = None


def parse(written: str) -> Target:
    """Read ``FILE[:NAME]`` or ``package.module[:NAME]``.

    >>> parse("no-such-file.py")
    Traceback (most recent call last):
    queenstream.errors.ConfigError: there is no file no-such-file.py; check its name and the folder you are in
    """
    place, colon, name = written.rpartition(":")
    if not colon or Path(written).is_file():
        place, name = written, ""
    path = Path(place)
    if path.is_dir():
        raise ConfigError(f"{place} is a folder; name the file in it that has the pipeline")
    if path.is_file() or path.suffix == ".py" or len(path.parts) > 1:
        if not path.is_file():
            raise ConfigError(f"there is no file {place}; check its name and the folder you are in")
        root, module = _importable(path.resolve())
        return Target(place, root, module, path.resolve(), name or None)
    return Target(place, Path.cwd(), place, _file_of_module(place), name or None)


class Loader:
    """Imports the module of a target, as often as it is asked to."""

    def __init__(self, written: str) -> None:
        self.target = parse(written)
        self._tried: set[Path] = set()

    def load(self) -> Pipeline[Any]:
        """The pipeline that is meant; ``ConfigError`` with the user's line if there is none to be had.

        When this fails, what was imported before stays as it was.
        """
        return choose(self.load_all(), self.target)

    def load_all(self) -> dict[str, Pipeline[Any]]:
        """All pipelines of the module by the names of their variables."""
        known = self._modules()
        for name in known:
            del sys.modules[name]
        importlib.invalidate_caches()
        self._tried = set()
        try:
            return pipelines_of(_imported(self.target))
        except BaseException as error:
            self._tried = _files_in(error)
            for name in self._modules():
                del sys.modules[name]
            sys.modules.update(known)
            raise

    def files(self) -> set[Path]:
        """The file of the pipeline, and those beside it that it has imported, or tried to."""
        found = (_file_of(module) for module in self._modules().values())
        return {self.target.file, *self._tried, *(path for path in found if path is not None)}

    def _modules(self) -> dict[str, ModuleType]:
        """The modules from the target's folder, which are neither ours nor installed."""
        found = {name: module for name, module in sys.modules.items() if name != "__main__"}
        return {name: module for name, module in found.items() if _is_beside(module, self.target.root)}


def pipelines_of(module: ModuleType) -> dict[str, Pipeline[Any]]:
    """The pipelines that a module has at its top level, by the names of their variables."""
    from queenstream.pipeline.builder import Pipeline

    return {name: value for name, value in vars(module).items() if isinstance(value, Pipeline)}


def whole_ones(found: Mapping[str, Pipeline[Any]]) -> dict[str, Pipeline[Any]]:
    """Those that write somewhere, each under its first name; all, if none does.

    A pipeline without a sink is a beginning that others go on from.
    """
    first = {pipeline: name for name, pipeline in reversed(list(found.items()))}
    each = {name: pipeline for name, pipeline in found.items() if first[pipeline] == name}
    return {name: pipeline for name, pipeline in each.items() if pipeline.has_sinks} or each


def choose(found: Mapping[str, Pipeline[Any]], target: Target) -> Pipeline[Any]:
    """The one that is meant: the one with that name, or the only whole one."""
    where = target.shown
    if not found:
        raise ConfigError(
            f"there is no pipeline in {where}; write one at its top level, as in "
            "totals = Pipeline('totals').source(…).to(…)"
        )
    if target.name is not None:
        return _named(found, target.name, where)
    whole = whole_ones(found)
    if len(whole) > 1:
        first = next(iter(whole))
        raise ConfigError(
            f"{where} has {len(whole)} pipelines, {_listed(whole)}; say which one, as in {where}:{first}"
        )
    return next(iter(whole.values()))


def user_line(error: BaseException) -> str | None:
    """The last line of the user's that an error passed through, as ``jobs.py:12``."""
    from queenstream.pipeline.plan.nodes import Place

    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return str(Place(error.filename, error.lineno))
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _is_users(frame.filename)]
    return str(Place(own[-1].filename, own[-1].lineno or 0)) if own else None


def told(error: BaseException) -> str:
    """An error in one line: what it is called, and what it says.

    >>> told(KeyError("user"))
    "KeyError: 'user'"
    """
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {' '.join(said.split())}" if said else type(error).__name__


def _files_in(error: BaseException) -> set[Path]:
    """The user's files that an error passed through."""
    causes = [error, *([error.__cause__] if error.__cause__ else [])]
    names = [frame.filename for each in causes for frame in traceback.extract_tb(each.__traceback__)]
    names += [each.filename for each in causes if isinstance(each, SyntaxError) and each.filename]
    return {Path(name).resolve() for name in names if _is_users(name)}


def _named(found: Mapping[str, Pipeline[Any]], name: str, where: str) -> Pipeline[Any]:
    if name in found:
        return found[name]
    whole = whole_ones({variable: each for variable, each in found.items() if each.name == name})
    if len(whole) == 1:
        return next(iter(whole.values()))
    asked = f"{len(whole)} pipelines are called {name!r}" if whole else f"there is no pipeline {name!r}"
    raise ConfigError(f"{asked} in {where}; name one of {_listed(whole or found)} by its variable")


def _listed(found: Mapping[str, Pipeline[Any]]) -> str:
    return ", ".join(f"{name} ({pipeline.where})" for name, pipeline in found.items())


def _importable(file: Path) -> tuple[Path, str]:
    """The folder to import a file from, and its name there: the package's, if it is in one."""
    names = [file.stem]
    folder = file.parent
    while (folder / "__init__.py").is_file():
        names.append(folder.name)
        folder = folder.parent
    return folder, ".".join(reversed(names))


def _file_of_module(name: str) -> Path:
    wrong = ConfigError(f"there is no file and no module {name}; name a file, such as jobs.py")
    parts = name.split(".")
    if not all(part.isidentifier() and not keyword.iskeyword(part) for part in parts):
        raise wrong
    _import_from(Path.cwd())
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        raise wrong from None
    except Exception as error:
        raise _broken(name, error) from error
    if spec is None or spec.origin is None or not spec.has_location:
        raise wrong
    return Path(spec.origin)


def _imported(target: Target) -> ModuleType:
    """Import the target's module. What it prints is no answer of ours, and goes to standard error."""
    _import_from(target.root)
    with contextlib.redirect_stdout(sys.stderr):
        try:
            taken = sys.modules.get(target.module)
            if taken is None and target.module.replace(".", "").isidentifier():
                module = importlib.import_module(target.module)
                if _file_of(module) == target.file:
                    return module
            # Somebody else has this name: a file called queue.py is still the user's.
            return _imported_beside(target)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            raise _broken(target.shown, error) from error


def _imported_beside(target: Target) -> ModuleType:
    name = f"queen_pipeline_{target.file.stem}"
    spec = importlib.util.spec_from_file_location(name, target.file)
    assert spec is not None, "a file of Python code"
    assert spec.loader is not None, "a file of Python code"
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _broken(where: str, error: BaseException) -> Exception:
    """What to say about an error that importing a user's module raised."""
    from queenstream.pipeline.errors import PipelineError

    if isinstance(error, PipelineError):
        return error
    line = user_line(error) or where
    if isinstance(error, QueenstreamError):
        return ConfigError(f"cannot load {where}: {line}: {error}")
    remedy = "mend that line and try again"
    if isinstance(error, ModuleNotFoundError):
        remedy = "install it, or check its name"
    elif isinstance(error, SystemExit):
        remedy = "put what is only for a script under if __name__ == '__main__'"
    return ConfigError(f"cannot load {where}: {line}: {told(error)}; {remedy}")


def _import_from(root: Path) -> None:
    """Make the folder the first that modules are looked for in, also later: steps may import too."""
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))


def _file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return None if file is None else Path(file).resolve()


def _is_beside(module: ModuleType, root: Path) -> bool:
    file = _file_of(module)
    return file is not None and file.is_relative_to(root) and _is_users(str(file))


def _is_users(file: str) -> bool:
    """Whether somebody wrote it for this pipeline: it is neither ours, nor Python's, nor installed."""
    if file.startswith((_OURS, "<")) or "site-packages" in file:
        return False
    return not Path(file).is_relative_to(Path(traceback.__file__).parent)
