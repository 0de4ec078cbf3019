"""Files that are compared with the hashes of their list: what is stored, what the metadata says, what is counted."""

import base64
import hashlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from any2ds import download, retry, verify
from any2ds.config.options import GROUPS, Config, HashCheck, flat, parse_groups
from any2ds.core.bodies.buffer import Body, Buffer
from any2ds.core.digests import digest_in, is_digest
from any2ds.core.errors import InputError, OptionError, OutputError, UsageError
from any2ds.core.metadata import HASHES
from any2ds.core.reports import Progress
from any2ds.core.rows import Row
from any2ds.core.samples import Fetched, Payload
from any2ds.readers.plan import cuts
from any2ds.testing.server import Server, serve
from any2ds.worker.describe import Describe
from any2ds.worker.worker import ShardWorker
from tests.support.jobs import plan

Download = Callable[..., Any]
OTHER = hashlib.sha256(b"something else").hexdigest()


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("media")
    for n in range(10):
        (folder / str(n)).write_bytes(b"\x01file %d" % n)
    return folder


@pytest.fixture(scope="module")
def server(media: Path) -> Iterator[Server]:
    with serve(media, {"gone": ["404"]}) as running:
        yield running


def metadata(out: Path) -> list[dict[str, Any]]:
    return [row for path in sorted(out.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def column(out: Path, name: str) -> list[Any]:
    return [row[name] for row in metadata(out)]


def sha256(n: int) -> str:
    return hashlib.sha256(b"\x01file %d" % n).hexdigest()


def a_list(server: Server) -> pa.Table:
    """A file as expected, another one, one of which nothing is said, a blank, no digest at all, and a failure."""
    return pa.table(
        {
            "url": [server.url(name) for name in ("0", "1", "2", "3", "4", "gone")],
            "sha256": [f" {sha256(0).upper()}\n", OTHER, None, " ", "beef", sha256(5)],
        }
    )


# --- what becomes of a file that differs ---


@pytest.mark.parametrize("output_format", ["parquet", "webdataset", "files"])
@pytest.mark.parametrize("way", ["fail_row", "drop", "flag"])
def test_a_file_with_another_hash(
    server: Server, tmp_path: Path, fetched: Download, way: str, output_format: str
) -> None:
    rows = a_list(server)
    report = fetched(rows, verify_hash="sha256:sha256", on_hash_mismatch=way, output_format=output_format)
    out = tmp_path / "out"
    found = metadata(out)
    kept = [0, 2, 3, *([1, 4] if way == "flag" else [])]
    assert [row["key"] for row in found] == [f"00000000{n}" for n in range(6)]
    assert [row["expected_hash"] for row in found] == rows["sha256"].to_pylist()
    assert [row["hash_matches"] for row in found] == [True, False, None, None, False, None]
    assert [row["sha256"] for row in found] == [*map(sha256, range(5)), None]
    assert [row["md5"] for row in found][1] == hashlib.md5(b"\x01file 1").hexdigest()
    assert [row["bytes"] for row in found] == [7] * 5 + [None]
    assert [row["ext"] for row in found] == ["flat" if n in kept else None for n in range(6)]
    status = {"fail_row": "failed_to_subsample", "drop": "dropped", "flag": "success"}[way]
    assert [row["status"] for row in found] == ["success", status, "success", "success", status, "failed_to_download"]
    code = "hash_mismatch" if way == "fail_row" else None
    assert [row["error_code"] for row in found] == [None, code, None, None, code, "http_404"]
    if way == "flag":
        assert [row["error_message"] for row in found][:5] == [None] * 5
    else:
        assert found[1]["error_message"] == f"its sha256 is {sha256(1)}, expected was {OTHER}"
        assert found[4]["error_message"].endswith(", and what the list expects, 'beef', is no sha256")
    assert report.successes == len(kept)
    assert report.dropped == (2 if way == "drop" else 0)
    assert report.failed_to_subsample == (2 if way == "fail_row" else 0)
    assert report.failed_to_download == 1
    assert report.bytes == 7 * len(kept)
    two = {"fail_row": {"hash_mismatch": 2}, "drop": {"dropped": 2}, "flag": {}}[way]
    assert report.status_dict == {"success": len(kept), "http_404": 1, **two}
    stats = json.loads((out / "00000_stats.json").read_text())
    parts = ("successes", "failed_to_download", "failed_to_subsample", "dropped", "duplicates")
    assert stats["count"] == sum(stats[part] for part in parts) == sum(stats["status_dict"].values()) == 6
    if output_format == "parquet":
        assert [n for n, row in enumerate(found) if row["data"] is not None] == sorted(kept)
    if output_format == "files":
        assert sorted(path.stem for path in (out / "00000").glob("*.flat")) == [f"00000000{n}" for n in sorted(kept)]
        described = json.loads((out / "00000" / "000000000.json").read_text())
        assert described == found[0]
        assert list(described) == list(found[0])


def test_a_mismatch_is_not_tried_again(media: Path, fetched: Download) -> None:
    with serve(media) as own:
        report = fetched(pa.table({"url": [own.url("1")], "h": [OTHER]}), verify_hash="h:sha256", retries=3)
        assert own.counts == {"1": 1}
    assert report.status_dict == {"hash_mismatch": 1}


def test_the_column_is_called_as_it_likes(server: Server, tmp_path: Path, fetched: Download) -> None:
    """Also as a column that any2ds writes, as in LAION's and DataComp's lists."""
    for n, name in enumerate(["sha256", "status", "expected_hash", "key", "caption", "a:b,c"]):
        rows = pa.table({"url": [server.url("1")], name: [sha256(1)]})
        out = tmp_path / str(n)
        fetched(rows, verify_hash=[name, "sha256"], output_folder=out)
        (row,) = metadata(out)
        assert (row["status"], row["expected_hash"], row["sha256"]) == ("success", sha256(1), sha256(1))
        assert row["hash_matches"] is True


def test_what_is_carried_as_well_stays_as_it_was(server: Server, tmp_path: Path, fetched: Download) -> None:
    raw = [bytes.fromhex(sha256(1)), None]
    rows = pa.table({"url": [server.url("1"), server.url("2")], "h": raw, "n": [1, 2]})
    fetched(rows, verify_hash="h:sha256", save_additional_columns="n,h")
    found = metadata(tmp_path / "out")
    assert [(row["n"], row["h"], row["expected_hash"], row["hash_matches"]) for row in found] == [
        (1, raw[0], sha256(1), True),
        (2, None, None, None),
    ]
    assert list(found[0])[:6] == ["key", "url", "expected_hash", "n", "h", "status"]


def test_a_column_with_a_reserved_name_is_carried_under_another(
    server: Server, fetched: Download, tmp_path: Path
) -> None:
    rows = pa.table({"url": [server.url("1")], "sha256": [sha256(1)]})
    fetched(rows, verify_hash="sha256:sha256", save_additional_columns="sha256")
    (row,) = pq.read_table(tmp_path / "out/00000.parquet").to_pylist()
    assert row["expected_hash"] == row["list_sha256"] == row["sha256"] == sha256(1)


@pytest.mark.parametrize("format", ["csv", "jsonl", "json", "parquet", "tsv.gz"])
def test_lists_of_all_formats(server: Server, tmp_path: Path, fetched: Download, format: str) -> None:
    """Digests are text, though they may look like numbers."""
    rows = pa.table({"url": [server.url("1"), server.url("2")], "md5": ["1" * 32, "1e" + "0" * 30]})
    path = tmp_path / f"list.{format}"
    if format == "parquet":
        pq.write_table(rows, path)
    elif format.startswith("json"):
        text = json.dumps(rows.to_pylist()) if format == "json" else "\n".join(map(json.dumps, rows.to_pylist()))
        path.write_text(text)
    else:
        rows.to_pandas().to_csv(path, index=False, sep="," if format == "csv" else "\t")
    report = fetched(path, verify_hash="md5:md5")
    assert report.status_dict == {"hash_mismatch": 2}
    assert column(tmp_path / "out", "expected_hash") == rows["md5"].to_pylist()
    assert all("expected was 1" in message for message in column(tmp_path / "out", "error_message"))


@pytest.mark.parametrize(
    "values",
    [
        pa.array([bytes.fromhex(sha256(1)), None], pa.binary()),
        pa.array([bytes.fromhex(sha256(1)), None], pa.binary(32)),
        pa.array([bytes.fromhex(sha256(1)), None], pa.large_binary()),
        pa.array([sha256(1).encode(), None], pa.binary()),
        pa.array([sha256(1), None], pa.string()).dictionary_encode(),
        pa.array([bytes.fromhex(sha256(1)), None], pa.binary()).dictionary_encode(),
        pa.array([sha256(1), None], pa.large_string()),
        pa.array([sha256(1), None], pa.string_view()),
    ],
    ids=lambda values: str(values.type),
)
def test_columns_of_all_types(server: Server, tmp_path: Path, fetched: Download, values: pa.Array) -> None:
    fetched(pa.table({"url": [server.url("1"), server.url("2")], "h": values}), verify_hash="h:sha256")
    assert column(tmp_path / "out", "expected_hash") == [sha256(1), None]
    assert column(tmp_path / "out", "hash_matches") == [True, None]


def test_a_column_of_nothing_and_one_of_numbers(server: Server, tmp_path: Path, fetched: Download) -> None:
    rows = pa.table({"url": [server.url("1")], "none": pa.nulls(1), "number": [7]})
    fetched(rows, verify_hash="none:md5", output_folder=tmp_path / "a")
    assert column(tmp_path / "a", "hash_matches") == [None]
    fetched(rows, verify_hash="number:md5", output_folder=tmp_path / "b")
    assert column(tmp_path / "b", "error_code") == ["hash_mismatch"]


# --- rows with the same URL ---


@pytest.mark.parametrize("dedupe", ["shard", "run", "none"])
@pytest.mark.parametrize("way", ["fail_row", "drop", "flag"])
def test_each_row_is_judged_by_its_own_hash(
    media: Path, tmp_path: Path, fetched: Download, dedupe: str, way: str
) -> None:
    expected = [OTHER, sha256(1), None, f" {sha256(1).upper()}", OTHER, "", sha256(1)]
    with serve(media) as own:
        rows = pa.table({"url": [own.url("1")] * 7, "h": expected})
        report = fetched(rows, verify_hash="h:sha256", on_hash_mismatch=way, dedupe=dedupe)
        assert own.counts["1"] == (7 if dedupe == "none" else 3)
    found = metadata(tmp_path / "out")
    matches = [False, True, None, True, False, None, True]
    other = {"fail_row": "failed_to_subsample", "drop": "dropped", "flag": "success"}[way]
    statuses = [other if match is False else "success" for match in matches]
    if dedupe == "run":
        assert [row["status"] for row in found] == [*statuses[:3], *["duplicate"] * 4]
        firsts = [None] * 3 + ["000000001", "000000000", "000000002", "000000001"]
        assert [row["duplicate_of"] for row in found] == firsts
        assert report.duplicates == 4
    else:
        assert [row["status"] for row in found] == statuses
        assert [row["hash_matches"] for row in found] == matches
    assert [row["expected_hash"] for row in found] == expected
    for row in found:
        has_file = row["status"] == "success"
        assert row["data"] == ((media / "1").read_bytes() if has_file else None)
    assert report.count == report.successes + report.failed_to_subsample + report.dropped + report.duplicates


def test_rows_of_several_shards_and_processes(server: Server, tmp_path: Path, fetched: Download) -> None:
    rows = pa.table(
        {
            "url": [server.url(str(n % 10)) for n in range(40)],
            "h": [sha256(n % 10) if n % 3 else OTHER for n in range(40)],
        }
    )
    options = {"verify_hash": ("h", "sha256"), "on_hash_mismatch": "drop", "number_sample_per_shard": 7}
    report = fetched(rows, **options, distributor="multiprocessing", processes_count=2, output_format="webdataset")
    assert (report.dropped, report.successes) == (14, 26)
    assert column(tmp_path / "out", "hash_matches") == [bool(n % 3) for n in range(40)]


def test_who_watches_is_told_what_was_stored_and_what_not(server: Server, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    rows = pa.table({"url": [server.url("1")] * 3, "expected_hash": [OTHER, OTHER, sha256(1)]})
    options = {"url_list": "-", "output_folder": tmp_path / "out", "verify_hash": "h:sha256"}
    config = Config.from_options({**options, "on_hash_mismatch": "drop"})
    worker = ShardWorker(config.output, config.fetch)
    reported = [event for event in worker(plan(cuts(rows.to_batches(), 3), rows.schema)) if isinstance(event, Progress)]
    assert sum((Counter(event.outcomes) for event in reported), Counter()) == {"dropped": 2, "success": 1}
    assert sum(event.bytes for event in reported) == 7


# --- going on ---


def test_datasets_that_were_verified_otherwise_are_not_mixed(server: Server, tmp_path: Path, fetched: Download) -> None:
    rows = pa.table({"url": [server.url(str(n)) for n in range(4)], "h": [sha256(n) for n in range(4)]})
    options = {"number_sample_per_shard": 2, "verify_hash": "h:sha256"}
    fetched(rows, **options)
    (tmp_path / "out" / "00001_stats.json").unlink()
    for other, words in (
        ({"verify_hash": None}, "verify_hash was 'h:sha256', now None"),
        ({"verify_hash": "h:md5"}, "verify_hash was 'h:sha256', now 'h:md5'"),
        ({"on_hash_mismatch": "drop"}, "on_hash_mismatch was 'fail_row', now 'drop'"),
    ):
        with pytest.raises(OutputError, match=words):
            fetched(rows, **{**options, **other})
    assert fetched(rows, **{**options, "verify_hash": ["h", "SHA-256"]}).shards == 1


# --- what cannot be ---


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "txt"])
def test_a_list_without_the_column(tmp_path: Path, fetched: Download, suffix: str) -> None:
    path = tmp_path / f"list.{suffix}"
    path.write_text(
        {"csv": "url,md5\nhttp://a/b,x\n", "jsonl": '{"url":"http://a/b","md5":"x"}\n', "txt": "u\n"}[suffix]
    )
    with pytest.raises(InputError, match="no column 'sha256'"):
        fetched(path, verify_hash="sha256:sha256")


def test_a_later_file_without_the_column_is_refused_before_the_start(
    server: Server, tmp_path: Path, fetched: Download
) -> None:
    pq.write_table(pa.table({"url": [server.url("1")], "h": [sha256(1)]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"url": [server.url("2")]}), tmp_path / "2.parquet")
    with pytest.raises(UsageError, match=r"2\.parquet: no column 'h'"):
        fetched([tmp_path / "1.parquet", tmp_path / "2.parquet"], verify_hash="h:sha256")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_from_the_command_line(server: Server, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text(f"url,sha256\n{server.url('1')},{sha256(1)}\n{server.url('2')},{OTHER}\n")

    def any2ds(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "any2ds", "--url_list=list.csv", *options]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)

    ran = any2ds("--verify_hash", '["sha256","sha256"]', "--on_hash_mismatch=drop", "--output_folder=out")
    assert ran.returncode == 0
    assert "2 rows, 1 stored, 0 failed, 1 dropped" in ran.stderr
    assert "another file than the list expects" in " ".join(ran.stderr.split())
    for option, words in (
        ("--verify_hash=sha256", "expected a column and what it holds"),
        ("--verify_hash=sha256:sha1", "md5, sha256 or sha512"),
        ("--verify_hash=nowhere:md5", "no column 'nowhere'; columns that exist: url, sha256"),
        ("--on_hash_mismatch=skip", "one of drop, flag, fail_row"),
    ):
        ran = any2ds(option, "--output_folder=other")
        assert ran.returncode == 2
        assert words in ran.stderr
        assert ran.stderr.count("\n") == 1
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    "given",
    [
        "h:sha256",
        "h,sha256",
        "[h, sha256]",
        "(h, sha256)",
        '["h", "sha256"]',
        "['h','sha256']",
        ["h", "sha256"],
        ("h", "SHA256"),
        "h:sha-256",
        HashCheck("h", "sha256"),
    ],
)
def test_how_it_may_be_written(given: Any) -> None:
    config = Config.from_options({"url_list": "-", "verify_hash": given})
    assert config.output.verify_hash == HashCheck("h", "sha256")
    assert flat(parse_groups(config.to_options(), GROUPS)) == config.to_options()


