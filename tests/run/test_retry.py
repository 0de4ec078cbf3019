"""`retry` from outside: a dataset with failures, servers that have recovered since, and everybody's readers after."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset

from any2ds import IncompleteRun, RunReport, download, retry
from any2ds.config.help import help_text, short_help
from any2ds.core.errors import OptionError, OutputError
from any2ds.testing.pixel import png
from any2ds.testing.server import Server, serve
from tests.support.folder import names_in
from tests.support.records import examples

# webdataset leaves the shards that it reads open.
pytestmark = pytest.mark.filterwarnings(r"ignore:unclosed file .*\.tar:ResourceWarning")

ROWS, PER_SHARD = 12, 5
FLAKY = {"1.png": ["503", "ok"], "6.png": ["503", "503", "ok"], "7.png": ["404", "ok"], "11.png": ["503", "ok"]}
FORMATS = ["webdataset", "parquet", "files", "tfrecord", "arrayrecord"]


def content(n: int) -> bytes:
    return png(bytes([n]) * (100 + n))


def key(n: int) -> str:
    return f"{n // PER_SHARD:05d}{n % PER_SHARD}"


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("media")
    for n in range(ROWS):
        (folder / f"{n}.png").write_bytes(content(n))
    return folder


def make(server: Server, out: Path | str, **options: Any) -> RunReport:
    rows = pa.table(
        {
            "url": [server.url(f"{n}.png") for n in range(ROWS)],
            "caption": [f"größe {n}" for n in range(ROWS)],
            "number": pa.array(range(ROWS), pa.int16()),
            "tags": [["a", str(n)] for n in range(ROWS)],
        }
    )
    how = {
        "caption_col": "caption",
        "save_additional_columns": "number,tags",
        "output_format": "webdataset",
        "number_sample_per_shard": PER_SHARD,
        "distributor": "inline",
        "quiet": True,
    }
    return download(rows, output_folder=out, **{**how, **options})


def again(out: Path | str, **options: Any) -> RunReport:
    return retry(out, **{"distributor": "inline", "quiet": True, **options})


@contextmanager
def failed_dataset(media: Path, out: Path | str, **options: Any) -> Iterator[Server]:
    """1, 6, 7 and 11 have failed; they are there again, all but 6, which takes another attempt."""
    with serve(media, FLAKY) as server:
        assert make(server, out, **options).successes == 8
        yield server


def files_of(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


def stored(out: Path) -> dict[str, Mapping[str, bytes]]:
    """Key -> members, as the readers of each format find them, in their order."""
    if list(out.glob("*.tar")):
        shards = [str(path) for path in sorted(out.glob("*.tar"))]
        dataset = webdataset.WebDataset(shards, shardshuffle=False, empty_check=False)
        return {s["__key__"].rsplit("/")[-1]: {e: s[e] for e in ("png", "txt", "json")} for s in dataset}
    if folders := sorted(path for path in out.glob("0*") if path.is_dir()):
        found: dict[str, dict[str, bytes]] = {}
        for path in sorted(path for folder in folders for path in folder.iterdir()):
            found.setdefault(path.stem, {})[path.suffix[1:]] = path.read_bytes()
        return found
    if shards := sorted(out.glob("*.*record")):
        return {e["key"][0].decode(): {"png": e["data"][0]} for path in shards for e in examples(path)}
    query = f"from read_parquet('{out}/0*.parquet', filename = true, file_row_number = true) select key, data"
    query += " where status = 'success' order by filename, file_row_number"
    return {key: {"png": bytes(data)} for key, data in duckdb.sql(query).fetchall()}


def metadata(out: Path) -> list[dict[str, Any]]:
    tables = [pq.read_table(path) for path in sorted(out.glob("0*.parquet"))]
    return [{name: row[name] for name in row if name != "data"} for table in tables for row in table.to_pylist()]


def expect_whole(out: Path, failed: Mapping[int, str]) -> None:
    """Every row has its outcome, every figure fits, and nothing else lies about."""
    rows, samples = metadata(out), stored(out)
    assert [row["key"] for row in rows] == [key(n) for n in range(ROWS)]
    assert {n: row["error_code"] for n, row in enumerate(rows) if row["status"] != "success"} == failed
    assert list(samples) == [key(n) for n in range(ROWS) if n not in failed]
    for n in range(ROWS):
        row = rows[n]
        assert (row["number"], row["tags"], row["caption"]) == (n, ["a", str(n)], f"größe {n}")
        if n not in failed:
            members = samples[key(n)]
            assert members["png"] == content(n)
            if "json" in members:
                assert members["txt"] == f"größe {n}".encode()
                assert json.loads(members["json"]) == row
    for shard in range(3):
        own = [row for row in rows if row["key"].startswith(f"{shard:05d}")]
        stats = json.loads((out / f"{shard:05d}_stats.json").read_text())
        successes = [row for row in own if row["status"] == "success"]
        codes: dict[str, int] = {}
        for row in own:
            codes[row["error_code"] or row["status"]] = codes.get(row["error_code"] or row["status"], 0) + 1
        assert stats["status_dict"] == codes
        assert (stats["count"], stats["successes"]) == (len(own), len(successes))
        assert stats["failed_to_download"] == len(own) - len(successes)
        assert stats["bytes"] == sum(row["bytes"] for row in successes)
    assert {name for name in names_in(out) if name.startswith(".")} == {".any2ds/run", ".any2ds/shards"}


@pytest.mark.parametrize("output_format", FORMATS)
def test_what_failed_is_fetched_again_and_stands_in_its_place(output_format: str, media: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with failed_dataset(media, out, output_format=output_format) as server:
        before = {key: dict(members) for key, members in stored(out).items()}
        expect_whole(out, {1: "http_503", 6: "http_503", 7: "http_404", 11: "http_503"})
        asked = len(server.requests)
        report = again(out)
        assert (report.shards, report.count, report.successes) == (3, 3, 2)
        assert report.status_dict == {"success": 2, "http_503": 1}
        assert len(server.requests) - asked == 3
        expect_whole(out, {6: "http_503", 7: "http_404"})
        assert {key: dict(members) for key, members in stored(out).items() if key in before} == before
        assert [row["attempts"] for row in metadata(out)] == [1, 2, 1, 1, 1, 1, 2, 1, 1, 1, 1, 2]

        report = again(out, codes="all")
        assert (report.shards, report.skipped_shards, report.count, report.successes) == (1, 2, 2, 2)
        expect_whole(out, {})
        assert [row["attempts"] for row in metadata(out)] == [1, 2, 1, 1, 1, 1, 3, 2, 1, 1, 1, 2]

        finished = files_of(out)
        report = again(out, codes="all")
        assert (report.shards, report.skipped_shards, report.count) == (0, 3, 0)
        assert files_of(out) == finished


def test_a_dataset_without_data_is_retried_as_well(media: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with failed_dataset(media, out, output_format="dummy"):
        assert again(out, codes="http_5xx,http_404").successes == 3
    assert [n for n, row in enumerate(metadata(out)) if row["status"] != "success"] == [6]
    stats = json.loads((out / "00001_stats.json").read_text())
    assert (stats["successes"], stats["bytes"]) == (4, sum(len(content(n)) for n in (5, 7, 8, 9)))


@pytest.mark.parametrize("output_format", ["webdataset", "files"])
def test_if_it_fails_again_the_data_are_not_touched(output_format: str, media: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with serve(media, {"6.png": ["503", "404"]}) as server:
        make(server, out, output_format=output_format)
        data = out / {"webdataset": "00001.tar", "files": "00001"}[output_format]
        before, written = files_of(out), data.stat().st_mtime_ns
        again(out)
    after = files_of(out)
    assert {name for name in after if after[name] != before[name]} == {"00001.parquet", "00001_stats.json"}
    assert data.stat().st_mtime_ns == written
    expect_whole(out, {6: "http_404"})


def test_only_the_codes_asked_for_are_tried(media: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with failed_dataset(media, out):
        assert again(out, codes=["http_4xx"]).status_dict == {"success": 1}
        assert again(out, codes="timeout_total,dns").count == 0
        assert again(out, codes="http_503").count == 3
    expect_whole(out, {6: "http_503"})


def test_what_is_wrong_is_refused_with_what_would_be_right(media: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(OptionError, match="did you mean timeout_total"):
        retry(out, codes="timeout_totl")
    with pytest.raises(OptionError, match="'output_format' cannot be given here: it was decided when the dataset was"):
        retry(out, output_format="parquet")
    with pytest.raises(OptionError, match="did you mean timeout"):
        retry(out, timeot=3)
    with pytest.raises(OutputError, match="empty, or there is no such folder"):
        retry(out)
    assert not out.exists()
    out.mkdir()
    (out / "mine.txt").write_text("hello")
    with pytest.raises(OutputError, match="not an any2ds dataset"):
        retry(out)
    with pytest.raises(OutputError, match=r"is a file, not the folder of a dataset|no such folder"):
        retry(out / "mine.txt")


def test_a_config_file_of_the_download_serves_as_well(media: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with failed_dataset(media, out):
        config = tmp_path / "run.yaml"
        config.write_text(
            f"url_list: urls.txt\noutput_format: parquet\noutput_folder: {out}\ntimeout: 7\nquiet: true\n"
        )
        assert retry(config=config, quiet=True, distributor="inline").successes == 2


def test_unfinished_shards_are_left_alone_and_told_of(
    media: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "out"
    with failed_dataset(media, out) as server:
        (out / "00000_stats.json").unlink()
        before = files_of(out)
        report = again(out)
        after = files_of(out)
        assert (report.count, report.successes) == (2, 1)
        assert {name for name in before if name.startswith("00000")} == {"00000.tar", "00000.tar.idx", "00000.parquet"}
        assert all(after[name] == before[name] for name in ("00000.tar", "00000.parquet"))
        assert "1 shards are not finished, the first is 0" in caplog.text
        make(server, out)
    expect_whole(out, {6: "http_503", 7: "http_404"})


def test_broken_shards_stay_as_they_are_and_the_others_are_retried(media: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with failed_dataset(media, out):
        whole = (out / "00000.tar").read_bytes()
        (out / "00000.tar").write_bytes(whole[:700])
        (out / "00001.parquet").write_bytes(b"PAR1 and nothing else")
        before = files_of(out)
        with pytest.raises(IncompleteRun, match=r"1 shard was left alone, the first \(1\): 00001.parquet") as caught:
            again(out)
        report = caught.value.report
        assert [error.shard_id for error in report.failed_shards] == [0]
        assert (report.shards, report.successes) == (1, 1)
        after = files_of(out)
        changed = {name for name in after if after[name] != before[name]} - {".any2ds/shards"}
        assert {name.split(".")[0].split("_")[0] for name in changed} == {"00002"}
        assert set(after) == set(before)


@pytest.mark.parametrize("damage", ["gone", "lacks", "surplus"])
def test_data_that_do_not_fit_their_metadata_are_not_replaced(damage: str, media: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with failed_dataset(media, out):
        if damage == "gone":
            (out / "00000.tar").unlink()
        else:
            table = pq.read_table(out / "00000.parquet")
            status = {"lacks": ["success"] * 5, "surplus": ["failed_to_download"] * 5}[damage]
            position = table.schema.get_field_index("status")
            code = table.schema.get_field_index("error_code")
            table = table.set_column(position, "status", pa.array(status))
            table = table.set_column(code, "error_code", pa.array([None, "http_503", "tls", "tls", "tls"]))
            if damage == "lacks":
                table = table.set_column(position, "status", pa.array(["success", "failed_to_download", *status[2:]]))
                shutil.copy(out / "00002.tar", out / "00000.tar")
            pq.write_table(table, out / "00000.parquet")
        before = files_of(out)
        with pytest.raises(IncompleteRun, match="any2ds verify --repair"):
            again(out)
        after = files_of(out)
    assert {name for name in {*before, *after} if name[:5] == "00000" and before.get(name) != after.get(name)} == set()


def test_rows_with_the_same_url_are_fetched_once_and_duplicates_stay_what_they_are(media: Path, tmp_path: Path) -> None:
    with serve(media, {"1.png": ["503", "ok"]}) as server:
        urls = [server.url(f"{n}.png") for n in (0, 1, 1, 2, 1, 1)]
        options: dict[str, Any] = {"number_sample_per_shard": 3, "distributor": "inline", "quiet": True}
        once, run = tmp_path / "shard", tmp_path / "run"
        download(urls, output_folder=once, **options)
        assert server.counts["1.png"] == 2
    with serve(media, {"1.png": ["503", "ok"]}) as server:
        urls = [server.url(f"{n}.png") for n in (0, 1, 1, 2, 1, 1)]
        download(urls, output_folder=run, dedupe="run", **options)
        report = again(run)
        assert (report.count, report.successes, server.counts["1.png"]) == (1, 1, 2)
    rows = metadata(run)
    assert [row["status"] for row in rows] == ["success", "success", "duplicate", "success", "duplicate", "duplicate"]
    assert [row["duplicate_of"] for row in rows] == [None, None, "000001", None, "000001", "000001"]
    assert json.loads((run / "00000_stats.json").read_text())["duplicates"] == 1
    with serve(media, {"1.png": ["503", "503", "ok"]}) as server:
        urls = [server.url(f"{n}.png") for n in (0, 1, 1, 2, 1, 1)]
        shutil.rmtree(once)
        download(urls, output_folder=once, **options)
        report = again(once)
        assert (report.count, report.successes, server.counts["1.png"]) == (4, 4, 4)
    assert sorted(path.name for path in (once / "00000").glob("*.png")) == ["000000.png", "000001.png", "000002.png"]


def test_shards_of_another_tool_without_codes_in_any_order(media: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with failed_dataset(media, out):
        fields = ["key", "url", "caption", "number", "tags", "status", "error_message"]
        for shard, count in ((0, 5), (1, 5), (2, 2)):
            path = out / f"{shard:05d}.parquet"
            table = pq.read_table(path).select(fields).append_column("their_score", pa.array([7] * count))
            pq.write_table(table.take(list(reversed(range(count)))), path)
            (out / f"{shard:05d}_stats.json").write_text('{"count": 5, "bytes": 77, "status_dict": {"?": 1}}')
        order = reversed(list(stored(out).items()))
        with webdataset.TarWriter(str(tmp_path / "reversed.tar"), encoder=False) as tar:
            for name, members in order:
                if name.startswith("00000"):
                    tar.write({"__key__": name, **members})
        shutil.move(tmp_path / "reversed.tar", out / "00000.tar")
        report = again(out, codes="transient")
        assert (report.count, report.successes) == (4, 3)
        again(out)
    rows = metadata(out)
    assert [row["key"] for row in rows] == [key(n) for n in range(ROWS)]
    assert [row["status"] for row in rows] == ["success"] * ROWS
    assert [row["their_score"] for row in rows] == [7] * ROWS
    assert [(name, dict(members)["png"]) for name, members in stored(out).items()] == [
        (key(n), content(n)) for n in range(ROWS)
    ]
    assert [json.loads((out / f"{n:05d}_stats.json").read_text())["successes"] for n in range(3)] == [5, 5, 2]


def test_in_a_store_that_only_this_process_sees(media: Path) -> None:
    with failed_dataset(media, "memory://retried"):
        assert again("memory://retried", codes="all").successes == 3
        with pytest.raises(OutputError, match='needs distributor="inline"'):
            again("memory://retried", distributor="multiprocessing")
    fs = fsspec.filesystem("memory")
    assert json.loads(fs.cat_file("/retried/00000_stats.json"))["successes"] == 5
    assert not [name for name in fs.find("/retried") if ".any2ds/swap" in name]


@pytest.mark.slow
@pytest.mark.parametrize("output_format", FORMATS)
def test_on_an_object_store(output_format: str, media: Path, tmp_path: Path, s3_server: None) -> None:
    fs = fsspec.filesystem("s3")
    fs.makedirs("retried", exist_ok=True)
    url = f"s3://retried/{output_format}"
    with failed_dataset(media, url, output_format=output_format):
        assert again(url, codes="all").successes == 3
        assert again(url, codes="all").successes == 1
    fs.invalidate_cache()
    fs.get(f"retried/{output_format}", str(tmp_path / "out"), recursive=True)
    expect_whole(tmp_path / "out", {})


KILLED = """
import os, sys
import pandas  # as pyarrow does when it is first used, which takes longer than all else
import any2ds.run.retry, any2ds.distributors.inline, any2ds.fetch.engines.curl
import any2ds.writers.formats.parquet, any2ds.writers.formats.webdataset
# What is loaded when it is needed, so that no lock is renewed meanwhile.
import any2ds.dataset.figures, any2ds.dataset.report.page, any2ds.fetch.fetcher
import any2ds.transforms.isolation, any2ds.worker.describe, any2ds.worker.open_shards

