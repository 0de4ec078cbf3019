"""Every option of any2ds: declared, defaulted, documented and validated here and nowhere else.

The flags of the command line, the keywords of `download()`, the keys of a `--config` file and the text of
`--help` are all made from the dataclasses below.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from any2ds.config import presets
from any2ds.config.declare import declared, names_of, option, parse_nested
from any2ds.config.given import Given, as_given
from any2ds.config.media import (
    MEDIA_GROUPS,
    AudioOptions,
    ImageOptions,
    MediaOptions,
    TransformLimits,
    TransformOptions,
    VideoOptions,
)
from any2ds.config.needs import without_effect
from any2ds.config.parsers import (
    HashCheck,
    HashChecks,
    allowed_schemes,
    boolean,
    byte_count,
    column_name,
    column_types,
    encoding,
    extension,
    flags,
    hash_check,
    header_value,
    headers,
    host_pattern,
    input_format,
    integer,
    integer_or_auto,
    local_folder,
    metadata_formats,
    names,
    nameservers,
    one_of,
    optional,
    part,
    path,
    pause,
    proxy,
    required_members,
    seconds,
    secret,
    separator,
    size,
    stores,
    text,
    url_columns,
    url_list,
    url_template,
    web_scheme,
)
from any2ds.config.presets import Preset
from any2ds.config.watch import WatchOptions
from any2ds.core import plugins, suggestions
from any2ds.core.errors import OptionError, redacted
from any2ds.core.layout import Layout
from any2ds.core.members import ALL, ANY, Members, columns_of
from any2ds.core.paths import expanded
from any2ds.core.processes.resources import cores
from any2ds.core.version import USER_AGENT

G = TypeVar("G")

log = logging.getLogger(__name__)

_MOST_SHOWN = 100  # values of a list


def host_overrides(value: Any) -> dict[str, dict[str, Any]]:
    """Host pattern -> option -> value. Raises OptionError that names both, ValueError for what is no such mapping."""
    if not isinstance(value, Mapping):
        raise ValueError("a mapping of hosts to options, in a --config file or from Python")
    options = {each.name: each for each in declared(GROUPS)}
    parsed: dict[str, dict[str, Any]] = {}
    for written, own in value.items():
        pattern = host_pattern(written)
        place = f"hosts: {written}"
        if pattern in parsed:
            raise OptionError(f"{place}: is given twice")
        if not isinstance(own, Mapping):
            raise OptionError(f"{place}: must hold options, such as {{max_per_host: 2}}")
        parsed[pattern] = parse_nested(place, own, options, lambda each: each.scope == "host", "hosts")
    return parsed


# --- the options, by group ---

_ON_THIS_MACHINE = ("multiprocessing", "inline")  # distributors whose workers run where the run does
_MOST_AUTO = 8192  # transfers in flight that thread_count=auto never exceeds
_LEAST_SHARE = 1 << 16  # bytes of memory for each of them


@dataclass(frozen=True, slots=True)
class InputOptions:
    """Which rows"""

    url_list: Any = option(
        "file, folder, glob or list of them, local or remote; - is standard input",
        url_list,
        wording="urls.txt",
        task="The list",
        hints="i input urls file files",
        may_change=True,
    )
    input_format: str | None = option(
        "txt, csv, tsv, json, jsonl, parquet; csv.gz where compressed",
        optional(input_format),
        None,
        "by the file name, else txt",
        may_change=True,
    )
    separator: str | None = option("between values: ';', '|', tab", optional(separator), None, "comma; in tsv tab")
    quoting: str = option(
        "of csv and tsv: minimal, none; auto: minimal in csv, by the first rows in tsv",
        one_of("auto", "minimal", "none"),
        "auto",
    )
    comment: str | None = option("beginning of lines that are no rows: #", optional(text), None, "none")
    columns: tuple[str, ...] | None = option(
        "names of the columns of a csv or tsv without a header: url,caption", optional(names), None, "the first line"
    )
    encoding: str | None = option("of text: latin-1, cp1252 …", optional(encoding), None, "utf-8, or by its mark")
    rows: str | None = option("path to the rows in a json document: data.items", optional(text), None)
    url_template: str | None = option("URLs of columns: 'https://host/{id}.{extension}'", optional(url_template), None)
    default_scheme: str | None = option(
        "of URLs that have none: https or http", optional(web_scheme), None, "they fail"
    )
    unescape_html: bool = option("turn &amp; and the like in URLs into characters", boolean, False)
    url_col: str = option(
        "column of the URLs, or a path: image.url, images[].url; image:image_url,mask:mask_url for rows with several",
        url_columns,
        "url",
        task="The list",
        hints="column url_column",
    )
    require: str = option(
        "of several URLs in a row: all have to be there, any of them, or names: image,mask", required_members, "all"
    )
    caption_col: str | None = option(
        "column of the captions", optional(text), None, task="The list", hints="caption text_col"
    )
    save_additional_columns: tuple[str, ...] | None = option(
        "columns to carry into the metadata; id,width:original_width renames; '*' is all",
        optional(names),
        None,
        task="The list",
        hints="keep_columns extra_columns",
    )
    limit: int | None = option(
        "the first N rows only; the same command without it makes the rest",
        optional(integer(1)),
        None,
        "all",
        task="The list",
        hints="n head max_samples",
        may_change=True,
    )
    shuffle: int | None = option(
        "seed of a random order of rows: of a whole parquet list, else within 100,000 rows",
        optional(integer(0, 2**32 - 1)),
        None,
        "the list's order",
        hints="seed",
    )
    column_types: Mapping[str, str] | None = option(
        "Arrow types of columns: id:string,score:float", optional(column_types), None
    )
    on_bad_row: str = option(
        "of malformed rows: fail_row, as bad_row; stop, which reads up to there", one_of("stop", "fail_row"), "fail_row"
    )


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """What is written"""

    preset: str | None = option(
        "img2dataset: that tool's option names, defaults and metadata",
        optional(part("presets")),
        None,
        task="Coming from img2dataset",
    )
    output_folder: str = option(
        "folder for the dataset, local or remote (s3://bucket/name)",
        path,
        "files",
        task="The dataset",
        hints="output out output_dir dir",
        may_change=True,
    )
    output_format: str = option(
        "files, webdataset, parquet, tfrecord or arrayrecord",
        part("writers"),
        "files",
        task="The dataset",
        hints="format writer",
    )
    incremental_mode: str = option(
        "with shards there: incremental makes what is missing, extend adds a list, overwrite begins anew",
        one_of("incremental", "extend", "overwrite"),
        "incremental",
        task="The dataset",
        hints="resume continue restart force",
        may_change=True,
    )
    metadata_format: tuple[str, ...] = option(
        "parquet always; csv and jsonl in addition", metadata_formats, ("parquet",)
    )
    row_group_bytes: int = option(
        "bytes of files in a row group of parquet",
        size(at_most=2**30, shown="1GiB"),
        4 << 20,
        "4MiB",
        needs="output_format=parquet",
    )
    parquet_data: str = option(
        "column of files: binary; image or audio, as Hugging Face's",
        one_of("binary", "image", "audio"),
        "binary",
        needs="output_format=parquet",
    )
    data_column: str = option(
        "column of files in parquet", column_name, "data", needs="output_format=parquet|tfrecord|arrayrecord"
    )
    number_sample_per_shard: int = option(
        "rows in a shard", integer(1), 10000, task="The dataset", hints="shard_size samples_per_shard maxcount"
    )
    oom_shard_count: int = option("digits of the shard number", integer(1, 18), 5)
    key_col: str | None = option(
        "column with an id that names each sample",
        optional(text),
        None,
        "numbers",
        task="The dataset",
        hints="id_col key name_col",
    )
    file_ext: str = option("extension of files; auto: by their content", extension, "auto")
    compute_md5: bool = option("add the md5 of files to the metadata", boolean, True)
    compute_hash: str | None = option(
        "add another hash: md5, sha256 or sha512",
        optional(one_of("md5", "sha256", "sha512")),
        None,
        task="Checks",
        hints="hash checksum",
    )
    verify_hash: HashCheck | HashChecks | None = option(
        "column with the hash of each file, and its kind: checksum:sha256", optional(hash_check), None, task="Checks"
    )
    on_hash_mismatch: str = option(
        "another hash: fail_row; drop, not stored; flag, stored and marked",
        one_of("drop", "flag", "fail_row"),
        "fail_row",
        needs="verify_hash",
    )
    dedupe: str = option(
        "fetch a URL of several rows once per shard, once per run, or for each row (none)",
        one_of("shard", "run", "none"),
        "shard",
    )

    @property
    def layout(self) -> Layout:
        """The names of shards and keys."""
        has_names = self.key_col is not None
        return Layout(self.number_sample_per_shard, self.oom_shard_count, self.preset is not None, has_names)


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """How it is stored"""

    staging_dir: str | None = option(
        "local folder of unpublished shards", optional(local_folder), None, ".any2ds/tmp of a local dataset, else temp"
    )
    fsync: bool = option("flush published files, so that a power failure leaves no partial shard", boolean, True)
    min_free_bytes: int | None = option("bytes to leave free", optional(size(at_least=0)), None, "256MiB, at most 2 %")
    max_staging_bytes: int = 16 << 30  # of shards that wait for a slow store, per process
    storage_options: Mapping[str, Mapping[str, Any]] | None = stores()


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """How it is fetched"""

    thread_count: int | Literal["auto"] = option(
        "transfers in flight per process, or auto",
        integer_or_auto(1, 100_000),
        "auto",
        task="Downloading",
        hints="j threads num_threads concurrency connections",
    )
    timeout: float = option(
        "seconds until the first byte, redirects included, and between bytes; 0: no limit",
        seconds,
        10.0,
        task="Downloading",
    )
    total_timeout: float | None = option("seconds for an attempt; 0: no limit", optional(seconds), None, "by the size")
    outage_patience: float = 600.0  # seconds without an answer of any host, before the run ends
    retries: int = option(
        "further attempts after a transient failure",
        integer(0, 100),
        0,
        task="Downloading",
        hints="t max_retries tries",
    )
    connect_timeout: float = option("seconds until connected; 0: no limit of its own", seconds, 0.0)
    stall_timeout: float = option("seconds below 100 bytes per second; 0: any", seconds, 30.0)
    min_speed: int = 100  # bytes per second, below which a transfer stalls
    max_per_host: int = option(
        "transfers at once to a host, of all processes of a machine",
        integer(1),
        1_000_000,
        "adapted to each host",
        scope="host",
        task="Downloading",
        hints="x per_host max_connection_per_server",
    )
    host_delay: float = option(
        "seconds between two transfers to a host", pause, 0.0, scope="host", hints="wait delay rate_limit"
    )
    max_retry_after: float = option("seconds to wait for Retry-After, at most", pause, 120.0, scope="host")
    watchdog_timeout: float | None = option(
        "seconds without progress until others go on; 0: never", optional(seconds), None, "by the other limits"
    )
    max_redirects: int = 10  # followed
    max_file_bytes: int = option(
        "larger bodies fail as too_large", byte_count, 2**30, "1GiB", hints="max_size max_filesize"
    )
    max_buffered_bytes: int = option(
        "bytes of memory for bodies, per process; more wait on disk", byte_count, 2**30, "1GiB"
    )
    user_agent: str = option(
        "User-Agent header", header_value, USER_AGENT, scope="host", task="Downloading", hints="ua"
    )
    headers: tuple[str, ...] | None = option(
        "further request headers: 'Referer: https://a, X-Key: b'",
        secret(optional(headers)),
        None,
        scope="host",
        hints="header",
    )
    referer_col: str | None = option("column sent as the Referer of each file", optional(text), None)
    proxy: str | None = option(
        "for all requests: http://, https:// or socks5h://",
        secret(optional(proxy)),
        None,
        scope="host",
        hints="http_proxy all_proxy",
    )
    nameservers: tuple[str, ...] | None = option(
        "name servers: 1.1.1.1,8.8.8.8; os: the system looks up all names",
        optional(nameservers),
        None,
        "those of the system",
        hints="dns",
    )
    ignore_ssl_certificate: bool = option(
        "accept any certificate of servers", boolean, False, scope="host", hints="k insecure no_check_certificate"
    )
    disallowed_header_directives: tuple[str, ...] | None = option(
        "X-Robots-Tag directives that exclude a file; None for none",
        optional(names),
        ("noai", "noimageai", "noindex", "noimageindex"),
        "noai,noimageai,noindex,noimageindex",
        scope="host",
    )
    robots: str = option(
        "robots.txt: public respects it on the public web, respect everywhere, ignore nowhere",
        one_of("public", "respect", "ignore"),
        "public",
        scope="host",
    )
    allow_schemes: tuple[str, ...] | None = option(
        "further schemes of rows, read with your rights and credentials: file,s3",
        optional(allowed_schemes),
        None,
        "none",
    )
    block_private_addresses: bool = option("refuse loopback and private addresses", boolean, False)
    allow_link_local: bool = option(
        "fetch from link-local addresses, metadata services", boolean, False, needs="not block_private_addresses"
    )
    hosts: Mapping[str, Mapping[str, Any]] | None = option(
        "other options for some hosts, in a --config file: {'*.example.org': {max_per_host: 2}}",
        secret(optional(host_overrides)),
        None,
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
        "worker processes, no more than shards",
        optional(integer(1, 1024)),
        None,
        "number of cores, fewer for small lists",
        task="Downloading",
        hints="j workers num_workers cores jobs",
    )
    distributor: str = option(
        "multiprocessing; inline for debugging; pyspark, ray or beam for clusters",
        part("distributors"),
        "multiprocessing",
        task="Running",
        hints="executor backend",
    )
    ray_address: str | None = option(
        "host:port, ray://host:10001, or auto",
        optional(text),
        None,
        "RAY_ADDRESS, else this machine",
        needs="distributor=ray",
    )
    beam_options: tuple[str, ...] | None = option(
        "flags of Beam: --runner=DataflowRunner,--project=…",
        secret(optional(flags)),
        None,
        "this machine",
        needs="distributor=beam",
    )
    subjob_size: int = option(
        "shards that a cluster is given in one job",
        integer(1),
        1000,
        needs="not distributor=inline and not distributor=multiprocessing",
    )
    max_shard_retry: int = option("retries of a shard, also if its process died", integer(0, 1000), 3)
    grace: float = option("seconds to finish shards after Ctrl-C, SIGTERM", seconds, 10.0)
    transform_threads: int | None = option(
        "threads per process that decode and encode",
        optional(integer(1, 1024)),
        None,
        "cores / processes; 1 on a cluster",
    )
    transform_timeout: float = option(
        "seconds for a file, or batch, before it fails as transform_timeout; 0: no limit", seconds, 300.0
    )
    log_level: str = option(
        "debug, info, warning or error", one_of("debug", "info", "warning", "error"), "warning", hints="v verbose"
    )
    quiet: bool = option("no progress and no report on the terminal", boolean, False, task="Running", hints="q silent")

    @property
    def is_on_this_machine(self) -> bool:
        """Whether the workers run where the run does."""
        return self.distributor in _ON_THIS_MACHINE

    @property
    def transform_limits(self) -> TransformLimits:
        # The cores of this machine say nothing of those of a cluster, which gives a task one unless told otherwise.
        threads = self.transform_threads or (cores() if self.is_on_this_machine else 1)
        return TransformLimits(threads, self.transform_timeout, is_shared=self.transform_threads is None)


@dataclass(frozen=True, slots=True)
class ShareOptions:
    """How several runs make a dataset together"""

    rank: int | None = option(
        "number of this run, from 0, of several that make a dataset",
        optional(integer(0)),
        None,
        "by Slurm, torchrun, Kubernetes",
    )
    world_size: int | None = option(
        "number of these runs; 1 for a run of its own", optional(integer(1)), None, "SLURM_NTASKS, WORLD_SIZE"
    )


@dataclass(frozen=True, slots=True)
class Config:
    """All options of a run, by group."""

    input: InputOptions
    output: OutputOptions
    storage: StorageOptions
    files: TransformOptions
    image: ImageOptions
    audio: AudioOptions
    video: VideoOptions
    fetch: FetchOptions
    run: RunOptions
    share: ShareOptions
    watch: WatchOptions
    given: frozenset[str] = frozenset()  # names of the options that were set explicitly
    written: Given = field(default_factory=dict)  # as they were given

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Config:
        """Parses and checks flat `options`; `config` among them names a file with more, over which the others win.

        Raises OptionError that names the option and what is expected.
        """
        return cls.of(parse_options(options, GROUPS))

    @classmethod
    def of(cls, parsed: ParsedOptions) -> Config:
        """Checks what depends on several groups. Raises OptionError."""
        for ignored in parsed.ignored:
            log.warning("%s", ignored)
        config = dataclasses.replace(cls(*parsed.groups), given=parsed.given, written=parsed.written)
        _check_columns_of_steps(config)
        check_members(config)
        config = dataclasses.replace(
            config, input=_with_columns(config.input, [*config.media.step_columns, config.fetch.referer_col])
        )
        _check_names(config)
        return config

    def to_options(self) -> dict[str, Any]:
        """The flat options again."""
        return flat([getattr(self, f.name) for f in dataclasses.fields(self)][: len(GROUPS)])

    @property
    def media(self) -> MediaOptions:
        return MediaOptions(self.files, self.image, self.audio, self.video, self.given, self.members)

    @property
    def members(self) -> Members | None:
        """The files of a row, if it has several URLs."""
        columns = columns_of(self.input.url_col)
        return Members(columns, self.input.require) if columns else None

    @property
    def url_columns(self) -> tuple[str, ...]:
        """The columns of all URLs of a row, as they are called in the dataset."""
        return self.members.url_columns if self.members is not None else ("url",)


GROUPS: tuple[Any, ...] = (
    InputOptions,
    OutputOptions,
    StorageOptions,
    *MEDIA_GROUPS,
    FetchOptions,
    RunOptions,
    ShareOptions,
    WatchOptions,
)
"""Those of `download`. Other commands have others, and some in common with it."""


def _check_names(config: Config) -> None:
    """Raises OptionError if files or samples cannot be called so."""
    taken, output_format = config.output.data_column, config.output.output_format
    if config.output.preset is not None and config.output.key_col is not None:
        raise OptionError(f"key_col: with preset={config.output.preset} samples have the numbers of that tool")
    if taken in (config.input.save_additional_columns or ()):
        raise OptionError(f"save_additional_columns: {taken!r} is the column of the files (data_column)")
    is_own = config.output.preset is not None and taken == config.output.file_ext  # which tells readers what it is
    if taken != "data" and output_format in ("tfrecord", "arrayrecord") and not is_own:
        raise OptionError(f"output_format={output_format}: the file is in 'data' of its records: --data_column=data")


def check_members(config: Config) -> None:
    """Raises OptionError for what a row of several URLs cannot have."""
    members, require = config.members, config.input.require
    if members is None:
        if "require" in config.given:
            raise OptionError(f"require={require} has no effect without several URLs: --url_col=image:...,mask:...")
        if config.files.member_options:
            raise OptionError("member_options has no effect without several URLs: --url_col=image:...,mask:...")
        if isinstance(config.output.verify_hash, HashChecks):
            raise OptionError("verify_hash: a hash for each member needs several URLs: --url_col=image:...,mask:...")
        return
    if unknown := [name for name in require.split(",") if require not in (ALL, ANY) and name not in members.names]:
        raise OptionError(f"require: {unknown[0]!r} is none of {', '.join(members.names)}, of which url_col tells")
    if config.output.preset is not None:
        raise OptionError(f"url_col: with preset={config.output.preset} a row has one URL")
    if config.output.data_column != "data":
        raise OptionError("data_column: the files of a row of several URLs are in columns called as its members")
    for check in config.output.verify_hash.parts if config.output.verify_hash is not None else ():
        if all(check.of(name) is None for name in members.names):
            raise OptionError(
                f"verify_hash: {check} is for none of {', '.join(members.names)}, of which url_col tells:"
                f" --verify_hash={members.names[0]}:column:{check.kind}"
            )
    if config.output.parquet_data != "binary":
        raise OptionError("parquet_data: files of a row of several URLs are plain bytes")
    if splitting := config.media.splitting():
        raise OptionError(f"{splitting[0]}: a row of several URLs is one sample, and its files stay one each")
    _check_member_options(config.media, members)


def _check_member_options(media: MediaOptions, members: Members) -> None:
    """Raises OptionError for options of a member that is none, and for those that have no effect."""
    for name, own in (media.files.member_options or {}).items():
        if name not in members.names:
            raise OptionError(f"member_options: {name!r} is none of {', '.join(members.names)}, of which url_col tells")
        found = media.of(name)
        groups = found.groups()
        for _, reason in without_effect(own.keys(), groups, found.given):
            raise OptionError(f"member_options: {name}: {reason}")
        try:
            _check_quality(own.keys(), groups)
        except OptionError as error:
            raise OptionError(f"member_options: {name}: {error}") from None


def _check_columns_of_steps(config: Config) -> None:
    """Raises OptionError for a column that steps would look for in vain: what was to be blurred would not be."""
    columns = [config.input.url_col, *columns_of(config.input.url_col).values()]
    taken: dict[str | None, str] = {**dict.fromkeys(columns, "url_col"), config.input.caption_col: "caption_col"}
    for column in config.media.step_columns:
        if column in taken:
            name = "clips_col" if column == config.video.clips_col else "bbox_col"
            raise OptionError(f"{name}: {column!r} is {taken[column]} already")


def _with_columns(input: InputOptions, columns: Sequence[str | None]) -> InputOptions:
    """Columns that steps and requests take are carried like the additional ones: a retry finds them in the metadata."""
    carried = input.save_additional_columns or ()
    missing = [name for name in columns if name is not None and name not in carried]
    return dataclasses.replace(input, save_additional_columns=(*carried, *missing)) if missing else input


@dataclass(frozen=True, slots=True)
class ParsedOptions:
    """The options of a command, parsed and checked."""

    groups: tuple[Any, ...]  # an object of each group
    given: frozenset[str]  # names of the options that are set, by a preset as well
    ignored: tuple[str, ...]  # what a preset accepts without effect, as messages
    written: Given = field(default_factory=dict)  # as they were given

    def group(self, kind: type[G]) -> G:
        """The options of this group."""
        return next(group for group in self.groups if isinstance(group, kind))

    def with_group(self, changed: Any) -> ParsedOptions:
        """A copy with another object of its group, whose options count as given."""
        groups = tuple(changed if type(group) is type(changed) else group for group in self.groups)
        return dataclasses.replace(self, groups=groups)


def parse_options(options: Mapping[str, Any], groups: Sequence[Any]) -> ParsedOptions:
    """Parses and checks flat `options`: config file, preset, names, values, and what each option needs, in this order.

    `config` among the options names a file with more; the others win over it. Raises OptionError that names the option
    and what is expected.
    """
    call, in_file = _call_and_file(options, groups)
    written = {**in_file, **call}
    own = _own(written, groups)
    parsed = tuple(_parse_group(own, group) for group in groups)
    # A config file of `download`, which other commands read as well, is checked by `download`.
    checked = written if makes_datasets(groups) else call
    preset = presets.find(written.get("preset")) if makes_datasets(groups) else None
    ignored = tuple(_without_effect(checked, own, parsed, preset))
    _check_quality([_our_name(name, preset) for name in checked], parsed)
    secret = _secret_names(groups)
    defaults = preset.defaults if preset else {}
    made = {name: value for name, value in own.items() if name not in written and value != defaults.get(name)}
    if options.get("config") is not None:
        call["config"] = options["config"]
    words = {
        **as_given(made, "preset", secret),
        **as_given(in_file, "config", secret),
        **as_given(call, "call", secret),
    }
    return ParsedOptions(parsed, frozenset(own), ignored, words)


def parse_groups(options: Mapping[str, Any], groups: Sequence[Any]) -> tuple[Any, ...]:
    """One object for each of `groups`, without the check of effects: for options that were recorded, all of them."""
    own = _own(with_config_file(options, groups), groups)
    return tuple(_parse_group(own, group) for group in groups)


def with_config_file(options: Mapping[str, Any], groups: Sequence[Any]) -> dict[str, Any]:
    """`options` with those of the file that `config` among them names. Raises OptionError."""
    call, in_file = _call_and_file(options, groups)
    return {**in_file, **call}


def _call_and_file(options: Mapping[str, Any], groups: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options without `config`, and those in the file that it names. Raises OptionError."""
    file = options.get("config")
    call = {name: value for name, value in options.items() if name != "config"}
    return call, {} if file is None else read_config_file(str(file), groups)