def test_in_a_config_file(tmp_path: Path) -> None:
    for n, text in enumerate(["verify_hash: [sha256, sha256]", "verify_hash: sha256:sha256"]):
        file = tmp_path / f"{n}.yaml"
        file.write_text(text)
        parsed = Config.from_options({"url_list": "-", "config": str(file)})
        assert parsed.output.verify_hash == HashCheck("sha256", "sha256")


@pytest.mark.parametrize("given", ["None", None])
def test_none(given: Any) -> None:
    assert Config.from_options({"url_list": "-", "verify_hash": given}).output.verify_hash is None


@pytest.mark.parametrize(
    "given",
    ["", "h", ":md5", "h:", "h:crc32", "[h]", "[h, md5, x]", ["h"], ["h", 5], [], 5, {"h": "md5"}, "[]", b"h:md5"],
)
def test_how_it_may_not_be_written(given: Any) -> None:
    with pytest.raises(OptionError, match="verify_hash"):
        Config.from_options({"url_list": "-", "verify_hash": given})


# --- how digests are written ---

kinds = st.sampled_from(HASHES)


@given(kinds, st.binary(max_size=20), st.booleans())
def test_every_spelling_of_a_digest_is_understood(kind: str, data: bytes, is_same: bool) -> None:
    digest = hashlib.new(kind, data if is_same else data + b"!").digest()
    found = hashlib.new(kind, data).hexdigest()
    standard, for_urls = base64.b64encode(digest).decode(), base64.urlsafe_b64encode(digest).decode()
    plain = [digest.hex(), digest.hex().upper(), standard, for_urls, standard.rstrip("="), for_urls.rstrip("=")]
    dashed = kind.replace("sha", "sha-")
    named = [f"{name}{mark}{p}" for name in (kind, kind.upper(), dashed) for mark in (":", "-", "=") for p in plain]
    for written in plain + named:
        assert digest_in(written, kind) == digest
        assert is_digest(written, found, kind) == is_same
        for other in HASHES:
            if other != kind:
                assert digest_in(written, other) is None


