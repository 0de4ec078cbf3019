"""`any2ds.load` reads a dataset of any format: by number, by condition, in order and shuffled, and finds damage."""

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import any2ds
from any2ds.testing.server import serve
from tests.support.params import sampled
from tests.support.play import Play, Row, body_of

FORMATS = ("files", "webdataset", "parquet", "tfrecord", "arrayrecord")
NAMES = [f"{n}.jpg" for n in range(8)]
ROWS = {
    name: Row(
        "404" if number == 5 else "ok", columns={"text": f"about {name}", "label": number % 3, "score": number / 2}
    )
    for number, name in enumerate(NAMES)
}
STORED = [name for name in NAMES if name != "5.jpg"]
KEYS = [f"0000{shard}{place}" for shard in range(3) for place in range(3)][:8]
KEYS.remove("000012")


def made(output_format: str = "webdataset", rows: Mapping[str, Any] = ROWS, **options: Any) -> Play:
    play = Play(
        rows,
        **{
            "output_format": output_format,
            "number_sample_per_shard": 3,
            "caption_col": "text",
            "save_additional_columns": "label,score",
            **options,
        },
    )
    assert play.run().exit_code == 0
    return play


def keys(samples: Any) -> list[str]:
    return [sample["key"] for sample in samples]


@pytest.mark.parametrize("output_format", FORMATS)
def test_samples_of_each_format_are_read_by_number(output_format: str) -> None:
    ds = any2ds.load(made(output_format).path)
    assert len(ds) == 7
    assert list(ds.keys) == KEYS
    assert [sample["data"] for sample in ds] == [body_of(name) for name in STORED]
    assert (ds[0]["key"], ds[-1]["key"], ds[5]["caption"]) == ("000000", "000021", "about 6.jpg")
    assert (ds[6]["label"], ds[6]["score"], ds[6]["ext"], ds[6]["status"]) == (1, 3.5, "jpg", "success")
    assert keys(ds[2:5]) == KEYS[2:5]
    assert keys(ds[::-3]) == KEYS[::-3]
    assert keys(ds[[5, 1, 1]]) == [KEYS[5], KEYS[1], KEYS[1]]
    assert keys(ds[numpy.flatnonzero(numpy.array([1, 0, 0, 0, 0, 0, 1]))]) == [KEYS[0], KEYS[6]]
    assert len(ds.shards) == 3
    for beyond in (7, -8):
        with pytest.raises(IndexError):
            ds[beyond]


@pytest.mark.parametrize("output_format", FORMATS)
def test_where_and_columns_choose_in_each_format(output_format: str) -> None:
    path = made(output_format).path
    ds = any2ds.load(path, where="label = 1 and score >= 1", columns=["key", "score", "data"])
    assert [list(sample) for sample in ds] == [["key", "score", "data"]] * 2
    assert [(sample["score"], sample["data"]) for sample in ds] == [(2.0, body_of("4.jpg")), (3.5, body_of("7.jpg"))]
    assert [list(sample) for sample in any2ds.load(path, columns=["caption"])] == [["caption"]] * 7


@pytest.mark.parametrize(
    ("where", "names"),
    [
        ("label = 0", ["0.jpg", "3.jpg", "6.jpg"]),
        ("label != 0", ["1.jpg", "2.jpg", "4.jpg", "7.jpg"]),
        ("score < 1", ["0.jpg", "1.jpg"]),
        ("score <= 1", ["0.jpg", "1.jpg", "2.jpg"]),
        ("score > 3", ["7.jpg"]),
        ("score >= 3", ["6.jpg", "7.jpg"]),
        ("label in (1, 2) and not score > 1", ["1.jpg", "2.jpg"]),
        ("label = 0 or caption = 'about 4.jpg'", ["0.jpg", "3.jpg", "4.jpg", "6.jpg"]),
        ("(label = 0 or label = 1) and score > 2", ["6.jpg", "7.jpg"]),
        ("error_code is null", STORED),
        ("error_code is not null", []),
        ("caption is not null and label not in (0, 1)", ["2.jpg"]),
        (pc.field("label") == 2, ["2.jpg"]),
    ],
    ids=str,
)
def test_conditions(where: Any, names: list[str]) -> None:
    ds = any2ds.load(made().path, where=where)
    assert [sample["url"].rpartition("/")[2] for sample in ds] == names
    assert ds.metadata.to_table(columns=["key"])["key"].to_pylist() == list(ds.keys)


def test_hashed_splits_share_the_samples_and_are_the_same_in_each_format() -> None:
    parts = []
    for output_format in ("webdataset", "parquet"):
        path = made(output_format).path
        first, second = (any2ds.load(path, split=f"hash[{part}]") for part in (":60%", "60%:"))
        assert sorted([*first.keys, *second.keys]) == KEYS
        parts.append(list(first.keys))
    assert parts[0] == parts[1]
    assert any2ds.split("train", 0.6) is not None


