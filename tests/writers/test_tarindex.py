"""The index beside a tar file, read with plain `open` and `seek`."""

from __future__ import annotations

import io
import os
import struct
import sys
import tarfile
from pathlib import Path

import pytest

from tests.support import shards


def index_of(tar: Path) -> bytes:
    return shards.indexes("webdataset", tar)[".tar.idx"]


def offsets(tar: Path) -> list[int]:
    content = tar.with_name(tar.name + ".idx").read_bytes()
    return list(struct.unpack(f"<{len(content) // 8}Q", content))


def sample(tar: Path, number: int) -> dict[str, bytes]:
    """Nothing is read of the file but what the index says."""
    start, stop = offsets(tar)[number : number + 2]
    with open(tar, "rb") as file:
        file.seek(start)
        part = io.BytesIO(file.read(stop - start))
    with tarfile.open(fileobj=part) as members:
        return {member.name: members.extractfile(member).read() for member in members}  # type: ignore[union-attr]


@pytest.mark.parametrize("key", ["{:05d}", "k" * 150 + "{:05d}"])
def test_each_sample_is_found_by_its_number(tmp_path: Path, key: str) -> None:
    tar = tmp_path / "00000.tar"
    bodies = [b"", b"x", os.urandom(512), os.urandom(70_000), b"last"]
    keys = [key.format(n) for n in range(len(bodies))]
    shards.write("webdataset", tar, bodies, key=key)
    for n in (3, 0, 4, 2, 1):
        found = sample(tar, n)
        assert list(found) == [f"{keys[n]}.bin", f"{keys[n]}.json"]
        assert found[f"{keys[n]}.bin"] == bodies[n]
    assert len(offsets(tar)) == len(bodies) + 1
    assert index_of(tar) == (tmp_path / "00000.tar.idx").read_bytes()


def test_without_samples_there_is_the_end_alone(tmp_path: Path) -> None:
    shards.write("webdataset", tmp_path / "00000.tar", [])
    assert offsets(tmp_path / "00000.tar") == [0]
    assert index_of(tmp_path / "00000.tar") == bytes(8)


def test_behind_a_member_of_more_than_8_gib(tmp_path: Path) -> None:
    """Of a sparse file: nothing of these gigabytes is ever written."""
    tar, size = tmp_path / "00000.tar", 9 << 30
    with tar.open("wb") as file:
        for name, length in (("00000.bin", size), ("00001.bin", 3)):
            info = tarfile.TarInfo(name)
            info.size = length
            file.write(info.tobuf(tarfile.PAX_FORMAT))
            file.seek(-(-length // 512) * 512, os.SEEK_CUR)
        file.truncate(file.tell() + 1024)
    first, second, end = struct.unpack("<3Q", index_of(tar))
    assert (first, end - second) == (0, 1024)
    with tar.open("rb") as file:
        file.seek(second)
        assert tarfile.TarInfo.frombuf(file.read(512), "utf-8", "strict").name == "00001.bin"


def test_the_writer_counts_members_of_more_than_8_gib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # from here on sizes are written in the other notation
    monkeypatch.setattr(sys.modules[shards.writer_of("webdataset").__module__], "_MOST", 1000)
    shards.write("webdataset", tmp_path / "00000.tar", [b"x" * 5000, b"y" * 10, b"z" * 2000])
    assert index_of(tmp_path / "00000.tar") == (tmp_path / "00000.tar.idx").read_bytes()
    assert sample(tmp_path / "00000.tar", 2)["00002.bin"] == b"z" * 2000


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tars_of_others(tmp_path: Path, form: int) -> None:
    tar = tmp_path / "00000.tar"
    names = ["images/a.b/0001.jpg", "images/a.b/0001.json", "0002.jpg", f"{'d' * 90}/{'n' * 90}.jpg", "0003.tar.gz"]
    with tarfile.open(tar, "w", format=form) as file:
        folder = tarfile.TarInfo("images")
        folder.type = tarfile.DIRTYPE
        file.addfile(folder)
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 700
            file.addfile(info, io.BytesIO(bytes(700)))
    (tmp_path / "00000.tar.idx").write_bytes(index_of(tar))
    assert [list(sample(tar, n)) for n in range(4)] == [names[:2], [names[2]], [names[3]], [names[4]]]
