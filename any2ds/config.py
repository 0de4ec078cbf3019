"""Every option of any2ds: declared, defaulted, documented and validated here and nowhere else.

The flags of the command line, the keywords of `download()`, the keys of a `--config` file and the text of
`--help` are all made from the dataclasses below.
"""

from __future__ import annotations

import dataclasses
import difflib
import ipaddress
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any, Literal

from any2ds import registry
from any2ds.cookies import CookieJar
from any2ds.errors import OptionError, UsageError
from any2ds.version import USER_AGENT

Parser = Callable[[Any], Any]
"""Turns what a person gave (text from the command line, any value from Python or YAML) into the option's type.

Raises ValueError with the words for what it would have taken."""


def option(help: str, parse: Parser, default: Any = MISSING, shown: str | None = None, is_secret: bool = False) -> Any:
    """A dataclass field that is an option. `shown` replaces the default in the help where it is not a plain value.

    The value of one that `is_secret` is never repeated in an error message.
    """
    return field(default=default, metadata={"help": help, "parse": parse, "shown": shown, "is_secret": is_secret})


# --- parsers: small, and the only place where values are checked ---


def text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("a text that is not empty")
    return value


def optional(parse: Parser) -> Parser:
    return lambda value: None if value is None or value in ("", "None", "none", "null") else parse(value)


def boolean(value: Any) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    try:
        return words[str(value).lower()]
    except KeyError:
        raise ValueError("True or False") from None


def integer(at_least: int, at_most: int | None = None) -> Parser:
    wanted = f"a whole number of at least {at_least}" + (f" and at most {at_most}" if at_most else "")

    def parse(value: Any) -> int:
        number = float(value) if not isinstance(value, bool) else None
        if number is None or number != int(number) or number < at_least or (at_most and number > at_most):
            raise ValueError
        return int(number)

    return _wanting(wanted, parse)


def seconds(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number < 1e9:
        raise ValueError("a number of seconds, 0 for no limit")
    return number


_UNITS = {
    "": 1,
    "k": 1000,
    "m": 1000**2,
    "g": 1000**3,
    "t": 1000**4,
    "ki": 1024,
    "mi": 1024**2,
    "gi": 1024**3,
    "ti": 1024**4,
}


def byte_count(value: Any) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?(?:e\d+)?)\s*([kmgt]?i?)b?", str(value).strip().lower())
    if match is None or match[2] not in _UNITS or (size := int(float(match[1]) * _UNITS[match[2]])) < 1:
        raise ValueError("a size such as 500000, 200MB or 1GiB")
    return size


def names(value: Any) -> tuple[str, ...]:
    """`a,b`, `[a, b]`, `["a", "b"]` or a list: people should not have to quote JSON in a shell."""
    if isinstance(value, str):
        outer = re.fullmatch(r"\s*(?:\[(.*)\]|\((.*)\))\s*", value)
        inner = value if outer is None else outer[1] if outer[1] is not None else outer[2]
        value = [part.strip().strip("\"'") for part in inner.split(",")]
    found = tuple(value)
    if not all(isinstance(part, str) and part for part in found):
        raise ValueError("names separated by commas")
    return found


def url_list(value: Any) -> Any:
    """A path, or several; Arrow tables and Python lists of URLs or rows pass as they are."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, str):
        if value.startswith("[") and value.endswith("]"):
            return list(names(value))
        return text(value)
    if isinstance(value, Mapping) or value is None or isinstance(value, (bool, int, float, bytes)):
        raise ValueError("a path, a list of paths, a list of URLs or an Arrow table")
    if isinstance(value, Sequence):
        return [str(part) if isinstance(part, Path) else part for part in value]
    return value


def path(value: Any) -> str:
    return text(str(value) if isinstance(value, Path) else value)


def one_of(*allowed: str) -> Parser:
    return _among(lambda: allowed)


def part(kind: str) -> Parser:
    """The name of a part that the registry knows."""
    return _among(lambda: registry.names(kind))


def _among(allowed: Callable[[], tuple[str, ...]]) -> Parser:
    def parse(value: Any) -> str:
        if value not in allowed():
            near = difflib.get_close_matches(str(value), allowed(), n=1)
            raise ValueError(f"one of {', '.join(allowed())}" + (f" (did you mean {near[0]}?)" if near else ""))
        return str(value)

    return parse


def _wanting(wanted: str, parse: Parser) -> Parser:
    def parse_or_say(value: Any) -> Any:
        try:
            return parse(value)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(wanted) from None

    return parse_or_say


def integer_or_auto(at_least: int, at_most: int) -> Parser:
    number = integer(at_least, at_most)

    def parse(value: Any) -> int | str:
        try:
            return "auto" if value == "auto" else int(number(value))
        except ValueError as error:
            raise ValueError(f"auto, or {error}") from None

    return parse


def extension(value: Any) -> str:
    """A file extension without its dot; no dot in it, since webdataset cuts a member's name at the first one."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9_-]{1,16}", value):
        raise ValueError("auto, or an extension of letters and digits such as flat")
    if value.lower() in ("txt", "json"):
        raise ValueError("another extension: txt is the caption's and json the metadata's")
    return value


