"""`any2ds.load` and `download` with az://, over Azurite, Microsoft's own emulator of its store (from npm)."""

import base64
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest
from adlfs import AzureBlobFileSystem

import any2ds
from any2ds import download
from any2ds.core.errors import DamagedShard, OutputError
from any2ds.storage.addresses import address_of
from any2ds.storage.opening import open_folder
from any2ds.testing.server import serve
from tests.support.programs import program
from tests.support.servers import free_port, running

ACCOUNT, KEY = "tester", base64.b64encode(b"the key of this test").decode()
ROWS, SHARD = 23, 10


def content(n: int) -> bytes:
    return b"file %d " % n * 200


@pytest.fixture(scope="module")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a store."""
    folder, port = tmp_path_factory.mktemp("azurite"), free_port()
    azurite = Path(sys.prefix, "node_modules", ".bin", "azurite-blob")  # where make installs it
    if not azurite.exists():
        program("npm")
    own = [f"--location={folder}", "--blobHost=127.0.0.1", f"--blobPort={port}", "--silent"]
    own += ["--skipApiVersionCheck", "--disableTelemetry"]
    with running([str(azurite), *own], port, folder / "log", {**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"}):
        yield f"http://127.0.0.1:{port}/{ACCOUNT}"


@pytest.fixture
def place(blobs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder in a new container, to which the environment has the key."""
    secret = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={blobs};"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", secret)
    monkeypatch.setenv("ANY2DS_CACHE", str(tmp_path / "cache"))
    AzureBlobFileSystem.clear_instance_cache()
    name = f"container-{uuid.uuid4().hex[:8]}"
    fsspec.filesystem("az").mkdir(name)
    return f"az://{name}/place"


@pytest.fixture
def made(place: str, tmp_path: Path) -> Callable[[str], str]:
    """Makes a dataset in the store, and the same in the folder `here`."""
    (tmp_path / "media").mkdir()
    for n in range(ROWS):
        (tmp_path / "media" / f"{n}.bin").write_bytes(content(n))

    def make(output_format: str) -> str:
        options: dict[str, Any] = {"output_format": output_format, "number_sample_per_shard": SHARD, "file_ext": "bin"}
        with serve(tmp_path / "media") as server:
            for folder in (tmp_path / "here", place):
                urls = [server.url(f"{n}.bin") for n in range(ROWS)]
                download(urls, output_folder=folder, distributor="inline", quiet=True, **options)
        return place

    return make


@pytest.mark.parametrize("output_format", ["webdataset", "parquet", "tfrecord", "arrayrecord", "files"])
def test_every_format_is_as_it_is_here(output_format: str, made: Callable[[str], str], tmp_path: Path) -> None:
    ds, here = any2ds.load(made(output_format)), any2ds.load(tmp_path / "here")
    columns = ["key", "data", "ext", "bytes", "url"]
    assert len(ds) == ROWS
    assert [ds[n]["data"] for n in (22, 0, -1, 10)] == [content(n) for n in (22, 0, 22, 10)]
    assert [sample["data"] for sample in ds[8:12]] == [content(n) for n in range(8, 12)]
    assert [[sample[name] for name in columns] for sample in ds[[5, 21, 0, 13]]] == [
        [sample[name] for name in columns] for sample in here[[5, 21, 0, 13]]
    ]
    assert sorted(sample["data"] for sample in ds.stream(shuffle=True)) == sorted(content(n) for n in range(ROWS))
    assert [sample["key"] for sample in any2ds.load(ds._shards.folder.url, where="bytes > 1500")] == here.keys[10:]


@pytest.mark.parametrize("output_format", ["webdataset", "parquet"])
def test_ranges_are_read_with_libcurl_and_a_signed_url(output_format: str, made: Callable[[str], str]) -> None:
    ds = any2ds.load(made(output_format))
    found = address_of(ds._shards.folder.fs, f"{ds._shards.folder.path}/{ds._shards.names[0]}")
    assert found is not None
    assert "sig=" in found.url
    assert "sig=" not in repr(found)
    ds[[3, 17]]
    assert ds._opened._reader._is_plain  # it has not given up libcurl for adlfs
    assert not ds._opened._reader._refusals


def test_a_shard_that_is_replaced_or_removed_is_named(made: Callable[[str], str]) -> None:
    url = made("webdataset")
    ds, store = any2ds.load(url, retry_seconds=0), fsspec.filesystem("az")
    assert ds[12]["data"] == content(12)
    shard = f"{url}/00001.tar"
    store.pipe_file(shard, store.cat_file(shard).replace(b"file 13 ", b"file 99 "))
    with pytest.raises(DamagedShard, match=r"shard 00001\.tar of 'az://.*replaced"):
        ds[13]
    store.rm_file(shard)
    with pytest.raises(DamagedShard, match=r"shard 00001\.tar of 'az://.*No such file"):
        any2ds.load(url, retry_seconds=0)[13]
    assert ds[20]["data"] == content(20)


def test_of_many_who_put_a_file_if_it_is_absent_one_does(place: str) -> None:
    output = open_folder(place)
    contents = [b"%d" % number * 1000 for number in range(8)]
    for turn in range(5):
        name = f".any2ds/segments/{turn}.json"
        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(lambda data, name=name: output.put_if_absent(name, data), contents))
        assert results.count(True) == 1
        assert output.read(name) == contents[results.index(True)]


def test_no_dataset_no_container_and_a_wrong_key(place: str) -> None:
    with pytest.raises(OutputError, match=r"'az://container-.*/place'"):
        any2ds.load(place, retry_seconds=0)
    with pytest.raises(OutputError, match="'az://nowhere/place'"):
        any2ds.load("az://nowhere/place", retry_seconds=0)
    other = base64.b64encode(b"another key").decode()
    wrong = {"connection_string": os.environ["AZURE_STORAGE_CONNECTION_STRING"].replace(KEY, other)}
    with pytest.raises(OutputError, match=r"'az://container-.*/place'.*([Aa]uth|403)") as raised:
        any2ds.load(place, storage_options={"az": wrong}, retry_seconds=0)
    assert other not in str(raised.value)
