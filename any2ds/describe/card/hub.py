"""The file of a dataset card: the YAML at its head, by which Hugging Face's `datasets` and Hub go, and our part of it.

Without it `datasets` guesses: metadata files would be data, the first five samples would say which members all have,
and a first shard without samples would be an error. The form is that of datasets 5.2 (`Features._from_yaml_list`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from any2ds.core.failures import SUCCESS
from any2ds.core.kinds import DRAWN, kind_of_ext

BEGIN = "<!-- any2ds card: what stands from here to the end mark is written anew by `any2ds card` -->"
END = "<!-- any2ds card: end -->"
DEFAULT, ALL_ROWS = "default", "all_rows"  # configurations
_PLAIN_KEY = re.compile(r"[a-z][a-z_]*")
_LINE = re.compile(r"""([a-z][a-z_]*|"(?:[^"\\]|\\.)*"):(?: (.+))?""")
_WORDS = re.compile(r"(?!(?:true|false|null|yes|no|on|off|y|n)$)[a-z][\w ./+-]*", re.IGNORECASE)  # text in YAML
_POWERS = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")
# Types that `datasets` gives the members of a tar file by the last part of their names, before anybody asks.
_TEXTS = frozenset({"txt", "text", "transcript"})
_NUMBERS = frozenset({"cls", "cls2", "index", "inx", "id"})
_OBJECTS = frozenset({"json", "jsn"})
_ARRAYS = frozenset({"ten", "tb", "mp", "msg", "npy", "npz", "cbor", "pth"})  # of types that only they know
_VALUES: Mapping[pa.DataType, str] = {
    pa.null(): "string",  # of a column that has had no value yet
    pa.bool_(): "bool",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "large_binary",
    pa.float16(): "float16",
    pa.float32(): "float32",
    pa.float64(): "float64",
    pa.date32(): "date32",
    pa.date64(): "date64",
    **{getattr(pa, name)(): name for bits in (8, 16, 32, 64) for name in (f"int{bits}", f"uint{bits}")},
}


def size_category(samples: int) -> str:
    """The Hub's word for so many."""
    place = min(len(_POWERS), max(0, len(str(samples)) - 3))
    if place in (0, len(_POWERS)):
        return f"n<{_POWERS[0]}" if not place else f"n>{_POWERS[-1]}"
    return f"{_POWERS[place - 1]}<n<{_POWERS[place]}"


def configs(
    name: str, files: Sequence[Mapping[str, Any]], all_files: Sequence[Mapping[str, Any]] | None, state: str
) -> list[dict[str, Any]]:
    """Files of each split, in the configuration that `load_dataset` takes without another word.

    With `all_files`, rows that are not stored are left out, and a second configuration has them. `state` is another
    text for each dataset, and for each state of one: of a local folder `datasets` keeps what it has read under the
    folder's last name and this header, and would give the rows of another folder, or those before a retry.
    """
    described = {"description": f"version {state} of the files: with another one, `datasets` reads them anew"}
    first = {"config_name": name, **({"default": True} if name != DEFAULT else {}), "data_files": files}
    if all_files is None:
        return [{**first, **described}]
    stored = [["status", "==", SUCCESS]]
    return [
        {**first, "filters": stored, **described},
        {"config_name": ALL_ROWS, "data_files": all_files, **described},
    ]


def features_of_members(exts: Iterable[str], schema: pa.Schema) -> list[dict[str, Any]] | None:
    """Features of tar files whose samples have members with these extensions, any of which may be absent.

    `schema` is that of the metadata, which the `.json` of a sample says. None if `datasets` has to find out by itself.
    """
    names = list(exts)
    # A column of sounds can be read with torchcodec alone, which only a dataset of sounds is worth.
    is_sound = media_feature(ext for ext in names if ext not in ("txt", "json")) == "audio"
    fields = [_member(ext, schema, is_sound) for ext in names]
    if not fields or None in fields:
        return None
    own = [{"name": name, "dtype": "string"} for name in ("__key__", "__url__")]
    return [*(field for field in fields if field is not None), *own]


def _member(ext: str, schema: pa.Schema, is_sound: bool) -> dict[str, Any] | None:
    end = ext.rpartition(".")[2].lower()
    if ext == "json" and (values := _all(schema, is_json=True)) is not None:
        return {"name": ext, "struct": values}
    if end in _ARRAYS:
        return None
    if end in _OBJECTS:
        return {"name": ext, "dtype": "json"}
    if end in _TEXTS or end in _NUMBERS:
        return {"name": ext, "dtype": "string" if end in _TEXTS else "int64"}
    feature = media_feature([ext])
    return {"name": ext, "dtype": "binary" if feature is None or (feature == "audio" and not is_sound) else feature}


