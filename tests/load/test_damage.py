"""Whatever happens to the files of a dataset, `any2ds.load` gives its samples or one error of ours.

Formats without checksums give files of the same size at least, and with `check=True` the same files.
"""

import os
import pickle
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import any2ds
from any2ds import download
from any2ds.core.errors import Any2dsError, DamagedShard, UsageError
from any2ds.testing.server import Server, serve

FORMATS = ["webdataset", "parquet", "tfrecord", "arrayrecord", "files"]
WITH_CHECKSUMS = {"tfrecord", "arrayrecord"}  # of the data; the others have none
ROWS, SHARD, CASES = 12, 4, 25
OPTIONS: list[dict[str, Any]] = [{}, {"where": "bytes >= 1"}, {"columns": ["data", "key"]}, {"split": "hash[:50%]"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    media = tmp_path_factory.mktemp("media")
    for n in range(ROWS):
        (media / f"{n}.bin").write_bytes(random.Random(n).randbytes(300))
    with serve(media) as running:
        yield running


def garbled(content: bytes, chance: random.Random) -> bytes:
    place, other = (chance.randrange(len(content) + 1) for _ in range(2))
    how = chance.choice(["bytes", "bytes", "cut", "zeros", "moved", "empty", "twice"])
    if how == "bytes":
        found = bytearray(content)
        for _ in range(min(len(found), 3)):
            found[chance.randrange(len(found))] = chance.randrange(256)
        return bytes(found)
    return {
        "cut": content[:place],
        "zeros": content[:place] + bytes(64) + content[place + 64 :],
        "moved": content[:place] + content[other : other + 32] + content[place + 32 :],
        "empty": b"",
        "twice": content * 2,
    }[how]


def make(server: Server, folder: Path, output_format: str, first: int = 0) -> Path:
    download(
        [server.url(f"{n % ROWS}.bin") for n in range(first, first + ROWS)],
        output_folder=folder,
        output_format=output_format,
        number_sample_per_shard=SHARD,
        file_ext="bin",
        distributor="inline",
        quiet=True,
        fsync=False,
    )
    return folder


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("output_format", FORMATS)
def test_samples_as_they_were_or_an_error(
    output_format: str, check: bool, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = make(server, tmp_path / "good", output_format)
    wanted = {sample["key"]: sample["data"] for sample in any2ds.load(good)}
    assert len(wanted) == ROWS
    files = sorted(path.relative_to(good) for path in good.rglob("*") if path.is_file() and path.name != "report.html")
    same: Callable[[bytes], Any] = bytes if check or output_format in WITH_CHECKSUMS else len
    chance = random.Random(f"{output_format} {check}")
    errors = 0
    for case in range(CASES):
        monkeypatch.setenv("ANY2DS_CACHE", str(tmp_path / f"cache-{case}"))
        bad = tmp_path / f"bad-{case}"
        shutil.copytree(good, bad)
        path = bad / chance.choice(files)
        path.write_bytes(garbled(path.read_bytes(), chance))
        try:
            ds = any2ds.load(bad, check=check, **chance.choice(OPTIONS))
            found = [*ds, *(ds[n] for n in range(len(ds)))]
        except Any2dsError:
            errors += 1
            continue
        for sample in found:
            assert same(wanted[sample["key"]]) == same(sample["data"]), (case, path.name)
        shutil.rmtree(bad)
    assert errors > 3


def test_the_footer_of_a_parquet_shard_of_a_store_is_damaged(server: Server, tmp_path: Path) -> None:
    """Arrow ends the process at figures that cannot be, unless they are looked at in another way first."""
    good = make(server, tmp_path / "good", "parquet")
    store = fsspec.filesystem("memory")
    store.put(str(good), "/damaged-footer", recursive=True)
    content, chance = (good / "00000.parquet").read_bytes(), random.Random(2)
    footer = int.from_bytes(content[-8:-4], "little")
    for _ in range(300):
        garbled = bytearray(content)
        garbled[len(content) - 8 - chance.randrange(1, footer + 1)] ^= 1 << chance.randrange(8)
        store.pipe_file("/damaged-footer/00000.parquet", bytes(garbled))
        with suppress(Any2dsError):
            assert len(any2ds.load("memory://damaged-footer")[: 2 * SHARD]) == 2 * SHARD


@pytest.mark.parametrize("harm", ["removed", "cut", "garbled"])
@pytest.mark.parametrize("output_format", FORMATS)
def test_a_shard_that_is_spoilt_while_the_dataset_is_open(
    output_format: str, harm: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is open, and one that is not: each sample is the right one, or an error that names the shard."""
    monkeypatch.setenv("ANY2DS_CACHE", str(tmp_path / "cache"))
    ds = any2ds.load(make(server, tmp_path / "ds", output_format), check=True)
    assert ds[0]["data"] == random.Random(0).randbytes(300)
    for shard in (0, 1):
        spoil(data_of(tmp_path / "ds", shard), harm)
    named = 0
    for n in range(2 * SHARD):
        try:
            assert ds[n]["data"] == random.Random(n).randbytes(300)
        except DamagedShard as error:
            named += n >= SHARD and "shard 00001" in str(error)
    assert named >= (1 if harm == "garbled" else SHARD)
    assert [sample["data"] for sample in ds[2 * SHARD :]] == [
        random.Random(n).randbytes(300) for n in range(2 * SHARD, ROWS)
    ]


@pytest.mark.parametrize("columns", [None, ["data"]])
@pytest.mark.parametrize("output_format", FORMATS)
def test_a_shard_in_the_place_of_another(
    output_format: str, columns: list[str] | None, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same size, and as many samples: in the process that has it open, in another one, and opened anew."""
    monkeypatch.setenv("ANY2DS_CACHE", str(tmp_path / "cache"))
    folder = make(server, tmp_path / "ds", output_format)
    ds = any2ds.load(folder, columns=columns)
    assert ds[0]["data"] == random.Random(0).randbytes(300)
    exchange(data_of(folder, 0), data_of(folder, 1))
    right = r"shard 00001.* (none of this shard|after the dataset was opened|its statistics say|had .* when)"
    for found in (ds, pickle.loads(pickle.dumps(ds))):
        for read in (lambda ds=found: ds[SHARD + 1], lambda ds=found: ds[[SHARD, SHARD + 2]]):
            with pytest.raises(DamagedShard, match=right):
                read()
    for options in ({}, {"check": True}, {"where": "key = '000010'"}):
        with pytest.raises(DamagedShard, match=right.replace("00001", "0000[01]")):
            list(any2ds.load(folder, columns=columns, **options))
    if output_format in ("tfrecord", "arrayrecord") and columns is None:  # whose nulls are those of the metadata
        exchange(data_of(folder, 0), data_of(folder, 1))
        exchange(folder / "00000.parquet", folder / "00001.parquet")
        with pytest.raises(DamagedShard, match=r"00000\.parquet has the key '00001.*table of another shard"):
            any2ds.load(folder)[0]


@pytest.mark.parametrize("output_format", FORMATS)
def test_a_shard_of_another_run_in_the_place_of_one(
    output_format: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the same keys: whoever has opened the dataset before does not take it."""
    monkeypatch.setenv("ANY2DS_CACHE", str(tmp_path / "cache"))
    folder = make(server, tmp_path / "ds", output_format)
    ds = any2ds.load(folder)
    exchange(data_of(folder, 0), data_of(make(server, tmp_path / "other", output_format, first=4), 0))
    with pytest.raises(DamagedShard, match=r"shard 00000.* (after the dataset was opened|and had .* when)"):
        pickle.loads(pickle.dumps(ds))[0]
    assert pickle.loads(pickle.dumps(ds))[SHARD]["data"] == random.Random(SHARD).randbytes(300)


def test_a_copy_of_the_dataset_on_another_machine(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files may have been written at another time."""
    ds = any2ds.load(make(server, tmp_path / "ds", "webdataset"))
    wanted = list(ds)
    for path in (tmp_path / "ds").glob("*.tar"):
        os.utime(path, (1, 1))
    received = pickle.loads(pickle.dumps(ds))
    with pytest.raises(DamagedShard, match="after the dataset was opened"):
        received[0]
    monkeypatch.setattr("platform.node", lambda: "another")
    assert list(pickle.loads(pickle.dumps(ds))) == wanted


def exchange(one: Path, other: Path) -> None:
    """And the indexes beside them."""
    for end in ("", ".idx"):
        first, second = (path.with_name(f"{path.name}{end}") for path in (one, other))
        if first.exists():
            spare = first.with_name("spare")
            first.rename(spare)
            second.rename(first)
            spare.rename(second)


def data_of(folder: Path, shard: int) -> Path:
    return next(path for path in folder.glob(f"{shard:05d}*") if is_data(path))


def is_data(path: Path) -> bool:
    return path.is_dir() or path.suffix in (".tar", ".tfrecord", ".arrayrecord") or "data" in schema_names(path)


def schema_names(path: Path) -> list[str]:
    return list(pq.read_schema(path).names) if path.suffix == ".parquet" else []


def spoil(path: Path, harm: str) -> None:
    """The data of a shard, a file or a folder."""
    if harm == "removed":
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        return
    for file in path.glob("*.bin") if path.is_dir() else [path]:
        content = file.read_bytes()
        third = len(content) // 3
        file.write_bytes(content[:third] + (b"" if harm == "cut" else bytes(third) + content[2 * third :]))


STEP = """
import any2ds

@any2ds.transform
def longer(sample):
    return sample.with_data(sample.data + b"!") if sample.data[0] % 2 else sample
"""


def ds_files(folder: Path) -> list[Path]:
    return [path for path in (folder / "ds").rglob("*") if path.is_file()]


class TestCheck:
    @pytest.fixture
    def make(self, server: Server, tmp_path: Path) -> Callable[..., Path]:
        def make(**options: Any) -> Path:
            given = {
                "output_format": "webdataset",
                "number_sample_per_shard": SHARD,
                "distributor": "inline",
                **options,
            }
            urls = [server.url(f"{n}.bin") for n in range(ROWS)]
            download(urls, output_folder=tmp_path / "ds", file_ext="bin", quiet=True, **given)
            return tmp_path / "ds"

        return make

    @pytest.mark.parametrize("compute_hash", ["md5", "sha256", "sha512"])
    @pytest.mark.parametrize("output_format", ["webdataset", "parquet", "files"])
    def test_a_file_that_was_garbled_is_an_error_that_names_it(
        self, output_format: str, compute_hash: str, make: Callable[..., Path]
    ) -> None:
        folder = make(output_format=output_format, compute_hash=compute_hash, compute_md5=compute_hash == "md5")
        garbled = random.Random(5).randbytes(300)
        (place,) = (path for path in folder.rglob("*") if path.is_file() and garbled in path.read_bytes())
        place.write_bytes(place.read_bytes().replace(garbled, garbled[:-1] + b"\x00"))
        assert len(any2ds.load(folder)[5]["data"]) == 300
        for options in ({}, {"columns": ["data"]}, {"decode": True}):
            ds = any2ds.load(folder, check=True, **options)
            name = rf"shard 00001.* of .*ds': '000011': the {compute_hash} of its file is not that of the metadata"
            with pytest.raises(DamagedShard, match=name):
                ds[5]
            with pytest.raises(DamagedShard, match=name):
                ds[[4, 5]]
            assert ds[4]["data"] == random.Random(4).randbytes(300)
        assert list(any2ds.load(folder, check=True, columns=["data"])[0]) == ["data"]
        assert any2ds.load(folder, check=True, columns=["bytes"])[5] == {"bytes": 300}  # its file is not read

    @pytest.mark.parametrize("output_format", FORMATS)
    def test_files_that_steps_have_changed(self, output_format: str, make: Callable[..., Path], tmp_path: Path) -> None:
        (tmp_path / "step.py").write_text(STEP)
        folder = make(output_format=output_format, transform=f"{tmp_path / 'step.py'}:longer")
        files = [sample["data"] for sample in any2ds.load(folder, check=True)]
        assert {len(data) for data in files} == {300, 301}
        if output_format in WITH_CHECKSUMS:
            return
        garbled = next(data for data in files if len(data) == 301)
        (place,) = (path for path in folder.rglob("*") if path.is_file() and garbled in path.read_bytes())
        place.write_bytes(place.read_bytes().replace(garbled, garbled[:-1] + b"?"))
        with pytest.raises(DamagedShard, match="the CRC-32 of its file"):
            list(any2ds.load(folder, check=True))

    @pytest.mark.parametrize("output_format", FORMATS)
    def test_each_of_several_files_of_a_sample(self, output_format: str, server: Server, tmp_path: Path) -> None:
        rows = [{"image": server.url(f"{n}.bin"), "mask": server.url(f"{n + 6}.bin")} for n in range(6)]
        options = {"url_col": "image:image,mask:mask", "output_folder": tmp_path / "ds", "output_format": output_format}
        download(pa.Table.from_pylist(rows), distributor="inline", quiet=True, file_ext="bin", **options)
        ds = any2ds.load(tmp_path / "ds", check=True)
        assert [sample["mask"] for sample in ds] == [random.Random(n + 6).randbytes(300) for n in range(6)]
        if output_format in WITH_CHECKSUMS:
            return
        for garbled, name in ((random.Random(3).randbytes(300), "image"), (random.Random(10).randbytes(300), "mask")):
            (place,) = (path for path in ds_files(tmp_path) if garbled in path.read_bytes())
            place.write_bytes(place.read_bytes().replace(garbled, garbled[:-1] + b"\x00"))
            with pytest.raises(DamagedShard, match=f"the md5 of its {name} is not that"):
                any2ds.load(tmp_path / "ds", check=True, columns=[name])[:]
        with pytest.raises(DamagedShard, match="the md5 of its image is not that"):
            any2ds.load(tmp_path / "ds", check=True, columns=["data"])[3]
        assert any2ds.load(tmp_path / "ds", check=True, columns=["mask"])[3]["mask"] == random.Random(9).randbytes(300)

    def test_a_dataset_without_hashes_is_refused(self, make: Callable[..., Path], tmp_path: Path) -> None:
        folder = make(output_format="webdataset", compute_hash=None, compute_md5=False)
        with pytest.raises(UsageError, match=r"check: .*ds' has no hashes of its files"):
            any2ds.load(folder, check=True)
        (tmp_path / "tars").mkdir()
        for tar in folder.glob("*.tar"):
            tar.rename(tmp_path / "tars" / tar.name)
        with pytest.raises(UsageError, match=r"check: .*tars' has no hashes of its files"):
            any2ds.load(tmp_path / "tars", check=True)