def _own(written: Mapping[str, Any], groups: Sequence[Any]) -> Mapping[str, Any]:
    """Our options, with the preset applied. Raises OptionError for unknown names."""
    own = presets.applied(written, names_of(groups)) if makes_datasets(groups) else written
    check_names(own, groups)
    return own


def _our_name(name: str, preset: Preset | None) -> str:
    return preset.renamed.get(name, name) if preset else name


def _without_effect(
    written: Collection[str], own: Collection[str], groups: Sequence[Any], preset: Preset | None
) -> Iterator[str]:
    """A message for each option that was `written` and has no effect, as the preset accepts it; `own` are the names of
    our options that are set. Raises OptionError for any other option without effect."""
    named = {_our_name(name, preset): name for name in written}
    for name, reason in without_effect(named.keys(), groups, own):
        if preset is None or name not in preset.tolerated:
            raise OptionError(reason)
        if name in own:
            yield reason.replace(name, named[name], 1)
    if left_out := sorted((named.keys() - set(own)) & names_of(GROUPS)):
        yield f"no effect with disable_all_reencoding: {', '.join(named[name] for name in left_out)}"


def _check_quality(names: Collection[str], groups: Sequence[Any]) -> None:
    """Raises OptionError for an `encode_quality` that png does not have. Its default is for the other formats."""
    image = next((group for group in groups if isinstance(group, ImageOptions)), ImageOptions())
    if "encode_quality" in names and image.encode_format == "png" and image.encode_quality > 9:
        raise OptionError(
            f"encode_quality={image.encode_quality}: for png it is how hard it is compressed, from 0 to 9"
        )


