"""The options of the commands on a dataset that is there, and of `estimate`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from any2ds.config.declare import option
from any2ds.config.options import GROUPS, FetchOptions, RunOptions, StorageOptions, WatchOptions
from any2ds.config.parsers import (
    bit_rate,
    boolean,
    encoding,
    failure_codes,
    input_format,
    integer,
    integers,
    names,
    one_of,
    optional,
    path,
    separator,
    share,
    steps,
    stores,
    text,
    url_list,
)

_DATASET = "folder of the dataset, local or remote (s3://bucket/name), or the name of a recipe that was built"


@dataclass(frozen=True, slots=True)
class RetryOptions:
    """Which rows are tried again"""

    output_folder: str = option(_DATASET, path, wording="dataset", task="What is retried")
    codes: tuple[str, ...] = option(
        "failures to try again: codes, http_4xx, http_5xx, all, or transient",
        failure_codes,
        ("transient",),
        "transient",
        task="What is retried",
        hints="errors",
    )
    transform: Any = option(
        "the steps of your own of the dataset, if it was made elsewhere", optional(steps), None, "those of the dataset"
    )


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """What is verified"""

    output_folder: str = option(_DATASET, path, wording="dataset")
    sample: str | None = option(
        "shards to read, picked at random: 1%, or a number; files and counts of all are checked",
        optional(share),
        None,
        "all",
    )
    seed: int | None = option(
        "picks the same shards again", optional(integer(0)), None, "another one each time", needs="sample"
    )
    repair: bool = option("remove the files of broken shards, so that they are made again", boolean, False, hints="fix")
    json: str | None = option("file for the report as JSON, - for standard output", optional(path), None)
    processes_count: int | None = option(
        "processes that read shards", optional(integer(1, 1024)), None, "number of cores"
    )
    storage_options: Mapping[str, Mapping[str, Any]] | None = stores()
    quiet: bool = option("no progress on the terminal", boolean, False)


@dataclass(frozen=True, slots=True)
class InspectOptions:
    """What is looked at"""

    output_folder: str = option(_DATASET, path, wording="dataset")
    samples: int = option("rows that are shown", integer(0, 1000), 5)
    storage_options: Mapping[str, Mapping[str, Any]] | None = stores()
    json: str | None = option("file for all of it as JSON, - for standard output", optional(path), None)


@dataclass(frozen=True, slots=True)
class CardOptions:
    """What the card says"""

    output_folder: str = option(_DATASET, path, wording="dataset")
    pretty_name: str | None = option("name of the dataset for people", optional(text), None, "that of the folder")
    license: str | None = option(
        "of the dataset, as the Hugging Face Hub calls it: cc-by-4.0, mit …", optional(text), None
    )
    language: tuple[str, ...] | None = option("of captions and texts, as codes: en, de", optional(names), None)
    output: str | None = option(
        "file for the card, - for standard output", optional(path), None, "README.md of the dataset"
    )
    force: bool = option("replace a README.md that any2ds did not write", boolean, False)
    storage_options: Mapping[str, Mapping[str, Any]] | None = stores()


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What is reported"""

    output_folder: str = option(_DATASET, path, wording="dataset")
    format: str = option("html, a page; md, for pull requests; or json", one_of("html", "md", "json"), "html")
    output: str | None = option(
        "file to write to, - for standard output",
        optional(path),
        None,
        "report.html; of md and json -",
        hints="output_file",
    )
    samples: int = option("samples that the page shows", integer(0, 1000), 64, needs="format=html")
    open: bool = option("show the page in a browser", boolean, False, needs="format=html")
    storage_options: Mapping[str, Mapping[str, Any]] | None = stores()


@dataclass(frozen=True, slots=True)
class AddColumnsOptions:
    """What is added"""

    output_folder: str = option(_DATASET, path, wording="dataset")
    url_list: Any = option("list with the columns: file, folder or glob, local or remote", url_list, wording="more.csv")
    on: str = option("column that both have: key, url, or dataset_column:list_column", text, "url")
    add: tuple[str, ...] | None = option("columns of the list that are added", optional(names), None, "all")
    input_format: str | None = option(
        "txt, csv, tsv, json, jsonl, parquet; csv.gz where compressed", optional(input_format), None, "by the file name"
    )
    separator: str | None = option("between the values of a line", optional(separator), None, "a comma; in tsv a tab")
    encoding: str | None = option("of a list that is text", optional(encoding), None, "utf-8, or by its mark")
    rows: str | None = option("path to the array of rows in a json document", optional(text), None, "the document")
    storage_options: Mapping[str, Mapping[str, Any]] | None = stores()


@dataclass(frozen=True, slots=True)
class EstimateOptions:
    """What is estimated"""

    sample: int = option(
        "rows that are fetched, at most 4 a second of a host, for 10 or 30 s",
        integer(1, 1_000_000),
        2000,
        task="The sample",
    )
    from_dataset: str | None = option(
        "a dataset that is the sample, such as that of a --limit run; also --from",
        optional(path),
        None,
        task="The sample",
    )
    machines: tuple[int, ...] = option(
        "numbers of machines like this one", integers(1), (1, 4, 16), task="The prediction"
    )
    bandwidth: int = option(
        "of the line of each machine: 100Mbit, 1Gbit", bit_rate, 10**9, "1Gbit", task="The prediction"
    )
    sample_folder: str = option("folder for the dataset of the sample", path, "estimate-sample", task="The sample")
    json: str | None = option(
        "file for the prediction as JSON, - for standard output", optional(path), None, task="The prediction"
    )


RETRY_GROUPS: tuple[Any, ...] = (RetryOptions, StorageOptions, FetchOptions, RunOptions, WatchOptions)
"""The options of `retry`."""

ESTIMATE_GROUPS: tuple[Any, ...] = (*GROUPS, EstimateOptions)
"""The options of `estimate`: those of the planned run, and its own."""