def die_at(step, folder):
    def look(event, arguments):
        nonlocal step
        # What is under a final name changes by these alone; a tree is removed by names relative to its folders.
        if event in ("os.rename", "os.remove", "os.rmdir"):
            if str(arguments[0]).startswith(folder) or (event != "os.rename" and arguments[1] != -1):
                step -= 1
                if not step:
                    os.kill(os.getpid(), 9)
    sys.addaudithook(look)

for step, folder in zip(sys.argv[1::2], sys.argv[2::2]):
    child = os.fork()
    if not child:
        die_at(int(step), folder)
        any2ds.run.retry.retry(folder, codes="all", distributor="inline", quiet=True)
        os._exit(0)
    print(os.waitpid(child, 0)[1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("third", range(3))  # all in one test may take minutes on a busy machine
@pytest.mark.parametrize(("output_format", "last"), [("webdataset", 54), ("parquet", 48), ("files", 53)])
def test_killed_at_any_step_it_loses_nothing_and_goes_on(
    output_format: str, last: int, third: int, media: Path, tmp_path: Path
) -> None:
    steps = range(1 + third, last + 1, 3)
    first = tmp_path / "first"
    with serve(media, {"1.png": ["503", "ok"]}) as server:
        make(server, first, output_format=output_format)
        before = {name: dict(members) for name, members in stored(first).items()}
        outs = [shutil.copytree(first, tmp_path / f"killed-{step}") for step in steps]
        killed = [word for step, out in zip(steps, outs, strict=True) for word in (str(step), str(out))]
        command = [sys.executable, "-c", KILLED, *killed]
        ends = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200).stdout.split()
        assert ends[0] == str(int(signal.SIGKILL))
        assert last not in steps or ends[-1] == "0", "more steps than it is killed at"
        for out, end in zip(outs, ends, strict=True):
            found = stored(out)
            assert {name: dict(found[name]) for name in before} == before
            assert len(metadata(out)) == ROWS
            if end != "0":
                again(out, codes="all")
            expect_whole(out, {})


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "any2ds", *arguments]


