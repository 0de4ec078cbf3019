"""Finds the user's own steps: by module and name, by file and name, or as Python functions."""

from __future__ import annotations

import hashlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import operator
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.abc import SourceLoader
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from any2ds.core.errors import OptionError, error_text
from any2ds.core.paths import expanded

_EXAMPLES = "module:function, or a file and a name in it, my_step.py:clean"
_files: dict[tuple[str, bytes], ModuleType] = {}  # by path and content: what has changed is loaded anew
_loading: set[str] = set()  # names of modules


@dataclass(frozen=True, slots=True)
class StepOfFile:
    """A step in a file, with all that stands in that file: a machine that does not have the file can call the step."""

    given: str  # my_step.py:clean
    path: str  # absolute, where the run was begun
    content: bytes

    def __str__(self) -> str:
        return self.given


@dataclass(frozen=True, slots=True)
class StepObject:
    """A function or class: another process is sent its name if it is in a module, else its code."""

    step: Callable[..., Any]

    def __reduce__(self) -> tuple[Any, ...]:
        import cloudpickle  # Spark, Ray and Beam have it, too

        module = sys.modules.get(getattr(self.step, "__module__", None) or "")
        if module is not None and not _can_be_imported(module.__name__):  # made by a program, or loaded by its path
            cloudpickle.register_pickle_by_value(module)
        return _object_of, (cloudpickle.dumps(self.step),)


def _can_be_imported(module: str) -> bool:
    """Whether another process finds a module by its name."""
    top = module.partition(".")[0]
    return top == "__main__" or any(finder.find_spec(top, None) for finder in sys.meta_path)


def _object_of(pickled: bytes) -> StepObject:
    return StepObject(pickle.loads(pickled))


def check_travels(steps: Sequence[Any]) -> None:
    """Raises OptionError for a step that worker processes cannot be sent."""
    for step in steps:
        try:
            pickle.loads(pickle.dumps(carried(step)))
        except Exception as error:  # of the user's own objects
            raise OptionError(
                f"transform={name_of(step)}: worker processes cannot be sent it: {error_text(error)}: name a file,"
                " transform='my_step.py:clean', or use distributor='inline'"
            ) from error


def carried(step: Any) -> Any:
    """The step as a worker is sent it, wherever that is and however the file changes meanwhile."""
    if not isinstance(step, str):
        return step if isinstance(step, (StepOfFile, StepObject)) else StepObject(step)
    place, _, _ = name_of(step).rpartition(":")
    if not place.endswith(".py"):
        return step
    path = expanded(place).resolve()
    return StepOfFile(step, str(path), path.read_bytes())


def name_of(step: Any) -> str:
    """The name of a step in `.any2ds/run`, `module:function` or `file.py:function`, however it was given."""
    if isinstance(step, (str, StepOfFile)):
        place, colon, name = str(step).strip().rpartition(":")
        place = os.path.normpath(place).replace("\\", "/") if place.endswith(".py") else place.strip()
        return f"{place}{colon}{name.strip()}"
    step = step.step if isinstance(step, StepObject) else step
    named = step if hasattr(step, "__qualname__") else type(step)
    return f"{named.__module__}:{named.__qualname__}"


def find(step: Any) -> Callable[..., Any]:
    """The function or class that `step` names, or is. Raises OptionError if there is none."""
    if not isinstance(step, (str, StepOfFile)):
        return _called(step.step if isinstance(step, StepObject) else step, f"transform={name_of(step)}")
    place, _, name = name_of(step).rpartition(":")
    shown = f"transform={step}"
    if not place or not name or (":" in place and not place.endswith(".py")):
        raise OptionError(f"invalid {shown}: expected {_EXAMPLES}")
    try:
        step = carried(step)
        found: Any = _of_file(step) if isinstance(step, StepOfFile) else _of_name(place)
    except FileNotFoundError as error:
        raise OptionError(f"{shown}: there is no file {str(error.filename)!r}") from error
    except OptionError:
        raise
    except (Exception, SystemExit) as error:  # the user's own code runs here
        raise OptionError(f"{shown}: {place} cannot be imported: {_message(error, place)}") from error
    try:
        found = operator.attrgetter(name)(found)
    except AttributeError as error:
        raise OptionError(f"{shown}: there is no {name!r} in {_where(found, place)}") from error
    return _called(found, shown)


