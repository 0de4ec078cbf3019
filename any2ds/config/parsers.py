"""Parsers of the values of options, and the only place where values are checked.

Each turns what a person gave (text from the command line, any value from Python or YAML) into the option's type, and
raises ValueError with a message that says what it takes.
"""

from __future__ import annotations

import ipaddress
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from any2ds.config.declare import Parser, option
from any2ds.core import failures, plugins, suggestions
from any2ds.core.errors import OptionError
from any2ds.core.schemes import GUARDED, WEB

P = TypeVar("P", bound=Parser)

# The largest values of options that have no limit of their own. They stay exact as a float, and the next users of a
# value can carry it and multiply it: Arrow's int64, libcurl's long, time.
_LARGEST_COUNT = 10**15
_LONGEST_PAUSE = 86_400  # seconds
_LARGEST_NUMBER = 1e9
_LARGEST_SIZE = 2**50  # 1 PiB


def secret(parse: Parser) -> Parser:
    """A parser for a value that may be a credential."""
    hidden = _as_with(parse, lambda value: parse(value))
    hidden.is_secret = True  # type: ignore[attr-defined]
    return hidden


def accepting(types: str) -> Callable[[P], P]:
    """Declares the types that a parser takes besides the one that it returns, as the stub of the package shows them."""

    def declare(parse: P) -> P:
        parse.accepts = types  # type: ignore[attr-defined]
        return parse

    return declare


def _as_with(parse: Parser, outer: Parser) -> Parser:
    """`outer`, which takes what `parse` takes."""
    outer.choices = getattr(parse, "choices", tuple)  # type: ignore[attr-defined]
    outer.accepts = getattr(parse, "accepts", "")  # type: ignore[attr-defined]
    return outer


def text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a text that is not empty")
    return value


def optional(parse: Parser) -> Parser:
    """A parser that takes None as well. An empty text is refused: it comes from a variable that is not set, and whoever
    wrote that variable wanted something."""

    def parse_or_none(value: Any) -> Any:
        if isinstance(value, str):
            if not value.strip():
                raise ValueError("a value that is not empty, or None for none")
            if value in ("None", "none", "null"):
                return None
        return None if value is None else parse(value)

    return _as_with(parse, parse_or_none)


def boolean(value: Any) -> bool:
    yes, no = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
    values = {**dict.fromkeys(yes, True), **dict.fromkeys(no, False)}
    try:
        return values[str(value).lower()]
    except KeyError:
        raise ValueError("True or False") from None


def wanting(wanted: str, parse: Parser) -> Parser:
    """`parse` with a message that names what is `wanted`."""

    def parse_or_say(value: Any) -> Any:
        try:
            return parse(value)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(wanted) from None

    return _as_with(parse, parse_or_say)


def number(at_least: float, at_most: float = _LARGEST_NUMBER) -> Parser:
    """A number; `inf` is one only where `at_most` says so."""

    def parse(value: Any) -> float:
        found = float(value) if not isinstance(value, bool) else math.nan
        if not at_least <= found <= at_most:
            raise ValueError
        return found

    return wanting(f"a number of at least {at_least:g}{f' and at most {at_most:,.10g}' * (at_most < math.inf)}", parse)


def integer(at_least: int, at_most: int = _LARGEST_COUNT) -> Parser:
    in_range = number(at_least, at_most)

    def parse(value: Any) -> int:
        if (found := in_range(value)) != int(found):
            raise ValueError
        return int(found)

    return wanting(f"a whole number of at least {at_least:,} and at most {at_most:,}", parse)


seconds = wanting("a number of seconds below 1,000,000,000; 0 for no limit", number(0))  # at most 32 years
pause = wanting(f"a number of seconds, at most {_LONGEST_PAUSE:,} (a day)", number(0, _LONGEST_PAUSE))
"""Seconds that a run waits: with more than a day it would not come to its end."""


def optional_limit(parse: Parser) -> Parser:
    """An optional limit; 0 means no limit, and is None like a limit that is not given."""
    return _as_with(parse, lambda value: optional(parse)(value) or None)


