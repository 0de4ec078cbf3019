"""What the tests on clusters have in common: a list from a server on loopback, and what a whole dataset of it is."""

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.parquet as pq
import pytest

from any2ds import verify
from any2ds.testing.server import Server, serve
from tests.support.crowd import Crowd, crowd
from tests.support.programs import program

# Ray reads them when it is imported: no cluster of the tests is open to others, no token is left in the home.
os.environ["RAY_AUTH_MODE"] = "token"
os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)

ROWS = 4  # of a shard
SHARDS = 12


def pytest_configure(config: pytest.Config) -> None:
    # Elsewhere warnings are errors; Spark, Ray and Beam have many of their own.
    config.addinivalue_line("filterwarnings", "ignore")


@pytest.fixture(scope="session")
def java() -> str:
    """Spark needs it."""
    return program("java")


@pytest.fixture(scope="session")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("media")
    for n in range(ROWS * SHARDS):
        (folder / f"{n}.bin").write_bytes(b"the content of file %d" % n)
    return folder


@dataclass(frozen=True)
class Listed:
    """A list of all files, on a server; and the options of a run that makes a dataset of them."""

    server: Server
    urls: Sequence[str]

    @property
    def options(self) -> dict[str, Any]:
        made = {"output_format": "parquet", "number_sample_per_shard": ROWS}
        return {**made, "url_list": list(self.urls), "timeout": 0, "stall_timeout": 0, "quiet": True, "report": False}

    def flags(self, folder: Path) -> list[str]:
        """The same on the command line, with a list in `folder`."""
        (folder / "urls.txt").write_text("".join(f"{url}\n" for url in self.urls))
        options = {**self.options, "url_list": folder / "urls.txt"}
        return [f"--{name}={value}" for name, value in options.items()]

    def expect_whole(self, out: str, **storage: Any) -> None:
        """Each row once, with its own file; every shard once; and nothing else lies there."""
        report = verify(out, quiet=True, **({"storage_options": {"s3": storage}} if storage else {}))
        assert report.findings == ()
        fs, path = fsspec.url_to_fs(out, **storage)
        fs.invalidate_cache()
        found = []
        for n in range(SHARDS):
            with fs.open(f"{path}/{n:05d}.parquet") as file:
                found += pq.read_table(file, columns=["key", "url", "data"]).to_pylist()
        files = {url: b"the content of file %d" % n for n, url in enumerate(self.urls)}
        assert [(row["key"], row["url"], row["data"]) for row in found] == [
            (f"{n // ROWS:05d}{n % ROWS}", url, files[url]) for n, url in enumerate(self.urls)
        ]
        ends = (".parquet", "_stats.json")
        names = [f"{n:05d}{end}" for n in range(SHARDS) for end in ends] + [".any2ds"]
        assert sorted(name.rpartition("/")[2] for name in fs.ls(path, detail=False)) == sorted(names)


def finished(out: Path) -> set[int]:
    """The shards that are published."""
    return {int(path.name.partition("_")[0]) for path in out.glob("*_stats.json")}


@pytest.fixture
def listed(media: Path) -> Iterator[Callable[..., Listed]]:
    """`listed({"17.bin": ["hold"]})`: the server does to file 17 what `any2ds.testing.server` can do."""
    with contextlib.ExitStack() as stack:

        def make(script: Mapping[str, Sequence[str]] | None = None) -> Listed:
            server = stack.enter_context(serve(media, script or {}))
            return Listed(server, [server.url(f"{n}.bin") for n in range(ROWS * SHARDS)])

        yield make


@pytest.fixture
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crowd]:
    with crowd(tmp_path_factory.mktemp("crowd")) as made:
        yield made


@pytest.fixture
def published() -> Callable[[Path], set[int]]:
    """`published(out)`: the shards that are."""
    return finished
