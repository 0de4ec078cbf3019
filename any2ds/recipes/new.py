"""`any2ds new`: the folder of a recipe, whose test passes as it is made."""

from __future__ import annotations

import keyword
import os
import struct
import zlib
from collections.abc import Mapping
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from string import Template

import pyarrow as pa

from any2ds.config.options import InputOptions
from any2ds.config.recipes import NewOptions
from any2ds.core.errors import OutputError, UsageError
from any2ds.core.paths import expanded
from any2ds.readers.inputs import inputs_of
from any2ds.readers.rows import rows_as_listed
from any2ds.recipes.url_rows import columns_of
from any2ds.storage.stores import Stores

_URLS = ("url", "image_url", "link", "URL")
_CAPTIONS = ("caption", "text", "TEXT", "alt", "title")


def new(options: NewOptions) -> tuple[Path, list[str]]:
    """Make the folder; returns it and the names of its files. Raises UsageError, OutputError."""
    name = options.name
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower():
        raise UsageError(f"invalid name {name!r}: expected small letters, digits and _, such as my_flowers")
    folder = expanded(options.folder) / name
    if os.path.lexists(folder):
        raise OutputError(f"{folder} is there already")
    values = {"name": name, "class_name": "".join(part.capitalize() for part in name.split("_"))}
    made = _of_list(options.from_list, values) if options.from_list else _of_archive(values)
    made |= {
        "README.md": f"# {name}\n\nWhat the samples are, who made them, and what they are good for.\n".encode(),
        "CITATIONS.bib": b"",
        "TAGS.txt": _tags(),
        "checksums.tsv": b"url\tsize\tsha256\tfile name\n",
    }
    try:
        for path, content in made.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
    except OSError as error:
        raise OutputError(f"{folder} cannot be made: {error.strerror}") from error
    return folder, sorted(made)


def next_steps(options: NewOptions, folder: Path) -> list[str]:
    """Lines that say what to do with the folder."""
    name = folder.name
    test = f"python {folder / name}_test.py"
    place = str(folder) if folder.parent != Path() else f".{os.sep}{folder}"  # a path, not a name
    yours = f"adapt {folder / name}.py: its features, and what else is to be said"
    if not options.from_list:
        yours = f"put your own URLs and features into {folder / name}.py; those in it are examples"
    return [f"1. {test} builds it from its dummy data", f"2. {yours}", f"3. any2ds build {place}"]


def _template(name: str, values: Mapping[str, str]) -> bytes:
    text = (files("any2ds.recipes") / "templates" / name).read_text(encoding="utf-8")
    return Template(text).substitute(values).encode()


def _tags() -> bytes:
    known = (files("any2ds.recipes") / "tags.txt").read_text(encoding="utf-8")
    _, *groups = known.split("\n\n")  # after what is said about the list itself
    lines = "".join(f"#{line}\n" if line.startswith("#") else f"# {line}\n" for line in "\n".join(groups).splitlines())
    return f"# Remove the # of the tags that fit.\n{lines}".encode()


def _of_archive(values: Mapping[str, str]) -> dict[str, bytes]:
    """A recipe of an archive of images in a folder for each class."""
    return {
        f"{values['name']}.py": _template("archive.py.txt", values),
        f"{values['name']}_test.py": _template("archive_test.py.txt", values),
        **{
            f"dummy_data/{split}/{label}/{number}.png": _png(number)
            for split, numbers in (("train", (1, 2)), ("test", (3,)))
            for number in numbers
            for label in ("rose", "tulip")
        },
    }


def _of_list(path: str, values: Mapping[str, str]) -> dict[str, bytes]:
    """A recipe of a list of URLs, whose other columns are features."""
    url_col, others = _columns(path)
    features = "".join(f'                "{name}": {feature},\n' for name, feature in others.items())
    values = {
        **values,
        "url_col": url_col,
        "features": features,
        "list": str(Path(path).resolve()) if "://" not in path else path,
    }
    examples = {"any2ds.Text()": '"a text"', 'any2ds.Scalar("int64")': "1", 'any2ds.Scalar("float64")': "0.5"}
    others_of_row = "".join(f', "{name}": {examples.get(feature, "True")}' for name, feature in others.items())
    values["row"] = f'"{url_col}": url{others_of_row}'
    return {
        f"{values['name']}.py": _template("list.py.txt", values),
        f"{values['name']}_test.py": _template("list_test.py.txt", values),
        "dummy_data/images/1.png": _png(1),
        "dummy_data/images/2.png": _png(2),
    }


def _columns(path: str) -> tuple[str, dict[str, str]]:
    """The column of the URLs, and the feature for each of the others. Raises InputError."""
    (part, *_) = inputs_of(InputOptions(url_list=path), Stores())
    if part.has_only_urls:
        return "url", {}
    existing = columns_of(part)
    url_col = next((name for name in _URLS if name in existing), None)
    if url_col is None:
        raise UsageError(
            f"{path}: no column of URLs is called {', '.join(_URLS)}: rename it, or write the recipe by hand"
        )
    others = [name for name in existing if name != url_col]
    with closing(rows_as_listed(part.blocks, [url_col, *others])) as batches:
        schema = next(batches).schema
    found = {}
    for name in others:
        type = schema.field(name).type
        if pa.types.is_string(type) or pa.types.is_large_string(type):
            found[name] = "any2ds.Text()"
        elif pa.types.is_integer(type):
            found[name] = 'any2ds.Scalar("int64")'
        elif pa.types.is_floating(type):
            found[name] = 'any2ds.Scalar("float64")'
        elif pa.types.is_boolean(type):
            found[name] = 'any2ds.Scalar("bool")'
    return url_col, {
        name: feature for name, feature in found.items() if name.isprintable() and not set(name) & set('/\\."')
    }


def _png(shade: int) -> bytes:
    """A grey image of 4 x 4 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 4, 4, 8, 2, 0, 0, 0)
    rows = (b"\x00" + bytes([16 * shade % 256]) * 12) * 4
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
