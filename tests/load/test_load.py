"""`any2ds.load`: a finished dataset as a sequence of samples, in every format."""

import datetime
import io
import multiprocessing
import os
import pickle
import random
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import webdataset
from webdataset.tariterators import group_by_keys, tar_file_expander

import any2ds
from any2ds import download
from any2ds.core.errors import DamagedShard, MissingColumns, OutputError, UsageError
from any2ds.load import splits
from any2ds.testing.server import Server, serve
from any2ds.testing.writing import stored
from tests.support.shards import indexes, writer_of

FORMATS = ["webdataset", "parquet", "tfrecord", "arrayrecord", "files"]
ROWS = 23  # of which one fails
SHARD = 5
FAILED = 7
TEST = [f"{n // SHARD:05d}{n % SHARD}" for n in (3, 11, 15, 19)]
KEYS = [f"{n // SHARD:05d}{n % SHARD}" for n in range(ROWS) if n != FAILED]

STEP = '''
import any2ds

@any2ds.transform(members=("note.txt", "mask.bin"))
def parts(sample):
    """Two samples of some rows, and further files of all."""
    samples = [sample]
    if b"2" in sample.data:
        samples = [sample.with_data(b"part %d of " % n + sample.data) for n in range(2)]
    return [each.with_member("note.txt", b"gr\\xc3\\xbcn").with_member("mask.bin", b"\\x00\\xff") for each in samples]
'''

SOME = """
import any2ds

@any2ds.transform(members=("note.txt", "mask.bin"))
def some(sample):
    number = int(sample.data.split()[1])
    if number >= 3:
        sample = sample.with_member("note.txt", b"note %d" % number)
    return sample.with_member("mask.bin", bytes([number])) if number >= 15 else sample
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANY2DS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    media = tmp_path_factory.mktemp("media")
    for n in range(ROWS):
        (media / f"{n}.bin").write_bytes(content(n))
    with serve(media, {f"{FAILED}.bin": ["404"]}) as running:
        yield running


def content(n: int) -> bytes:
    return b"file %d " % n * (n + 1)


def rows(server: Server, first: int = 0) -> pa.Table:
    numbers = [*range(first, ROWS), *range(first)]
    return pa.table(
        {
            "url": [server.url(f"{n}.bin") for n in numbers],
            "caption": [f"größe {n}" for n in numbers],
            "label": pa.array([n % 3 for n in numbers], pa.int32()),
            "score": pa.array([n / 2 for n in numbers]),
            "when": pa.array([datetime.datetime(2026, 1, 1 + n) for n in numbers], pa.timestamp("us")),
            "raw": pa.array([bytes([n, 255]) for n in numbers]),
            "tags": pa.array([["a"] * (n % 3) for n in numbers], pa.list_(pa.string())),
            "split": ["test" if n % 4 == 3 else "train" for n in numbers],
        }
    )


EXTRA = ["label", "score", "when", "raw", "tags", "split"]


@pytest.fixture(scope="module")
def made(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The dataset in a format; nobody changes it."""
    folders: dict[str, Path] = {}

    def make(output_format: str) -> Path:
        if output_format not in folders:
            folders[output_format] = tmp_path_factory.mktemp(output_format) / "dataset"
            build(server, folders[output_format], output_format)
        return folders[output_format]

    return make


def build(server: Server, folder: Path, output_format: str = "webdataset", first: int = 0, **options: Any) -> Path:
    download(
        rows(server, first),
        output_folder=folder,
        output_format=output_format,
        caption_col="caption",
        save_additional_columns=EXTRA,
        **{
            "number_sample_per_shard": SHARD,
            "distributor": "inline",
            "quiet": True,
            "fsync": False,
            "file_ext": "bin",
            **options,
        },
    )
    return folder


