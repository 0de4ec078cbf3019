"""Datasets of records: damaged copies are found and made again, and options that would mix two kinds are refused."""

import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from any2ds import download, retry, verify
from any2ds.core.errors import MissingExtra
from any2ds.describe.inspect import inspect
from any2ds.testing.server import Server, serve
from tests.support.records import examples

ROWS, PER_SHARD = 7, 3
FORMATS = ["tfrecord", "arrayrecord"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    media = tmp_path_factory.mktemp("media")
    chance = random.Random(0)
    for n in range(ROWS):
        (media / f"{n}.bin").write_bytes(chance.randbytes(20_000 + n))
    with serve(media) as running:
        yield running


def make(server: Server, out: Path, output_format: str, **options: Any) -> Any:
    rows = [{"url": server.url(f"{n}.bin"), "caption": f"größe {n}"} for n in range(ROWS)]
    how = {"caption_col": "caption", "number_sample_per_shard": PER_SHARD, "distributor": "inline", "quiet": True}
    return download(rows, output_folder=out, **{"output_format": output_format, **how, **options})


def data_of(out: Path, output_format: str) -> list[bytes]:
    return [example["data"][0] for path in sorted(out.glob(f"*.{output_format}")) for example in examples(path)]


@pytest.mark.parametrize("output_format", FORMATS)
def test_a_garbled_or_cut_copy_is_found_and_made_again(output_format: str, server: Server, tmp_path: Path) -> None:
    out, copy = tmp_path / "out", tmp_path / "elsewhere" / "copy"
    assert make(server, out, output_format).successes == ROWS
    wanted = [(server.folder / f"{n}.bin").read_bytes() for n in range(ROWS)]
    assert data_of(out, output_format) == wanted
    shutil.copytree(out, copy)
    assert (verify(copy).findings, verify(copy).samples) == ((), ROWS)
    garbled, cut = copy / f"00000.{output_format}", copy / f"00001.{output_format}"
    content = bytearray(garbled.read_bytes())
    content[30_000] ^= 1
    garbled.write_bytes(content)
    cut.write_bytes(cut.read_bytes()[:-3])
    (copy / f"00002.{output_format}").unlink()
    assert {(finding.shard_id, finding.kind) for finding in verify(copy).findings} == {
        (0, "data"),
        (1, "data"),
        (2, "data"),
    }
    assert verify(out).ok
    assert verify(copy, repair=True).repaired == (0, 1, 2)
    assert make(server, copy, output_format).successes == ROWS
    for path in out.glob(f"*.{output_format}"):
        assert (copy / path.name).read_bytes() == path.read_bytes()
    assert verify(copy).ok


def test_without_its_library_nothing_is_verified_or_taken_for_wrong(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(server, tmp_path / "out", "tfrecord")
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    monkeypatch.delitem(sys.modules, "any2ds.writers.formats.tfrecord")
    for asked in (verify, retry):
        with pytest.raises(MissingExtra, match=r"any2ds\[tfrecord\]"):
            asked(tmp_path / "out")
    assert inspect(tmp_path / "out").successes == ROWS


def test_a_list_of_one_row_and_a_shard_of_failures(server: Server, tmp_path: Path) -> None:
    for output_format in FORMATS:
        out = tmp_path / output_format
        rows = [server.url("absent"), server.url("0.bin")]
        how = {"output_format": output_format, "number_sample_per_shard": 1}
        assert download(rows, output_folder=out, distributor="inline", quiet=True, **how).successes == 1
        assert data_of(out, output_format) == [(server.folder / "0.bin").read_bytes()]
        assert verify(out).ok
        assert inspect(out, samples=1).samples