def test_the_command_says_what_became_of_the_rows(media: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with failed_dataset(media, out):
        said = [
            subprocess.run(command("retry", str(out), *more), capture_output=True, text=True, timeout=100)
            for more in (["--processes_count=1"], ["--codes=dns", "--distributor=inline"], ["--codes=htp_404"])
        ]
    assert [ran.returncode for ran in said] == [0, 0, 2]
    assert "retries failed rows (transient) in 3 shards of" in said[0].stderr
    assert "tried again: 3 rows, of which 2 are stored now" in said[0].stderr
    assert "has failed with dns" in " ".join(said[1].stderr.split())
    assert "did you mean http_404?" in said[2].stderr


def test_its_help_shows_its_options_and_no_others() -> None:
    shown = help_text("retry", everything=True)
    assert "any2ds retry OUTPUT_FOLDER" in shown
    assert all(f"--{name} " in shown for name in ("codes", "output_folder", "timeout", "processes_count"))
    assert "--url_list" not in shown
    assert "retry" in short_help()


def test_killed_while_rows_are_in_flight_it_can_be_repeated(media: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with serve(media, {"1.png": ["503", "hold", "ok"], "7.png": ["503", "ok"]}) as server:
        make(server, out)
        before = {name: dict(members) for name, members in stored(out).items()}
        with subprocess.Popen(command("retry", str(out), "--processes_count=2"), stderr=subprocess.DEVNULL) as running:
            try:
                server.wait_for("1.png", 2)
            finally:
                running.kill()
        found = stored(out)
        assert {name: dict(found[name]) for name in before} == before
        subprocess.run(command("retry", str(out)), check=True, capture_output=True, timeout=100)
    expect_whole(out, {})
