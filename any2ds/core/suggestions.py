"""What was meant by an unknown option or value: a misspelt one, or the name that another tool has for it. Pure."""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Iterable

_LIKENESS = 0.78  # of two names, by difflib: below it a suggestion is more often wrong than right

# As img2dataset, webdataset, aria2, wget, curl and others call it -> our option, or an option with its value.
_OPTIONS = {
    "url_list": "i input urls url input_file list url_file urls_file file files source src dataset input_list",
    "input_format": "in_format input_type",
    "url_col": "url_column column image_url_col",
    "caption_col": "caption caption_column text_col text_column caption_key",
    "save_additional_columns": "columns keep_columns extra_columns additional_columns metadata_columns",
    "limit": "n head first max_samples max_rows num_samples num_rows sample_count nrows dry_run dryrun",
    "shuffle": "seed random random_seed",
    "output_folder": "output out out_dir output_dir outdir dest destination save_dir target target_dir d P dir"
    " directory_prefix output_path folder local_dir save_to",
    "output_format": "format out_format writer output_type",
    "output_format=webdataset": "webdataset wds tar",
    "output_format=tfrecord": "tfrecord tfrecords",
    "output": "output_file outfile out_file",
    "format=html": "html",
    "format=md": "md markdown",
    "format=json": "json",
    "number_sample_per_shard": "shard_size samples_per_shard num_samples_per_shard rows_per_shard maxcount max_count"
    " samples_per_tar shard_count",
    "incremental_mode=overwrite": "overwrite force restart clean allow_overwrite force_download",
    "incremental_mode=incremental": "resume continue c skip_existing resume_download",
    "incremental_mode=extend": "append",
    "file_size": "size image_size resolution img_size width height resize_to target_size",
    "resize_mode": "resize crop",
    "encode_format": "image_format img_format convert",
    "encode_quality": "quality jpeg_quality",
    "disable_all_reencoding": "no_reencode keep_original raw skip_decode",
    "transform": "transforms map preprocess filter",
    "processes_count": "j workers num_workers n_workers max_workers processes num_processes num_proc n_jobs jobs"
    " process_count nproc worker_count cpu cpus cores num_cpus n_cpus num_cores",
    "thread_count": "j threads num_threads nb_threads n_threads max_threads concurrency connections parallel"
    " parallel_max max_concurrent_downloads threads_count concurrent",
    "timeout": "T time_out request_timeout read_timeout max_time m",
    "connect_timeout": "connection_timeout",
    "retries": "max_retries tries t max_tries retry_count num_retries retry attempts",
    "max_per_host": "x max_connection_per_server connections_per_host per_host max_connections_per_host",
    "host_delay": "wait w delay sleep rate_limit crawl_delay sleep_interval",
    "user_agent": "A U agent ua useragent user_agent_string",
    "headers": "header H http_headers referer",
    "cookies": "cookie load_cookies cookie_file b cookie_jar",
    "proxy": "all_proxy http_proxy https_proxy proxies",
    "ignore_ssl_certificate": "k insecure no_check_certificate verify_ssl no_verify check_certificate ssl_verify",
    "nameservers": "dns dns_servers dns_server resolver resolvers async_dns_server",
    "max_file_bytes": "max_size max_filesize max_file_size max_bytes",
    "compute_hash": "hash checksum hash_type",
    "compute_hash=sha256": "sha256",
    "compute_hash=sha512": "sha512",
    "compute_md5": "md5",
    "verify_hash": "expected_hash check_hash",
    "staging_dir": "tmp tmp_dir temp_dir temp tempdir",
    "distributor": "executor backend engine runner cluster",
    "reporters": "reporter loggers logger log_to",
    "enable_wandb": "wandb use_wandb",
    "wandb_project": "project",
    "quiet": "q silent no_progress s",
    "log_level=debug": "v verbose debug vv verbosity",
    "log_level": "loglevel log",
    "config": "conf config_file yaml",
    "robots=ignore": "ignore_robots no_robots robots_off",
    "codes": "code errors failures status error_codes error_code",
    "repair": "fix",
    "samples": "n num_samples",
    "sample": "fast quick",
    "language": "lang languages",
    "pretty_name": "name title",
}
_VALUES = {
    "webdataset": "tar wds tars web_dataset",
    "tfrecord": "tfrecords tf tensorflow tf_record",
    "arrayrecord": "array_record grain",
    "files": "file folder folders directory raw disk",
    "dummy": "none null",
    "pyspark": "spark",
    "beam": "apache-beam apache_beam dataflow",
    "multiprocessing": "mp local process processes multiprocess",
    "inline": "sync serial sequential single debug main",
    "jpg": "jpeg",
    "incremental": "resume continue",
    "extend": "append add",
    "overwrite": "replace restart force",
    "keep_ratio_largest": "fit longest",
    "center_crop": "crop center centre centercrop",
    "border": "pad padding letterbox",
    "lanczos": "lanczos4",
    "linear": "bilinear",
    "cubic": "bicubic",
    "jsonl": "ndjson jsonlines json_lines",
    "txt": "text",
    "warning": "warn",
    "sha256": "sha sha1 sha2 sha-256",
    "prometheus": "prom",
    "wandb": "weights_and_biases",
    "curl": "libcurl pycurl",
    "ignore": "off no false",
    "respect": "on yes true",
    "md": "markdown",
}

_COMMANDS = {
    "download": "get fetch run start resume continue",
    "verify": "check validate test repair fix",
    "inspect": "info show view ls list stats status describe head",
    "report": "summary",
    "--version": "version",
}


def for_option(given: str, known: Collection[str]) -> str:
    """`did you mean timeout?` for a name that is not among `known`; empty if nothing is likely.

    A name of one letter is a short option of another tool, such as `j`; they differ in what they mean by it.
    """
    name = given.strip("-") if len(given.strip("-")) == 1 else _normalized(given)
    meant = [ours for ours, names in _OPTIONS.items() if name in names.split() and ours.partition("=")[0] in known]
    return _question(meant or _nearest(name, known))


def for_value(given: str, allowed: Collection[str]) -> str:
    """The same for a value of an option that takes one of `allowed`."""
    name = given.strip().lower()
    meant = [ours for ours, names in _VALUES.items() if name in names.split() and ours in allowed]
    return _question(meant or _nearest(name, allowed))


def for_command(given: str, known: Collection[str]) -> str:
    """The same for a subcommand, which is one of `known`."""
    name = given.lower()
    return _question([ours for ours, names in _COMMANDS.items() if name in names.split()] or _nearest(name, known))


def for_path(given: str, names: Collection[str]) -> str:
    """The same for a path on this machine at which there is nothing, by the `names` in its folder."""
    folder, name = os.path.split(given)
    return _question([os.path.join(folder, near) for near in _nearest(name, names) if near != name])


def for_name(given: str, known: Collection[str]) -> str:
    """The same for any other name, such as that of a subcommand."""
    return _question(_nearest(given.lower(), known))


def _normalized(name: str) -> str:
    return name.strip("-").replace("-", "_").lower()


def _nearest(name: str, known: Iterable[str]) -> list[str]:
    plain = {one.replace("_", ""): one for one in known}  # urllist is url_list
    found = difflib.get_close_matches(name.replace("_", ""), plain, n=1, cutoff=_LIKENESS)
    return [plain[one] for one in found]


def _question(meant: Collection[str]) -> str:
    return f"did you mean {' or '.join(meant)}?" if meant else ""