def flat(groups: Sequence[Any]) -> dict[str, Any]:
    """The options of these objects, one for each group, by name."""
    return {f.name: getattr(group, f.name) for group in groups for f in declared([group])}


def public(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as they may be shown to anybody, as plain JSON: without those that are secret, or lists given as data."""
    hidden = _secret_names(GROUPS)
    return {name: _public(value) for name, value in options.items() if name not in hidden}


def _public(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        return {redacted(str(name)): _public(each) for name, each in value.items()}
    if isinstance(value, (tuple, list)) and len(value) > _MOST_SHOWN:  # URLs, most probably
        return f"{len(value):,} values"
    if isinstance(value, (tuple, list)) and all(isinstance(each, (str, int, float, bool, Path)) for each in value):
        return [_public(str(each) if isinstance(each, Path) else each) for each in value]
    return type(value).__name__


def makes_datasets(groups: Sequence[Any]) -> bool:
    """Whether these are the options of a command for which there are presets."""
    return InputOptions in groups


def _parse_group(given: Mapping[str, Any], group: Any) -> Any:
    values = {each.name: each.value_of(given[each.name]) for each in declared([group]) if each.name in given}
    for each in declared([group]):
        if each.default is MISSING and each.name not in values:
            example = each.wording or "..."
            raise OptionError(f"{each.name} is missing: --{each.name}={example} (any2ds --help lists the options)")
    return group(**values)


DECIDING_GROUPS = (InputOptions, OutputOptions, *MEDIA_GROUPS)
"""The groups whose options decide what a dataset holds, and how it is cut into shards."""

# Groups that a command on a finished dataset refuses, and why. A group may say so of others in its own `DECIDED`.
_DECIDED = (DECIDING_GROUPS, "it was decided when the dataset was made")


def deciding_names() -> list[str]:
    """The options that decide which row is in which shard, and what is stored of it: a run that goes on has the same
    values."""
    return [each.name for each in declared(DECIDING_GROUPS) if not each.may_change]


def _secret_names(groups: Sequence[Any]) -> frozenset[str]:
    """The options of these groups whose values may be credentials."""
    return frozenset(each.name for each in declared(groups) if each.is_secret)


def check_names(given: Mapping[str, Any] | Sequence[str], groups: Sequence[Any] = GROUPS) -> None:
    """Raises OptionError for the first name in `given` that is no option, with the nearest one that is."""
    known = {each.name: each.hints for each in declared(groups)}
    for name in given:
        if name not in known:
            own = (each for group in groups for each in getattr(group, "DECIDED", ()))
            for decided, reason in (*own, _DECIDED):
                if name in names_of(decided):
                    raise OptionError(f"{name!r} cannot be given here: {reason}")
            as_values = [f"{info.name}={name}" for info in declared(groups) if name in info.choices]
            hint = suggestions.question(as_values[:2]) or suggestions.for_name(str(name), known)
            raise OptionError(f"unknown option {name!r}: {hint or 'any2ds --help=all lists the options'}")


def read_config_file(path: str, groups: Sequence[Any] = GROUPS) -> dict[str, Any]:
    """The flat options in a YAML or JSON file.

    Raises OptionError if it cannot be read as such, MissingExtra for YAML without its library.
    Of a file for `download` other commands take what is theirs as well.
    """
    content = config_content(path)
    known = names_of((*GROUPS, *groups))
    try:
        others = [name for name in content if name not in known]
        check_names([name for name in others if name not in presets.foreign_options()], (*GROUPS, *groups))
        if makes_datasets(groups):
            return content  # whether there is a preset that has its foreign names is known with the other options
        content = presets.applied(content, names_of(GROUPS))
    except OptionError as error:
        raise OptionError(f"config file {path!r}: {error}") from None
    own = names_of(groups)
    return {name: value for name, value in content.items() if name in own}


def config_content(path: str) -> dict[str, Any]:
    """The content of a config file, whatever the names are. Raises OptionError, MissingExtra."""
    try:
        written = expanded(path).read_text(encoding="utf-8-sig")
        try:
            content = json.loads(written)  # YAML takes most of JSON, but no tabs
        except ValueError:
            content = _from_yaml(written)
    except ModuleNotFoundError as error:
        raise plugins.missing_extra(f"config file {path!r} in YAML", error) from error
    except OSError as error:
        raise OptionError(f"config file {path!r} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise OptionError(f"config file {path!r} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict | None):
        raise OptionError(f"config file {path!r} must hold `option: value` lines")
    return content or {}


def _from_yaml(written: str) -> Any:
    """Options as a command line has them: `no` is the word, not False, and `2024-01-01` no date. Only what is handed to
    a store has the types of YAML. Raises ValueError if it is no YAML, ModuleNotFoundError without the library."""
    import yaml

    class AsWritten(yaml.SafeLoader):
        """Takes words, numbers and dates as they are written; an empty value or `~` is None."""

        def as_written(self, node: yaml.ScalarNode) -> str | None:
            return str(node.value) if node.value not in ("", "~") or node.style else None

    for kind in ("bool", "int", "float", "null", "timestamp"):
        AsWritten.add_constructor(f"tag:yaml.org,2002:{kind}", AsWritten.as_written)
    try:
        content = yaml.load(written, AsWritten)
        if isinstance(content, dict) and "storage_options" in content:
            content["storage_options"] = yaml.safe_load(written)["storage_options"]
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    return content


__all__ = [
    "Config",
    "FetchOptions",
    "HashCheck",
    "InputOptions",
    "OutputOptions",
    "RunOptions",
    "StorageOptions",
    "WatchOptions",
    "check_names",
]