def headers(value: Any) -> tuple[str, ...]:
    """`Name: value, Name: value`, a mapping, or a list of `Name: value`."""
    if isinstance(value, Mapping):
        value = [f"{name}: {content}" for name, content in value.items()]
    elif isinstance(value, str):
        value = re.split(r",\s*(?=[A-Za-z0-9-]+:\s)", value)
    found = tuple(header_value(part) for part in value)
    if not all(re.match(r"[A-Za-z0-9-]+:\s", part) for part in found):
        raise ValueError("headers such as 'Referer: https://example.org'")
    return found


def cookie_file(value: Any) -> str:
    """The path of a file that has been read as cookies, so that a bad one is known before the start."""
    wanted = "a cookie file in Netscape's format"
    try:
        CookieJar.read(str(value))
    except OSError as error:
        raise ValueError(f"{wanted}, and it cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{wanted}, and {error}") from None
    return str(value)


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


OVERRIDABLE = (
    "user_agent",
    "headers",
    "cookies",
    "proxy",
    "ignore_ssl_certificate",
    "max_per_host",
    "host_delay",
    "max_retry_after",
    "disallowed_header_directives",
    "robots",
)
"""The options that may be other ones for some hosts."""


def host_overrides(value: Any) -> dict[str, dict[str, Any]]:
    """Host pattern -> option -> value. Raises OptionError that names both, ValueError for what is no such mapping."""
    if not isinstance(value, Mapping):
        raise ValueError("a mapping of hosts to options, in a --config file or from Python")
    fields = {f.name: f for f in dataclasses.fields(FetchOptions)}
    parsed: dict[str, dict[str, Any]] = {}
    for written, options in value.items():
        pattern = host_pattern(written)
        where = f"hosts: {written}"
        if pattern in parsed:
            raise OptionError(f"{where}: stands there twice")
        if not isinstance(options, Mapping):
            raise OptionError(f"{where}: must hold options, such as {{max_per_host: 2}}")
        for name in options:
            if name not in OVERRIDABLE:
                near = difflib.get_close_matches(str(name), OVERRIDABLE, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]}?" if near else f"it may be one of {', '.join(OVERRIDABLE)}"
                what = "is for all hosts alike" if name in _all_names() else "is no option"
                raise OptionError(f"{where}: {name!r} {what}: {hint}")
        try:
            parsed[pattern] = {name: _parse(fields[name], given) for name, given in options.items()}
        except OptionError as error:
            raise OptionError(f"{where}: {error}") from None
    return parsed


def host_pattern(written: Any) -> str:
    """`example.org`, `*.example.org` (what is below it), each with a port or without, in ASCII and lower case."""
    import ada_url

    wrong = OptionError(f"hosts: {written!r} is no host: it takes example.org, *.example.org or example.org:8080")
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


def _all_names() -> frozenset[str]:
    return frozenset(info.name for info in declared())


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


# --- the options, by group ---

MOST_HEADER_BYTES = 300 << 10  # of one answer, interim ones (1xx) included: libcurl's own limit
_MOST_AUTO = 8192  # transfers in flight that thread_count=auto never exceeds
_LEAST_SHARE = 1 << 16  # bytes of memory for each of them


