"""Says what is wrong with a dataset, by tarfile, webdataset, pyarrow, protobuf and plain files, not by any2ds."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from any2ds.core.layout import RUN_FILE, SEGMENTS_FOLDER, SHARDS_FILE
from tests.support.crash.source import EXT, Row
from tests.support.crash.step import made_of
from tests.support.folder import names_in
from tests.support.records import examples

_BLOCK = 512
_STATS = re.compile(r"(\d{5})_stats\.json")
_METADATA = re.compile(r"(\d{5})\.parquet")
_DATA_SUFFIX = {"webdataset": ".tar", "files": "", "tfrecord": ".tfrecord", "arrayrecord": ".arrayrecord"}
_DATA = {form: re.compile(rf"(\d{{5}}){re.escape(suffix)}") for form, suffix in _DATA_SUFFIX.items()}
_DATA["parquet"] = _METADATA
_RECORDS = ("tfrecord", "arrayrecord")  # samples are records without members
FORMATS = tuple(_DATA)
MEMBERS = ("image", "mask")  # of the samples of rows with two URLs


@dataclass(frozen=True, slots=True)
class Shard:
    """What a shard is to hold."""

    rows: Sequence[tuple[str, Row]]  # key and row
    list_number: int | None  # in the order in which lists came; None of a retry


@dataclass(frozen=True, slots=True)
class Expected:
    """What a dataset is to hold."""

    lists: Sequence[Sequence[Row]]  # as far as runs were to take them
    rows_per_shard: int
    output_format: str
    has_columns: bool  # caption and number, beside the URL
    healed: bool = False  # rows that fail at first succeed, and a retry has taken them
    has_steps: bool = False  # whether files are taken apart on the way
    broken: frozenset[int] = frozenset()  # shards that are damaged
    of_shards: Mapping[int, Shard] = field(default_factory=dict)  # by number, as far as the segments say it

    def at(self, folder: Path) -> Expected:
        """These rows with the shards that the segments in a folder tell of."""
        return replace(self, of_shards=dict(_shards_of(folder, self)))

    def of_shard(self, shard: int) -> Sequence[Row]:
        return [row for _, row in self.of_shards[shard].rows]

    def key(self, shard: int, position: int) -> str:
        return self.of_shards[shard].rows[position][0]

    def outcomes(self, shard: int, row: Row) -> set[str]:
        """What may become of a row in this shard, by when it was made: a retry comes when the source is healed."""
        is_of_retry = self.of_shards[shard].list_number is None
        return {row.outcome(healed) for healed in ([True] if is_of_retry else {False, self.healed})}

    def files(self, shard: int, position: int) -> dict[str, bytes]:
        """Key -> file of the samples that a row becomes if it succeeds; an empty one is filtered."""
        key, body = self.key(shard, position), self.of_shard(shard)[position].body
        files = made_of(body) if self.has_steps else [body]
        return {key: files[0]} if len(files) == 1 else {f"{key}_{part:04d}": file for part, file in enumerate(files)}

    def samples(self, shard: int) -> dict[str, tuple[Row, bytes]]:
        """Key -> row and file of each sample that may be stored."""
        rows = [(position, row) for position, row in enumerate(self.of_shard(shard)) if not row.is_bad]
        return {key: (row, file) for position, row in rows for key, file in self.files(shard, position).items() if file}

    def file_names(self) -> set[str]:
        """Of the complete dataset."""
        data = _DATA_SUFFIX.get(self.output_format)
        suffixes = {".parquet", "_stats.json"} | ({data} if data is not None else set())
        if self.output_format in ("webdataset", "tfrecord"):
            suffixes.add(f"{data}.idx")
        whole = {RUN_FILE, SEGMENTS_FOLDER, SHARDS_FILE}
        if self.output_format in _RECORDS:
            whole |= {"features.json", "dataset_info.json"}
        return whole | {f"{shard:05d}{suffix}" for shard in self.of_shards for suffix in suffixes}


_TROUBLE = (
    *(OSError, ValueError, KeyError, TypeError, EOFError, RuntimeError),
    *(tarfile.TarError, pa.ArrowException, zlib.error),
)


class Wrong(Exception):
    """What is wrong, in words."""


def problems_now(folder: Path, expected: Expected) -> list[str]:
    """What a reader who looks at this moment, in the middle of a run, would find wrong."""
    names = sorted(names_in(folder))
    try:
        expected = expected.at(folder)
    except _TROUBLE as error:
        return [f"the segments: {type(error).__name__}: {error}"]
    finished = {int(match[1]) for match in map(_STATS.fullmatch, names) if match}
    found: list[str] = []
    for shard in sorted(finished - expected.broken):
        found += _said(
            f"shard {shard:05d}, which has stats", lambda shard=shard: _check_finished(folder, shard, expected)
        )
    for name in names:
        for shard, check in _unfinished(name, finished | expected.broken, expected):
            found += _said(f"{name}, under its final name", lambda c=check, n=name, s=shard: c(folder / n, s, expected))
    if RUN_FILE in names:
        found += _said(RUN_FILE, lambda: json.loads((folder / RUN_FILE).read_bytes()))
    if SHARDS_FILE in names:
        found += _said(SHARDS_FILE, lambda: json.loads((folder / SHARDS_FILE).read_bytes())["shardlist"])
    return found


def problems_at_the_end(folder: Path, expected: Expected) -> list[str]:
    """What is wrong with a dataset that is said to be complete."""
    found = problems_now(folder, expected)
    if found:
        return found
    expected = expected.at(folder)
    names = names_in(folder)
    if missing := expected.file_names() - names - _without_files(folder, expected):
        found.append(f"missing: {', '.join(sorted(missing))}")
    if left := names - expected.file_names() - {"report.html"}:
        found.append(f"left over: {', '.join(sorted(left))}")
    if not found:
        found += _said(SHARDS_FILE, lambda: _check_list(folder, expected))
        found += _said("the outcomes", lambda: _check_outcomes(folder, expected))
    if not found and expected.output_format == "webdataset":
        found += _said("webdataset", lambda: _check_with_webdataset(folder, expected))
    return found


def _without_files(folder: Path, expected: Expected) -> set[str]:
    """The folders of shards that store no file: a store has no empty folders."""
    if expected.output_format != "files":
        return set()
    stats = {f"{shard:05d}": folder / f"{shard:05d}_stats.json" for shard in expected.of_shards}
    return {name for name, path in stats.items() if path.exists() and not json.loads(path.read_bytes())["samples"]}


def _check_list(folder: Path, expected: Expected) -> None:
    said = json.loads((folder / SHARDS_FILE).read_bytes())
    stats = [json.loads((folder / f"{shard:05d}_stats.json").read_bytes()) for shard in sorted(expected.of_shards)]
    shown = [{name: each[name] for name in ("shard_id", "count", "nsamples", "bytes")} for each in said["shardlist"]]
    names = {"shard_id": "shard_id", "count": "count", "nsamples": "samples", "bytes": "bytes"}
    if shown != [{name: each[own] for name, own in names.items()} for each in stats]:
        raise Wrong(f"it lists {shown[:3]} …")
    if said["open"] or said["gaps"]:
        raise Wrong("it is open, or tells of gaps")


def _shards_of(folder: Path, expected: Expected) -> Iterator[tuple[int, Shard]]:
    """Number and rows of each shard, by the files of the segments."""
    row_of: dict[str, Row] = {}
    lists: list[int] = []  # the segments with which they begin
    per_shard = expected.rows_per_shard
    for path in sorted(path for path in (folder / SEGMENTS_FOLDER).glob("*") if path.name.isdecimal()):
        segment, end = json.loads(path.read_bytes()), path.with_name(f"{path.name}.end")
        ending = segment["ending"] or (json.loads(end.read_bytes()) if end.exists() else None)
        list_number: int | None = None
        if segment["kind"] == "retry":
            keys = pq.read_table(path.with_name(f"{path.name}.rows"))["any2ds.key"].to_pylist()
            shards = [[(key, row_of[key]) for key in keys[n : n + per_shard]] for n in range(0, len(keys), per_shard)]
        else:
            if segment["list_number"] not in lists:
                lists.append(segment["list_number"])
            list_number = lists.index(segment["list_number"])
            rows = expected.lists[list_number][segment["start_row"] :][: ending["rows"] if ending else None]
            digits = len(str(per_shard - 1))
            shards = [
                [
                    (f"{segment['first_shard'] + n // per_shard:05d}{position:0{digits}d}", row)
                    for position, row in enumerate(rows[n : n + per_shard])
                ]
                for n in range(0, len(rows), per_shard)
            ]
            row_of.update(row for shard in shards for row in shard)
        if ending and len(shards) != ending["shards"]:
            raise Wrong(f"segment {path.name} is said to have {ending['shards']} shards, not {len(shards)}")
        for number, shard in enumerate(shards, segment["first_shard"]):
            yield number, Shard(shard, list_number)


def _check_outcomes(folder: Path, expected: Expected) -> None:
    """Each key has one success at most, and the last outcome of each row is what it must be; sums agree with that."""
    successes: Counter[str] = Counter()
    last: dict[str, str] = {}
    sums: Counter[str] = Counter()
    for shard in sorted(expected.of_shards):
        stats = json.loads((folder / f"{shard:05d}_stats.json").read_bytes())
        sums.update(stats["status_dict"])
        sums.subtract(stats.get("replaces", {}))
        for of_row in _by_row(pq.read_table(folder / f"{shard:05d}.parquet").to_pylist()):
            key = of_row[0]["key"].partition("_")[0]
            last[key] = of_row[0]["error_code"] or of_row[0]["status"]
            successes[key] += last[key] == "success"
    if twice := [key for key, count in successes.items() if count > 1]:
        raise Wrong(f"{twice[:3]} … are stored twice")
    if last.values() and Counter(last.values()) != +sums:
        raise Wrong(f"the last outcomes are {Counter(last.values())}, the statistics add up to {+sums}")
    row_of = dict(row for shard in expected.of_shards.values() for row in shard.rows)
    if len(row_of) != sum(map(len, expected.lists)):
        raise Wrong(f"{len(row_of)} rows of {sum(map(len, expected.lists))} of the lists")
    if other := [key for key, row in row_of.items() if last.get(key) != row.outcome(expected.healed)]:
        raise Wrong(f"the last outcomes of {other[:3]} … are {[last.get(key) for key in other[:3]]} …")


def _said(where: str, check: Any) -> list[str]:
    try:
        check()
    except Wrong as error:
        return [f"{where}: {error}"]
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        EOFError,
        RuntimeError,
        tarfile.TarError,
        pa.ArrowException,
    ) as error:
        return [f"{where}: {type(error).__name__}: {error}"]
    return []


def _unfinished(name: str, finished: set[int], expected: Expected) -> Iterator[tuple[int, Any]]:
    """Whatever else carries a final name: it may be without its stats yet, but it must be whole."""
    if (match := _METADATA.fullmatch(name)) and int(match[1]) not in finished:
        yield int(match[1]), _check_metadata_alone
    match = _DATA[expected.output_format].fullmatch(name)
    if expected.output_format != "parquet" and match and int(match[1]) not in finished:
        yield int(match[1]), _check_data_alone


def _check_metadata_alone(path: Path, shard: int, expected: Expected) -> None:
    table = pq.read_table(path)
    _check_table(table, shard, expected)
    if expected.output_format == "parquet":
        _check_data_column(table, shard, expected)


def _check_data_column(table: pa.Table, shard: int, expected: Expected) -> None:
    samples = expected.samples(shard)
    for row in table.to_pylist():
        wanted, file = samples[row["key"]] if row["status"] == "success" else (None, None)
        files: dict[str, bytes | None] = {"data": file}
        if "data" not in row:
            files = dict(zip(MEMBERS, (file, wanted and wanted.second_body), strict=True))
        if {name: row[name] for name in files} != files:
            raise Wrong(f"row {row['key']} has other bytes than its URL gave")


def _check_data_alone(path: Path, shard: int, expected: Expected) -> None:
    """Each sample is what it must be; in a folder, which stores without renaming fill one by one, some may lack."""
    members = _members(path, expected)
    samples = expected.samples(shard)
    for key, files in members.items():
        if key not in samples:
            raise Wrong(f"sample {key} is not of this shard")
        _check_members(key, files, *samples[key], expected, whole=path.is_file())


def _check_finished(folder: Path, shard: int, expected: Expected) -> None:
    """Stats, metadata and data are there, whole, agree, and hold what the list asked for."""
    stats = json.loads((folder / f"{shard:05d}_stats.json").read_bytes())
    table = pq.read_table(folder / f"{shard:05d}.parquet")
    _check_table(table, shard, expected)
    rows = table.to_pylist()
    of_rows = [of_row[0] for of_row in _by_row(rows)]  # the first of several is always one that is stored
    statuses = Counter(row["status"] for row in of_rows)
    reported = (stats["shard_id"], stats["count"], stats["successes"], stats["failed_to_download"])
    if reported != (shard, len(of_rows), statuses["success"], statuses["failed_to_download"]):
        raise Wrong(f"its stats say {reported}, its metadata {len(of_rows)} rows, {dict(statuses)}")
    by_code = Counter(row["error_code"] or "success" for row in of_rows)
    if stats["status_dict"] != by_code:
        raise Wrong(f"its stats say {stats['status_dict']}, its metadata {dict(by_code)}")
    samples = expected.samples(shard)
    stored_of = [samples[row["key"]] for row in rows if row["status"] == "success"]
    sizes = [len(file) + len(wanted.second_body) for wanted, file in stored_of]
    if (stats["samples"], stats["bytes"]) != (len(sizes), sum(sizes)):
        raise Wrong(f"its stats say {stats['samples']} samples of {stats['bytes']} bytes")
    stored = [row["key"] for row in rows if row["status"] == "success"]
    if expected.output_format == "parquet":
        _check_data_column(table, shard, expected)
        return
    name = f"{shard:05d}{_DATA_SUFFIX[expected.output_format]}"
    # A shard in which nothing succeeded may do without its folder.
    members = _members(folder / name, expected) if stored or (folder / name).exists() else {}
    if list(members) != stored:
        raise Wrong(f"its metadata has the successes {stored}, its data {list(members)}")
    for key, files in members.items():
        _check_members(key, files, *samples[key], expected, whole=True)


def _by_row(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """What the metadata say, by rows of the list: of each there is one line, or one for each sample."""
    return [list(of_row) for _, of_row in groupby(rows, lambda row: row["key"].partition("_")[0])]


def _check_table(table: pa.Table, shard: int, expected: Expected) -> None:
    """Each row of the list once, in order, with its key, its columns and an outcome that it may have."""
    by_row = _by_row(table.to_pylist())
    if len(by_row) != len(expected.of_shard(shard)):
        raise Wrong(f"metadata of {len(by_row)} rows instead of {len(expected.of_shard(shard))}")
    for position, (of_row, wanted) in enumerate(zip(by_row, expected.of_shard(shard), strict=False)):
        key = expected.key(shard, position)
        outcome = of_row[0]["error_code"] or of_row[0]["status"]
        if outcome not in expected.outcomes(shard, wanted):
            raise Wrong(f"row {key} ({wanted.url}) is {outcome}, not {expected.outcomes(shard, wanted)}")
        files = expected.files(shard, position) if outcome == "success" else {key: b""}
        if [row["key"] for row in of_row] != list(files):
            raise Wrong(f"row {position} of the metadata is {[row['key'] for row in of_row]}, not {list(files)}")
        for row in of_row:
            if (row["url"], row.get("mask_url", "")) != (wanted.url, wanted.second):
                raise Wrong(f"row {row['key']} of the metadata is {row['url']}, not {wanted.url}")
            if expected.has_columns and (row["caption"], row["number"]) != (wanted.caption, wanted.number):
                raise Wrong(f"row {row['key']} has caption and number of another")
            if outcome == "success":
                _check_described(row, wanted.body, files[row["key"]], expected)
            if wanted.second and outcome == "success":
                _check_second(row, wanted)


def _check_described(row: Mapping[str, Any], body: bytes, file: bytes, expected: Expected) -> None:
    """`body` arrived, and `file` is stored."""
    reported = (row["status"], row["bytes"], row["md5"], row["ext"])
    arrived = (len(body), hashlib.md5(body).hexdigest())
    ext = f"{MEMBERS[0]}.{EXT}" if "mask_url" in row else EXT
    if reported != (("success", *arrived, ext) if file else ("filtered", *arrived, None)):
        raise Wrong(f"row {row['key']} is described as {reported}")
    if expected.has_steps and row["stored_bytes"] != (None if file in (b"", body) else len(file)):
        raise Wrong(f"row {row['key']} is said to be stored in {row['stored_bytes']} bytes, not {len(file)}")


def _check_second(row: Mapping[str, Any], wanted: Row) -> None:
    body = wanted.second_body
    reported = tuple(row[f"mask_{name}"] for name in ("status", "bytes", "md5", "ext"))
    if reported != ("success", len(body), hashlib.md5(body).hexdigest(), EXT):
        raise Wrong(f"the second file of row {row['key']} is described as {reported}")


def _members(path: Path, expected: Expected) -> dict[str, dict[str, bytes]]:
    """key -> extension -> content, in the order of the tar, or of the names in a folder."""
    if expected.output_format in _RECORDS:
        return _in_records(path, expected)
    found: dict[str, dict[str, bytes]] = {}
    last = ""
    for name, content in _in_tar(path) if expected.output_format == "webdataset" else _in_folder(path):
        key, _, ext = name.partition(".")
        if (key != last and key in found) or ext in found.get(key, ()):
            raise Wrong(f"sample {key} is in it twice")
        found.setdefault(key, {})[ext] = content
        last = key
    return found


def _in_tar(path: Path) -> Iterator[tuple[str, bytes]]:
    content = path.read_bytes()
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
        for member in tar:
            file = tar.extractfile(member)
            if file is None:
                raise Wrong(f"{member.name} is no file")
            data = file.read()
            if len(data) != member.size:
                raise Wrong(f"{member.name} ends after {len(data)} of {member.size} bytes")
            yield member.name, data
        if not content[tar.offset :].startswith(bytes(2 * _BLOCK)) or len(content) % tarfile.RECORDSIZE:
            raise Wrong("it does not end as a tar file does")


def _in_folder(path: Path) -> Iterator[tuple[str, bytes]]:
    for file in sorted(path.iterdir()):
        yield file.name, file.read_bytes()


def _in_records(path: Path, expected: Expected) -> dict[str, dict[str, bytes]]:
    """As the members that other formats have."""
    found = {}
    for example in examples(path):
        own = MEMBERS if "mask" in example else ("data",)
        key, url, ext, *data = (example[name][0] for name in ("key", "url", "ext", *own))
        exts = [f"{name}.{EXT}" for name in MEMBERS] if len(data) > 1 else [ext.decode()]
        described = json.dumps({"key": key.decode(), "url": url.decode()}).encode()
        caption = {"txt": example["caption"][0]} if expected.has_columns else {}
        if key.decode() in found:
            raise Wrong(f"sample {key.decode()} is in it twice")
        found[key.decode()] = {**dict(zip(exts, data, strict=True)), **caption, "json": described}
    return found


def _check_members(
    key: str, files: Mapping[str, bytes], wanted: Row, file: bytes, expected: Expected, whole: bool
) -> None:
    contents = {EXT: file}
    if wanted.second:
        contents = {f"{MEMBERS[0]}.{EXT}": file, f"{MEMBERS[1]}.{EXT}": wanted.second_body}
    if expected.has_columns:
        contents["txt"] = wanted.caption.encode()
    for ext, content in files.items():
        if ext == "json":
            described = json.loads(content)
            if (described["key"], described["url"]) != (key, wanted.url):
                raise Wrong(f"{key}.json is of {described['key']}, {described['url']}")
        elif ext not in contents:
            raise Wrong(f"{key}.{ext} is no file of this dataset")
        elif content != contents[ext]:
            raise Wrong(f"{key}.{ext} has other bytes than it should")
    if whole and files.keys() != {*contents, "json"}:
        raise Wrong(f"sample {key} has {', '.join(files)}")
    if wanted.outcome(True) != "success":
        raise Wrong(f"sample {key} is there, and its row must fail")


def _check_with_webdataset(folder: Path, expected: Expected) -> None:
    """As a training job would read it."""
    import webdataset

    shards = [str(folder / f"{shard:05d}.tar") for shard in sorted(expected.of_shards)]
    dataset = webdataset.WebDataset(shards, shardshuffle=False, empty_check=False)
    exts = [f"{name}.{EXT}" for name in MEMBERS] if expected.lists[0][0].second else [EXT]
    found = [(sample["__key__"], *(sample[ext] for ext in exts)) for sample in dataset]
    wanted = []
    for shard in sorted(expected.of_shards):
        samples = expected.samples(shard)
        for row in pq.read_table(folder / f"{shard:05d}.parquet", columns=["key", "status"]).to_pylist():
            if row["status"] == "success":
                of_row, file = samples[row["key"]]
                wanted.append((row["key"], file, *([of_row.second_body] if of_row.second else [])))
    if found != wanted:
        raise Wrong(f"{len(found)} samples instead of {len(wanted)}, or others")