@pytest.fixture
def own(made: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of the dataset of tar files, to be damaged."""
    shutil.copytree(made("webdataset"), tmp_path / "dataset")
    return tmp_path / "dataset"


@pytest.mark.parametrize("output_format", FORMATS)
class TestSource:
    def test_a_sample_is_its_file_and_its_row_of_the_metadata(
        self, output_format: str, made: Callable[[str], Path]
    ) -> None:
        ds = any2ds.load(made(output_format))
        assert len(ds) == ROWS - 1
        sample = ds[9]
        wanted = {
            "key": "000020",
            "data": content(10),
            "ext": "bin",
            "caption": "größe 10",
            "label": 1,
            "score": 5.0,
            "when": datetime.datetime(2026, 1, 11),
            "raw": b"\x0a\xff",
            "tags": ["a"],
            "split": "test" if 10 % 4 == 3 else "train",
            "status": "success",
            "bytes": len(content(10)),
        }
        assert {name: sample[name] for name in wanted} == wanted
        types = {
            "data": pa.binary(),
            "key": pa.string(),
            "ext": pa.string(),
            "caption": pa.string(),
            "label": pa.int32(),
            "score": pa.float64(),
            "when": pa.timestamp("us"),
            "raw": pa.binary(),
            "tags": pa.list_(pa.string()),
            "status": pa.string(),
            "bytes": pa.int64(),
        }
        assert {name: ds.features[name] for name in types} == types

    def test_numbers_slices_and_lists(self, output_format: str, made: Callable[[str], Path]) -> None:
        ds = any2ds.load(made(output_format))
        every = list(ds)
        assert ds[-1] == every[-1]
        assert ds[3:17:4] == every[3:17:4]
        assert ds[::-1] == every[::-1]
        assert ds[[5, 21, 5, -22, 9]] == [every[n] for n in (5, 21, 5, 0, 9)]
        assert ds[[]] == ds[5:5] == []
        for wrong in (22, -23):
            with pytest.raises(IndexError, match=f"^no sample {wrong}: 0 to 21$"):
                ds[wrong]
            with pytest.raises(IndexError, match=f"^no sample {wrong}: 0 to 21$"):
                ds[[1, wrong]]
        for key in ("000003", b"x", 1.0, None):
            with pytest.raises(TypeError, match=rf"^samples are read by number, as in ds\[7\], not by {key!r}$"):
                ds[key]
            with pytest.raises(TypeError, match=r"^samples are read by number"):
                ds[[key]]
        for wrong in ({3: 1}, bytearray(b"\1")):
            with pytest.raises(TypeError, match=r"^samples are read by number, as in ds\[7\], not by "):
                ds[wrong]
        for mask in (True, [True, False, True], (5, False)):
            with pytest.raises(TypeError, match=r"^samples are read by number, .* ds\[numpy\.flatnonzero\(mask\)\]$"):
                ds[mask]

    def test_columns_that_are_asked_for_and_no_others(self, output_format: str, made: Callable[[str], Path]) -> None:
        ds = any2ds.load(made(output_format), columns=["data", "label", "key"])
        assert ds[4] == {"data": content(4), "label": 1, "key": "000004"}
        assert list(ds.features) == ["data", "label", "key"]
        with pytest.raises(MissingColumns, match="no column 'labell'; columns that exist: data, key, ext, url"):
            any2ds.load(made(output_format), columns=["labell"])

    def test_it_is_small_when_it_is_pickled_and_opens_its_shards_anew(
        self, output_format: str, made: Callable[[str], Path]
    ) -> None:
        ds = any2ds.load(made(output_format), where="label = 1")
        first = ds[0]
        packed = pickle.dumps(ds)
        assert len(packed) < 10_000
        assert list(pickle.loads(packed)) == list(ds)
        assert first["key"] == "000001"

    @pytest.mark.slow
    def test_in_processes(self, output_format: str, made: Callable[[str], Path]) -> None:
        ds = any2ds.load(made(output_format))
        wanted = list(ds)
        for method in multiprocessing.get_all_start_methods():
            with multiprocessing.get_context(method).Pool(2) as pool:
                assert pool.map(ds.__getitem__, range(len(ds))) == wanted

    @pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux lists descriptors there")
    def test_a_child_shares_no_descriptor(
        self, output_format: str, made: Callable[[str], Path], tmp_path: Path
    ) -> None:
        folder = tmp_path / "dataset"  # which no other test has opened
        shutil.copytree(made(output_format), folder)
        ds = any2ds.load(folder)
        ds[0]
        assert not any(map(os.get_inheritable, opened_in(folder)))  # by what it executes
        context = multiprocessing.get_context("fork")
        found = context.SimpleQueue()
        child = context.Process(target=lambda: found.put((ds[len(ds) - 1], [*opened_in(folder).values()])))
        child.start()
        sample, opened = found.get()
        child.join()
        assert sample == ds[len(ds) - 1]
        assert all(name.startswith(str(folder / "00004")) for name in opened)  # the last shard's, and not the first's
        if output_format in ("webdataset", "tfrecord", "arrayrecord"):
            assert any(name.startswith(str(folder / "00000")) for name in opened_in(folder).values())

    def test_in_threads(self, output_format: str, made: Callable[[str], Path]) -> None:
        ds = any2ds.load(made(output_format))
        wanted = list(ds)
        numbers = random.Random(1).choices(range(len(ds)), k=2000)
        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(ds.__getitem__, numbers)) == [wanted[n] for n in numbers]

    def test_several_samples_of_a_row_and_further_files(
        self, output_format: str, server: Server, tmp_path: Path
    ) -> None:
        (tmp_path / "step.py").write_text(STEP)
        folder = build(server, tmp_path / "parts", output_format, transform=f"{tmp_path / 'step.py'}:parts")
        ds = any2ds.load(folder)
        double = [n for n in range(ROWS) if b"2" in content(n) and n != FAILED]
        assert len(ds) == ROWS - 1 + len(double)
        assert [sample["key"] for sample in ds][2:4] == ["000002_0000", "000002_0001"]
        assert ds[3]["data"] == b"part 1 of " + content(2)
        assert (ds[3]["note_txt"], ds[3]["mask_bin"], ds[3]["caption"]) == ("grün", b"\x00\xff", "größe 2")
        named = any2ds.load(folder, columns=["mask_bin", "key", "note_txt"])
        assert named[3] == {"mask_bin": b"\x00\xff", "key": "000002_0001", "note_txt": "grün"}
        assert named.to_arrow().read_all().slice(3, 1).to_pylist() == [named[3]]
        with pytest.raises(MissingColumns, match="note_text"):
            any2ds.load(folder, columns=["note_text"])

    def test_further_files_of_some_samples(self, output_format: str, server: Server, tmp_path: Path) -> None:
        """The dataset says which files its steps add."""
        (tmp_path / "step.py").write_text(SOME)
        folder = build(server, tmp_path / "parts", output_format, transform=f"{tmp_path / 'step.py'}:some")
        named = any2ds.load(folder, columns=["key", "note_txt", "mask_bin"])
        assert named.features == {"key": pa.string(), "note_txt": pa.string(), "mask_bin": pa.binary()}
        own = [n for n in range(ROWS) if n != FAILED]
        wanted = [(f"note {n}" if n >= 3 else None, bytes([n]) if n >= 15 else None) for n in own]
        assert [(s["key"], s["note_txt"] or None, s["mask_bin"] or None) for s in named] == [
            (key, *files) for key, files in zip(KEYS, wanted, strict=True)
        ]
        with pytest.raises(MissingColumns, match="note_text"):
            any2ds.load(folder, columns=["note_text"])
        ds = any2ds.load(folder)
        assert (ds.features["note_txt"], ds.features["mask_bin"]) == (pa.string(), pa.binary())
        assert [(s["note_txt"] or None, s["mask_bin"] or None) for s in ds] == wanted
        found = list(ds.to_webdataset())
        assert [((s.get("note.txt") or b"").decode() or None, s.get("mask.bin")) for s in found] == wanted
        assert not any({"note_txt", "mask_bin"} & orjson.loads(s["json"]).keys() for s in found)

    def test_a_state_of_its_samples_and_no_others_is_taken(
        self, output_format: str, made: Callable[[str], Path], server: Server, tmp_path: Path
    ) -> None:
        for where in (None, "key != '000003'"):
            state = any2ds.load(made("webdataset"), where=where).stream().state_dict()
            any2ds.load(made(output_format), where=where).stream().load_state_dict(state)
            copy = shutil.copytree(made(output_format), tmp_path / f"copy of {where}")
            shutil.rmtree(copy / ".any2ds")
            any2ds.load(copy, where=where).stream().load_state_dict(state)
        with pytest.raises(UsageError, match="as many samples, but others"):
            any2ds.load(made(output_format), where="key != '000004'").stream().load_state_dict(state)
        ones = [build(server, tmp_path / str(first), output_format, first, limit=SHARD) for first in (0, 10)]
        state = any2ds.load(ones[0]).stream().state_dict()
        with pytest.raises(UsageError, match="as many samples, but others"):
            any2ds.load(ones[1]).stream().load_state_dict(state)


def test_files_in_a_feature_of_hugging_face(server: Server, tmp_path: Path) -> None:
    folder = build(server, tmp_path / "dataset", "parquet", parquet_data="image", row_group_bytes=300)
    ds = any2ds.load(folder)
    assert [sample["data"] for sample in ds] == [content(n) for n in range(ROWS) if n != FAILED]
    assert ds[9]["label"] == 1
    assert any2ds.load(folder, columns=["data"])[9] == {"data": content(10)}


def opened_in(folder: Path) -> dict[int, str]:
    """The descriptors that this process has of files in a folder, and their names."""
    found = {}
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # that of the list itself
            if (name := os.readlink(f"/proc/self/fd/{descriptor}")).startswith(f"{folder}/"):
                found[int(descriptor)] = name
    return found


class TestSplits:
    @pytest.mark.parametrize(
        ("split", "keys"),
        [
            ("all", KEYS),
            ("all[:3]", KEYS[:3]),
            ("all[-2:]", KEYS[-2:]),
            ("all[:50%]", KEYS[:11]),
            ("all[10%:20%]", KEYS[2:4]),
            ("all[20:] + all[:1]", [*KEYS[20:], *KEYS[:1]]),
            ("test", TEST),
            ("test[1:]", TEST[1:]),
            ("train+test", [*(key for key in KEYS if key not in TEST), *TEST]),
            ("train", [key for key in KEYS if key not in TEST]),
            ("test+all[:2]", [*TEST, *KEYS[:2]]),
            ("test[:1]+test[3:]", [TEST[0], TEST[3]]),
            ("test[2:]+test[:1]", [*TEST[2:], TEST[0]]),
            ("test[:3]+test[1:2]", [*TEST[:3], TEST[1]]),
            ("all[:3]+all[:3]", [*KEYS[:3], *KEYS[:3]]),
            ("all[:3]+all[3:]", KEYS),
            ("test[4:]+all[:0]", []),
            ("all[1_0:12]", KEYS[10:12]),
            ("all[:1shard]", KEYS[:5]),
            ("all[-2shard:-1shard]", KEYS[14:19]),
            ("all[1shard]", KEYS[5:9]),
            ("all[-1shard]", KEYS[19:]),
            ("all[10:20%]", KEYS[2:4]),
            ("all[10%:20]", KEYS[2:4]),
            ("all[-2:-1shard]", KEYS[14:19]),
            ("all[:9shard]", KEYS),
            ("all[-22:22]", KEYS),
        ],
    )
    def test_which_samples(self, split: str, keys: list[str], made: Callable[[str], Path]) -> None:
        assert any2ds.load(made("webdataset"), split=split).keys == keys

    @pytest.mark.parametrize("split", ["all[2:9]+all[15:]+all[:5]", "test[2:]+train+test[:3]", "hash[30%:]+all[:9]"])
    def test_a_condition_is_one_of_each_part(self, split: str, made: Callable[[str], Path]) -> None:
        folder = made("webdataset")
        ds = any2ds.load(folder, split=split, where="label = 1")
        wanted = [sample["key"] for sample in any2ds.load(folder, split=split) if sample["label"] == 1]
        assert ds.keys == [sample["key"] for sample in pickle.loads(pickle.dumps(ds))] == wanted
        assert sorted(key for shard in ds.shards for key in shard.keys) == sorted(wanted)

    def test_without_a_column_of_that_name_all_is_train(self, own: Path) -> None:
        for path in own.glob("*.parquet"):
            pq.write_table(pq.read_table(path).drop_columns(["split"]), path)
        assert any2ds.load(own, split="train[:3]").keys == KEYS[:3]
        assert any2ds.load(own, split="train[2:]+train[:3]").keys == [*KEYS[2:], *KEYS[:3]]

    def test_parts_that_meet_at_a_percentage_share_the_samples_out(self) -> None:
        for count in range(1, 203):
            for percent in (*range(101), "33.3"):
                rest = 100 - Decimal(percent)
                first, *others = splits.parse(
                    f"all[:{percent}%] + all[{percent}%:]" + (f"+ all[-{rest}%:]" if rest else "")
                )
                assert len(first.span(count)) == round(count * Fraction(percent) / 100)
                for second in others:
                    assert [*first.span(count), *second.span(count)] == list(range(count))

    def test_shards_of_a_part_have_its_samples(self, made: Callable[[str], Path]) -> None:
        for options in ({"where": "label = 1"}, {"split": "all[15:]+all[:7]+all[3:5]"}, {"split": "test"}):
            ds = any2ds.load(made("webdataset"), **options)
            shards = [pickle.loads(pickle.dumps(shard)) for shard in ds.shards]
            assert [{sample["key"][:5] for sample in shard} for shard in shards] == [
                {key[:5]} for key in sorted({key[:5]: key for key in ds.keys}.values())
            ]
            assert sorted(sample["key"] for shard in shards for sample in shard) == sorted(ds.keys)

    @pytest.mark.parametrize(
        "split",
        [
            "",
            "all[",
            "all[a:]",
            "all[1shard:50%]",
            "all[:23]",
            "all[-23:]",
            "test[:5]",
            "test[1shard]",
            "all[1.5:]",
            "all[1:2:3]",
            "hash[:5]",
            "all[:101%]",
            "nothing",
            "all[5]",
            "a++b",
        ],
    )
    def test_what_cannot_be_understood(self, split: str, made: Callable[[str], Path]) -> None:
        with pytest.raises(UsageError, match="split: "):
            any2ds.load(made("webdataset"), split=split)


def keys_of(folder: Path, where: str) -> list[str]:
    return any2ds.load(folder, where=where).keys


class TestWhere:
    @pytest.mark.parametrize(
        ("where", "condition"),
        [
            (f"large < {2**64 - 1}", lambda n: n > 0),
            (f"large = {2**64 - 4} or large in ({2**64 - 6}, 1, {2**64}, -1)", lambda n: n in (3, 5)),
            (f"large > {2**63}", lambda n: True),
            (f"large < {2**64} and {-(2**70)} < large and large > -1 and large > 1.5", lambda n: True),
            (f"large >= {2**64} or large < 0 or large = 0.5", lambda n: False),
            ("label < 1e999 and label != 0.5 and label < 99999999999", lambda n: True),
            ("label > 0.5 and 1.5 >= label", lambda n: n % 3 == 1),
            ("label in (1.0, 1.5, 99999999999)", lambda n: n % 3 == 1),
            ("amount > 1", lambda n: n > 4),
            ("amount >= 1.5 and 2 >= amount", lambda n: 6 <= n <= 8),
            ("amount in (1, 0.75, 1.005)", lambda n: n in (3, 4)),
            ("amount != 1 and amount < 1e80 and amount > -1e-90 and amount < 99999999999999999999", lambda n: n != 4),
            ("when > '2026-01-05'", lambda n: n > 4),
            ("when <= '2026-01-05T00:00:00' or '2026-01-20 01:30' < when", lambda n: n <= 4 or n > 19),
            ("when in ('2026-01-05', '2026-01-06 00:00:00.5')", lambda n: n == 4),
            ("day = '2026-01-05'", lambda n: n == 4),
            ("day > '2026-01-05 12:00'", lambda n: n > 4),
            ("day not in ('2026-01-05')", lambda n: n != 4),
            ("zoned >= '2026-01-05T02:00:00+02:00'", lambda n: n >= 4),
            ("zoned in ('2026-01-05T00:00:00Z')", lambda n: n == 4),
            ("clock < '04:00' and clock != '00:01'", lambda n: n < 4),
            ("clock in ('03:00:00')", lambda n: n == 3),
            ("not maybe < 99999999999", lambda n: False),
        ],
    )
    def test_literals_have_the_type_of_the_column(
        self, where: str, condition: Callable[[int], bool], own: Path
    ) -> None:
        for path in own.glob("*.parquet"):
            table = pq.read_table(path)
            numbers = [int(key[:5]) * SHARD + int(key[5]) for key in table["key"].to_pylist()]
            midnights = [datetime.datetime(2026, 1, 1 + n) for n in numbers]
            columns = {
                "large": pa.array([2**64 - 1 - n for n in numbers], pa.uint64()),
                "amount": pa.array([Decimal(n) / 4 for n in numbers], pa.decimal128(10, 2)),
                "day": pa.array([midnight.date() for midnight in midnights], pa.date32()),
                "zoned": pa.array(midnights, pa.timestamp("ms", "UTC")),
                "clock": pa.array([datetime.time(n) for n in numbers], pa.time32("s")),
                "maybe": pa.array([None if n else 1 for n in numbers], pa.int16()),
            }
            for name, column in columns.items():
                table = table.append_column(name, column)
            pq.write_table(table, path)
        wanted = [key for n, key in zip((n for n in range(ROWS) if n != FAILED), KEYS, strict=True) if condition(n)]
        assert any2ds.load(own, where=where).keys == wanted

    @pytest.mark.parametrize(
        ("where", "condition"),
        [
            ("class = 3", lambda n: n == 3),
            ("`class` < 3 and from >= 1 and not import in (2)", lambda n: n == 1),
            ("`captions[0]` = 'größe 2' or `a - b` = 5 or `h f` in (6, 7)", lambda n: n in (2, 5, 6, 7)),
            ("x.y = 4 or x.class = 5 or `x.y` = 6", lambda n: n in (4, 5, 6)),
            ("cafe\u0301 = 4 or \ufb01 = 5", lambda n: n in (4, 5)),
            ("`and` = 4 or `a``b` = 5", lambda n: n in (4, 5)),
            ("category = 'größe 2' or 'größe 3' = category", lambda n: n in (2, 3)),
            ("category in ('größe 2', 'nothing') or category = caption and label = 1", lambda n: n % 3 == 1 or n == 2),
            ("category not in ('größe 2') and counted in (1, 2.0, 3) and counted < 3", lambda n: n == 1),
            ("category is null", lambda n: False),
        ],
    )
    def test_names_of_any_kind_and_categories(self, where: str, condition: Callable[[int], bool], own: Path) -> None:
        names = ["class", "from", "import", "a - b", "h f", "x.y", "x.class", "cafe\u0301", "\ufb01", "and", "a`b"]
        for path in own.glob("*.parquet"):
            table = pq.read_table(path)
            numbers = pa.array([int(key[:5]) * SHARD + int(key[5]) for key in table["key"].to_pylist()])
            columns = dict.fromkeys(names, numbers) | {
                "captions[0]": table["caption"],
                "category": table["caption"].dictionary_encode(),
                "counted": numbers.dictionary_encode(),
            }
            for name, column in columns.items():
                table = table.append_column(name, column)
            pq.write_table(table, path)
        wanted = [key for n, key in zip((n for n in range(ROWS) if n != FAILED), KEYS, strict=True) if condition(n)]
        assert any2ds.load(own, where=where).keys == wanted

    @pytest.mark.parametrize(
        "split", ["all[7:12]", "all[15:]+all[3:5]", "all[1shard]", "all[-1:]", "all[9:9]", "all[:0]"]
    )
    def test_of_a_part_reads_the_metadata_of_its_shards_alone(
        self, split: str, made: Callable[[str], Path], tmp_path: Path
    ) -> None:
        folder = made("webdataset")
        wanted = [s["key"] for s in any2ds.load(folder, split=split) if s["label"] == 1]
        ds = any2ds.load(folder, split=split, where="label = 1")
        assert [sample["key"] for sample in ds] == ds.keys == wanted
        assert [s["key"] for shard in pickle.loads(pickle.dumps(ds)).shards for s in shard] == sorted(wanted)
        shutil.copytree(folder, tmp_path / "copy")
        (tmp_path / "copy" / "00001.parquet").write_bytes(b"garbled")
        with pytest.raises(DamagedShard, match=r"00001"):
            any2ds.load(tmp_path / "copy", where="label = 1")
        last = any2ds.load(tmp_path / "copy", split="all[-5:]", where="label = 1")
        assert [sample["key"] for sample in last] == [key for key in KEYS[-5:] if key in keys_of(folder, "label = 1")]

    @pytest.mark.parametrize(
        ("where", "message"),
        [
            ("", "empty"),
            ("label = ", "cannot be understood: "),
            ("label = 1 score = 2", "cannot be understood: "),
            ("label = 1)", "unmatched"),
            ("__import__('os')", "cannot be understood: .* is neither true nor false"),
            ("label; drop", "cannot be understood: "),
            ("label > 1 # and score < 5", "cannot be understood: # outside of a text"),
            ("caption in ('größe 1' 'größe 2')", "cannot be understood: "),
            ("caption = r'a'", "cannot be understood: "),
            ("caption = 'a", "cannot be understood: ' outside of a text, or the end of a text is missing"),
            ("`label = 1", "cannot be understood: ` outside of a text"),
            ("`h f` = 1", "no column 'h f'; columns that exist: key, url"),
            ("labell = 1", "no column 'labell'; columns that exist: key, url"),
            ("label in (score)", "cannot be understood: "),
            ("label in ()", "cannot be understood: "),
            ("label = null", r"^where: column 'label' is int32, and None cannot be compared with it$"),
            ("score > caption", r"^where: 'score' is double, 'caption' is string: they cannot be compared$"),
            ("caption > 5", r"^where: column 'caption' is string, and 5 cannot be compared with it$"),
            ("label in (1, 'x')", "^where: .* and 'x' cannot be compared"),
            ("tags in (1, 'x')", "^where: column 'tags' is list.*, and 1 cannot be compared"),
            ("label = true", "and True cannot be compared"),
            ("when > 'x'", r"^where: column 'when' is timestamp\[us\], and 'x' .* as '2026-01-31T12:00:00' is$"),
            ("when in ('x')", r"^where: column 'when' is timestamp\[us\], and 'x' is no .* as '2026-01-31T"),
            ("not label", r"^where: column 'label' is int32: a condition compares it"),
            ("tags", "^where: column 'tags' is list.*: a condition compares it"),
            ("not " * 4000 + "label = 1", "nested too deeply"),
            ("label = 1 or " * 3000 + "label = 2", "too long"),
        ],
    )
    def test_what_cannot_be_understood(self, where: str, message: str, made: Callable[[str], Path]) -> None:
        with pytest.raises(UsageError, match=message):
            any2ds.load(made("webdataset"), where=where)

    def test_a_column_that_an_expression_of_pyarrow_does_not_find(self, made: Callable[[str], Path]) -> None:
        with pytest.raises(MissingColumns, match=r"^where: no column 'labell'; columns that exist: key, url"):
            any2ds.load(made("webdataset"), where=pc.field("labell") == 1)

    def test_the_metadata_are_a_dataset_of_pyarrow(self, made: Callable[[str], Path]) -> None:
        ds = any2ds.load(made("webdataset"), where="label = 2")
        table = ds.metadata.to_table(columns=["key", "label"])
        assert table["key"].to_pylist() == ds.keys
        assert set(table["label"].to_pylist()) == {2}
        part = ds.metadata.filter(pc.field("score") > 3)
        assert 0 < part.count_rows() < ds.metadata.count_rows()

    def test_a_split_does_not_show_in_the_metadata_but_can_be_asked_of_them(self, made: Callable[[str], Path]) -> None:
        ds = any2ds.load(made("webdataset"), split="all[:3]")
        assert ds.metadata.count_rows() == len(KEYS)
        assert ds.metadata.filter(pc.field("key").isin(ds.keys)).to_table()["key"].to_pylist() == KEYS[:3]


OTHERS = [
    ["._1.jpg"],
    [".hidden"],
    ["README"],
    ["2"],
    ["__meta__/a.jpg", "__all__"],
    ["folder/"],
    ["symlink.jpg -> 1.jpg", "hardlink.jpg => 1.jpg"],
    ["._2.jpg", "README", ".DS_Store", "folder/", "symlink.jpg -> 1.jpg"],
]


def write_tar(path: Path, folder: str, names: list[str], form: int = tarfile.USTAR_FORMAT) -> None:
    """Members of that content; `name/` is a folder, `name -> other` a symbolic link and `name => other` a hard one."""
    with tarfile.open(path, "w", format=form) as tar:
        for name in names:
            own, *arrow = name.split()
            info, content = tarfile.TarInfo(folder + own), name.encode()
            if arrow:
                info.type = tarfile.SYMTYPE if arrow[0] == "->" else tarfile.LNKTYPE
                info.linkname = arrow[1]
            elif own.endswith("/"):
                info.type = tarfile.DIRTYPE
            else:
                info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def as_webdataset_reads(path: Path) -> list[dict[str, Any]]:
    with path.open("rb") as stream:
        return list(group_by_keys(tar_file_expander([{"url": str(path), "stream": stream}])))


def bodies_of(sample: dict[str, Any]) -> list[bytes]:
    """Its files."""
    texts = [sample["caption"].encode()] if sample.get("caption") is not None else []
    return sorted([*texts, *(value for value in sample.values() if isinstance(value, bytes))])


class TestOtherTools:
    def test_columns_are_those_of_the_first_samples(self, tmp_path: Path) -> None:
        with webdataset.TarWriter(str(tmp_path / "0.tar")) as sink:
            for n in range(10):
                sink.write(
                    {
                        "__key__": str(n),
                        "jpg": b"image",
                        "json": {"label": n},
                        **({"txt": f"text {n}"} if n > 3 else {}),
                    }
                )
        assert any2ds.load(tmp_path, columns=["label"])[3] == {"label": 3}
        assert any2ds.load(tmp_path, columns=["caption", "key"])[9] == {"caption": "text 9", "key": "9"}
        with pytest.raises(MissingColumns, match=r"no column 'labell'; .*: data, key, ext, label"):
            any2ds.load(tmp_path, columns=["data", "labell"])

    @pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    @pytest.mark.parametrize("folder", ["", "a/", "./", "a.b/c/", "./" + "long/" * 30])
    def test_members_that_webdataset_passes_over(self, folder: str, form: int, tmp_path: Path) -> None:
        """Before, within, between and after samples."""
        samples = ["1.jpg", "1.txt", "2.jpg", "2.txt", "3.jpg", "3.txt"]
        for number, others in enumerate(OTHERS):
            for place in (0, 1, 2, len(samples)):
                members = [*samples[:place], *others, *samples[place:]]
                write_tar(tmp_path / f"{number}-{place}.tar", folder, members, form)
        wanted = [sample for path in sorted(tmp_path.glob("*.tar")) for sample in as_webdataset_reads(path)]
        keys = [sample["__key__"].removeprefix("./") for sample in wanted]
        files = [sorted(body for ext, body in sample.items() if not ext.startswith("__")) for sample in wanted]
        for _ in range(2):  # the indexes are made, and taken from the cache
            ds = any2ds.load(tmp_path)
            assert ds.keys == [sample["key"] for sample in ds] == keys
            assert [bodies_of(sample) for sample in ds] == files
        read = [each for path in sorted(tmp_path.glob("*.tar")) for each in stored(writer_of("webdataset"), path)]
        assert [key for key, _ in read] == keys

    def test_samples_of_the_same_name_in_several_folders(self, tmp_path: Path) -> None:
        for folder in ("a", "b"):
            write_tar(tmp_path / f"{folder}.tar", f"./{folder}/", ["001.jpg", "002.jpg"])
        ds = any2ds.load(tmp_path)
        assert ds.keys == ["a/001", "a/002", "b/001", "b/002"] == [sample["key"] for sample in ds]
        assert [sample["__key__"] for sample in ds.to_webdataset()] == ds.keys
        halves = [any2ds.load(tmp_path, split=part) for part in ("hash[:50%]", "hash[50%:]")]
        assert [sorted(half.keys) for half in halves] == [["a/001", "a/002", "b/001"], ["b/002"]]

    def test_an_index_of_a_tar_file_that_was_replaced(self, tmp_path: Path) -> None:
        """By one of the same size, whose only sample has the places of two."""
        tar, index = tmp_path / "0.tar", tmp_path / "0.tar.idx"
        write_tar(tar, "", ["x.jpg", "y.txt"])
        index.write_bytes(indexes("webdataset", tar)[".tar.idx"])
        assert any2ds.load(tmp_path).keys == ["x", "y"]
        write_tar(tar, "", ["x.jpg", "x.txt"])
        os.utime(index, ns=(0, tar.stat().st_mtime_ns - 1))
        assert len(any2ds.load(tmp_path)) == 1
        assert list(any2ds.load(tmp_path)[0]) == ["caption", "key", "ext", "data"]
        os.utime(index)
        os.utime(tar, (0, 0))
        with pytest.raises(DamagedShard, match=r"shard 0\.tar .*: samples 0 and 1 are both 'x': the index is wrong"):
            any2ds.load(tmp_path).keys  # noqa: B018  # it is read

    def test_an_index_that_is_older_than_its_tar_file(self, tmp_path: Path) -> None:
        for count in (3, 5):
            with webdataset.TarWriter(str(tmp_path / "0.tar")) as sink:
                for n in range(count):
                    sink.write({"__key__": str(n), "jpg": b"image %d of %d" % (n, count)})
            if count == 3:
                (tmp_path / "0.tar.idx").write_bytes(indexes("webdataset", tmp_path / "0.tar")[".tar.idx"])
                assert len(any2ds.load(tmp_path)) == 3
        os.utime(tmp_path / "0.tar.idx")  # it was copied later
        with pytest.raises(DamagedShard, match=r"shard 0\.tar .*its index ends at byte .*, where the tar file goes on"):
            any2ds.load(tmp_path)
        os.utime(tmp_path / "0.tar.idx", (0, 0))
        assert len(any2ds.load(tmp_path)) == 5

    def test_tfrecords_without_an_index(self, made: Callable[[str], Path], tmp_path: Path, cache: Path) -> None:
        shutil.copytree(made("tfrecord"), tmp_path / "dataset")
        wanted = list(any2ds.load(tmp_path / "dataset"))
        assert not list(cache.rglob("*.idx"))  # they lie beside the shards
        for path in (tmp_path / "dataset").glob("*.tfrecord.idx"):
            assert path.read_bytes() == indexes("tfrecord", path.with_suffix(""))[".tfrecord.idx"]
            path.unlink()
        assert list(any2ds.load(tmp_path / "dataset")) == wanted
        assert len(list(cache.rglob("*.idx"))) == 5
        assert list(any2ds.load(tmp_path / "dataset")) == wanted

    def test_an_index_in_the_cache_is_made_anew_for_another_file(self, tmp_path: Path, cache: Path) -> None:
        for count in (6, 8):
            with webdataset.TarWriter(str(tmp_path / "0.tar")) as sink:
                for n in range(count):
                    sink.write({"__key__": str(n), "jpg": b"image %d of %d" % (n, count)})
            ds = any2ds.load(tmp_path)
            assert [sample["data"] for sample in ds] == [b"image %d of %d" % (n, count) for n in range(count)]
            assert (tmp_path / "0.tar").stat().st_size == 20_480  # of the same size: its time alone tells

    @pytest.mark.parametrize("output_format", FORMATS)
    def test_what_is_done_to_a_sample_changes_no_other(
        self, output_format: str, server: Server, tmp_path: Path
    ) -> None:
        rows = pa.table(
            {
                "url": [server.url(f"{n}.bin") for n in range(3)],
                "boxes": [[[1.0, 2.0]]] * 3,
                "place": [{"names": ["x"], "at": 1}] * 3,
            }
        )
        pq.write_table(rows, tmp_path / "list.parquet")
        options: dict[str, Any] = {"output_format": output_format, "quiet": True, "distributor": "inline"}
        download(
            tmp_path / "list.parquet",
            output_folder=tmp_path / "dataset",
            save_additional_columns=["boxes", "place"],
            **options,
        )
        ds = any2ds.load(tmp_path / "dataset")
        for _ in range(2):
            for sample in (ds[1], ds[[1, 1]][1], *ds[1:2]):
                assert (sample["boxes"], sample["place"]) == ([[1.0, 2.0]], {"names": ["x"], "at": 1})
                sample["boxes"][0].append(3.0)
                sample["place"]["names"].append("y")
                sample["place"]["at"] = 2

    @pytest.mark.parametrize("output_format", FORMATS)
    def test_a_dataset_without_its_run_file(
        self, output_format: str, made: Callable[[str], Path], tmp_path: Path
    ) -> None:
        """As it is where a tool that copies files has left out the hidden ones."""
        shutil.copytree(made(output_format), tmp_path / "dataset", ignore=shutil.ignore_patterns(".any2ds"))
        whole, found = any2ds.load(made(output_format)), any2ds.load(tmp_path / "dataset")
        assert found.keys == whole.keys
        assert list(found) == list(whole)
        assert [sample["data"] for sample in any2ds.load(tmp_path / "dataset", where="label = 1")] == [
            sample["data"] for sample in any2ds.load(made(output_format), where="label = 1")
        ]

    def test_samples_of_img2dataset_are_not_in_the_order_of_its_metadata(self, own: Path) -> None:
        """As it writes them: in the order in which they arrived, without an index and a list of shards."""
        shutil.rmtree(own / ".any2ds")
        for path in own.glob("*.tar*"):
            if path.suffix == ".tar":
                with tarfile.open(path) as tar:
                    members = [(member, tar.extractfile(member)) for member in tar]
                    files = [(member, file.read()) for member, file in members if file]
                keys = sorted({member.name.partition(".")[0] for member, _ in files}, reverse=True)
                with tarfile.open(path, "w") as tar:
                    for key in keys:
                        for member, data in files:
                            if member.name.startswith(key):
                                tar.addfile(member, io.BytesIO(data))
            else:
                path.unlink()
        for path in own.glob("*_stats.json"):
            stats = orjson.loads(path.read_bytes())
            path.write_bytes(orjson.dumps({name: stats[name] for name in ("count", "successes", "failed_to_download")}))
        ds = any2ds.load(own, where="label = 1")
        assert len(ds) == 8 - (FAILED % 3 == 1)
        assert all(sample["label"] == 1 for sample in ds)
        assert ds.keys == [sample["key"] for sample in ds] != sorted(ds.keys)

    @pytest.mark.parametrize("output_format", ["webdataset", "parquet", "files"])
    def test_a_folder_of_any2dataset(self, output_format: str, tmp_path: Path) -> None:
        """As it writes them: rows in the order in which they arrived, and each file called flac."""
        texts = ("url", "caption", "key", "status", "error_message", "md5")
        for shard in (0, 1):
            keys = {f"{10 * shard + n:06d}": content(10 * shard + n) if n != 2 else None for n in (1, 3, 2, 0)}
            rows: list[dict[str, Any]] = [
                {"url": f"http://host/{key}", "caption": f"a {key}", "key": key, "status": "success", "md5": "?"}
                if data is not None
                else {"url": f"http://host/{key}", "caption": "", "key": key, "status": "failed_to_download"}
                for key, data in keys.items()
            ]
            schema = pa.schema(dict.fromkeys(texts, pa.string()))
            name, table = tmp_path / f"{shard:05d}", [{name: row.get(name) for name in texts} for row in rows]
            if output_format == "parquet":
                schema = schema.append(pa.field("flac", pa.binary()))
                table = [{**row, "flac": keys[row["key"]]} for row in table]
            pq.write_table(pa.Table.from_pylist(table, schema), name.with_suffix(".parquet"))
            stored = [row for row in table if row["status"] == "success"]
            if output_format == "webdataset":
                with webdataset.TarWriter(str(name.with_suffix(".tar"))) as sink:
                    for row in stored:
                        files = {"flac": keys[row["key"]], "txt": row["caption"], "json": {**row, "audio_meta": None}}
                        sink.write({"__key__": row["key"], **files})
            elif output_format == "files":
                name.mkdir()
                for row in stored:
                    (name / f"{row['key']}.flac").write_bytes(keys[row["key"]] or b"")
                    (name / f"{row['key']}.txt").write_text(row["caption"])
                    (name / f"{row['key']}.json").write_bytes(orjson.dumps(row))
            stats = {"count": 4, "successes": 3, "failed_to_download": 1, "failed_to_subsample": 0, "duration": 1.0}
            statuses = {"success": 3, "HTTP Error 404: File not found": 1}
            name.with_name(f"{name.name}_stats.json").write_bytes(orjson.dumps({**stats, "status_dict": statuses}))
        ds = any2ds.load(tmp_path)
        there = {f"{10 * shard + n:06d}": content(10 * shard + n) for shard in (0, 1) for n in (0, 1, 3)}
        assert {sample["key"]: sample["data"] for sample in ds} == there
        assert [ds[n]["key"] for n in range(6)] == ds.keys
        assert {(sample["ext"], sample["caption"]) for sample in ds} == {("flac", f"a {key}") for key in there}
        (found,) = any2ds.load(tmp_path, where="caption = 'a 000013'", columns=["key", "data", "url"])
        assert found == {"key": "000013", "data": content(13), "url": "http://host/000013"}
        assert len(any2ds.load(tmp_path, split="train[:50%]")) == 3


def test_a_process_in_another_folder_opens_the_same(own: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(own.parent)
    ds = any2ds.load(own.name)
    sent = pickle.dumps(ds)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    received = pickle.loads(sent)
    assert repr(received) == repr(ds)
    assert list(received) == list(ds)


class Evil:
    """Unpickling it makes a file."""

    def __init__(self, made: Path) -> None:
        self._made = made

    def __reduce__(self) -> Any:
        return open, (str(self._made), "w")


class TestBadInput:
    @pytest.mark.parametrize("options", [{}, {"decode": True}])
    def test_a_pickle_among_the_files_is_not_executed(self, options: dict[str, Any], tmp_path: Path) -> None:
        evil = pickle.dumps(Evil(tmp_path / "executed"))
        with webdataset.TarWriter(str(tmp_path / "0.tar"), encoder=False) as sink:
            for n, first in enumerate(("pyd", "pickle", "pth", "npy")):
                sink.write({"__key__": str(n), first: evil, "pkl": evil})
        ds = any2ds.load(tmp_path, **options)
        files = [[value for value in sample.values() if isinstance(value, bytes)] for sample in [*ds, *ds[:], ds[2]]]
        assert files == [[evil, evil]] * 9
        assert not (tmp_path / "executed").exists()

    def test_a_folder_that_is_none(self, tmp_path: Path) -> None:
        with pytest.raises(OutputError, match="no such folder"):
            any2ds.load(tmp_path / "nothing")
        with pytest.raises(OutputError, match=r"holds no dataset of any2ds or img2dataset$"):
            any2ds.load(tmp_path)

    @pytest.mark.parametrize(
        ("file", "advice"),
        [
            ("train/0.tar", r"one by one, as in any2ds.load\('.*/train'\)$"),
            ("0.tar.gz", "no sample can be had by itself: unpack them, such as by gunzip$"),
            ("train/0.tgz", "unpack them, such as by gunzip$"),
            (
                "data/train-00000-of-00001.parquet",
                r"datasets.load_dataset\('parquet', data_files='.*/\*\*/\*.parquet'\)$",
            ),
            ("cat/1.jpg", "mkdir tars; tar --sort=name -cf tars/0.tar -C .* .$"),
        ],
    )
    def test_what_other_tools_wrote_is_told_how_to_be_read(self, file: str, advice: str, tmp_path: Path) -> None:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(b"")
        with pytest.raises(OutputError, match=advice):
            any2ds.load(tmp_path)

    @pytest.mark.parametrize("name", ["00000.tar", "{00000..00002}.tar", "00000"])
    def test_a_shard_instead_of_the_folder(self, name: str, own: Path) -> None:
        with pytest.raises(OutputError, match=f"takes the folder, {str(own)!r}"):
            any2ds.load(own / name)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"where": 5}, "where takes a text, .* not 5"),
            ({"split": 5}, "split takes a text, .* not 5"),
            ({"split": ["train"]}, "split takes a text"),
            ({"columns": 5}, "columns takes a list of names, .* not 5"),
            ({"columns": [5]}, "columns takes a list of names"),
            ({"columns": "data"}, r"columns takes a list of names: \['data'\]"),
        ],
    )
    def test_options_of_another_type(self, options: dict[str, Any], message: str, own: Path) -> None:
        with pytest.raises(UsageError, match=message):
            any2ds.load(own, **options)

    @pytest.mark.parametrize("output_format", FORMATS)
    def test_a_run_that_is_under_way(self, output_format: str, tmp_path: Path) -> None:
        """What it has finished is there, and nothing else; opened later there is more."""
        (tmp_path / "media").mkdir()
        for n in range(ROWS):
            (tmp_path / "media" / f"{n}.bin").write_bytes(content(n))
        folder, last = tmp_path / "dataset", f"{ROWS - 1}.bin"
        script = {f"{FAILED}.bin": ["404"], last: ["hold"]}
        with serve(tmp_path / "media", script) as server, ThreadPoolExecutor(1) as threads:
            run = threads.submit(build, server, folder, output_format, timeout=60)
            while len(list(folder.glob("*_stats.json"))) < 4:
                assert not wait([run], timeout=0.02).done
            ds = any2ds.load(folder)
            finished = list(ds)
            server.release()
            run.result()
        assert ([sample["key"] for sample in finished], len(ds)) == (KEYS[:19], 19)
        assert list(ds) == finished
        assert any2ds.load(folder).keys == KEYS

    @pytest.mark.parametrize("output_format", ["webdataset", "tfrecord"])
    def test_an_index_that_does_not_fit_its_shard(
        self, output_format: str, made: Callable[[str], Path], tmp_path: Path
    ) -> None:
        own = shutil.copytree(made(output_format), tmp_path / "dataset")
        name = {"webdataset": "00000.tar", "tfrecord": "00000.tfrecord"}[output_format]
        good = (own / f"{name}.idx").read_bytes()
        for bad, message in (
            (b"", "index is empty"),
            (good[:-3], "index cannot be read"),
            (good[:-8], "index has 4 samples, its statistics 5"),
            (good[:-8] + (1 << 40).to_bytes(8, "little"), "ends at byte 1,099,511,627,776"),
            (good[:8] + good[:8] + good[16:], "says that sample 0 goes from byte 0 to 0$"),
            (good[:8] + good[16:24] * 2 + good[24:], "lie where one sample should|no sample begins|garbled"),
            (bytes(8) + (512).to_bytes(8, "little") + good[16:], "ends after its sample|no sample begins|garbled"),
        ):
            (own / f"{name}.idx").write_bytes(bad)
            with pytest.raises(DamagedShard, match=f"shard {name} .*({message})"):
                any2ds.load(own)[:1]

    def test_damaged_metadata_of_a_sample_name_its_key(self, own: Path) -> None:
        content = (own / "00000.tar").read_bytes()
        (own / "00000.tar").write_bytes(content.replace(b'{"key":"000003"', b'?"key":"000003"'))
        ds = any2ds.load(own)
        assert ds[2]["label"] == 2
        with pytest.raises(DamagedShard, match="'000003': its json cannot be read"):
            ds[3]

    def test_metadata_with_another_number_of_rows(self, own: Path) -> None:
        table = pq.read_table(own / "00001.parquet")
        pq.write_table(table[:3], own / "00001.parquet")
        with pytest.raises(DamagedShard, match=r"00001\.parquet has 2 samples, its statistics say 4"):
            any2ds.load(own, where="label = 1")
        (own / "00001.parquet").write_bytes(b"nothing")
        with pytest.raises(DamagedShard, match=r"shard 00001\.tar"):
            any2ds.load(own, where="label = 1")

    @pytest.mark.parametrize("output_format", FORMATS)
    def test_a_dataset_that_grows_is_as_it_was_when_it_was_opened(
        self, output_format: str, made: Callable[[str], Path], server: Server, tmp_path: Path
    ) -> None:
        own = shutil.copytree(made(output_format), tmp_path / "dataset")
        ds, half = any2ds.load(own), any2ds.load(own, split="hash[:50%]").keys
        build(server, own, output_format, first=1, incremental_mode="extend")
        assert [sample["key"] for sample in ds] == KEYS
        assert len(any2ds.load(own)) == 2 * len(KEYS)
        grown = any2ds.load(own, split="hash[:50%]").keys  # the others stay where they were
        assert [key for key in grown if key in KEYS] == half != grown

    def test_a_format_without_files(self, server: Server, tmp_path: Path) -> None:
        folder = build(server, tmp_path / "dummy", "dummy")
        with pytest.raises(OutputError, match="stores no files"):
            any2ds.load(folder)


@pytest.mark.parametrize(
    ("method", "library"),
    [("to_hf", "datasets"), ("to_tf", "tensorflow"), ("to_webdataset", "webdataset"), ("to_grain", "grain")],
)
def test_a_library_that_is_not_installed_is_named(
    method: str, library: str, made: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    ds = any2ds.load(made("webdataset"))
    with pytest.raises(UsageError, match=f"{method} needs a library that is not installed: pip install {library}$"):
        getattr(ds, method)()


def test_the_descriptors_of_a_process_are_enough_for_several_datasets(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for n in range(60):
            write_tar(tmp_path / name / f"{n:02d}.tar", "", [f"{n}.bin"])
    program = (
        "import resource, any2ds\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))\n"
        f"both = [any2ds.load(f'{tmp_path}/{{name}}', cache_dir='{tmp_path}/cache') for name in 'ab']\n"
        "print(sum(len(sample['data']) > 0 for _ in range(2) for ds in both for sample in ds))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("240\n", "")