def media_feature(exts: Iterable[str]) -> str | None:
    """image, audio or video if all files with these extensions can be decoded as such."""
    kinds = {None if ext.lower() in DRAWN else kind_of_ext(ext) for ext in exts}
    (kind,) = kinds if len(kinds) == 1 else (None,)
    return kind if kind in ("image", "audio", "video") else None


def features_of_columns(schema: pa.Schema, data_column: str, feature: str) -> list[dict[str, Any]] | None:
    """Features of parquet files of which one column holds images or the like; None if a type has no name there."""
    others = _all(pa.schema([field for field in schema if field.name != data_column]), is_json=False)
    if others is None:
        return None
    by_name = {each["name"]: each for each in others}
    return [by_name.get(name, {"name": name, "dtype": feature}) for name in schema.names]


def _all(fields: Iterable[pa.Field], is_json: bool) -> list[dict[str, Any]] | None:
    found = [(field.name, _feature(field.type, is_json)) for field in fields]
    return None if any(type is None for _, type in found) else [{"name": name, **(type or {})} for name, type in found]


def _feature(type: pa.DataType, is_json: bool) -> dict[str, Any] | None:
    """As YAML has it; what JSON has no notation for is text there (see `tables.plain`)."""
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        inner = _feature(type.value_type, is_json)
        name = "large_list" if pa.types.is_large_list(type) and not is_json else "list"
        return None if inner is None else {name: inner.get("struct", inner)}
    if pa.types.is_struct(type):
        inside = _all([type.field(n) for n in range(type.num_fields)], is_json)
        return None if inside is None else {"struct": inside}
    if is_json:
        if pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_boolean(type):
            return {"dtype": _VALUES[type]}
        return None if pa.types.is_nested(type) else {"dtype": "string"}
    if pa.types.is_timestamp(type) or pa.types.is_time(type) or pa.types.is_duration(type):
        name = str(type)
        return {
            "dtype": name if not pa.types.is_timestamp(type) or not type.tz else f"timestamp[{type.unit}, tz={type.tz}]"
        }
    known = _VALUES.get(type)
    return None if known is None else {"dtype": known}


def header(content: Mapping[str, Any]) -> str:
    """The YAML between the first two lines of `---`, with them.

    Every value is JSON, which YAML 1.2 contains, so that nothing in a text is read as something else; a list has a
    line for each item. That needs no library, neither to write nor, in `split`, to read.
    """
    lines: list[str] = []
    for name, value in content.items():
        if isinstance(value, list) and value:
            lines += [f"{_key(name)}:", *(f"- {_json(item)}" for item in value)]
        else:
            lines.append(f"{_key(name)}: {_json(value)}")
    return "\n".join(["---", *lines, "---", ""])


def split(card: str) -> tuple[dict[str, Any] | None, str]:
    """The header of a card, None where it has none, and what follows.

    Beside what `header` writes, it reads single words, as people add them. Raises ValueError for other YAML.
    """
    lines = card.removeprefix("\ufeff").splitlines(keepends=True)
    marks = [number for number, line in enumerate(lines) if line.rstrip() == "---"]
    if len(marks) < 2 or marks[0] != 0:
        return None, card
    found: dict[str, Any] = {}
    items: list[Any] = []  # of the list that is read
    for number, line in enumerate(lines[1 : marks[1]], start=2):
        if line.startswith("- "):
            items.append(_value_of(line[2:], number))
        elif (match := _LINE.fullmatch(line.rstrip())) is not None:
            name, value = match.groups()
            items = []
            name = _value_of(name, number) if name.startswith('"') else name
            found[name] = _value_of(value, number) if value else items
        else:
            raise ValueError(f"line {number} is not name: value")
    return found, "".join(lines[marks[1] + 1 :])


def _value_of(written: str, line: int) -> Any:
    written = written.strip()
    if _WORDS.fullmatch(written):
        return written
    try:
        return json.loads(written)
    except (ValueError, RecursionError):
        raise ValueError(f"line {line} has a value that is not JSON") from None


def _key(name: str) -> str:
    return name if _PLAIN_KEY.fullmatch(name) else _json(name)


def _json(value: Any) -> str:
    written = json.dumps(value, ensure_ascii=False)
    # Characters that YAML does not allow in a text, or takes for the end of a line, which would end the header.
    return "".join(char if char.isprintable() or char > "\uffff" else json.dumps(char)[1:-1] for char in written)


def parts(card: str) -> tuple[str, str] | None:
    """Text before and behind our part, as people left it; None where there is no such part."""
    lines = card.splitlines(keepends=True)
    begins = [number for number, line in enumerate(lines) if line.strip() == BEGIN]
    ends = [number for number, line in enumerate(lines) if line.strip() == END]
    if not begins or not ends or begins[0] >= ends[-1]:
        return None
    return "".join(lines[: begins[0]]), "".join(lines[ends[-1] + 1 :])
