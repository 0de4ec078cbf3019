"""A source as a pipeline of webdataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from webdataset import FluidWrapper

from any2ds.core.samples import CAPTION, METADATA, member_column
from any2ds.core.tables import to_json
from any2ds.load.delivery import CLASS
from any2ds.writers.formats._members import TEXT

if TYPE_CHECKING:
    from any2ds.load.source import Source
    from any2ds.load.stream import Stream


_CAPTION = "caption"
_TEXTS = ("_txt", "_json")  # ends of the names of further files that are texts
_EXECUTED = frozenset({"pkl", "pickle", "pyd", "pth", "pt"})  # what `decode()` of webdataset unpickles


class Pipeline(FluidWrapper):  # type: ignore[misc]  # webdataset has no types
    """Samples as webdataset has them: `__key__`, the file by its extension, `txt` and `json`; files are bytes."""

    def __init__(self, source: Source, options: Mapping[str, Any]) -> None:
        """`options` are those of the stream of the source."""
        exts = [f"{member}_ext" for member in source.members]
        # Several ranks, which webdataset does not keep in step, would disagree on an epoch that each counts.
        stream = source.undecoded("key", "ext", *exts).stream(**options).advancing(most_ranks=1)
        super().__init__(_Members(stream, source))

    def set_epoch(self, epoch: int) -> None:
        """Before it, or a loader of it, is iterated over: which epoch, and so which order."""
        self.pipeline[0].stream.set_epoch(epoch)


def _bytes_of(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value if isinstance(value, bytes) else None


def _name_of(ext: str) -> str:
    """Under which webdataset gets a file: what it would execute has another extension behind its own."""
    last = ext.lower().removesuffix(".gz").rpartition(".")[2]
    return f"{ext}.bin" if last in _EXECUTED else ext


class _Members:
    """The first stage of a pipeline of webdataset."""

    def __init__(self, stream: Stream, source: Source) -> None:
        """`stream` gives the samples of the source as they are stored."""
        self.stream, self._columns, self._files = stream, source.columns, source.members
        types = source.as_stored.features
        self._known = frozenset(name for name in types if source.has_metadata or not pa.types.is_binary(types[name]))
        self._has_classes = not source.has_metadata  # in other tools' tar files `cls` is a file
        of_recipe = source.recipe.features.files[1:] if source.recipe is not None and not source.members else ()
        self._of_steps = {member_column(ext): ext for ext in source.further}
        self._further = [leaf for leaf in of_recipe if self._columns is None or leaf.is_among(self._columns)]

    def __call__(self) -> Iterator[dict[str, Any]]:
        return map(self._of, self.stream)

    def _of(self, sample: dict[str, Any]) -> dict[str, Any]:
        data = sample.pop("data", None)
        files = {f"{name}.{sample.get(f'{name}_ext')}": sample.pop(name, None) for name in self._files}
        for leaf in self._further:
            if leaf.column in sample:  # in formats that have further files as columns
                files[leaf.column.replace("/", ".")] = sample.pop(leaf.column)
        for column, ext in self._of_steps.items():
            if content := sample.pop(column, None):  # records have an empty one in place of none
                files[TEXT if ext == CAPTION and _CAPTION in sample else ext] = _bytes_of(content)
        if self._has_classes and isinstance(sample.get(CLASS), int):
            files[CLASS] = str(sample.pop(CLASS)).encode()
        for name in [name for name in sample if name not in self._known and name != _CAPTION]:
            if isinstance(sample[name], bytes) or name.endswith(_TEXTS):
                files[".".join(name.rsplit("_", 1))] = _bytes_of(sample.pop(name))
        wanted = self._columns
        described = sample if wanted is None else {name: sample[name] for name in wanted if name in sample}
        found = {"__key__": sample["key"]}
        if data is not None:
            found[_name_of(str(sample["ext"]))] = data
        found.update((_name_of(ext), content) for ext, content in files.items() if content is not None)
        found[METADATA] = to_json(described)
        if sample.get(_CAPTION) is not None and CAPTION not in found:
            found[CAPTION] = sample[_CAPTION].encode()
        return found
