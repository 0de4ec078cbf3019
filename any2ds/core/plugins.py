"""Finds the implementation behind an option value, and loads it only then.

A module `any2ds/writers/formats/webdataset.py` with a class in `PART` is what `--output_format=webdataset` selects.
Other packages add theirs through entry points of the group `any2ds.writers` (readers, distributors, reporters).
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from any2ds.core.errors import MissingExtra, OptionError, error_text

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# Package that an import failed on -> the extra that brings it.
_EXTRAS = {
    "adlfs": "azure",
    "aiohttp": "https",
    "apache_beam": "beam",
    "array_record": "arrayrecord",
    "av": "video",
    "azure": "azure",
    "cv2": "image",
    "gcsfs": "gcs",
    "google": "tfrecord",  # protobuf
    "google_crc32c": "tfrecord",
    "huggingface_hub": "hf",
    "numpy": "image",
    "paramiko": "sftp",
    "PIL": "image",
    "prometheus_client": "prometheus",
    "pypdfium2": "text",
    "pyspark": "spark",
    "ray": "ray",
    "requests": "hdfs",  # webhdfs
    "s3fs": "s3",
    "smbclient": "smb",
    "smbprotocol": "smb",
    "trafilatura": "text",
    "wandb": "wandb",
    "yaml": "yaml",
}


# Kind of part -> the package whose modules are the parts, but for those that begin with an underscore.
_PACKAGES = {
    "readers": "any2ds.readers.formats",
    "writers": "any2ds.writers.formats",
    "distributors": "any2ds.distributors",
    "reporters": "any2ds.run.reporters",
    "presets": "any2ds.config.presets",
}


def names(kind: str) -> tuple[str, ...]:
    """Every name that `kind` (a key of `_PACKAGES`) can take, sorted."""
    return tuple(sorted({*_built_in(kind), *_plugins(kind)}))


def exists(kind: str, name: str | None) -> bool:
    """Whether `name` is one of `names(kind)`. What is installed is looked through only for a name that is not ours."""
    return name is not None and (is_built_in(kind, name) or name in _plugins(kind))


def is_built_in(kind: str, name: str) -> bool:
    """Whether it is a part of any2ds itself."""
    return name in _built_in(kind)


def load(kind: str, name: str) -> Any:
    """The class called `name`. Raises OptionError for an unknown name, MissingExtra for a missing library."""
    try:
        if name in _built_in(kind):
            return importlib.import_module(f"{_PACKAGES[kind]}.{name}").PART
        if name in _plugins(kind):
            return _plugins(kind)[name].load()
    except ModuleNotFoundError as error:
        raise missing_extra(f"{name} ({kind})", error) from error
    raise OptionError(f"unknown {kind[:-1]} {name!r}: one of {', '.join(names(kind))}")


def missing_extra(wanted: str, error: ImportError) -> Exception:
    """The error to raise when `wanted` failed on an import: the extra to install, or what is known of a library that no
    extra brings; the error itself if it is a part of any2ds that is missing."""
    packages = list(_packages_missing(error))
    if "any2ds" in packages:
        return error
    if extra := next((_EXTRAS[package] for package in packages if package in _EXTRAS), None):
        return MissingExtra(wanted, extra)
    return MissingExtra(wanted, "", error_text(error))


def _packages_missing(error: BaseException | None) -> Iterator[str]:
    """The packages that could not be imported, by an ImportError and those that caused it: fsspec raises one with
    advice in place of the one that names the module."""
    while error is not None:
        if isinstance(error, ImportError) and error.name:
            yield error.name.partition(".")[0]
        error = error.__cause__ or error.__context__


@cache
def _built_in(kind: str) -> frozenset[str]:
    package = importlib.util.find_spec(_PACKAGES[kind])
    if package is None or package.submodule_search_locations is None:
        raise LookupError(f"{_PACKAGES[kind]} is not a package")
    found = pkgutil.iter_modules(list(package.submodule_search_locations))
    return frozenset(module.name for module in found if not module.name.startswith("_"))


@cache
def _plugins(kind: str) -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=f"any2ds.{kind}")}