@dataclass(frozen=True, slots=True)
class InputOptions:
    """Which rows"""

    url_list: Any = option("file, folder, glob or list of them, local or remote; - is standard input", url_list)
    input_format: str | None = option(
        "txt, csv, tsv, json, jsonl or parquet, each also compressed",
        optional(part("readers")),
        None,
        "from the file name, else txt",
    )
    url_col: str = option("column that holds the URLs", text, "url")
    caption_col: str | None = option("column that holds the captions", optional(text), None)
    save_additional_columns: tuple[str, ...] | None = option(
        "columns to carry into the metadata, separated by commas", optional(names), None
    )


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """What is written"""

    output_folder: str = option("folder for the dataset, local or remote (s3://bucket/name)", path, "files")
    output_format: str = option("files, webdataset, parquet or dummy", part("writers"), "files")
    number_sample_per_shard: int = option("rows in a shard", integer(1), 10000)
    oom_shard_count: int = option("digits of the shard number", integer(1, 18), 5)
    file_ext: str = option("extension of the stored files; auto: by their content", extension, "auto")
    compute_md5: bool = option("md5 of each file into the metadata", boolean, True)
    compute_hash: str | None = option(
        "a further hash into the metadata: md5, sha256 or sha512", optional(one_of("md5", "sha256", "sha512")), None
    )
    dedupe: str = option(
        "a URL in several rows is fetched: shard, once per shard for all; run, once for the first; none, for each",
        one_of("shard", "run", "none"),
        "shard",
    )
    disable_all_reencoding: bool = option("store every file byte for byte", boolean, False)


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """How it is fetched"""

    fetcher: str = option(
        "engine for http(s): curl, or requests (slower; adapters and auth of your own)",
        one_of("curl", "requests"),
        "curl",
    )
    thread_count: int | Literal["auto"] = option(
        "transfers in flight per process (from 64 on, as many again may wait for silent hosts); auto: as many as bring"
        " more",
        integer_or_auto(1, 100_000),
        256,
    )
    timeout: float = option("seconds for one attempt, body included", seconds, 10.0)
    outage_patience: float = option(
        "seconds to wait when nothing answers any more, before the run is given up", seconds, 600.0
    )
    retries: int = option("further attempts after one that failed for a passing reason", integer(0), 0)
    connect_timeout: float = option(
        "seconds until connected, name look-up included; 0 for no limit of its own", seconds, 0.0
    )
    stall_timeout: float = option("seconds that a transfer may be slower than min_speed; 0 for no limit", seconds, 30.0)
    min_speed: int = option("bytes per second below which a transfer counts as stalled", byte_count, 100)
    max_per_host: int = option(
        "transfers at once to one host, at most", integer(1), 1_000_000, "no limit but what it bears"
    )
    host_delay: float = option("seconds between two transfers to one host, at least", seconds, 0.0)
    max_retry_after: float = option("seconds that a host may make us wait (Retry-After)", seconds, 120.0)
    watchdog_timeout: float | None = option(
        "seconds in which nothing at all moves, after which rows are given up; 0 for never",
        optional(seconds),
        None,
        "one attempt, the longest waits that the other options allow, and 30 s",
    )
    max_redirects: int = option("redirects followed", integer(0, 100), 10)
    max_header_bytes: int = option(
        "an answer whose headers are longer fails as headers_too_large; at most 300KiB, what libcurl takes",
        byte_count,
        MOST_HEADER_BYTES,
        "300KiB",
    )
    max_file_bytes: int = option("bodies bigger than this fail as too_large", byte_count, 2**30, "1GiB")
    max_buffered_bytes: int = option(
        "memory for bodies, per process; beyond it they wait on disk", byte_count, 2**30, "1GiB"
    )
    user_agent: str = option("how any2ds introduces itself to servers", header_value, USER_AGENT)
    headers: tuple[str, ...] | None = option(
        "further request headers: 'Referer: https://a, X-Key: b'", optional(headers), None, is_secret=True
    )
    cookies: str | None = option("cookie file in Netscape's format", optional(cookie_file), None)
    proxy: str | None = option(
        "proxy for all requests: http://, https://, socks5:// or socks5h://", optional(proxy), None, is_secret=True
    )
    nameservers: tuple[str, ...] | None = option(
        "name servers to ask: 1.1.1.1,8.8.8.8 or 127.0.0.1:5353; os leaves all names to the operating system",
        optional(nameservers),
        None,
        "those of the system",
    )
    ignore_ssl_certificate: bool = option(
        "accept any certificate of a server (those of proxies are verified)", boolean, False
    )
    disallowed_header_directives: tuple[str, ...] | None = option(
        "X-Robots-Tag directives that exclude a file; None for none",
        optional(names),
        ("noai", "noimageai", "noindex", "noimageindex"),
        "noai,noimageai,noindex,noimageindex",
    )
    robots: str = option(
        "robots.txt (RFC 9309): public respects it on the public web, respect on local hosts as well, ignore nowhere",
        one_of("public", "respect", "ignore"),
        "public",
    )
    block_private_addresses: bool = option(
        "refuse loopback, private addresses and file://, for lists of strangers", boolean, False
    )
    allow_link_local: bool = option("fetch from link-local addresses, cloud metadata among them", boolean, False)
    hosts: Mapping[str, Mapping[str, Any]] | None = option(
        "other options for some hosts, only in a --config file: {'*.example.org': {max_per_host: 2}}",
        optional(host_overrides),
        None,
        is_secret=True,
    )

    @property
    def most_transfers(self) -> int:
        """Transfers that there may ever be in flight, as far as the options say."""
        if self.thread_count != "auto":
            return self.thread_count
        return max(1, min(_MOST_AUTO, self.max_buffered_bytes // 2 // _LEAST_SHARE))


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How the work is shared out"""

    processes_count: int | None = option(
        "worker processes, no more than there are shards", optional(integer(1, 1024)), None, "number of cores"
    )
    distributor: str = option("multiprocessing, or inline for debugging", part("distributors"), "multiprocessing")
    subjob_size: int = option("shards per job, for distributors that need it", integer(1), 1000)
    log_level: str = option("debug, info, warning or error", one_of("debug", "info", "warning", "error"), "warning")
    quiet: bool = option("no progress and no report on the terminal", boolean, False)


@dataclass(frozen=True, slots=True)
class Config:
    """All options of a run, by group."""

    input: InputOptions
    output: OutputOptions
    fetch: FetchOptions
    run: RunOptions

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Config:
        """Parses and checks flat `options`; `config` among them names a file with more, over which the others win.

        Raises OptionError that names the option and what it takes.
        """
        given = dict(options)
        if (file := given.pop("config", None)) is not None:
            given = {**read_config_file(str(file)), **given}
        check_names(given)
        groups = {}
        for name, group in _GROUPS.items():
            values = {f.name: _parse(f, given[f.name]) for f in dataclasses.fields(group) if f.name in given}
            if "url_list" not in values and group is InputOptions:
                raise OptionError("url_list is missing: --url_list=urls.txt (any2ds --help lists the options)")
            groups[name] = group(**values)
        return cls(**groups)

    def to_options(self) -> dict[str, Any]:
        """The flat options again."""
        groups = (getattr(self, name) for name in _GROUPS)
        return {f.name: getattr(group, f.name) for group in groups for f in dataclasses.fields(group)}


_GROUPS: dict[str, Any] = {
    "input": InputOptions,
    "output": OutputOptions,
    "fetch": FetchOptions,
    "run": RunOptions,
}


@dataclass(frozen=True, slots=True)
class OptionInfo:
    """One option as the command line and the documentation show it."""

    name: str
    group: str
    help: str
    default: Any  # MISSING where it has none
    shown: str  # the default in words
    is_flag: bool  # True or False, so that `--name` and `--noname` work


def declared() -> Iterator[OptionInfo]:
    """Every option, in the order of the groups."""
    for group in _GROUPS.values():
        for f in dataclasses.fields(group):
            shown = f.metadata["shown"] or ("required" if f.default is MISSING else str(f.default))
            yield OptionInfo(
                f.name, group.__doc__, f.metadata["help"], f.default, shown, f.metadata["parse"] is boolean
            )


def check_names(given: Mapping[str, Any] | Sequence[str]) -> None:
    """Raises OptionError for the first name in `given` that is no option, with the nearest one that is."""
    known = [info.name for info in declared()]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else "any2ds --help lists the options"
            raise OptionError(f"unknown option {name!r}: {hint}")


def read_config_file(path: str) -> dict[str, Any]:
    """The flat options in a YAML or JSON file. Raises OptionError if it cannot be read as such."""
    import yaml

    try:
        written = Path(path).expanduser().read_text(encoding="utf-8-sig")
        try:
            content = json.loads(written)  # YAML takes most of JSON, but no tabs
        except ValueError:
            content = yaml.safe_load(written)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise OptionError(f"config file {path!r} cannot be read: {' '.join(str(error).split())}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise OptionError(f"config file {path!r} must hold `option: value` lines")
    try:
        check_names(content)
    except OptionError as error:
        raise OptionError(f"config file {path!r}: {error}") from None
    return content


def _parse(f: dataclasses.Field[Any], value: Any) -> Any:
    try:
        return f.metadata["parse"](value)
    except UsageError:
        raise
    except ValueError as error:
        shown = f.name if f.metadata["is_secret"] else f"{f.name}={value!r}"
        raise OptionError(f"{shown} cannot be: it takes {error}") from None


__all__ = [
    "Config",
    "FetchOptions",
    "InputOptions",
    "OptionInfo",
    "OutputOptions",
    "RunOptions",
    "check_names",
    "declared",
]
