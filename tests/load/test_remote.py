"""`any2ds.load` of datasets in stores: byte ranges, retries, copies of shards."""

import multiprocessing
import os
import pickle
import random
import re
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import orjson
import pyarrow as pa
import pytest
from aiohttp import ClientTimeout

import any2ds
from any2ds import download
from any2ds.core.errors import DamagedShard, MissingColumns, OptionError, OutputError, UsageError
from any2ds.storage.addresses import address_of
from any2ds.storage.remote import RemoteFolder
from any2ds.testing.server import serve
from tests.support.s3 import Bucket, enter
from tests.support.smalldisk import small_disk

ANSWERS = [
    ("403", "access denied|Forbidden"),
    ("404", "no such file|[Nn]ot [Ff]ound"),
    ("500", "answers 500|told to fail|Internal Server Error"),
]
IMPATIENT = {"s3": {"config_kwargs": {"read_timeout": 0.5}}}
FORMATS = ["webdataset", "parquet", "tfrecord", "arrayrecord", "files"]
EACH_FORMAT = ["webdataset", *(pytest.param(name, marks=pytest.mark.slow) for name in FORMATS[1:])]
OF_RANGES = frozenset({"webdataset", "tfrecord"})  # of which each sample is a request
ROWS, SHARD = 12, 5


