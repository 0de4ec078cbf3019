"""A source as Grain and webdataset take it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from any2ds.core.samples import CAPTION, METADATA
from any2ds.core.tables import to_json
from any2ds.dataset.load.libraries import imported

if TYPE_CHECKING:
    from any2ds.dataset.load.source import Source
    from any2ds.dataset.load.stream import Stream


def grain_options(is_local: bool) -> Any:
    """One thread reads ahead of local files, which take less time than threads take from each other; 16 of a store."""
    grain = imported("grain", "read_options")
    return grain.ReadOptions(num_threads=1 if is_local else 16, prefetch_buffer_size=64 if is_local else 500)


def webdataset(source: Source, options: Mapping[str, Any]) -> Any:
    """Samples as webdataset has them: `__key__`, the file by its extension, `txt` and `json`; files are bytes."""
    wds = imported("webdataset", "to_webdataset")
    return wds.FluidWrapper(_Members(source.undecoded("key", "ext").stream(**options), source.columns))


class _Members:
    """The first stage of a pipeline of webdataset."""

    def __init__(self, stream: Stream, columns: tuple[str, ...] | None) -> None:
        """`columns` are those that the `.json` has; None: all."""
        self._stream, self._columns = stream, columns

    def __call__(self) -> Iterator[dict[str, Any]]:
        return map(self._of, self._stream)

    def _of(self, sample: dict[str, Any]) -> dict[str, Any]:
        data = sample.pop("data", None)
        wanted = self._columns
        described = sample if wanted is None else {name: sample[name] for name in wanted if name in sample}
        found = {"__key__": sample["key"]}
        if data is not None:
            found[str(sample["ext"])] = data
        found[METADATA] = to_json(described)
        if sample.get("caption") is not None and CAPTION not in found:
            found[CAPTION] = sample["caption"].encode()
        return found