def _called(step: Callable[..., Any], shown: str) -> Callable[..., Any]:
    """The step itself. Raises OptionError for what cannot be called with one argument, as far as that can be known."""
    if not callable(step):
        raise OptionError(f"invalid {shown}: expected a function or class, not {type(step).__name__}")
    if inspect.iscoroutinefunction(step):
        raise OptionError(f"invalid {shown}: expected a plain function, not `async def`")
    call, count = step, 1
    if isinstance(step, type):
        if "__call__" not in dir(step):
            raise OptionError(f"invalid {shown}: the class has no __call__(self, sample)")
        if message := _why_not_called(step, 0):
            raise OptionError(f"invalid {shown}: the class must be callable without arguments ({message})")
        call = step.__call__
        count += isinstance(inspect.getattr_static(step, "__call__"), FunctionType)  # with self
    if message := _why_not_called(call, count):
        raise OptionError(
            f"invalid {shown}: a step must take one argument, a sample or with batch_size a list ({message})"
        )
    return step


def _why_not_called(function: Callable[..., Any], count: int) -> str:
    """Why it cannot be called with so many arguments; "" if it can, or that is unknown."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return ""
    try:
        signature.bind(*[None] * count)
    except TypeError as error:
        return str(error)
    return ""


def _of_name(name: str) -> ModuleType:
    """A module, of the current folder before all others, as with `python -m`.

    The folder comes last on the import path: a random.py in it must not replace Python's own.
    """
    folder, top = os.getcwd(), name.partition(".")[0]
    if top not in sys.modules or top in _loading:
        spec = importlib.machinery.PathFinder.find_spec(top, [folder])
        if spec is not None and spec.origin is not None:
            _add_to_path(folder)
            _load(spec)
    return importlib.import_module(name)


class _Loader(SourceLoader):
    """Loads the content that was read, which may not be that of the file any more."""

    def __init__(self, step: StepOfFile) -> None:
        self._step = step

    def get_filename(self, fullname: str) -> str:
        return self._step.path

    def get_data(self, path: str) -> bytes:
        if path != self._step.path:
            raise FileNotFoundError(path)  # there is no bytecode of it
        return self._step.content


def _of_file(step: StepOfFile) -> ModuleType:
    known = (step.path, step.content)
    if known not in _files:
        path = Path(step.path)
        _add_to_path(str(path.parent))
        # Not its own name alone: that may be one of a module, or of a file in another folder.
        digest = hashlib.md5(step.path.encode(), usedforsecurity=False).hexdigest()
        name = f"any2ds_step_{path.stem}_{digest[:8]}"
        spec = importlib.util.spec_from_file_location(name, path, loader=_Loader(step))
        assert spec is not None  # it has a loader
        _files[known] = _load(spec)
    return _files[known]


def _load(spec: importlib.machinery.ModuleSpec) -> ModuleType:
    assert spec.loader is not None
    if spec.name in _loading:
        raise OptionError(
            f"transform: {spec.origin} starts a download when it is imported: put that under"
            ' `if __name__ == "__main__":`'
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    _loading.add(spec.name)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(spec.name, None)
        raise
    finally:
        _loading.discard(spec.name)
    return module


def _add_to_path(folder: str) -> None:
    """Worker processes are given the import path of this one."""
    if folder not in sys.path:
        sys.path.append(folder)


def _message(error: BaseException, place: str) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name == place.partition(".")[0]:
        return f"no module {place!r} is installed, nor in {os.getcwd()!r}"
    return f"{type(error).__name__}: {error}"


def _where(found: Any, place: str) -> str:
    file = getattr(found, "__file__", None)
    return f"{place!r}" if file is None or place.endswith(".py") else f"{place!r} ({file})"