def content(n: int) -> bytes:
    return b"file %d " % n * 200


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANY2DS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A local dataset in a format, whose files are copied to the stores."""
    folder = tmp_path_factory.mktemp("datasets")
    media = tmp_path_factory.mktemp("media")
    for n in range(ROWS):
        (media / f"{n}.bin").write_bytes(content(n))

    def made(output_format: str) -> Path:
        if not (folder / output_format).exists():
            with serve(media) as server:
                download(
                    [server.url(f"{n}.bin") for n in range(ROWS)],
                    output_folder=folder / output_format,
                    output_format=output_format,
                    number_sample_per_shard=SHARD,
                    file_ext="bin",
                    distributor="inline",
                    quiet=True,
                )
        return folder / output_format

    return made


@pytest.fixture
def bucket(new_bucket: Callable[[], Bucket], monkeypatch: pytest.MonkeyPatch) -> Bucket:
    made = new_bucket()
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    enter(made, monkeypatch)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["removed", "cut", "garbled"])
@pytest.mark.parametrize("output_format", FORMATS)
def test_a_shard_in_a_store_that_is_spoilt_while_the_dataset_is_open(
    output_format: str, harm: str, bucket: Bucket, datasets: Callable[[str], Path]
) -> None:
    """Each sample is the right one, or an error that names the shard."""
    store, folder = bucket.connect(), datasets(output_format)
    store.put(str(folder), bucket.url, recursive=True)
    ds = any2ds.load(bucket.url, check=True)
    assert ds[ROWS - 1]["data"] == content(ROWS - 1)
    end = {"webdataset": ".tar", "files": "/"}.get(output_format, f".{output_format}")
    for path in store.find(bucket.url):
        name = path.rpartition("/")[2]
        if f"/00001{end}" not in path or (output_format == "files" and not name.endswith(".bin")):
            continue
        old = store.cat_file(path)
        half = len(old) // 2
        if harm == "removed":
            store.rm_file(path)
        elif not name.endswith(".idx"):
            store.pipe_file(path, old[:half] + (b"" if harm == "cut" else bytes(900) + old[half + 900 :]))
    store.invalidate_cache()
    named = 0
    for n in range(SHARD, 2 * SHARD):
        try:
            assert ds[n]["data"] == content(n)
        except DamagedShard as error:
            named += "shard 00001" in str(error)
    assert named >= (1 if harm == "garbled" else 2)
    with pytest.raises(DamagedShard, match="shard 00001"):
        ds[SHARD : 2 * SHARD]
    assert [sample["data"] for sample in ds[:SHARD]] == [content(n) for n in range(SHARD)]


@pytest.mark.parametrize("output_format", ["webdataset", "parquet", "tfrecord"])  # the others are copied
def test_a_shard_in_the_place_of_another(output_format: str, bucket: Bucket, datasets: Callable[[str], Path]) -> None:
    """It is noticed without a request for that, also where no version is known yet."""
    store, extension = bucket.connect(), {"webdataset": "tar"}.get(output_format, output_format)
    store.put(str(datasets(output_format)), bucket.url, recursive=True)
    ds = any2ds.load(bucket.url)
    with bucket.recording() as asked:
        assert ds[SHARD]["data"] == content(SHARD)
    names = [f"{bucket.url}/0000{shard}.{extension}" for shard in (0, 1)]
    for end in ("", ".idx") if output_format != "parquet" else ("",):
        first, second = (store.cat_file(f"{name}{end}") for name in names)
        store.pipe({f"{names[0]}{end}": second, f"{names[1]}{end}": first})
    wrong = r"shard 00001.* of 's3://.*(which is none of this shard|and had .* when)"
    for options in ({}, {"columns": ["data"]}):
        with bucket.recording() as again, pytest.raises(DamagedShard, match=wrong):
            any2ds.load(bucket.url, **options)[SHARD]
        assert of_data(again) <= of_data(asked)
    with pytest.raises(DamagedShard, match=wrong):
        pickle.loads(pickle.dumps(ds))[[SHARD, SHARD + 1]]


def of_data(asked: list[tuple[str, str]]) -> Counter[str]:
    """Requests for the files of the second shard."""
    return Counter(method for method, target in asked if re.search(r"/00001\.(tar|tfrecord)", target))


@pytest.mark.parametrize("output_format", EACH_FORMAT)
def test_a_store_that_refuses_or_hangs(output_format: str, bucket: Bucket, datasets: Callable[[str], Path]) -> None:
    """In a shard that is open, where ranges of it are read, and in one that is not."""
    bucket.connect().put(str(datasets(output_format)), bucket.url, recursive=True)
    ds = any2ds.load(bucket.url, storage_options=IMPATIENT, retry_seconds=0)
    assert ds[0]["data"] == content(0)
    end = {"webdataset": ".tar", "files": "/000010.bin"}.get(output_format, f".{output_format}")
    for shard, numbers in ((1, [6]), (1, [5, 6, 11]), *([(0, [1, 2])] if output_format in OF_RANGES else [])):
        name = end if output_format == "files" else f"0000{shard}{end}"
        for status, text in (*ANSWERS, ("", "no answer of the store|[Tt]imeout|timed out")):
            trouble = bucket.refusing(status, name) if status else bucket.hanging(name)
            with trouble, pytest.raises(DamagedShard, match=rf"(?s)shard 0000{shard}.* of 's3://.*({text})"):
                ds[numbers] if len(numbers) > 1 else ds[numbers[0]]
    assert [sample["data"] for sample in ds[:7]] == [content(n) for n in range(7)]


@pytest.mark.parametrize("output_format", EACH_FORMAT)
def test_bad_input_is_one_error_of_ours(output_format: str, bucket: Bucket, datasets: Callable[[str], Path]) -> None:
    """It names the shard, the index, or the word."""
    store, url = bucket.connect(), bucket.url
    store.put(str(datasets(output_format)), url, recursive=True)
    data = "00001" + {"webdataset": ".tar", "files": ""}.get(output_format, f".{output_format}")

    def fails(error: Any, text: str, read: Callable[[Any], Any] = len, **options: Any) -> None:
        with pytest.raises(error, match=text):
            read(any2ds.load(url, **{"retry_seconds": 0, "storage_options": IMPATIENT, **options}))

    fails(MissingColumns, "'captoin'.*columns that exist: data", columns=["data", "captoin"])
    fails(UsageError, "no column 'widht'", where="widht > 5")
    fails(UsageError, "where: .* cannot be understood", where="bytes > ")
    fails(UsageError, "split: .*'trian'", split="trian[:5]")
    fails(IndexError, "12", lambda ds: ds[12])
    fails(IndexError, "-13", lambda ds: ds[[0, -13]])

    # Opening reads the list of the folder, the run, the list of shards or statistics, and for `where` the metadata.
    for name in ("", "run", "shards", "00001.parquet"):
        for status, text in (*ANSWERS, ("", "no answer of the store|[Tt]imeout|timed out")):
            if status in ("403", "404") and name in ("run", "shards"):
                continue  # there are datasets without them, and a web server may hide them
            with bucket.refusing(status, name) if status else bucket.hanging(name or "/place") as failed:
                where = "key >= '0' and bytes > 5"
                patience = {} if status else IMPATIENT
                words = rf"(?s)'s3://bucket-.*({text}|no such folder)"
                fails((OutputError, DamagedShard), words, where=where, storage_options=patience)
            assert failed is None or failed.total() < 8  # as many requests as it takes

    if output_format in ("webdataset", "tfrecord"):
        good = store.cat_file(f"{url}/{data}.idx")
        for bad, text in (
            (b"", "index is empty"),
            (good[:-3], "index cannot be read"),
            (good[:-8], "index has 4 samples, its statistics 5"),
            (good[:-8] + (1 << 40).to_bytes(8, "little"), "ends at byte 1,099,511,627,776"),
        ):
            store.pipe_file(f"{url}/{data}.idx", bad)
            fails(DamagedShard, rf"shard {data} of 's3://.*{text}", lambda ds: ds[6])
        store.pipe_file(f"{url}/{data}.idx", good)

    files = [path for path in store.find(f"{url}/{data}") if not path.endswith((".idx", ".txt", ".json"))]
    for path in files:
        store.pipe_file(path, store.cat_file(path)[:-30])
    if output_format != "files":  # whose sizes nobody writes down
        fails(DamagedShard, f"shard {data} of 's3://", lambda ds: ds[5:10])
    store.rm(files)
    store.invalidate_cache()
    fails(DamagedShard, f"shard {data} of 's3://", lambda ds: ds[5:10])
    store.rm([path for path in store.find(url) if path.endswith(("_stats.json", "/shards"))])
    fails(OutputError, "'s3://.*no finished shard")


@pytest.mark.slow
@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_in_processes(method: str, bucket: Bucket, datasets: Callable[[str], Path]) -> None:
    bucket.connect().put(str(datasets("webdataset")), bucket.url, recursive=True)
    ds = any2ds.load(bucket.url)
    assert ds[0]["data"] == content(0)
    with multiprocessing.get_context(method).Pool(2, set_environment, (bucket.environment,)) as pool:
        assert [sample["data"] for sample in pool.map(ds.__getitem__, range(ROWS))] == [content(n) for n in range(ROWS)]


class TestCopies:
    @pytest.fixture
    def url(self, datasets: Callable[[str], Path], tmp_path: Path) -> Iterator[str]:
        url = f"memory://{tmp_path.name}/dataset"
        store = fsspec.filesystem("memory")
        store.put(str(datasets("webdataset")), url, recursive=True)
        yield url
        store.rm(url, recursive=True)

    def test_a_shard_is_copied_once_and_read_from_there(self, url: str, tmp_path: Path) -> None:
        ds = any2ds.load(url, cache_dir=tmp_path / "copies", cache_bytes="1MiB")
        assert ds[0]["data"] == content(0)
        (copy,) = (tmp_path / "copies").rglob("*.tar")
        copy.write_bytes(copy.read_bytes().replace(b"file 1 ", b"copy 1 "))
        again = any2ds.load(url, cache_dir=tmp_path / "copies", cache_bytes="1MiB")
        assert again[1]["data"] == content(1).replace(b"file", b"copy")

    def test_those_used_longest_ago_are_removed(self, url: str, tmp_path: Path) -> None:
        ds = any2ds.load(url, cache_dir=tmp_path / "copies", cache_bytes="50kB")
        assert [sample["data"] for sample in ds] == [content(n) for n in range(ROWS)]
        copies = list((tmp_path / "copies").rglob("*.tar"))
        assert 1 <= len(copies) < 3
        assert not list((tmp_path / "copies").rglob(".partial-*"))
        assert ds[0]["data"] == content(0)

    def test_a_copy_that_was_removed_is_not_held_open(self, url: str, tmp_path: Path) -> None:
        ds = any2ds.load(url, cache_dir=tmp_path / "copies", cache_bytes="50kB")
        assert [sample["data"] for sample in ds] == [content(n) for n in range(ROWS)]
        opened = [os.readlink(each.path) for each in os.scandir("/proc/self/fd") if each.is_symlink()]
        assert not [path for path in opened if str(tmp_path) in path and "(deleted)" in path]

    def test_a_copy_that_is_cut_is_made_anew(self, url: str, tmp_path: Path) -> None:
        copies = tmp_path / "copies"
        assert any2ds.load(url, cache_dir=copies, cache_bytes="1MiB")[0]["data"] == content(0)
        (copy,) = copies.rglob("*.tar")
        copy.write_bytes(b"half")
        assert any2ds.load(url, cache_dir=copies, cache_bytes="1MiB")[0]["data"] == content(0)

    def test_a_shard_that_was_replaced_by_one_of_its_size_is_copied_anew(
        self, bucket: Bucket, datasets: Callable[[str], Path], tmp_path: Path
    ) -> None:
        store, tar = bucket.connect(), f"{bucket.url}/00000.tar"
        store.put(str(datasets("webdataset")), bucket.url, recursive=True)
        options = {"cache_dir": tmp_path / "copies", "cache_bytes": "1MiB"}
        former = any2ds.load(bucket.url, **options)
        assert former[0]["data"] == content(0)
        store.pipe_file(tar, store.cat_file(tar).replace(b"file 0", b"file 9"))
        assert any2ds.load(bucket.url, **options)[0]["data"] == content(0).replace(b"file 0", b"file 9")
        assert former[0]["data"] == content(0)  # it goes on with what was there when it was opened
        with bucket.recording() as asked:
            assert any2ds.load(bucket.url, **options)[1]["data"] == content(1)
        assert not any(method == "GET" and ".tar?" in f"{target}?" for method, target in asked)

    def test_many_threads_share_the_folder(
        self, bucket: Bucket, datasets: Callable[[str], Path], tmp_path: Path
    ) -> None:
        bucket.connect().put(str(datasets("webdataset")), bucket.url, recursive=True)

        def read() -> None:
            ds = any2ds.load(bucket.url, cache_dir=tmp_path / "copies", cache_bytes="50kB")
            found.append([sample["data"] for sample in ds])

        found: list[list[bytes]] = []
        threads = [threading.Thread(target=read) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [[content(n) for n in range(ROWS)]] * 8

    def test_processes_share_the_folder(self, url: str, tmp_path: Path) -> None:
        asked = url, str(tmp_path / "copies")
        with multiprocessing.get_context("fork").Pool(4) as pool:
            found = pool.starmap(read_through_copies, [asked] * 12)
        assert found == [[content(n) for n in range(ROWS)]] * 12

    @pytest.mark.parametrize("moment", ["half of it", "all of it"])
    def test_a_process_that_is_killed_while_it_copies(self, moment: str, url: str, tmp_path: Path) -> None:
        """Whoever comes after it takes nothing of what it has left."""
        copies = tmp_path / "copies"
        child = multiprocessing.get_context("fork").Process(target=killed_in_a_copy, args=(url, str(copies), moment))
        child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL
        (left,) = copies.rglob(".partial-*/*")
        assert left.stat().st_size == (10_240 if moment == "half of it" else 20_480)
        assert read_through_copies(url, str(copies)) == [content(n) for n in range(ROWS)]

    def test_a_cache_without_room(self, url: str, tmp_path: Path) -> None:
        with small_disk(tmp_path / "disk", 16 << 10) as disk:
            ds = any2ds.load(url, cache_dir=disk.folder, cache_bytes="1MiB")
            if not disk.min_free_bytes:  # a real disk
                for number in (0, [0, 6]):
                    with pytest.raises(DamagedShard, match=r"shard 0000[01]\.tar .*no room in the cache .*disk: "):
                        ds[number]
                assert not list(disk.folder.rglob("*.tar"))
            disk.grow()
            assert ds[0]["data"] == content(0)

    def test_what_a_killed_process_has_left_is_removed_after_an_hour(self, url: str, tmp_path: Path) -> None:
        for name in ("old", "new"):
            (tmp_path / "copies" / "shards" / f".partial-{name}").mkdir(parents=True)
            (tmp_path / "copies" / "shards" / f".partial-{name}" / "previous-00000.tar").write_bytes(b"half")
        for path in (tmp_path / "copies" / "shards" / ".partial-old", *tmp_path.rglob(".partial-old/*")):
            os.utime(path, (0, 0))
        assert any2ds.load(url, cache_dir=tmp_path / "copies", cache_bytes="1MiB")[0]["data"] == content(0)
        assert [path.name for path in tmp_path.rglob(".partial-*")] == [".partial-new"]

    def test_a_size_that_is_none(self, url: str) -> None:
        with pytest.raises(OptionError, match="cache_bytes"):
            any2ds.load(url, cache_bytes="much")


class TestRanges:
    """What libcurl reads, and what it does not."""

    @pytest.fixture
    def stored(self, bucket: Bucket, datasets: Callable[[str], Path]) -> Bucket:
        bucket.connect().put(str(datasets("webdataset")), bucket.url, recursive=True)
        return bucket

    def test_one_request_reads_what_lies_side_by_side_of_each_shard(self, stored: Bucket) -> None:
        ds = any2ds.load(stored.url)
        ds[::SHARD]
        with stored.recording() as asked:
            assert [sample["data"] for sample in ds[[11, 0, 6, 1, 10, 5]]] == [content(n) for n in (11, 0, 6, 1, 10, 5)]
        assert Counter(target.partition("?")[0].rpartition("/")[2] for _, target in asked) == {
            f"0000{shard}.tar": 1 for shard in range(3)
        }

    def test_a_condition_reads_nothing_of_the_shards(self, stored: Bucket) -> None:
        with stored.recording() as asked:
            assert len(any2ds.load(stored.url, where="bytes > 1500")) == 2
        assert not [target for _, target in asked if ".tar" in target]

    def test_a_window_reads_each_shard_once(self, stored: Bucket) -> None:
        stream = any2ds.load(stored.url).stream(shuffle=True, seed=3)
        with stored.recording() as asked:
            assert sorted(sample["data"] for sample in stream) == sorted(content(n) for n in range(ROWS))
        assert sum(target.partition("?")[0].endswith(".tar") for _, target in asked) == 3

    def test_sizes_that_no_statistics_have_are_those_of_the_list(self, stored: Bucket) -> None:
        known, store = any2ds.load(stored.url), stored.connect()
        store.rm(f"{stored.url}/.any2ds", recursive=True)
        for name in store.glob(f"{stored.url}/*_stats.json"):
            described = orjson.loads(store.cat_file(name))
            store.pipe_file(name, orjson.dumps({"count": described["count"], "successes": described["successes"]}))
        store.invalidate_cache()
        ds = any2ds.load(stored.url)
        assert ds.sample_bytes == known.sample_bytes
        with stored.recording() as asked:
            assert [sample["data"] for sample in ds] == [content(n) for n in range(ROWS)]
        assert "HEAD" not in {method for method, _ in asked}

    @pytest.mark.parametrize(
        "options",
        [
            {"config_kwargs": {"proxies": {}}},
            {"s3_additional_kwargs": {"ChecksumMode": "ENABLED"}},
        ],
    )
    def test_settings_that_only_fsspec_follows_are_left_to_it(self, options: dict[str, Any], stored: Bucket) -> None:
        ds = any2ds.load(stored.url, storage_options={"s3": options})
        assert address_of(ds._shards.folder.fs, "bucket/name") is None
        assert [sample["data"] for sample in ds[[11, 0, 6]]] == [content(n) for n in (11, 0, 6)]

    @pytest.mark.parametrize(
        ("options", "is_in_url"),
        [
            ({"key": "mine", "secret": "s", "token": "t0ken"}, ("mine%2F", "t0ken")),
            ({"anon": True}, ("http://elsewhere/bucket/name",)),
            ({"requester_pays": True}, ("x-amz-request-payer", "x-amz-request-payer: requester")),
            ({"client_kwargs": {"region_name": "eu-west-9"}}, ("eu-west-9",)),
            ({"config_kwargs": {"s3": {"addressing_style": "virtual"}}}, ("http://bucket.elsewhere/name",)),
        ],
    )
    def test_settings_of_the_store_are_in_the_address(
        self, options: dict[str, Any], is_in_url: tuple[str, ...], bucket: Bucket
    ) -> None:
        fs = fsspec.filesystem("s3", endpoint_url="http://elsewhere", **options)
        found = address_of(fs, "bucket/name")
        assert found is not None
        assert all(part in f"{found.url} {found.headers}" for part in is_in_url)
        assert "elsewhere" not in repr(found)  # addresses are secret

    def test_a_profile_signs(self, tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "credentials").write_text("[other]\naws_access_key_id = theirs\naws_secret_access_key = s\n")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        found = address_of(fsspec.filesystem("s3", profile="other"), "bucket/name")
        assert found is not None
        assert "theirs%2F" in found.url

    def test_what_the_store_refuses_names_shard_and_store_and_no_secret(self, stored: Bucket) -> None:
        ds = any2ds.load(stored.url, retry_seconds=0)
        assert ds[0]["data"] == content(0)
        with stored.refusing("403", "00001.tar"), pytest.raises(DamagedShard) as raised:
            ds[[0, 5, 10]]
        assert re.search(r"^shard 00001\.tar of 's3://bucket-\w+/place': ", str(raised.value))
        assert "Signature" not in str(raised.value)
        assert ds[5]["data"] == content(5)

    def test_a_shard_that_is_replaced_while_it_is_open_is_an_error(self, stored: Bucket) -> None:
        ds, store = any2ds.load(stored.url), stored.connect()
        assert ds[0]["data"] == content(0)
        store.pipe_file(
            f"{stored.url}/00000.tar", store.cat_file(f"{stored.url}/00000.tar").replace(b"file 1", b"file 7")
        )
        with pytest.raises(DamagedShard, match=r"00000\.tar .*replaced"):
            ds[1]

    def test_threads_and_forked_processes_at_once(self, stored: Bucket) -> None:
        ds = any2ds.load(stored.url)
        with ThreadPoolExecutor(8) as threads:
            reads = threads.map(lambda n: ds[[n, (n + 5) % ROWS]], [n % ROWS for n in range(48)])
            with multiprocessing.get_context("fork").Pool(2) as pool:
                assert pool.map(read_all, [ds] * 4) == [[content(n) for n in range(ROWS)]] * 4
            assert [pair[0]["data"] for pair in reads] == [content(n % ROWS) for n in range(48)]

    def test_keys_and_metadata_in_a_forked_process(self, stored: Bucket) -> None:
        ds = any2ds.load(stored.url)
        keys = ds.keys
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.apply(keys_of, (ds,)) == keys
        metadata = any2ds.load(stored.url, where="bytes > 1500").metadata
        assert metadata.to_table(columns=["key"])["key"].to_pylist() == keys[-2:]


@pytest.mark.parametrize("kind", ["binary", "image", "two URLs"])
def test_of_parquet_a_sample_takes_its_page_and_not_its_row_group(kind: str, bucket: Bucket, tmp_path: Path) -> None:
    bodies = [random.Random(n).randbytes(20_000) for n in range(60)]
    (tmp_path / "media").mkdir()
    for n, body in enumerate(bodies):
        (tmp_path / "media" / f"{n}.bin").write_bytes(body)
    options: dict[str, Any] = {"parquet_data": "image"} if kind == "image" else {}
    with serve(tmp_path / "media", {"7.bin": ["404"]}) as server:
        urls: Any = [server.url(f"{n}.bin") for n in range(60)]
        if kind == "two URLs":
            urls, options = pa.table({"a": urls, "b": urls[::-1]}), {"url_col": "first:a,second:b", "require": "first"}
        download(
            urls,
            output_folder=tmp_path / "out",
            output_format="parquet",
            file_ext="bin",
            distributor="inline",
            quiet=True,
            **options,
        )
    bucket.connect().put(str(tmp_path / "out"), bucket.url, recursive=True)
    columns = ["key", "data"] if kind != "two URLs" else ["key", "first", "second"]
    here, ds = any2ds.load(tmp_path / "out", columns=columns), any2ds.load(bucket.url, columns=columns)
    assert ds[0] == here[0]
    with bucket.measuring() as asked:
        assert ds[[40, 12]] == here[[40, 12]]
        assert asked() < 2 * len(columns) * 100_000  # of 1,200,000
    with bucket.measuring() as asked:
        assert len(any2ds.load(bucket.url, columns=columns, where="status = 'success' and key >= '000000050'")) == 10
        assert 0 < asked() < 200_000
    assert ds[:] == here[:]


class TestOtherTools:
    """Tar files without indexes, which are read once as a whole."""

    @pytest.fixture
    def stored(self, bucket: Bucket, datasets: Callable[[str], Path]) -> Bucket:
        store = bucket.connect()
        for path in datasets("webdataset").glob("*.tar"):
            store.put_file(str(path), f"{bucket.url}/{path.name}")
        return bucket

    def test_a_file_takes_two_requests_at_first_and_none_after_that(self, stored: Bucket, cache: Path) -> None:
        with stored.recording() as asked:
            ds = any2ds.load(stored.url)
            assert [sample["data"] for sample in ds] == [content(n) for n in range(ROWS)]
        assert of_shard(1, asked) == ["GET", "HEAD"]
        at_first = len(asked) - 3 * 2
        shutil.rmtree(cache / "shards")  # as where there is no room for copies
        with stored.recording() as asked:
            assert len(any2ds.load(stored.url)) == ROWS
        assert len(asked) == at_first + 1  # the first samples, which say what the columns are
        with stored.recording() as asked:
            assert pickle.loads(pickle.dumps(any2ds.load(stored.url)))[6]["data"] == content(6)
        assert of_shard(1, asked) == ["GET"]

    def test_one_that_is_replaced_is_an_error_and_then_another(self, stored: Bucket, cache: Path) -> None:
        assert any2ds.load(stored.url)[5]["data"] == content(5)
        shutil.rmtree(cache / "shards")
        ds, store, tar = any2ds.load(stored.url), stored.connect(), f"{stored.url}/00001.tar"
        store.pipe_file(tar, store.cat_file(tar).replace(b"file 5", b"file 8"))
        with pytest.raises(DamagedShard, match=r"00001\.tar .*replaced"):
            ds[5]
        assert any2ds.load(stored.url)[5]["data"] == content(5).replace(b"file 5", b"file 8")

    def test_those_of_img2dataset_are_looked_at_once(
        self, stored: Bucket, datasets: Callable[[str], Path], cache: Path
    ) -> None:
        store = stored.connect()
        for path in datasets("webdataset").glob("*_stats.json"):
            described = orjson.loads(path.read_bytes())
            own = {name: described[name] for name in ("count", "successes")}
            store.pipe_file(f"{stored.url}/{path.name}", orjson.dumps(own))
            table = path.name.replace("_stats.json", ".parquet")
            store.put_file(str(path.with_name(table)), f"{stored.url}/{table}")
        for shard_requests in (["HEAD", "GET", "HEAD"], ["HEAD"], ["HEAD", "GET"]):
            with stored.recording() as asked:
                assert any2ds.load(stored.url)[6]["data"] == content(6)
            assert of_shard(1, asked) == shard_requests
            if shard_requests == ["HEAD"]:
                shutil.rmtree(cache / "shards")


def of_shard(number: int, asked: list[tuple[str, str]]) -> list[str]:
    """The methods of the requests for its data and its index."""
    return [method for method, target in asked if f"/{number:05d}.tar" in target]


class Refusing(SimpleHTTPRequestHandler):
    """Serves a folder; requests for what ends with `name` are answered with `status`, or never if it is 0."""

    status, name, end = 200, "", threading.Event()

    def send_head(self) -> Any:
        if self.status == 200 or not self.path.endswith(self.name):
            return super().send_head()
        if self.status:
            self.send_error(self.status)
        else:
            self.end.wait()
        return None

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def web(datasets: Callable[[str], Path], request: pytest.FixtureRequest) -> Iterator[tuple[str, type[Refusing]]]:
    """The URL of a dataset, and the class by which its server is told what to answer."""

    output_format = getattr(request, "param", "webdataset")

    class Handler(Refusing):
        end = threading.Event()

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(datasets(output_format))))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", Handler
    Handler.end.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "text"), [(403, "Forbidden|403"), (404, "no such"), (500, "500"), (0, "Timeout|no answer")]
)
def test_a_web_server_that_refuses_or_hangs(status: int, text: str, web: tuple[str, type[Refusing]]) -> None:
    """One error, which names the shard or the URL."""
    url, handler = web
    limits = ClientTimeout(sock_read=0.5)
    options = {"http": {"client_kwargs": {"timeout": limits}, "skip_instance_cache": True}}
    ds = any2ds.load(url, storage_options=options, retry_seconds=0)
    handler.status, handler.name = status, ".tar"
    with pytest.raises(DamagedShard, match=rf"(?s)shard 00001\.tar of '{url}': .*{text}"):
        ds[SHARD]
    handler.name = ""
    with pytest.raises(OutputError, match=rf"(?s)'{url}'.*{text}"):
        any2ds.load(url, storage_options=options, retry_seconds=0)


@pytest.mark.parametrize("web", ["files"], indirect=True)
def test_files_of_a_web_server_are_read_if_it_lists_them(
    web: tuple[str, type[Refusing]], datasets: Callable[[str], Path], cache: Path
) -> None:
    url, handler = web
    ds = any2ds.load(url, retry_seconds=0)
    assert ds[6] == any2ds.load(datasets("files"))[6]
    assert read_all(ds) == [content(n) for n in range(ROWS)]
    shutil.rmtree(cache / "shards")
    for handler.status in (403, 404):
        handler.name = "/00000/"
        found = any2ds.load(url, retry_seconds=0)
        with pytest.raises(DamagedShard, match=r"^shard 00000 of .*: the server has to list .*: no such") as raised:
            found[0]
        assert str(cache) not in str(raised.value)
        handler.name = ""
        handler.status = 200


def set_environment(values: Mapping[str, str]) -> None:
    """A server of forks that an earlier test has started does not have it."""
    os.environ.update(values)


def read_all(ds: Any) -> list[bytes]:
    return [sample["data"] for sample in ds]


def read_through_copies(url: str, folder: str) -> list[bytes]:
    return read_all(any2ds.load(url, cache_dir=folder, cache_bytes="50kB"))


def killed_in_a_copy(url: str, folder: str, moment: str) -> None:
    copy = RemoteFolder.local_copy

    def killed(self: RemoteFolder, *args: Any, **options: Any) -> Path:
        found = copy(self, *args, **options)
        if moment == "half of it":
            os.truncate(found, found.stat().st_size // 2)
        os.kill(os.getpid(), signal.SIGKILL)
        return found

    RemoteFolder.local_copy = killed  # type: ignore[method-assign]
    read_through_copies(url, folder)


def keys_of(ds: Any) -> list[str]:
    return list(ds.keys)