@accepting("float")
def share(value: Any) -> str:
    """`1%`, `0.5%`, or a whole number; in Python also a fraction below 1."""
    wanted = "a part such as 1%, or a number of shards such as 20"
    if isinstance(value, float) and 0 < value < 1:
        value = f"{round(value * 100, 10):f}%"
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", str(value).strip(), re.ASCII)
    if found is None or float(found[1]) == 0 or (found[2] and float(found[1]) > 100):
        raise ValueError(wanted)
    if not found[2] and ("." in found[1] or float(found[1]) > _LARGEST_COUNT):
        raise ValueError(wanted)
    return found[0]


def _scaled(pattern: str, units: Mapping[str, float], at_least: float, at_most: float) -> Parser:
    """A whole number, written with a unit; the pattern has a group for each."""

    def parse(value: Any) -> int:
        match = re.fullmatch(pattern, str(value).strip().lower().replace("_", ""), re.ASCII)
        size = float(match[1]) * units[match[2]] if match is not None and match[2] in units else -1
        if not at_least <= size <= at_most:
            raise ValueError
        return int(size)

    return parse


_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_NUMBER = r"(\d+(?:\.\d+)?(?:e\d+)?)\s*"


def size(at_least: int = 1, at_most: int = _LARGEST_SIZE, shown: str = "1024TiB") -> Parser:
    """Bytes: `500000`, `200MB`, `1GiB`."""
    parse = _scaled(rf"{_NUMBER}([kmgt]?i?)b?", {**_DECIMAL, **_BINARY}, at_least, at_most)
    return accepting("str")(wanting(f"a size such as 500000, 200MB or 1GiB, and at most {shown}", parse))


byte_count = size()
bit_rate = wanting(
    "bits per second such as 100Mbit or 1Gbit, and at most 1000Tbit",
    _scaled(rf"{_NUMBER}([kmgt]?)(?:bit(?:/s|s)?|bps)?", _DECIMAL, 1, _LARGEST_COUNT),
)


def integers(at_least: int) -> Parser:
    """Several whole numbers, separated by commas, each once, in order."""
    one = integer(at_least)

    def parse(value: Any) -> tuple[int, ...]:
        parts = value.split(",") if isinstance(value, str) else value if isinstance(value, Sequence) else [value]
        if not parts:
            raise ValueError
        return tuple(sorted(set(map(one, parts))))

    wanted = f"whole numbers of at least {at_least}, separated by commas"
    return accepting("int | Sequence[int] | str")(wanting(wanted, parse))


@accepting("Path")
def local_folder(value: Any) -> str:
    found = path(value)
    if re.match(r"\w[\w+.-]+:/", found):  # also s3:/x, which libraries take for a store
        raise ValueError("a folder of this machine")
    return found


@accepting("str | Callable[..., Any] | Sequence[str | Callable[..., Any]]")
def steps(value: Any) -> tuple[Any, ...]:
    """One, or several separated by commas; from Python also functions, which pass as they are."""
    several = value if isinstance(value, Sequence) and not isinstance(value, str) else None
    if several is None:
        return names(value) if isinstance(value, str) else (_callable(value),)
    return tuple(part if isinstance(part, str) and part.strip() else _callable(part) for part in several)


def _callable(value: Any) -> Any:
    if not callable(value):
        raise ValueError("module:function or file.py:function, several separated by commas")
    return value


def names(value: Any) -> tuple[str, ...]:
    """`a,b`, `[a, b]`, `["a", "b"]` or a list: people should not have to quote JSON in a shell."""
    if isinstance(value, str):
        value = [part.strip().strip("\"'") for part in _without_brackets(value).split(",")]
    found = tuple(value) if isinstance(value, Iterable) else (value,)
    if not all(isinstance(part, str) and part.strip() for part in found):
        raise ValueError("names separated by commas")
    return found


@accepting("Mapping[str, str]")
def url_columns(value: Any) -> str:
    """A column, or `member:column,member:column` where a row has several URLs; from Python also a mapping."""
    from any2ds.core.members import columns_of

    if isinstance(value, Mapping):
        if len(value) < 2 or any("," in str(column) for column in value.values()):
            raise ValueError("at least two members, each with its column, whose name has no comma")
        value = ",".join(f"{name}:{column}" for name, column in value.items())
    columns_of(text(value))
    return str(value)


