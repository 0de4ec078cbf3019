"""Shards read back: those of every writer, and those that other tools have made."""

import io
import json
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset

from any2ds.core.errors import DamagedShard
from any2ds.testing.writing import WriterContract
from tests.support.shards import formats, read, writer_of


class TestWebdataset(WriterContract):
    writer = writer_of("webdataset")


class TestParquet(WriterContract):
    writer = writer_of("parquet")


class TestFiles(WriterContract):
    writer = writer_of("files")


class TestDummy(WriterContract):
    writer = writer_of("dummy")


class TestTfrecord(WriterContract):
    writer = writer_of("tfrecord")
    has_end = False


class TestArrayrecord(WriterContract):
    writer = writer_of("arrayrecord")


def test_every_writer_keeps_the_contract() -> None:
    tested = {name for name in globals() if name.startswith("Test")}
    assert tested >= {f"Test{name.capitalize()}" for name in formats()}


def header(name: str) -> bytes:
    return tarfile.TarInfo(name).tobuf(tarfile.USTAR_FORMAT)


LONG = "a" * 120 + "/000000001"


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tars_by_python_in_every_notation(form: int, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", format=form, pax_headers={"comment": "hi"}) as tar:
        folder = tarfile.TarInfo("images")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name in ("images/000000000.jpg", "images/000000000.json", f"{LONG}.jpg"):
            info = tarfile.TarInfo(name)
            info.size, info.mtime = 5, 1
            tar.addfile(info, io.BytesIO(b"12345"))
    assert read("webdataset", tmp_path / "a.tar") == [
        ("images/000000000", "jpg", b"12345"),
        (LONG, "jpg", b"12345"),
    ]


def test_tars_by_webdataset_and_by_gnu_tar(tmp_path: Path) -> None:
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as sink:
        for n in range(3):
            sink.write({"__key__": f"{n:09d}", "jpg": b"x" * n, "json": {"n": n}, "txt": "words"})
    expected = [(f"{n:09d}", "jpg", b"x" * n) for n in range(3)]
    assert read("webdataset", tmp_path / "a.tar") == expected
    (tmp_path / "in").mkdir()
    for key, ext, data in expected:
        (tmp_path / "in" / f"{key}.{ext}").write_bytes(data)
    with open(tmp_path / "in" / "000000003.bin", "wb") as hole:
        hole.write(b"begin")
        hole.truncate(3_000_000)
        hole.seek(0, os.SEEK_END)
        hole.write(b"end")
    for options in (["--format=gnu", "-S"], ["--format=posix"], ["--format=ustar", "-b1"]):
        command = ["tar", *options, "-cf", "b.tar", "--sort=name", "-C", "in", "."]
        subprocess.run(command, cwd=tmp_path, check=True, timeout=100)
        found = read("webdataset", tmp_path / "b.tar")
        assert found[:3] == expected
        assert found[3] == ("000000003", "bin", (tmp_path / "in" / "000000003.bin").read_bytes())


def test_a_header_that_leads_backwards_does_not_go_round_for_ever(tmp_path: Path) -> None:
    names = [f"{n}.jpg" for n in range(3)]
    blocks = [header(name) for name in names]
    backwards = bytearray(header("1.jpg"))
    backwards[124:136] = b"\xff" * 10 + b"\xfa\x00"  # base 256: minus 1536
    backwards[148:156] = b" " * 8
    backwards[148:156] = b"%06o\x00 " % sum(backwards)
    (tmp_path / "a.tar").write_bytes(b"".join([blocks[0], bytes(backwards), blocks[2], bytes(10240)]))
    with pytest.raises(DamagedShard):
        read("webdataset", tmp_path / "a.tar")


@pytest.mark.parametrize("more", [b"\x00" * 9000 + b"x", header("late.jpg") + bytes(1024)])
def test_what_stands_behind_the_end_of_a_tar_is_damage(more: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(header("0.jpg") + bytes(1024) + more)
    with pytest.raises(DamagedShard, match="behind its end"):
        read("webdataset", tmp_path / "a.tar")


def test_parquet_with_its_files_in_columns_of_their_own(tmp_path: Path) -> None:
    rows: dict[str, Any] = {"key": ["0", "1", "2"], "status": ["success", "failed_to_download", "success"]}
    table = pa.table({**rows, "jpg": pa.array([b"a", None, b""], pa.binary()), "json": [json.dumps({})] * 3})
    pq.write_table(table, tmp_path / "a.parquet")
    assert read("parquet", tmp_path / "a.parquet") == [("0", "jpg", b"a"), ("2", "jpg", b"")]
    pq.write_table(table.drop_columns("key"), tmp_path / "b.parquet")
    with pytest.raises(DamagedShard, match="no column key"):
        read("parquet", tmp_path / "b.parquet")


def test_a_folder_has_hidden_files_of_the_system_and_no_pipes(tmp_path: Path) -> None:
    (tmp_path / "0.jpg").write_bytes(b"a")
    (tmp_path / ".DS_Store").write_bytes(b"b")
    assert read("files", tmp_path) == [("0", "jpg", b"a")]
    os.mkfifo(tmp_path / "1.jpg")
    with pytest.raises(DamagedShard, match=r"1\.jpg'.* no file"):
        read("files", tmp_path)
