"""Loads pyarrow as it is where neither NumPy nor pandas is installed, which is what the core install has.

Where they are installed, pyarrow loads NumPy with itself and pandas at its first array: three times the work.
"""

from __future__ import annotations

import importlib
import os
import sys
import types

# Of the jemalloc in Arrow, which begins a thread when it is loaded, though it is not the allocator in use: a process
# with threads cannot be forked safely.
_ALLOCATOR = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}


def load() -> None:
    """For a process that runs nothing but any2ds' own code on the core install: pyarrow does not know NumPy there.

    Does nothing if pyarrow was loaded before.
    """
    if "pyarrow" in sys.modules:
        return
    hidden = [name for name in ("numpy", "pandas") if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]  # an import of it fails
    added = {name: value for name, value in _ALLOCATOR.items() if name not in os.environ}
    os.environ.update(added)
    try:
        import pyarrow

        _load_compute()
        pyarrow.array([])  # the first one looks for pandas
    finally:
        for name in hidden:
            del sys.modules[name]
        for name in added:
            del os.environ[name]


def _load_compute() -> None:
    """`pyarrow.compute`, but the docstrings of its functions do not tell their options: to parse them is half of it.

    It looks for NumPy itself, and so has to be loaded here.
    """
    parser = types.ModuleType("pyarrow.vendored.docscrape")
    parser.NumpyDocString = lambda _: {"Parameters": ()}  # type: ignore[attr-defined]
    sys.modules[parser.__name__] = parser
    try:
        importlib.import_module("pyarrow.compute")
    except Exception:  # another version of pyarrow wants more of it
        del sys.modules[parser.__name__]
        importlib.import_module("pyarrow.compute")
    finally:
        if sys.modules.get(parser.__name__) is parser:
            del sys.modules[parser.__name__]