def separator(value: Any) -> str:
    """The separator of the values of a line: one character, with a blank behind it if values follow that."""
    names = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "pipe": "|", "blank": " "}
    written = names.get(value, value) if isinstance(value, str) else ""
    if len(written.rstrip(" ") or written) != 1 or written[0] in '"\r\n\0':
        raise ValueError("one character, such as ';' or tab; or one and a blank, ', '")
    if not written[0].isascii():
        raise ValueError("a character of ASCII")
    return written


def encoding(value: Any) -> str:
    """The name of an encoding of text, as Python knows it."""
    import codecs

    try:
        found = codecs.lookup(text(value))
    except (LookupError, ValueError):
        raise ValueError("an encoding, such as latin-1, cp1252, shift_jis or utf-16-le") from None
    if not getattr(found, "_is_text_encoding", True):
        raise ValueError("an encoding of text")
    return found.name


def url_template(value: Any) -> str:
    """A URL with names of columns in braces."""
    if not re.search(r"\{[^{}]+\}", text(value)):
        raise ValueError("a URL with columns in braces, such as https://host/{id}.jpg")
    return str(value)


def web_scheme(value: Any) -> str:
    """The scheme of URLs that have none."""
    written = str(value).rstrip(":/").lower()
    if written not in ("http", "https"):
        raise ValueError("http or https")
    return written


def required_members(value: Any) -> str:
    """all, any, or names of members."""
    return ",".join(names(value))


def _without_brackets(written: str) -> str:
    """`a,b` of `[a,b]` and `(a,b)`."""
    match = re.fullmatch(r"\s*(?:\[(.*)\]|\((.*)\))\s*", written)
    return written if match is None else match[1] if match[1] is not None else match[2]


def flags(value: Any) -> tuple[str, ...]:
    """Flags of another program: `--a=1,--b`, `["--a=1", "--b"]` or a list. A comma separates two where `--` follows."""
    if isinstance(value, str):
        try:
            listed = json.loads(value)
        except ValueError:
            listed = re.split(r"\s*,\s*(?=--)", value.strip())
        value = listed
    found = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else ()
    if not found or not all(isinstance(flag, str) and re.match(r"--\w", flag) for flag in found):
        raise ValueError("flags such as --name=value,--other=value, or a list of them")
    return found


@dataclass(frozen=True, slots=True)
class HashCheck:
    """The kind of hash that the list has of each file, and its column."""

    column: str  # of the url list
    kind: str  # md5, sha256 or sha512

    def __str__(self) -> str:
        return f"{self.column}:{self.kind}"

    @property
    def parts(self) -> tuple[HashCheck, ...]:
        return (self,)

    def of(self, member: str) -> HashCheck | None:
        """The check of the files of a member, whose name stands before the column; of a row with one URL for ""."""
        if not member:
            return self
        own, _, column = self.column.partition(":")
        return HashCheck(column, self.kind) if own == member else None


@dataclass(frozen=True, slots=True)
class HashChecks:
    """Hash checks of several members of a sample."""

    parts: tuple[HashCheck, ...]

    def __str__(self) -> str:
        return ",".join(map(str, self.parts))

    def of(self, member: str) -> HashCheck | None:
        return next((found for part in self.parts if (found := part.of(member)) is not None), None)


_KINDS_OF_HASHES = ("md5", "sha256", "sha512")
_OF_MEMBER = re.compile(rf"\s*[a-z]\w*\s*:[^,]+:\s*(?:{'|'.join(_KINDS_OF_HASHES)})\s*", re.ASCII)


@accepting("str | Sequence[str] | Mapping[str, str | Sequence[str]]")
def hash_check(value: Any) -> HashCheck | HashChecks:
    """`column:kind`, `[column, kind]`, `["column", "kind"]` or a list of both.

    Of several files of a sample: `member:column:kind,member:column:kind`, or a mapping of members.
    """
    wanted = "a column and what it holds, md5, sha256 or sha512: column:sha256"
    if isinstance(value, (HashCheck, HashChecks)):
        return value
    if isinstance(value, Mapping):
        of = {str(member): _hash_check(given, wanted) for member, given in value.items()}
        parts = tuple(HashCheck(f"{member}:{each.column}", each.kind) for member, each in of.items())
        if not parts or any("," in part.column for part in parts):
            raise ValueError("the column and the kind of each member, whose name has no comma")
        return parts[0] if len(parts) == 1 else HashChecks(parts)
    if isinstance(value, str) and "," in value and all(map(_OF_MEMBER.fullmatch, value.split(","))):
        found = [part.strip().split(":", 1) for part in value.split(",")]
        if len({member.strip() for member, _ in found}) < len(found):
            raise ValueError("each member once")
        return hash_check({member.strip(): check for member, check in found})
    return _hash_check(value, wanted)


