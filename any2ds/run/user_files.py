"""Refuses a run that would write over what it has not made: its own url lists, and files of the user.

The names of files decide, as they lie in the output folder. That covers formats and stores alike, and costs no request:
the folder is listed anyway.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from any2ds.core import layout, plugins
from any2ds.core.errors import OutputError, printable
from any2ds.core.layout import Layout
from any2ds.core.manifest import Manifest
from any2ds.dataset import tfds
from any2ds.readers.sources import Source
from any2ds.storage.folders import OutputFolder
from any2ds.storage.lists import InputFile, relative_place

_ANOTHER = "choose another output_folder"
_SAMPLE_SHARDS = (0, 1, 12_345)  # whose names are compared with a glob
_NUMBERED = re.compile(r"(\d+)(.*)", re.ASCII | re.DOTALL)


@dataclass(frozen=True, slots=True)
class ShardNames:
    """The names that shards, and the files about all of them, have in a dataset."""

    names: Layout
    ends: frozenset[str]  # of the files of a shard, behind its number; "" for a folder
    of_all: frozenset[str]  # names of the files for TensorFlow Datasets, which tell of all shards

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> ShardNames:
        """The names in a dataset with these options, as `.any2ds/run` has them. Raises KeyError, ValueError,
        TypeError for options that do not decide them."""
        writer = plugins.load("writers", str(options["output_format"]))
        formats = [f".{name}" for name in options.get("metadata_format") or ()]
        data = [] if writer.extension is None else [f".{writer.extension}".rstrip(".")]
        ends = frozenset(["_stats.json", ".parquet", *writer.sidecars, *formats, *data])
        return cls(Layout.of(options), ends, frozenset(tfds.names_of(options)))

    def shard_of(self, name: str) -> int | None:
        """The number of the shard that has a file, or a folder, of this name."""
        match = _NUMBERED.fullmatch(name)
        if match is None or match[2] not in self.ends:
            return None
        number = int(match[1])
        return number if self.names.shard_name(number) == match[1] else None

    def has(self, name: str) -> bool:
        """Whether a dataset has such a name."""
        return name in self.of_all or self.shard_of(name) is not None


def refuse_lists_in_the_way(output: OutputFolder, source: Source, shards: ShardNames) -> None:
    """Raises OutputError if a list lies where the run writes, or if what the run writes would be read as a list: the
    list would change while it is read, and the same command could not go on."""
    names = [f"{shards.names.shard_name(shard_id)}{end}" for shard_id in _SAMPLE_SHARDS for end in shards.ends]
    paths = {file.path for file in source.input_files}
    for given in source.given:
        fs, path = output.stores.open(given)
        if path not in paths and relative_place(output.fs, output.path, fs, path) == "":
            raise OutputError(
                f"{output.url!r} is the folder of the url lists, and what any2ds writes would lie among them: nothing "
                f"was changed; {_ANOTHER}, such as {given.rstrip('/') + '/dataset'!r}"
            )
        if not glob.has_magic(path):
            continue
        from fsspec.utils import glob_translate  # which lists without globs do without

        folder = re.split(r"[*?\[]", path)[0].rpartition("/")[0] or "/"
        inside = relative_place(fs, folder, output.fs, output.path)
        is_listed = re.compile(glob_translate(path.removeprefix(folder).lstrip("/"))).match
        if inside is not None and any(is_listed(f"{inside}/{name}".lstrip("/")) for name in names):
            raise OutputError(
                f"{printable(given)} matches what any2ds writes to {output.url!r} as well, and that would be read as "
                f"lists: nothing was changed; {_ANOTHER}, or a narrower pattern"
            )
    refuse_lists(output, source.input_files, shards)


def refuse_lists(output: OutputFolder, lists: Iterable[InputFile], shards: ShardNames) -> None:
    """Raises OutputError if one of `lists` lies in `output` where `shards` or the state of a dataset lie."""
    for file in lists:
        first = (relative_place(output.fs, output.path, file.fs, file.path) or "").split("/")[0]
        plain = first.lower()  # a file system that ignores case has one file for both
        if plain in (layout.STATE_FOLDER, layout.REPORT_FILE) or shards.has(plain):
            raise OutputError(
                f"the url list {printable(file.name)} lies where any2ds writes {printable(first)} of {output.url!r}, "
                f"and would be lost: nothing was changed; {_ANOTHER}, or move the list"
            )


def refuse_users_files(
    output: OutputFolder,
    names: Iterable[str],
    before: Manifest | None,
    options: Mapping[str, Any],
    finished: Container[int],
) -> None:
    """Raises OutputError if a file among `names` has the name of a shard that a run with `options` makes, and belongs
    to no shard of the dataset that was there `before`.

    Behind the last shard that runs have begun, as far as that is known, only shards that are `finished` belong to the
    dataset. Up to there, a run that was killed may have left files without statistics.
    """
    own = ShardNames.of(before.options) if before is not None else None
    new, end = ShardNames.of(options), before.end if before is not None else None

    def is_own(name: str) -> bool:
        shard_id = own.shard_of(name) if own is not None else None
        is_begun = shard_id is not None and (end is None or shard_id < end or shard_id in finished)
        return is_begun or (own is not None and name in own.of_all)

    if users := sorted(name for name in names if new.has(name) and not is_own(name)):
        shown = " and ".join(map(printable, users[:2])) + (f" and {len(users) - 2:,} more" * (len(users) > 2))
        raise OutputError(
            f"{output.url!r} holds {shown}, which any2ds did not write and would write over: nothing was changed; "
            "move that away, or choose another output_folder"
        )