@given(kinds, st.text(max_size=140) | st.text("0123456789abcdefg =\n\u0661", min_size=20, max_size=140))
def test_what_is_no_digest_is_told(kind: str, written: str) -> None:
    found = digest_in(written, kind)
    size = hashlib.new(kind).digest_size
    assert found is None or len(found) == size
    if len(written) == 2 * size:
        assert (found is None) == bool(set(written) - set("0123456789abcdefABCDEF"))


# --- bodies that cannot be read ---


class BrokenBody:
    """A body on a disk that has failed."""

    size = 5
    released = 0

    def head(self) -> bytes:
        return b"\xff\xd8\xff\xe0"

    def chunks(self) -> Iterator[bytes]:
        yield b"\xff\xd8"
        raise OSError("input/output error")

    def release(self) -> None:
        self.released += 1


def described(body: Any, expected: str | None, **options: Any) -> Any:
    config = Config.from_options({"url_list": "-", "verify_hash": "h:sha256", **options})
    payload = Payload(body, "image/jpeg", 200, None, 0.1)
    return Describe(config.output)(Fetched(Row(0, 0, "0", "http://a/b", expected_hash=expected), payload))


def test_a_body_that_cannot_be_hashed_fails_its_row_and_is_given_back() -> None:
    body = BrokenBody()
    sample = described(body, OTHER, on_hash_mismatch="drop")
    assert (sample.body, sample.failure.code, body.released) == (None, "transform_error", 1)
    assert "input/output error" in sample.fields["error_message"]
    assert sample.fields["sha256"] is None