def _hash_check(value: Any, wanted: str) -> HashCheck:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            # The name of a column may contain either separator.
            match = re.fullmatch(r"(.*)[:,]([^:,]*)", _without_brackets(value), re.DOTALL)
            value = [part.strip().strip("\"'") for part in match.groups()] if match else []
    if not isinstance(value, Sequence) or len(value) != 2 or not all(isinstance(part, str) for part in value):
        raise ValueError(wanted)
    column, kind = value[0], value[1].strip().lower().replace("-", "")
    if not column or kind not in _KINDS_OF_HASHES:
        raise ValueError(wanted)
    return HashCheck(column, kind)


def url_list(value: Any) -> Any:
    """A path, or several; Arrow tables, arrays and Python lists pass as they are, since `sources` decides what they
    mean."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, str):
        return _written_list(value) if value.startswith("[") and value.endswith("]") else text(value)
    if isinstance(value, Mapping) or value is None or isinstance(value, (bool, int, float, bytes)):
        raise ValueError("a path, a list of paths, a list of URLs or an Arrow table")
    if isinstance(value, (set, frozenset)):  # whose order differs from run to run
        return sorted(value, key=str)
    is_array = any(hasattr(value, name) for name in ("__arrow_c_stream__", "__arrow_c_array__", "to_frame", "ndim"))
    return list(value) if isinstance(value, Iterable) and not is_array else value


def _written_list(written: str) -> list[Any]:
    """`[a.txt, b.txt]`, or JSON. Without a URL in it, it is a list of files: a misspelt name must not become a row."""
    try:
        parts = list(json.loads(written))
    except ValueError:
        parts = list(names(written))
    if all(isinstance(part, str) and part and "://" not in part for part in parts):
        return [Path(part) for part in parts]
    return parts


def column_name(value: Any) -> str:
    """The name of the column of files, which no column of the metadata has."""
    from any2ds.core.metadata import RESERVED_COLUMNS  # which brings pyarrow

    if text(value) in RESERVED_COLUMNS - {"data"} | {"url", "caption"}:
        raise ValueError("a name that no column of the metadata has")
    return str(value)


@accepting("Path")
def path(value: Any) -> str:
    return text(str(value) if isinstance(value, Path) else value)


def one_of(*allowed: str) -> Parser:
    return _among(lambda: allowed, lambda value: value in allowed)


def part(kind: str) -> Parser:
    """The name of a part that the registry knows."""
    return _among(lambda: plugins.names(kind), lambda value: plugins.exists(kind, value))


COMPRESSIONS = ("gz", "bz2", "xz", "zst", "lz4", "br")
"""The suffixes of lists that can be decompressed."""
_FORMAT_ALIASES = {"ndjson": "jsonl", "pq": "parquet"}


def split_format(name: str | None) -> tuple[str | None, str | None]:
    """Format and compression of what `input_format` takes: `csv.gz` is csv and gz."""
    format, _, compression = (name or "").partition(".")
    return format or None, compression or None


def list_format(name: str) -> tuple[str | None, str | None]:
    """Format and compression by the name of a file or a URL, each None if unknown."""
    path = urlsplit(name).path if name.startswith(("http://", "https://")) else name.split("::", 1)[0]
    *rest, last = path.replace("\\", "/").rsplit("/", 1)[-1].lower().split(".")
    compression = last if rest and last in COMPRESSIONS else None
    if compression is not None:
        *rest, last = rest
    format = _FORMAT_ALIASES.get(last, last)
    return (format if rest and plugins.exists("readers", format) else None), compression


def input_format(value: Any) -> str:
    """The name of a reader, also with the suffix of a compression: `csv`, `csv.gz`."""
    reader, suffix = split_format(str(value))
    format = part("readers")(reader)
    if suffix is not None and suffix not in COMPRESSIONS:
        raise ValueError(f"{format}, or {format} with one of {', '.join(f'.{name}' for name in COMPRESSIONS)}")
    return f"{format}.{suffix}" if suffix else format


_TYPES = {"int": "int64", "float": "float64", "double": "float64", "timestamp": "timestamp[us]", "text": "string"}


def arrow_type(name: str) -> Any:
    """The Arrow type called so. Raises ValueError for another name."""
    import pyarrow as pa

    return pa.type_for_alias(_TYPES.get(name, name))


@accepting("str")
def column_types(value: Any) -> dict[str, str]:
    """Column -> name of its Arrow type: `id:string,score:float`, JSON, or a mapping."""
    wanted = (
        "columns and their types, such as id:string,score:float: string, int, float, bool, date32, timestamp, or "
        "another name that Arrow has for a type without parts"
    )
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = dict(part.rpartition(":")[::2] for part in names(value))
    if not isinstance(value, Mapping):
        raise ValueError(wanted)
    found = {}
    for column, given in value.items():
        name = str(given).strip()
        try:
            arrow_type(name)
        except ValueError:
            raise ValueError(f"{wanted}; {name!r} is none") from None
        if not column or not isinstance(column, str):
            raise ValueError(wanted)
        found[column.strip()] = _TYPES.get(name, name)
    return found


def parts(kind: str) -> Parser:
    """Names of parts that the registry knows, each once: a list, or text with commas between them."""
    known = part(kind)

    def parse(value: Any) -> tuple[str, ...]:
        return tuple(dict.fromkeys(known(name) for name in names(value)))

    return _with_choices(parse, lambda: plugins.names(kind))


def _among(allowed: Callable[[], tuple[str, ...]], is_allowed: Callable[[Any], bool]) -> Parser:
    def parse(value: Any) -> str:
        if not (isinstance(value, str) and is_allowed(value)):
            hint = suggestions.for_name(str(value), allowed())
            raise ValueError(f"one of {', '.join(allowed())}" + (f" ({hint})" if hint else ""))
        return str(value)

    return _with_choices(parse, allowed)


def _with_choices(parse: Parser, choices: Callable[[], tuple[str, ...]]) -> Parser:
    """The parser, with the values that it takes, for `Option.choices`."""
    parse.choices = choices  # type: ignore[attr-defined]
    return parse


def integer_or_auto(at_least: int, at_most: int) -> Parser:
    count = integer(at_least, at_most)
    wanted = f"auto, or a whole number of at least {at_least:,} and at most {at_most:,}"
    return wanting(wanted, lambda value: "auto" if value == "auto" else count(value))


def extension(value: Any) -> str:
    """A file extension without its dot; no dot in it, since webdataset cuts a member's name at the first one."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9_-]{1,16}", value):
        raise ValueError("auto, or an extension of letters and digits such as flat")
    return value


