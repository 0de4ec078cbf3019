"""Refuses a run that would write over what it has not made: its own url lists, and files of the user.

The names of files decide, as they lie in the output folder. That covers formats and stores alike, and costs no request:
the folder is listed anyway.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from any2ds.config.options import Config
from any2ds.core import layout, plugins
from any2ds.core.errors import OutputError, printable
from any2ds.core.layout import Layout
from any2ds.dataset import tfds
from any2ds.readers.sources import Source
from any2ds.storage.folders import OutputFolder
from any2ds.storage.lists import InputFile, relative_place
from any2ds.storage.stores import Stores

_ANOTHER = "choose another output_folder"
_NUMBERED = re.compile(r"(\d+)(.*)", re.ASCII | re.DOTALL)
_SAMPLE_SHARDS = (0, 1, 12_345)  # whose names are compared with a glob

Kind = Literal["stats", "file", "folder"]


@dataclass(frozen=True, slots=True)
class ShardNames:
    """The names that shards, and the files about all of them, have in a dataset."""

    names: Layout
    extension: str | None  # of the data, as a writer declares it
    ends: frozenset[str]  # of the files beside the data
    of_all: frozenset[str]  # names of the files for TensorFlow Datasets, which tell of all shards

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> ShardNames:
        """The names in a dataset with these options, as `.any2ds/run` has them. Raises KeyError, ValueError,
        TypeError for options that do not decide them."""
        names = Layout.of(options)
        writer = plugins.load("writers", str(options["output_format"]))
        formats = (f".{name}" for name in options.get("metadata_format") or ())
        ends = frozenset({".parquet", *writer.sidecars, *formats})
        return cls(names, writer.extension, ends, frozenset(tfds.names_of(options)))

    def sort(self, names: Iterable[str]) -> tuple[list[str], list[str], list[str]]:
        """Among `names`, the statistics of shards, their data and metadata, and their folders."""
        found: dict[Kind, list[str]] = {"stats": [], "file": [], "folder": []}
        for name in sorted(names):
            if (which := self._kind_of(name)) is not None:
                found[which[0]].append(name)
        return found["stats"], found["file"], found["folder"]

    def has(self, name: str) -> bool:
        """Whether a dataset has such a name."""
        return name in self.of_all or self._kind_of(name) is not None

    def has_begun(self, name: str, end: int | None, finished: Container[int]) -> bool:
        """Whether it is the name of a shard that is numbered below `end`, or `finished`; None: of any shard."""
        if name in self.of_all:
            return True
        which = self._kind_of(name)
        return which is not None and (end is None or which[1] < end or which[1] in finished)

    def _kind_of(self, name: str) -> tuple[Kind, int] | None:
        """What is called so, and the number of its shard."""
        match = _NUMBERED.fullmatch(name)
        if match is None or self.names.shard_name(number := int(match[1])) != match[1]:
            return None
        if name == self.names.stats_name(number):
            return "stats", number
        if match[2] in self.ends or (self.extension and match[2] == f".{self.extension}"):
            return "file", number
        return ("folder", number) if self.extension == "" and not match[2] else None

    def of_shard(self, shard_id: int) -> list[str]:
        """All names of the files of a shard."""
        ends = [*self.ends, "" if self.extension == "" else f".{self.extension or 'parquet'}", "_stats.json"]
        return [f"{self.names.shard_name(shard_id)}{end}" for end in ends]


def refuse_lists_in_the_way(config: Config, output: OutputFolder, source: Source) -> None:
    """Raises OutputError if a list lies where the run writes, or if what the run writes would be read as a list."""
    shards = ShardNames.of(config.to_options())
    _refuse_own_output_as_list(config, output, source, shards)
    refuse_lists(output, source.input_files, shards)


def refuse_lists(output: OutputFolder, lists: Iterable[InputFile], shards: ShardNames) -> None:
    """Raises OutputError if one of `lists` lies in `output` where `shards` or the state of a dataset lie."""
    for file in lists:
        inside = relative_place(output.fs, output.path, file.fs, file.path)
        if not inside:
            continue
        first = inside.split("/")[0]
        plain = first.lower()  # a file system that ignores case has one file for both
        if plain in (layout.STATE_FOLDER, layout.REPORT_FILE) or shards.has(plain):
            raise OutputError(
                f"the url list {printable(file.name)} lies where any2ds writes {printable(first)} of {output.url!r}, "
                f"and would be lost: nothing was changed; {_ANOTHER}, or move the list"
            )


def _refuse_own_output_as_list(config: Config, output: OutputFolder, source: Source, shards: ShardNames) -> None:
    """Raises OutputError if a folder or a glob of lists takes in the files of the dataset: the list would change while
    it is read, and the same command could not go on."""
    stores = Stores(config.storage.storage_options)
    names = {name for shard_id in _SAMPLE_SHARDS for name in shards.of_shard(shard_id)}
    for given in source.given:
        fs, path = stores.open(os.path.expanduser(given))
        if relative_place(output.fs, output.path, fs, path) == "":
            another = f"{given.rstrip('/')}/dataset"
            raise OutputError(
                f"{output.url!r} is the folder of the url lists, and what any2ds writes would lie among them: nothing "
                f"was changed; {_ANOTHER}, such as {another!r}"
            )
        if not glob.has_magic(path):
            continue
        folder = re.split(r"[*?\[]", path)[0].rpartition("/")[0] or "/"
        inside = relative_place(fs, folder, output.fs, output.path)
        pattern = path.removeprefix(folder).lstrip("/")
        if inside is not None and any(_matches(f"{inside}/{name}".lstrip("/"), pattern) for name in names):
            raise OutputError(
                f"{printable(given)} matches what any2ds writes to {output.url!r} as well, and that would be read as "
                f"lists: nothing was changed; {_ANOTHER}, or a narrower pattern"
            )


def _matches(path: str, pattern: str) -> bool:
    """Whether a glob takes in a path; ** stands for any number of folders."""
    if "**" in pattern:
        return fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(path, pattern.replace("**/", ""))
    parts, patterns = path.split("/"), pattern.split("/")
    return len(parts) == len(patterns) and all(map(fnmatch.fnmatchcase, parts, patterns))


def refuse_users_files(
    output: OutputFolder,
    names: Iterable[str],
    own: ShardNames | None,
    new: ShardNames,
    end: int | None = None,
    finished: Container[int] = (),
) -> None:
    """Raises OutputError if a file among `names` has the name of a `new` shard, and belongs to no shard of the dataset
    that is there, whose shards have the names `own`.

    `end` is the number behind the last shard that runs have begun, as far as that is known: from there on, only shards
    that are `finished` belong to the dataset. Before it, a run that was killed may have left files without any.
    """
    users = [name for name in names if new.has(name) and not (own and own.has_begun(name, end, finished))]
    if users:
        shown = " and ".join(map(printable, sorted(users)[:2])) + (f" and {len(users) - 2:,} more" * (len(users) > 2))
        raise OutputError(
            f"{output.url!r} holds {shown}, which any2ds did not write and would write over: nothing was changed; "
            "move that away, or choose another output_folder"
        )