@pytest.mark.parametrize("way", ["fail_row", "drop", "flag"])
def test_the_memory_of_a_file_that_is_not_stored_is_given_back_at_once(way: str) -> None:
    buffer = Buffer(1 << 20, 1)
    body = Body(buffer)
    body.write(b"x" * 1000)
    sample = described(body, OTHER, on_hash_mismatch=way)
    assert (sample.body is None) == (way != "flag")
    assert buffer.used == (1000 if way == "flag" else 0)
    if sample.body is not None:
        sample.body.release()
    buffer.close()


def test_a_secret_in_the_wrong_column_is_not_told() -> None:
    buffer = Buffer(1 << 20, 1)
    body = Body(buffer)
    body.write(b"x")
    words = described(body, "http://me:secret@host/" + "x" * 1000).fields["error_message"]
    assert "secret" not in words
    assert len(words) < 500
    buffer.close()


@pytest.mark.parametrize("output_format", ["webdataset", "parquet"])
def test_a_column_of_the_list_with_the_name_of_a_hash_that_is_not_computed_is_carried(
    output_format: str, tmp_path: Path
) -> None:
    media = tmp_path / "media"
    media.mkdir()
    (media / "1").write_bytes(b"one")
    (media / "2").write_bytes(b"two")
    out = tmp_path / "out"
    with serve(media, {"2": ["404", "ok"]}) as server:
        rows = [{"url": server.url(name), "sha256": f"of {name}", "n": n} for n, name in enumerate(["1", "2"])]
        how = {"output_folder": out, "output_format": output_format, "distributor": "inline", "quiet": True}
        download(rows, save_additional_columns="sha256,n", **how)
        retry(out, codes="all", distributor="inline", quiet=True)
    found = [row for shard in (0, 1) for row in pq.read_table(out / f"0000{shard}.parquet").to_pylist()]
    assert [(row["status"], row["sha256"], row["n"]) for row in found] == [
        ("success", "of 1", 0),
        ("failed_to_download", "of 2", 1),
        ("success", "of 2", 1),
    ]
    report = verify(out, quiet=True)
    assert (report.ok, report.hashes) == (True, ("md5",))
    other = tmp_path / "b"
    with serve(media) as server:
        rows = [{"url": server.url("1"), "sha256": "of 1"}]
        download(rows, save_additional_columns="sha256", compute_hash="sha256", **{**how, "output_folder": other})
    (row,) = pq.read_table(other / "00000.parquet").to_pylist()
    assert (row["list_sha256"], row["sha256"]) == ("of 1", hashlib.sha256(b"one").hexdigest())