@accepting("Mapping[str, str]")
def headers(value: Any) -> tuple[str, ...]:
    """`Name: value, Name: value`, a mapping, or a list of `Name: value`."""
    if isinstance(value, Mapping):
        value = [f"{name}: {content}" for name, content in value.items()]
    elif isinstance(value, str):
        value = re.split(r",\s*(?=[A-Za-z0-9-]+:\s)", value)
    found = tuple(header_value(part) for part in (value if isinstance(value, Iterable) else (value,)))
    if not all(re.match(r"[A-Za-z0-9-]+:\s", part) for part in found):
        raise ValueError("headers such as 'Referer: https://example.org'")
    return found


METADATA_FORMATS = ("parquet", "csv", "jsonl")


def metadata_formats(value: Any) -> tuple[str, ...]:
    """Each once, parquet first."""
    found = names(value)
    if not set(found) <= set(METADATA_FORMATS):
        raise ValueError(f"{' or '.join(METADATA_FORMATS)}, or several of them separated by commas")
    return tuple(name for name in METADATA_FORMATS if name == "parquet" or name in found)


_with_choices(metadata_formats, lambda: METADATA_FORMATS)


_PROXIES = ("http", "https", "socks4", "socks4a", "socks5", "socks5h")


def proxy(value: Any) -> str:
    """`http://host:port`, with a user name and a password if need be; `host:port` is an http proxy."""
    import ada_url

    wanted = f"a URL such as http://proxy:3128 ({', '.join(_PROXIES)})"
    if not isinstance(value, str) or not value.strip() or any(char.isspace() for char in value.strip()):
        raise ValueError(wanted)
    value = value.strip()
    try:
        url = ada_url.URL(value if "://" in value else f"http://{value}")
    except ValueError:
        raise ValueError(wanted) from None
    if url.protocol[:-1] not in _PROXIES or not url.hostname or url.pathname not in ("", "/") or url.search or url.hash:
        raise ValueError(wanted)
    port = re.search(r":(\d+)/?$", value)
    if port is None:  # libcurl would take 1080, and requests 80
        raise ValueError(f"{wanted}, with its port")
    # As the parser writes it, percent-encoded: libraries disagree on where a password with an @ in it ends.
    user = f"{url.username}:{url.password}@" if url.password else f"{url.username}@" if url.username else ""
    return f"{url.protocol}//{user}{url.hostname}:{int(port[1])}"


