"""Shards of records: as the formats are published, the same to the byte each time, in bounded memory, and damaged."""

import importlib
import random
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from google_crc32c import value

from any2ds import download
from any2ds.core.errors import DamagedShard, OptionError
from tests.support.shards import body_of, read, write

FORMATS = ("tfrecord", "arrayrecord")


def keys_and_sizes(output_format: str, path: Path) -> list[tuple[str, int]]:
    return [(key, len(data)) for key, _, data in read(output_format, path)]


def test_the_checksum_is_the_one_of_the_format() -> None:
    """CRC-32C: the examples of RFC 3720, B.4."""
    for data, crc in ((bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43), (bytes(range(32)), 0x46DD794E)):
        assert value(data) == crc


def masked(data: bytes) -> bytes:
    crc = value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def framed(record: bytes) -> bytes:
    length = struct.pack("<Q", len(record))
    return length + masked(length) + record + masked(record)


def test_frames_are_those_that_tensorflow_writes() -> None:
    """By `tf.io.TFRecordWriter`, of an empty record and of `b"abc"`."""
    theirs = "000000000000000029039807d8ea82a20300000000000000b099490e6162636e57f121"
    assert (framed(b"") + framed(b"abc")).hex() == theirs


@pytest.mark.parametrize("output_format", FORMATS)
def test_the_same_samples_give_the_same_bytes_however_they_came(output_format: str, tmp_path: Path) -> None:
    chance = random.Random(0)
    contents = [None if n % 2 else chance.randbytes(chance.choice((0, 10, 3000))) for n in range(1200)]
    contents[600] = chance.randbytes(1_500_000)  # one that is not held
    for name, turns in (("a", 0), ("b", 14)):
        write(output_format, tmp_path / name, contents, flush_every=turns)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    expected = [(f"{n:05d}", len(data)) for n, data in enumerate(contents) if data is not None]
    assert keys_and_sizes(output_format, tmp_path / "a") == expected


def test_huge_files_are_written_in_pieces(tmp_path: Path) -> None:
    size = 40_000_000
    noise = random.Random(0).randbytes(1 << 20)
    tracemalloc.start()
    write("tfrecord", tmp_path / "0", [b"first", body_of(size, noise), b"last"])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16_000_000
    for (_, _, data), wanted in zip(read("tfrecord", tmp_path / "0"), (5, size, 4), strict=True):
        assert len(data) == wanted
        assert data[:4] in (b"firs", noise[:4], b"last")
    content = bytearray((tmp_path / "0").read_bytes())
    content[30_000_000] ^= 1
    (tmp_path / "0").write_bytes(content)
    with pytest.raises(DamagedShard, match="garbled"):
        keys_and_sizes("tfrecord", tmp_path / "0")
    (tmp_path / "0").write_bytes(content[:30_000_000])
    with pytest.raises(DamagedShard):
        keys_and_sizes("tfrecord", tmp_path / "0")


def test_a_record_that_is_no_sample_is_told(tmp_path: Path) -> None:
    key = b"\x0a\x0e\x0a\x0c\x0a\x03key\x12\x05\x0a\x03\x0a\x01a"
    for record, said in ((b"", "without key"), (b"text", "no tf.train.Example"), (key, "of jpg")):
        (tmp_path / "0").write_bytes(framed(record))
        with pytest.raises(DamagedShard, match=said):
            keys_and_sizes("tfrecord", tmp_path / "0")


def test_every_byte_of_a_tfrecord_is_guarded(tmp_path: Path) -> None:
    write("tfrecord", tmp_path / "0", [b"a file", b"another"])
    whole = (tmp_path / "0").read_bytes()
    for place in range(len(whole)):
        (tmp_path / "0").write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        with pytest.raises(DamagedShard):
            keys_and_sizes("tfrecord", tmp_path / "0")


def test_an_arrayrecord_that_was_never_closed_is_damaged(tmp_path: Path) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    unclosed = ArrayRecordWriter(str(tmp_path / "0"), "group_size:1")
    unclosed.write(b"a record")
    (tmp_path / "copy").write_bytes((tmp_path / "0").read_bytes())
    unclosed.close()
    with pytest.raises(DamagedShard):
        keys_and_sizes("arrayrecord", tmp_path / "copy")


@pytest.mark.parametrize(
    ("library", "name", "extra"),
    [("google_crc32c", "tfrecord", "tfrecord"), ("array_record", "arrayrecord", "arrayrecord")],
)
def test_without_the_library_nothing_is_made(library: str, name: str, extra: str, tmp_path: Path) -> None:
    code = f"import sys; sys.modules[{library!r}] = None; from any2ds.cli import main; main(sys.argv[1:])"
    (tmp_path / "urls.txt").write_text("http://127.0.0.1:9/\n")
    command = [sys.executable, "-c", code, "--url_list=urls.txt", "--output_folder=out", f"--output_format={name}"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert f"[{extra}]'" in ended.stderr
    assert not (tmp_path / "out").exists()


def test_arrayrecord_is_refused_in_words_where_its_library_is_not_to_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "any2ds.writers.formats.arrayrecord")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "win32")
        with pytest.raises(OptionError, match="Linux or macOS"):
            importlib.import_module("any2ds.writers.formats.arrayrecord")


def test_no_list_of_nothing_but_failures_lacks_its_shard(tmp_path: Path) -> None:
    for name in FORMATS:
        options: dict[str, Any] = {"output_format": name, "distributor": "inline", "quiet": True, "timeout": 1}
        report = download([{"url": "nothing:at all"}, {"url": None}], output_folder=str(tmp_path / name), **options)
        assert report.successes == 0
        assert keys_and_sizes(name, tmp_path / name / f"00000.{name}") == []
