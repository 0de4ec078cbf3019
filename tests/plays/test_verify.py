"""`any2ds verify` finds each kind of damage, and what `--repair` removes the same download command makes again."""

import io
import json
import os
import struct
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import any2ds
from any2ds.core.errors import UsageError
from any2ds.testing.processes import LONG, children, is_running, wait_until
from tests.support.play import Play, body_of

FORMATS = ("files", "webdataset", "parquet", "tfrecord", "arrayrecord")
NAMES = [f"{n}.jpg" for n in range(6)]
DATA = {
    "files": "00001/000010.jpg",
    "webdataset": "00001.tar",
    "parquet": "00001.parquet",
    "tfrecord": "00001.tfrecord",
    "arrayrecord": "00001.arrayrecord",
}


def finished(**options: Any) -> Play:
    play = Play(dict.fromkeys(NAMES, "ok") | {"5.jpg": "404"}, number_sample_per_shard=2, **options)
    assert play.run().codes == {"success": 5, "http_404": 1}
    return play


def change(path: Path, edit: Callable[[bytes], bytes]) -> None:
    path.write_bytes(edit(path.read_bytes()))


def change_json(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **values}))


def change_column(path: Path, name: str, values: list[Any]) -> None:
    table = pq.read_table(path)
    place = table.schema.get_field_index(name)
    pq.write_table(
        table.set_column(place, table.schema.field(name), pa.array(values, table.schema.field(name).type)), path
    )


def flip_in(content: bytes, file: bytes) -> bytes:
    """One bit is changed in the middle of a file that is stored somewhere in there."""
    place = content.index(file) + len(file) // 2
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize("output_format", FORMATS)
def test_a_sound_dataset_has_no_findings(output_format: str) -> None:
    play = finished(output_format=output_format)
    outcome = play.run("verify", json="-")
    report = json.loads(outcome.stdout)
    assert outcome.exit_code == 0
    assert (report["ok"], report["incomplete"], report["findings"]) == (True, False, [])
    assert (report["shards"], report["shards_read"], report["rows"], report["samples"]) == (3, 3, 6, 5)
    assert report["bytes_read"] == sum(len(body_of(name)) for name in NAMES[:5])
    assert report["hashes"] == ["md5"]


@pytest.mark.parametrize("output_format", FORMATS)
def test_one_changed_bit_in_a_file_is_found_and_repaired(output_format: str) -> None:
    play = finished(output_format=output_format)
    before = play.files()
    change(Path(play.path, DATA[output_format]), lambda content: flip_in(content, body_of("2.jpg")))
    outcome = play.run("verify", json="report.json")
    assert outcome.exit_code == 1
    report = json.loads((play.folder / "report.json").read_text())
    assert (report["ok"], report["broken_shards"], report["repaired_shards"]) == (False, [1], [])
    repaired = play.run("verify", "--repair")
    assert repaired.exit_code == 1
    assert not [name for name in repaired.names if name.startswith("00001")]
    assert play.run("verify").exit_code == 3
    outcome = play.run()
    assert sorted(outcome.requests) == ["2.jpg", "3.jpg"]
    assert outcome.codes == {"success": 5, "http_404": 1}
    assert {
        name for name in before if name.startswith(("00000", "00002")) and outcome.files[name] != before[name]
    } == set()
    assert play.run("verify").exit_code == 0


@pytest.mark.parametrize("output_format", FORMATS)
@pytest.mark.parametrize("keep", [None, 0, 0.5, 0.99])
def test_a_file_that_is_cut_or_missing_is_found(output_format: str, keep: float | None) -> None:
    play = finished(output_format=output_format)
    path = Path(play.path, DATA[output_format])
    path.unlink() if keep is None else change(path, lambda content: content[: int(keep * len(content))])
    outcome = play.run("verify", json="-")
    assert outcome.exit_code == 1
    assert json.loads(outcome.stdout)["broken_shards"] == [1]


