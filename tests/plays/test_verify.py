"""`any2ds verify` finds each kind of damage, and what `--repair` removes the same download command makes again."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

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
    import pyarrow as pa

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
@pytest.mark.parametrize("keep", [0, 0.5, -1])
def test_a_file_that_was_cut_is_found(output_format: str, keep: float) -> None:
    play = finished(output_format=output_format)
    change(
        Path(play.path, DATA[output_format]),
        lambda content: content[: int(keep) if keep <= 0 else int(keep * len(content))],
    )
    outcome = play.run("verify", json="-")
    assert outcome.exit_code == 1
    assert json.loads(outcome.stdout)["broken_shards"] == [1]


@pytest.mark.parametrize("output_format", FORMATS)
def test_missing_data_are_found(output_format: str) -> None:
    play = finished(output_format=output_format)
    Path(play.path, DATA[output_format]).unlink()
    outcome = play.run("verify", json="-")
    assert outcome.exit_code == 1
    assert json.loads(outcome.stdout)["broken_shards"] == [1]


def cut(name: str) -> Callable[[Path], None]:
    return lambda out: change(out / name, lambda content: content[: len(content) // 2])


def write(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda out: (out / name).write_bytes(content)  # type: ignore[return-value]


DAMAGE: dict[str, tuple[Callable[[Path], Any], int | None]] = {
    "metadata gone": (lambda out: (out / "00001.parquet").unlink(), 1),
    "metadata cut": (cut("00001.parquet"), 1),
    "statistics cut": (cut("00001_stats.json"), 1),
    "statistics of another count": (lambda out: change_json(out / "00001_stats.json", count=3), 1),
    "statistics of other successes": (lambda out: change_json(out / "00001_stats.json", successes=1), 1),
    "statistics of other outcomes": (
        lambda out: change_json(out / "00001_stats.json", status_dict={"success": 1, "dns": 1}),
        1,
    ),
    "statistics of other bytes": (lambda out: change_json(out / "00001_stats.json", bytes=1), 1),
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
    ("name", "content", "exit_code"),
    [
        ("00001.tar.idx", None, 1),
        ("00001.tar.idx", b"", 1),
        ("00001.tar.idx", struct.pack("<3Q", 0, 512, 1024), 1),
        (".any2ds/shards", None, 3),
        (".any2ds/shards", b"{", 3),
    ],
    ids=["index gone", "index empty", "another index", "list of shards gone", "list of shards unreadable"],
)
def test_what_lies_beside_shards_is_written_again_by_a_repair(name: str, content: bytes | None, exit_code: int) -> None:
    play = finished()
    before = play.files()
    path = Path(play.path, name)
    path.unlink() if content is None else path.write_bytes(content)
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


def test_the_python_function_returns_the_findings() -> None:
    play = finished()
    Path(play.path, "00002.tar").write_bytes(b"")
    report = play.run("verify", way="python").result
    assert (report.ok, report.is_incomplete) == (False, False)
    assert {finding.shard_id for finding in report.findings} == {2}