def test_a_column_split_names_splits() -> None:
    rows = {name: Row(columns={"split": value}) for name, value in zip(NAMES, "xyxyxyxx", strict=True)}
    path = made(rows=rows, caption_col="split", save_additional_columns="split").path
    assert [sample["url"][-5:] for sample in any2ds.load(path, split="y")] == ["1.jpg", "3.jpg", "5.jpg"]
    assert [sample["url"][-5:] for sample in any2ds.load(path, split="x[-1:]+y[:1]")] == ["7.jpg", "1.jpg"]


@pytest.mark.parametrize("output_format", FORMATS)
def test_images_are_decoded_in_each_format(output_format: str) -> None:
    ds = any2ds.load(made(output_format).path, decode=True, columns=["data", "label"])
    assert [(sample["data"].shape, sample["data"].dtype) for sample in ds] == [((48, 64, 3), numpy.uint8)] * 7
    colours = {tuple(int(value) // 32 for value in sample["data"][24, 32]) for sample in ds}
    assert len(colours) > 3


def test_texts_are_decoded() -> None:
    play = Play({"a.txt": Row(body="näh".encode()), "b.txt": "ok"})
    play.run()
    assert [sample["data"] for sample in any2ds.load(play.path, decode=True)] == ["näh", "the text of b.txt\n"]


def test_a_file_that_cannot_be_decoded_is_an_error_with_its_key() -> None:
    play = Play({"a.jpg": Row(body=body_of("a.jpg")[:300])})
    play.run()
    ds = any2ds.load(play.path, decode=True)
    with pytest.raises(any2ds.Any2dsError, match="000000000"):
        ds[0]


# --- streams ---


@pytest.mark.parametrize("output_format", FORMATS)
def test_a_stream_has_each_sample_once_in_order_or_shuffled(output_format: str) -> None:
    ds = any2ds.load(made(output_format).path)
    assert keys(ds.stream()) == KEYS
    shuffled = keys(ds.stream(shuffle=True, seed=1, window=4))
    assert sorted(shuffled) == KEYS != shuffled
    assert keys(ds.stream(shuffle=True, seed=1, window=4)) == shuffled
    assert keys(ds.stream(shuffle=True, seed=2, window=4)) != shuffled


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("batch", [None, 2])
def test_ranks_take_turns_in_a_stream(batch: int | None, shuffle: bool) -> None:
    ds = any2ds.load(made().path)
    order = keys(ds.stream(shuffle=shuffle, seed=1))
    for rank in range(3):
        part = ds.stream(rank=rank, world_size=3, batch_size=batch, shuffle=shuffle, seed=1)
        assert keys(part) == order[rank::3]


@pytest.mark.parametrize(("even", "counts"), [("drop", [3, 3]), ("pad", [4, 4]), (None, [4, 3])])
def test_ranks_may_have_equally_many_samples(even: str | None, counts: list[int]) -> None:
    ds = any2ds.load(made().path)
    parts = [keys(ds.stream(rank=rank, world_size=2, even=even)) for rank in range(2)]
    assert [len(part) for part in parts] == counts
    assert len({*parts[0], *parts[1]}) == min(7, sum(counts))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("stop", [0, 1, 4, 7])
def test_a_stream_goes_on_from_its_state(shuffle: bool, stop: int) -> None:
    path = made().path
    ds = any2ds.load(path)
    stream = ds.stream(shuffle=shuffle, seed=3)
    order = keys(ds.stream(shuffle=shuffle, seed=3))
    reading = iter(stream)
    assert keys(next(reading) for _ in range(stop)) == order[:stop]
    state = json.loads(json.dumps(stream.state_dict()))
    later = any2ds.load(path).stream(shuffle=shuffle, seed=3)
    later.load_state_dict(state)
    assert keys(later) == order[stop:]


# --- other libraries ---


@pytest.mark.parametrize("output_format", FORMATS)
def test_arrow_has_all_columns_and_files(output_format: str) -> None:
    ds = any2ds.load(made(output_format).path, columns=["key", "data", "label"])
    table = pa.table(ds)
    assert table.column_names == ["key", "data", "label"]
    assert table["key"].to_pylist() == KEYS
    assert table["data"].to_pylist() == [body_of(name) for name in STORED]
    assert pa.RecordBatchReader.from_stream(ds.to_arrow()).read_all()["label"].to_pylist() == [0, 1, 2, 0, 1, 0, 1]
    assert list(ds.features) == ["key", "data", "label"]


def test_duckdb_asks_the_metadata_and_the_samples() -> None:
    import duckdb

    ds = any2ds.load(made().path, columns=["key", "data", "label"])
    assert duckdb.from_arrow(ds.metadata).query(
        "rows", "select label, count(*) from rows group by all order by 1"
    ).fetchall() == [
        (0, 3),
        (1, 3),
        (2, 1),
    ]
    assert duckdb.sql("select sum(octet_length(data)) from ds").fetchall() == [(sum(len(body_of(n)) for n in STORED),)]


def test_pandas_has_the_metadata() -> None:
    frame = any2ds.load(made().path, where="label = 0").metadata.to_table(columns=["key", "caption"]).to_pandas()
    assert frame["caption"].tolist() == ["about 0.jpg", "about 3.jpg", "about 6.jpg"]


@pytest.mark.parametrize("output_format", FORMATS)
def test_webdataset_gets_samples_of_every_format(output_format: str) -> None:
    samples = list(any2ds.load(made(output_format).path).to_webdataset())
    assert [sample["__key__"] for sample in samples] == KEYS
    assert [sample["jpg"] for sample in samples] == [body_of(name) for name in STORED]
    assert samples[0]["txt"] == b"about 0.jpg"
    assert json.loads(samples[-1]["json"])["label"] == 1


# --- places ---


@pytest.mark.parametrize("output_format", sampled(FORMATS, 2))
def test_a_dataset_in_a_bucket_is_read(output_format: str, tmp_path: Path) -> None:
    play = made(output_format, store="s3")
    with play.inside():
        ds = any2ds.load(play.path, cache_dir=tmp_path)
        assert [sample["data"] for sample in ds[[6, 0]]] == [body_of("7.jpg"), body_of("0.jpg")]
        assert keys(ds.stream(shuffle=True, seed=1, window=100)) != KEYS
        assert ds[0]["caption"] == "about 0.jpg"


def test_reading_one_sample_from_a_bucket_takes_a_range(tmp_path: Path) -> None:
    body = bytes(range(256)) * 4000
    play = Play({f"{n}.bin": Row(body=bytes([n]) + body) for n in range(3)}, store="s3")
    play.run()
    with play.inside(), play.bucket.measuring() as asked:
        ds = any2ds.load(play.path, cache_dir=tmp_path)
        assert ds[1]["data"] == b"\x01" + body
        assert asked() < 2 * len(body)


def test_a_store_that_fails_for_the_time_being_is_asked_again(tmp_path: Path) -> None:
    play = made(store="s3")
    with play.inside(), play.bucket.failing(0.2) as failed:
        ds = any2ds.load(play.path, cache_dir=tmp_path)
        assert [sample["data"] for sample in ds] == [body_of(name) for name in STORED]
    assert failed.total() > 0


def test_a_store_that_goes_on_failing_is_an_error(tmp_path: Path) -> None:
    play = made(store="s3")
    with play.inside():
        ds = any2ds.load(play.path, cache_dir=tmp_path, retry_seconds=0.1)
        assert len(ds) == 7
        with play.bucket.refusing("503", ".tar"), pytest.raises(any2ds.Any2dsError, match="00000"):
            ds[0]


def test_copies_of_shards_are_kept_in_the_cache(tmp_path: Path) -> None:
    play = made(store="s3")
    with play.inside():
        for _ in range(2):
            with play.bucket.recording() as asked:
                ds = any2ds.load(play.path, cache_dir=tmp_path, cache_bytes="1GiB")
                assert [sample["data"] for sample in ds] == [body_of(name) for name in STORED]
        assert not [target for method, target in asked if method == "GET" and ".tar?" in target]


@pytest.mark.parametrize("output_format", ["webdataset", "parquet"])
def test_a_dataset_on_a_web_server_is_read(output_format: str, tmp_path: Path) -> None:
    play = made(output_format)
    with serve(Path(play.path), {}) as server:
        ds = any2ds.load(server.base_url, cache_dir=tmp_path)
        assert [sample["data"] for sample in ds] == [body_of(name) for name in STORED]
        assert ds[3]["caption"] == "about 3.jpg"


# --- damage ---


@pytest.mark.parametrize("output_format", ["webdataset", "parquet", "tfrecord", "arrayrecord"])
def test_a_shard_that_was_cut_is_an_error_that_names_it(output_format: str) -> None:
    play = made(output_format)
    path = Path(play.path, f"00001.{output_format.replace('webdataset', 'tar')}")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(any2ds.Any2dsError, match="00001"):
        list(any2ds.load(play.path))


def test_a_shard_that_is_gone_is_an_error_that_names_it() -> None:
    play = made()
    ds = any2ds.load(play.path)
    Path(play.path, "00001.tar").unlink()
    assert ds[0]["key"] == KEYS[0]
    with pytest.raises(any2ds.Any2dsError, match="00001"):
        ds[3]


@pytest.mark.parametrize("output_format", ["tfrecord", "arrayrecord"])
def test_a_changed_bit_in_a_record_is_found(output_format: str) -> None:
    play = made(output_format)
    path = Path(play.path, f"00000.{output_format}")
    content = path.read_bytes()
    place = content.index(body_of("1.jpg")) + 300
    path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
    with pytest.raises(any2ds.Any2dsError, match="00000"):
        any2ds.load(play.path)[1]


@pytest.mark.parametrize("output_format", ["webdataset", "parquet", "files"])
def test_with_check_each_file_is_compared_with_its_hash(output_format: str) -> None:
    play = made(output_format)
    name = {"webdataset": "00000.tar", "parquet": "00000.parquet", "files": "00000/000001.jpg"}[output_format]
    content = Path(play.path, name).read_bytes()
    place = content.index(body_of("1.jpg")) + 300
    Path(play.path, name).write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
    ds = any2ds.load(play.path, check=True)
    assert ds[0]["data"] == body_of("0.jpg")
    with pytest.raises(any2ds.Any2dsError, match="000001"):
        ds[1]


def test_a_dataset_that_is_replaced_while_it_is_open_is_an_error() -> None:
    play = made()
    ds = any2ds.load(play.path)
    play.run(incremental_mode="overwrite", number_sample_per_shard=4)
    with pytest.raises(any2ds.Any2dsError):
        list(ds)


@pytest.mark.parametrize(
    "content", [{}, {"a.txt": b"x"}, {"00000.parquet": b"x"}], ids=["empty", "a text", "no parquet"]
)
def test_a_folder_without_dataset_is_refused(content: Mapping[str, bytes], tmp_path: Path) -> None:
    for name, text in content.items():
        (tmp_path / name).write_bytes(text)
    with pytest.raises(any2ds.Any2dsError):
        any2ds.load(str(tmp_path))


def tar_of(members: Mapping[str, bytes] | list[tuple[str, bytes]]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in members.items() if isinstance(members, Mapping) else members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()


A_AND_B = {"a.jpg": b"1", "a.cls": b"0", "b.jpg": b"2"}


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (tar_of({"a.jpg": b"1", "b.jpg": b"2", "a.png": b"3"}), [("a", b"1"), ("b", b"2"), ("a", b"3")]),
        (tar_of({"a.JPG": b"1", "a.Cls": b"0"}), [("a", b"1")]),
        (tar_of({"a.cls": b"0", "__meta__": b"-", "README": b"-", "a.jpg": b"1"}), [("a", b"1")]),
        (tar_of([("a.jpg", b"1"), ("a.jpg", b"2")]), "'a.jpg' is there twice"),
        (tar_of({"a.jpg": b"1", "a.JPG": b"2"}), "two of its files have one name: jpg, JPG"),
        (tar_of(A_AND_B) + tar_of(A_AND_B), "more behind its end at byte 3,072, after 'b.jpg'"),
        (tar_of(A_AND_B)[:1024] + bytes(512) + tar_of(A_AND_B)[1536:], "does not go on at byte 1,024, behind 'a.jpg'"),
        (tar_of(A_AND_B)[:2048], "no member begins at byte 2,048, behind 'a.cls'"),
    ],
)
def test_tar_files_are_read_as_webdataset_reads_them_or_an_error_names_the_member(
    content: bytes, found: list[tuple[str, bytes]] | str, tmp_path: Path
) -> None:
    (tmp_path / "0.tar").write_bytes(content)
    if isinstance(found, str):
        with pytest.raises(any2ds.Any2dsError, match=found):
            list(any2ds.load(str(tmp_path), cache_dir=tmp_path / "cache"))
    else:
        ds = any2ds.load(str(tmp_path), cache_dir=tmp_path / "cache")
        assert [(sample["key"], sample["data"]) for sample in ds] == found


def test_tar_files_of_other_tools_are_read(tmp_path: Path) -> None:
    for shard in range(2):
        members = {
            f"./s{shard}/{number}.{ext}": content
            for number in range(3)
            for ext, content in (("jpg", body_of(f"{number}.jpg")), ("cls", str(number).encode()))
        }
        (tmp_path / f"part-{shard}.tar").write_bytes(tar_of(members))
    ds = any2ds.load(str(tmp_path), cache_dir=tmp_path / "cache")
    assert keys(ds) == [f"s{shard}/{number}" for shard in range(2) for number in range(3)]
    assert ds[4]["data"] == body_of("1.jpg")
    assert ds[5]["cls"] == 2