@pytest.mark.parametrize("damage", ["garbage", "a row less"])
def test_a_damaged_table_for_other_tools_is_found(damage: str) -> None:
    play = Play(dict.fromkeys(NAMES, "ok"), number_sample_per_shard=2, preset="img2dataset")
    assert play.run().exit_code == 0
    path = Path(play.path, "00001.parquet")
    assert play.run("verify").exit_code == 0
    if damage == "garbage":
        path.write_bytes(b"garbage" * 100)
    else:
        pq.write_table(pq.read_table(path).slice(1), path)
    outcome = play.run("verify", json="-")
    assert outcome.exit_code == 1
    assert json.loads(outcome.stdout)["broken_shards"] == [1]


def change_members(path: Path, edit: Callable[[list[tuple[str, bytes]]], list[tuple[str, bytes]]]) -> None:
    """The members of a tar file, which is written anew."""
    with tarfile.open(path) as tar:
        members = [(member.name, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]
    with tarfile.open(path, "w") as tar:
        for name, data in edit(members):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def members(edit: Callable[[list[tuple[str, bytes]]], list[tuple[str, bytes]]]) -> Callable[[Path], None]:
    return lambda out: change_members(out / "00001.tar", edit)


def table(edit: Callable[[pa.Table], pa.Table]) -> Callable[[Path], None]:
    path = "00001.parquet"
    return lambda out: pq.write_table(edit(pq.read_table(out / path)), out / path)


def instead(name: str, make: Callable[[Path], object]) -> Callable[[Path], None]:
    """Something else in the place of a file."""

    def damage(out: Path) -> None:
        (out / name).unlink()
        make(out / name)

    return damage


def cut(name: str) -> Callable[[Path], None]:
    return lambda out: change(out / name, lambda content: content[: len(content) // 2])


def write(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda out: (out / name).write_bytes(content)  # type: ignore[return-value]


DAMAGE: dict[str, tuple[Callable[[Path], Any], int | None]] = {
    "metadata gone": (lambda out: (out / "00001.parquet").unlink(), 1),
    "metadata cut": (cut("00001.parquet"), 1),
    "statistics cut": (cut("00001_stats.json"), 1),
    "statistics of another count": (lambda out: change_json(out / "00001_stats.json", count=3), 1),
    "statistics of another shard": (lambda out: change_json(out / "00001_stats.json", shard_id=2), 1),
    "a key of another shard": (lambda out: change_column(out / "00001.parquet", "key", ["000010", "000021"]), 1),
    "a key twice": (lambda out: change_column(out / "00001.parquet", "key", ["000010", "000010"]), 1),
    "another size": (lambda out: change_column(out / "00001.parquet", "bytes", [1, 677]), 1),
    "another extension": (lambda out: change_column(out / "00001.parquet", "ext", ["png", "jpg"]), 1),
    "another hash": (lambda out: change_column(out / "00001.parquet", "md5", ["0" * 32] * 2), 1),
    "an outcome without sample": (
        lambda out: change_column(out / "00002.parquet", "status", ["success", "success"]),
        2,
    ),
    "statistics of another kind": (write("00001_stats.json", b"[1, 2]"), 1),
    "metadata empty": (write("00001.parquet", b""), 1),
    "a row of the metadata gone": (table(lambda found: found.slice(0, 1)), 1),
    "a column of the metadata gone": (table(lambda found: found.drop_columns("ext")), 1),
    "keys that are numbers": (table(lambda found: found.set_column(0, "key", pa.array([10, 11]))), 1),
    "a sample twice": (members(lambda found: found + found[:2]), 1),
    "a sample gone": (members(lambda found: found[2:]), 1),
    "a sample of nobody": (members(lambda found: [*found, ("x.jpg", b"x")]), 1),
    "a file cut": (members(lambda found: [(found[0][0], b"x"), *found[1:]]), 1),
    "data of another shard": (lambda out: (out / "00001.tar").write_bytes((out / "00000.tar").read_bytes()), 1),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_in_the_shard_that_has_it(name: str) -> None:
    damage, shard = DAMAGE[name]
    play = finished()
    damage(Path(play.path))
    outcome = play.run("verify", json="-")
    assert outcome.exit_code == 1
    report = json.loads(outcome.stdout)
    assert report["broken_shards"] == [shard]
    assert {finding["shard"] for finding in report["findings"]} <= {shard, None}
    play.run("verify", "--repair")
    assert play.run().codes == {"success": 5, "http_404": 1}
    assert play.run("verify").exit_code == 0


@pytest.mark.parametrize(
    ("output_format", "dedupe", "captions"),
    [
        *((output_format, "shard", True) for output_format in (*FORMATS, "dummy")),
        *((output_format, "shard", False) for output_format in FORMATS),
        *(("webdataset", dedupe, True) for dedupe in ("run", "none")),
    ],
)
def test_values_and_captions_of_any_kind_are_right(output_format: str, dedupe: str, captions: bool) -> None:
    words = {"caption": pa.array(["a\n", None, "", "\x00", "ß" * 500, "x", "y"])} if captions else {}
    odd = {
        "day": pa.array(range(7), pa.date32()),
        "at": pa.array([-(2**62), 2**62, *range(5)], pa.timestamp("ns")),
        "half": pa.array([float("nan"), float("inf"), 0.1, None, 1 / 3, 1e300, -0.0], pa.float64()),
        "raw": pa.array([b"\xff"] * 7, pa.binary()),
        "nested": pa.array([{"a": [1, None]}] * 7),
        "large": pa.array(["ß"] * 7, pa.large_string()),
        "big": pa.array([2**63 - 1] * 7, pa.int64()),
        "a.b": pa.array([True, None] * 3 + [False], pa.bool_()),
    }
    play = Play({"a.bin": "ok", "b.bin": "ok", "gone.bin": "404"})
    names = ["a.bin", "b.bin", "a.bin", "gone.bin", "b.bin", "a.bin", "b.bin"]
    with play.inside():
        any2ds.download(
            pa.table({"url": [play.web.url(name) for name in names], **words, **odd}),
            output_folder=play.path,
            output_format=output_format,
            caption_col="caption" if captions else None,
            save_additional_columns=list(odd),
            number_sample_per_shard=3,
            dedupe=dedupe,
            distributor="inline",
            quiet=True,
        )
    report = any2ds.verify(play.path, quiet=True)
    assert [finding for finding in report.findings if finding.kind != "unread"] == []
    assert (report.shards_read, report.rows, report.samples) == (3, 7, {"run": 2}.get(dedupe, 6))


@pytest.mark.parametrize("name", ["00001_stats.json", "00001.parquet", "00001.tar"])
def test_a_pipe_is_not_waited_for(name: str) -> None:
    play = finished()
    instead(name, os.mkfifo)(Path(play.path))
    report = any2ds.verify(play.path, quiet=True)
    Path(play.path, name).unlink()
    assert report.broken == (1,)


def test_a_file_that_must_not_be_read_is_not_broken() -> None:
    play = finished()
    instead("00001_stats.json", lambda path: path.symlink_to(path))(Path(play.path))
    report = any2ds.verify(play.path, quiet=True)
    Path(play.path, "00001_stats.json").unlink()
    assert [each.kind for each in report.findings] == ["unreadable"]
    assert report.broken == ()


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"options": 3}', b'{"options": {}, "lists": [7]}', None])
def test_without_a_run_file_shards_tell_themselves(content: bytes | None) -> None:
    play = finished()
    change(Path(play.path, "00001.tar"), lambda tar: flip_in(tar, body_of("2.jpg")))
    run = Path(play.path, ".any2ds/run")
    run.unlink() if content is None else run.write_bytes(content)
    report = any2ds.verify(play.path, quiet=True)
    assert {(each.shard_id, each.kind) for each in report.findings} == {(1, "hash"), (None, "run_file")}
    with pytest.raises(UsageError, match=r"\.any2ds/run"):
        any2ds.verify(play.path, repair=True, quiet=True)


def test_what_killed_runs_left_is_no_fault_and_is_removed() -> None:
    play = finished()
    staged = Path(play.path, ".any2ds/tmp/any2ds-0123456789ab-x")
    staged.mkdir(parents=True)
    assert play.run("verify").exit_code == play.run("verify", "--repair").exit_code == 0
    assert not staged.exists()


# --- rows that were tried again in a later shard ---


def with_retry(status: str) -> Play:
    """The last row failed in shard 2, and was tried again in shard 3."""
    last: Any = ["http_404", "ok"] if status == "success" else "http_404"
    play = Play({"0.jpg": "ok", "1.jpg": "http_403", "2.jpg": last}, number_sample_per_shard=1)
    play.run()
    play.run("retry", codes="http_404")
    return play


@pytest.mark.parametrize(("status", "stored"), [("success", 2), ("failed_to_download", 1)])
def test_a_row_that_was_tried_again_counts_once_in_all_figures(status: str, stored: int) -> None:
    play = with_retry(status)
    report = any2ds.verify(play.path, quiet=True)
    assert (report.ok, report.rows, report.samples) == (True, 3, stored)
    summary = any2ds.inspect(play.path)
    assert (summary.rows, summary.successes, summary.failed, summary.samples) == (3, stored, 3 - stored, stored)
    assert summary.outcomes == {"success": stored, "http_403": 1} | ({} if stored == 2 else {"http_404": 1})
    assert [(host.rows, host.outcomes) for host in summary.hosts] == [(3, summary.outcomes)]


def test_the_key_of_a_later_shard_is_none_of_a_retry() -> None:
    play = with_retry("success")
    change_column(Path(play.path, "00003.parquet"), "key", ["000040"])
    found = any2ds.verify(play.path, quiet=True).findings
    assert (3, "keys") in {(each.shard_id, each.kind) for each in found}


@pytest.mark.parametrize(
    ("name", "content", "exit_code"),
    [
        ("00001.tar.idx", None, 1),
        ("00001.tar.idx", b"", 1),
        ("00001.tar.idx", struct.pack("<3Q", 0, 512, 1024), 1),
        (".any2ds/shards", None, 3),
        (".any2ds/shards", b"{", 3),
        (".any2ds/shards", lambda right: right.replace(b'"nsamples":2', b'"nsamples":3'), 3),
        (".any2ds/shards", lambda right: right.replace(b'"open":false', b'"open":true'), 3),
    ],
    ids=["no index", "index empty", "another index", "no list", "list unreadable", "list wrong", "list open"],
)
def test_what_lies_beside_shards_is_written_again_by_a_repair(name: str, content: Any, exit_code: int) -> None:
    play = finished()
    before = play.files()
    path = Path(play.path, name)
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content(before[name]) if callable(content) else content)
    assert play.run("verify").exit_code == exit_code
    outcome = play.run("verify", "--repair")
    assert {each for each in before if outcome.files.get(each) != before[each]} == set()
    assert play.run("verify").exit_code == 0


@pytest.mark.parametrize("name", ["00009.tar", "00003.parquet", "00004_stats.json"])
def test_a_file_that_loaders_would_take_for_a_shard_is_found(name: str) -> None:
    play = finished()
    Path(play.path, name).write_bytes(b"x")
    outcome = play.run("verify", json="-")
    assert outcome.exit_code == 1
    assert int(name[:5]) in {finding["shard"] for finding in json.loads(outcome.stdout)["findings"]}


def test_files_of_others_are_no_finding() -> None:
    play = finished()
    Path(play.path, "README.md").write_bytes(b"mine")
    Path(play.path, "notes").mkdir()
    Path(play.path, "notes", "a.txt").write_bytes(b"mine")
    outcome = play.run("verify", "--repair")
    assert outcome.exit_code == 0
    assert (outcome.files["README.md"], outcome.files["notes/a.txt"]) == (b"mine", b"mine")


def test_a_dataset_with_shards_to_go_is_incomplete_and_not_damaged() -> None:
    play = finished()
    for file in Path(play.path).glob("00001*"):
        file.unlink()
    outcome = play.run("verify", json="-")
    report = json.loads(outcome.stdout)
    assert (outcome.exit_code, report["ok"], report["incomplete"]) == (3, False, True)
    assert (report["missing_shards"], report["broken_shards"]) == ([1], [])


def test_a_trial_of_a_list_is_complete() -> None:
    play = Play(dict.fromkeys(NAMES, "ok"), number_sample_per_shard=2)
    play.run(limit=3)
    assert play.run("verify").exit_code == 0


@pytest.mark.parametrize(("sample", "read"), [("1", 1), ("2", 2), ("34%", 2), ("100%", 3), ("7", 3)])
def test_a_sample_of_the_shards_is_read(sample: str, read: int) -> None:
    play = finished()
    report = json.loads(play.run("verify", sample=sample, json="-", seed=1).stdout)
    assert (report["ok"], report["shards"], report["shards_read"], report["seed"]) == (True, 3, read, 1)
    again = json.loads(play.run("verify", sample=sample, json="-", seed=1).stdout)
    assert again["bytes_read"] == report["bytes_read"]


def test_a_sample_opens_no_other_shard() -> None:
    play = finished(store="s3")
    with play.bucket.recording() as requests:
        report = json.loads(play.run("verify", sample="1", seed=1, json="-").stdout)
    shards = {target.split("?")[0].rpartition("/")[2][:5] for method, target in requests if method == "GET"}
    assert len(shards & {"00000", "00001", "00002"}) == report["shards_read"] == 1


@pytest.mark.parametrize("sample", ["0", "0%", "-1", "101%", "x"])
def test_a_sample_that_cannot_be_is_refused(sample: str) -> None:
    outcome = finished().run("verify", sample=sample)
    assert outcome.exit_code == 2
    assert "sample" in outcome.stderr


def test_a_sample_finds_a_missing_file_of_any_shard() -> None:
    play = finished()
    Path(play.path, "00001.tar").unlink()
    for seed in range(3):
        assert play.run("verify", sample="1", seed=seed).exit_code == 1


@pytest.mark.parametrize(
    ("options", "hashes"),
    [
        ({"compute_md5": False}, []),
        ({"compute_hash": "sha256"}, ["md5", "sha256"]),
        ({"compute_hash": "sha512", "compute_md5": False}, ["sha512"]),
        ({"file_size": 16}, ["md5"]),
    ],
    ids=str,
)
def test_hashes_are_those_that_the_dataset_has(options: dict[str, Any], hashes: list[str]) -> None:
    outcome = finished(**options).run("verify", json="-")
    assert outcome.exit_code == 0
    assert sorted(json.loads(outcome.stdout)["hashes"]) == hashes


def test_a_dataset_in_a_bucket_is_verified_and_repaired() -> None:
    play = finished(store="s3")
    system = play.bucket.connect()
    path = f"{play.out}/00001.tar"
    system.pipe_file(path, flip_in(system.cat_file(path), body_of("2.jpg")))
    assert play.run("verify").exit_code == 1
    repaired = play.run("verify", "--repair")
    assert not [name for name in repaired.names if name.startswith("00001")]
    assert play.run().codes == {"success": 5, "http_404": 1}


@pytest.mark.parametrize("output_format", FORMATS)
def test_each_file_of_a_store_is_copied_once(output_format: str) -> None:
    play = finished(store="s3", output_format=output_format)
    with play.bucket.recording() as requests:
        assert play.run("verify").exit_code == 0
    gets = Counter(target.split("?")[0] for method, target in requests if method == "GET")
    of_shards = {name: times for name, times in gets.items() if name.rpartition("/")[2][:5].isdecimal()}
    assert set(of_shards.values()) == {1}, of_shards


# --- processes ---


def make_large(play: Play) -> None:
    """By a file of nobody that takes no room on the disk: small datasets are read by the command itself."""
    with Path(play.path, "notes.bin").open("wb") as hole:
        hole.truncate(1 << 40)


def test_processes_find_what_one_finds() -> None:
    play = finished()
    change(Path(play.path, "00001.tar"), lambda content: flip_in(content, body_of("2.jpg")))
    alone = any2ds.verify(play.path, quiet=True)
    make_large(play)
    together = any2ds.verify(play.path, processes_count=2, quiet=True)
    assert together.findings == alone.findings
    assert (together.rows, together.bytes_read, together.hashes) == (alone.rows, alone.bytes_read, alone.hashes)


def test_ctrl_c_ends_its_processes() -> None:
    play = finished(output_format="files")
    make_large(play)
    with Path(play.path, "00001/000010.jpg").open("wb") as hole:
        hole.truncate(1 << 31)  # takes a second to read
    change_column(Path(play.path, "00001.parquet"), "bytes", [1 << 31, 1])
    running = play.start("verify", processes_count=2)
    pid = running.process.pid
    wait_until(lambda: any("000010.jpg" in name for child in children(pid) for name in open_files(child)))
    readers = children(pid)
    running.signal()
    assert running.process.wait(LONG) == 130
    assert not any(map(is_running, readers))


def open_files(pid: int) -> list[str]:
    found = []
    for file in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            found.append(os.readlink(file))
        except OSError:  # it has just been closed
            continue
    return found


# --- made by others ---


def of_img2dataset(out: Path, output_format: str) -> None:
    """Two shards as img2dataset writes them: rows in the order of arrival, no number in the stats."""
    out.mkdir()
    for shard in ("00000", "00001"):
        order = [2, 0, 3, 1]
        key = [f"{shard}{n:04d}" for n in order]
        status = ["success", "success", "failed_to_download", "success"]
        columns: dict[str, Any] = {
            "url": [f"http://127.0.0.1/{n}" for n in order],
            "key": key,
            "status": status,
            "error_message": [None, None, "HTTP Error 404: Not Found", None],
            "md5": [None if s != "success" else "of something else" for s in status],
        }
        good = [k for k, s in zip(key, status, strict=True) if s == "success"]
        if output_format == "parquet":
            columns["jpg"] = pa.array([b"x" if s == "success" else None for s in status], pa.binary())
        pq.write_table(pa.table(columns), out / f"{shard}.parquet")
        beside = {k: json.dumps({"key": k, "x": float("nan")}).encode() for k in good}
        if output_format == "webdataset":
            (out / f"{shard}.tar").write_bytes(b"\0" * 1024)
            files = [file for k in good for file in ((f"{k}.jpg", b"x" * 100), (f"{k}.json", beside[k]))]
            change_members(out / f"{shard}.tar", lambda _, files=files: files)  # type: ignore[misc]
        elif output_format == "files":
            (out / shard).mkdir()
            for k in good:
                (out / shard / f"{k}.jpg").write_bytes(b"x")
                (out / shard / f"{k}.json").write_bytes(beside[k])
        figures = {"count": 4, "successes": 3, "failed_to_download": 1, "failed_to_resize": 0, "duration": 1.5}
        times = {"start_time": 1.7e9, "end_time": 1.7e9 + 5, "status_dict": {"success": 3, "HTTP Error 404": 1}}
        (out / f"{shard}_stats.json").write_text(json.dumps({**figures, **times}))


@pytest.mark.parametrize("output_format", ["webdataset", "files", "parquet"])
def test_datasets_of_img2dataset_are_checked_as_far_as_they_tell(output_format: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    of_img2dataset(out, output_format)
    report = any2ds.verify(out, quiet=True)
    assert (report.findings, report.rows, report.samples, report.hashes) == ((), 8, 6, ())
    assert any("not made by any2ds" in note for note in report.notes)
    with pytest.raises(UsageError, match="not made by any2ds"):
        any2ds.verify(out, repair=True, quiet=True)
    data = {"webdataset": ".tar", "files": "", "parquet": ".parquet"}[output_format]
    (out / f"00001{data}").rename(out / "between")
    (out / f"00000{data}").rename(out / f"00001{data}")
    (out / "between").rename(out / f"00000{data}")
    wanted = "keys" if output_format == "parquet" else "samples"
    found = {(each.shard_id, each.kind) for each in any2ds.verify(out, quiet=True).findings}
    assert found == {(0, wanted), (1, wanted)}


def test_the_python_function_returns_the_findings() -> None:
    play = finished()
    Path(play.path, "00002.tar").write_bytes(b"")
    report = play.run("verify", way="python").result
    assert (report.ok, report.is_incomplete) == (False, False)
    assert {finding.shard_id for finding in report.findings} == {2}