@accepting("str")
def storage_options(value: Any) -> dict[str, dict[str, Any]]:
    """Protocol -> options of its file system, as a mapping or in JSON."""
    import fsspec

    wanted = 'options by protocol, such as {"s3": {"endpoint_url": "https://..."}}, in Python, JSON or a --config file'
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise ValueError(wanted) from None
    if not isinstance(value, Mapping):
        raise ValueError(wanted)
    for name, options in value.items():
        if not isinstance(options, Mapping):  # it must be clear which store gets a password
            raise ValueError(f"{wanted}: what is under {name!r} is no mapping")
        if str(name) not in fsspec.available_protocols():
            raise ValueError(f"{wanted}: {name!r} is no protocol that fsspec knows")
    return {str(name): dict(options) for name, options in value.items()}


def stores() -> Any:
    """The option `storage_options`, which several commands have."""
    return option(
        "credentials and settings of stores, for fsspec: {'s3': {'endpoint_url': 'https://...'}}",
        secret(optional(storage_options)),
        None,
    )


_guarded_scheme = one_of(*sorted(GUARDED))


def allowed_schemes(value: Any) -> tuple[str, ...]:
    """Schemes that rows may have only if they are named; written as `s3`, `s3:` or `s3://`."""
    schemes = [name.strip().lower().rstrip(":/") for name in names(value)]
    if free := [scheme for scheme in schemes if scheme in WEB | {"data"}]:
        raise ValueError(f"schemes other than {free[0]}, which needs no leave: {', '.join(sorted(GUARDED))}")
    return tuple(dict.fromkeys(map(_guarded_scheme, schemes)))


_with_choices(allowed_schemes, lambda: tuple(sorted(GUARDED)))


def failure_codes(value: Any) -> tuple[str, ...]:
    """Codes of the closed list, and classes of them."""
    return failures.check_codes(names(value))


def host_pattern(written: Any) -> str:
    """`example.org`, `*.example.org` (what is below it), each with a port or without, in ASCII and lower case."""
    import ada_url

    wrong = OptionError(f"hosts: invalid {written!r}: expected example.org, *.example.org or example.org:8080")
    text = written.strip() if isinstance(written, str) else ""
    host = text.removeprefix("*.")
    if not host or re.search(r"[/@?#*\s\\]", host):
        raise wrong
    try:
        name = ada_url.URL(f"http://{host}").hostname.removesuffix(".")
    except ValueError:
        raise wrong from None
    port = re.search(r":(\d+)$", host)
    is_address = name.startswith("[") or re.fullmatch(r"[\d.]+", name)
    if not name or (is_address and text != host):
        raise wrong
    return ("*." if text != host else "") + name + (f":{int(port[1])}" if port else "")


def nameservers(value: Any) -> tuple[str, ...]:
    """Addresses with or without a port, `[::1]:53` for IPv6; or the word os."""
    try:
        found = names(value)
        if found != ("os",):
            for server in found:
                _check_address(server)
    except (TypeError, ValueError):
        raise ValueError("addresses such as 1.1.1.1,8.8.8.8 or 127.0.0.1:5353, or os") from None
    return found


def _check_address(server: str) -> None:
    match = re.fullmatch(r"\[([0-9a-fA-F:.]+)\](?::(\d+))?|([0-9.]+)(?::(\d+))?|([0-9a-fA-F:.]+)", server)
    if match is None or not 0 < int(match[2] or match[4] or 53) < 65536:
        raise ValueError
    ipaddress.ip_address(match[1] or match[3] or match[5])


def header_value(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or not (value.isprintable() and value.isascii()):
        raise ValueError("one line of ASCII text")
    return value.strip()
