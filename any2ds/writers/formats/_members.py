"""The files that stand for one sample in formats made of files: the media file, `.txt`, `.json`."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from typing import Any

import orjson
import pyarrow as pa

from any2ds.core.errors import DamagedShard
from any2ds.core.kinds import kind_of_ext
from any2ds.core.members import member_of_ext
from any2ds.core.metadata import STORED_BYTES, MetadataTable
from any2ds.core.samples import CAPTION, METADATA, Sample, member_column, member_value
from any2ds.core.tables import is_bytes, is_list, value_of_text
from any2ds.writers.contract import Fields

TEXT = "text.txt"
"""The extension of what was taken out of a document that has a caption as well; readers decode it as `txt`."""
_STORED_BYTES = STORED_BYTES.name


def members(sample: Sample, metadata: MetadataTable) -> list[tuple[str, int, Iterable[bytes | memoryview]]]:
    """Name, size in bytes and content of each, in the order in which they are stored."""
    key = sample.key
    found: list[tuple[str, int, Iterable[bytes | memoryview]]] = []
    if sample.body is not None:
        found.append((f"{key}.{sample.ext}", sample.body.size, sample.body.chunks()))
        for ext, further in sample.extra_files.items():
            if ext.lower() == CAPTION and metadata.has_captions:  # whose name it is
                ext = TEXT
            found.append((f"{key}.{ext}", further.size, further.chunks()))
    if metadata.has_captions:
        caption = (sample.row.caption or "").encode()
        found.append((f"{key}.txt", len(caption), (caption,)))
    described = metadata.to_json(sample)
    found.append((f"{key}.json", len(described), (described,)))
    return found


_NAME = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)  # as webdataset splits it
_META = re.compile(r"__[^/]*__(/|$)")  # at the beginning of a name that webdataset passes over


def key_and_ext(name: str) -> tuple[str, str] | None:
    """Key and extension of a member by its name, as webdataset has them; None for members that it passes over: hidden
    files, `README`. The key has the folder, without `./` at its beginning."""
    found = None if _META.match(name) else _NAME.fullmatch(name)
    return None if found is None else (found[1].removeprefix("./"), found[2])


class MemberDecoder:
    """Makes of the files of a sample what `load` gives of it: its metadata are those in its `.json`.

    Values that JSON has no notation for get the type of their column in the metadata again; a NaN stays None.
    """

    def __init__(self, fields: Fields) -> None:
        self._columns, self._members = fields.columns, frozenset(fields.members)
        self._further = tuple(field.name for field in fields.further)
        self._knows_size = fields.data_column is not None  # others may mean something else by `bytes`
        schema = fields.schema or ()
        restored = {field.name: make for field in schema if (make := _from_json(field.type)) is not None}
        columns = fields.columns
        self._restored = {name: make for name, make in restored.items() if columns is None or name in columns}

    def row(self, key: str, members: dict[str, bytes]) -> dict[str, Any]:
        """`members` are the content of its files by extension, which this changes. Raises DamagedShard."""
        if not self._knows_size:
            members = _in_lower_case(key, members)
        described = members.pop(METADATA, None)
        try:
            sample = {} if described is None else orjson.loads(described)
        except ValueError as error:
            raise DamagedShard(f"{key!r}: its {METADATA} cannot be read: {error}") from error
        if type(sample) is not dict:
            sample = {METADATA: sample}
        ext = sample.get("ext")
        if ext not in members:
            if self._knows_size and ext is not None:
                raise DamagedShard(f"{key!r} is without its file")
            ext = min(members, key=_rank, default=None)  # in datasets of other tools
        data = None if ext is None else members.pop(ext)
        if self._knows_size and data is not None:
            size = sample.get(_STORED_BYTES)
            if (size := sample.get("bytes") if size is None else size) is not None and len(data) != size:
                raise DamagedShard(f"{key!r}: its file has {len(data):,} bytes, its metadata say {size}")
        if members:
            text = members.pop(CAPTION, None)
            if text is not None and "caption" not in sample:
                sample["caption"] = text.decode("utf-8", "replace")
            for further, content in members.items():
                if member := member_of_ext(further, self._members):
                    sample[member] = content
                else:
                    sample[member_column(further)] = member_value(further, content)
        if self._members:
            for member in self._members:
                sample.setdefault(member, None)
            if ext and (member := member_of_ext(ext, self._members)):
                sample[member] = data
        sample["key"], sample["ext"], sample["data"] = key, ext, data
        for name in self._further:
            sample.setdefault(name, None)
        for name, restore in self._restored.items():
            if (value := sample.get(name)) is not None:
                sample[name] = restore(value)
        return sample if self._columns is None else {name: sample.get(name) for name in self._columns}


def _in_lower_case(key: str, members: dict[str, bytes]) -> dict[str, bytes]:
    """As webdataset has the files of other tools. Raises DamagedShard for names that are one then, which it refuses."""
    found = {ext.lower(): content for ext, content in members.items()}
    if len(found) < len(members):
        raise DamagedShard(f"{key!r}: two of its files have one name: {', '.join(members)}")
    return found


@lru_cache(1024)
def _rank(ext: str) -> tuple[bool, bool, bool]:
    """Rank of a file as the data of its sample, where nothing says it: an image, sound or video before others, `jpg`
    before `depth.png`, and a caption at last."""
    return ext == CAPTION, kind_of_ext(ext) in ("", "text"), "." in ext


def _from_json(type: pa.DataType) -> Callable[[Any], Any] | None:
    """How a value of this type is made of the text that stands for it; None if JSON has it as it is."""
    of = pa.types
    if is_bytes(type):
        return base64.b64decode
    if is_list(type):
        restore = _from_json(type.value_type)
        return None if restore is None else lambda values: [None if each is None else restore(each) for each in values]
    if of.is_struct(type):
        parts = {field.name: make for field in type if (make := _from_json(field.type)) is not None}
        return partial(_with_parts, parts) if parts else None
    if not (of.is_temporal(type) or of.is_decimal(type)):
        return None
    return lambda text: value_of_text(text, type)


def _with_parts(parts: Mapping[str, Callable[[Any], Any]], value: Mapping[str, Any]) -> dict[str, Any]:
    """A struct, with `parts` made of the texts that stand for them."""
    return {name: parts[name](each) if name in parts and each is not None else each for name, each in value.items()}
