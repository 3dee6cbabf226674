"""The user's repair function: `module:function` or `path/to/file.py:function`.

Rule 1: what is wrong with it is said before any job starts.
Rule 2: it goes to the workers as code, not as a name: they need not have the file. What it imports they must have.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from runnel.pipelines.errors import BadOption
from runnel.pipelines.jobs.deadletters.repair import Repair

FORM = "use module:function or file.py:function"


def repair_function(text: str) -> Repair:
    """The function of that name; shipped with the job by whoever pickles it from now on."""
    where, colon, name = text.rpartition(":")
    if not colon or not where or not name:
        raise BadOption("repair", text, FORM)
    module = _file(text, Path(where)) if where.endswith(".py") else _module(text, where)
    function = getattr(module, name, None)
    if not callable(function):
        raise BadOption("repair", text, f"{where} has no function {name}")
    _ship(module)
    found: Repair = function
    return found


def _file(text: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise BadOption("repair", text, f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"runnel_repair_{path.stem}", path)
    assert spec is not None  # a .py file has both
    loader = spec.loader
    assert loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    _run(text, lambda: loader.exec_module(module))
    return module


def _module(text: str, name: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # an installed command does not look where it was called
    found: list[ModuleType] = []
    _run(text, lambda: found.append(importlib.import_module(name)))
    return found[0]


def _run(text: str, load: Callable[[], None]) -> None:
    try:
        load()
    except Exception as error:  # a user's module may raise anything
        raise BadOption("repair", text, f"it can't be loaded: {type(error).__name__}: {error}") from error


def _ship(module: ModuleType) -> None:
    from pyspark.cloudpickle import register_pickle_by_value

    register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # pyspark's
