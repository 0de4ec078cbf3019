"""The promises of every writer, as tests; a plugin's author subclasses `WriterContract`."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pytest

from any2ds.config.options import OutputOptions
from any2ds.core.bodies.stored import StoredBody
from any2ds.core.errors import DamagedShard
from any2ds.core.metadata import MetadataTable
from any2ds.core.rows import Row
from any2ds.core.samples import CAPTION, METADATA, Sample
from any2ds.writers.contract import ShardWriter
from any2ds.writers.formats._shard import LocalData

FILES: Sequence[tuple[str, bytes] | None] = (
    ("jpg", b"\xff\xd8 a picture"),
    ("data.txt", b"a text is stored under an extension with a dot"),
    None,  # a row that failed
    ("flat", b""),
    ("png", b"x" * 511),
    ("png", b"y" * 512),
    None,
    ("tar.gz", bytes(range(256)) * 5000),  # more than is read at once, and zeros in it
    ("mp4", b"the last one"),
)
"""Extension and content of each row's file."""

Found = list[tuple[str, str, bytes]]  # key, extension, content


def stored(writer: type[ShardWriter], path: Path) -> list[tuple[str, Mapping[str, bytes]]]:
    """Key and files of each sample of a shard."""
    shard = None if writer.shard is None else writer.shard(LocalData(path))
    found = [] if shard is None else [shard.files(number) for number in range(len(shard))]
    return [(key, {ext: file.read() for ext, file in files.items()}) for key, files in found]


def indexes(writer: type[ShardWriter], path: Path) -> Mapping[str, bytes]:
    """The expected content of the files beside a shard, by the end of their name."""
    data = LocalData(path)
    if writer.shard is not None:
        writer.shard(data)
    return data.indexes


def read(writer: type[ShardWriter], path: Path) -> Found:
    """Key, and the file without caption and metadata, of each sample of a shard."""
    found = []
    for key, files in stored(writer, path):
        ext = next((ext for ext in files if ext not in (CAPTION, METADATA)), "")
        found.append((key, ext, files.get(ext, b"")))
    return found


class WriterContract:
    writer: ClassVar[type[ShardWriter]]
    options: ClassVar[OutputOptions] = OutputOptions()
    has_end: ClassVar[bool] = True
    """Whether the format marks the end of a file; without one, what is cut between two samples is a shorter shard."""

    def write(
        self, path: Path, files: Sequence[tuple[str, bytes] | None] = FILES, key: str = "{:05d}", captions: bool = True
    ) -> Found:
        """A shard of rows with these files; gives what should come back."""
        urls = [f"http://127.0.0.1/{n}" for n in range(len(files))]
        columns = {"caption": [f"größe\n{n}" if n % 2 else None for n in range(len(files))]} if captions else {}
        rows = pa.table({"url": pa.array(urls, pa.string()), **columns})
        metadata = MetadataTable(rows, ("md5",))
        writer = self.writer(path, metadata, self.options)
        for n, file in enumerate(files):
            row = Row(0, n, key.format(n), urls[n], columns["caption"][n] if captions else None)
            if file is None:
                metadata.add(Sample(row, None, "", {"status": "failed_to_download", "error_code": "http_404"}))
                continue
            ext, data = file
            sample = Sample(row, StoredBody.of(data), ext, {"status": "success", "ext": ext, "bytes": len(data)})
            metadata.add(sample)
            writer.write(sample)
            if n == 3:
                writer.flush()
        writer.close()
        if self.writer.extension is None:
            return []
        return [(key.format(n), *file) for n, file in enumerate(files) if file is not None]

    def test_what_was_written_comes_back_in_order(self, tmp_path: Path) -> None:
        for captions in (True, False):
            written = self.write(tmp_path / f"{captions}", captions=captions)
            assert read(self.writer, tmp_path / f"{captions}") == written

    def test_members_come_back_with_the_file_or_not_at_all(self, tmp_path: Path) -> None:
        self.write(tmp_path / "shard")
        for key, files in stored(self.writer, tmp_path / "shard"):
            extra_files = {ext: content for ext, content in files.items() if ext in (CAPTION, METADATA)}
            assert extra_files.get(CAPTION, b"").decode() in ("", f"größe\n{int(key)}")
            assert METADATA not in extra_files or f'"{key}"'.encode() in extra_files[METADATA]
            assert len(files) == len(extra_files) + 1

    def test_samples_are_had_by_their_number_in_any_order(self, tmp_path: Path) -> None:
        written = self.write(tmp_path / "shard")
        if self.writer.shard is None:
            return
        shard = self.writer.shard(LocalData(tmp_path / "shard"))
        assert (len(shard), shard.keys()) == (len(written), [key for key, _, _ in written])
        numbers = list(reversed(range(len(written))))
        for number in numbers:
            assert shard.files(number)[0] == written[number][0]
        for rows in (list(map(shard.row, numbers)), shard.rows(numbers)):
            assert [row["data"] for row in rows] == [written[number][2] for number in numbers]

    def test_samples_of_one_row_come_back_under_their_own_keys_with_what_lies_beside_them(self, tmp_path: Path) -> None:
        rows = pa.table({"url": pa.array(["http://127.0.0.1/0", "http://127.0.0.1/1"])})
        metadata = MetadataTable(rows, (), {"stored_bytes": pa.int64()})
        writer = self.writer(tmp_path / "shard", metadata, self.options)
        written: Found = []
        for position, parts in enumerate((4, 1)):
            row = Row(0, position, f"{position:05d}", f"http://127.0.0.1/{position}")
            for part in range(parts):
                fields = {"status": "success", "ext": "jpg", "bytes": 9}
                further = {"txt": StoredBody.of(b"x"), "wav": StoredBody.of(b"")}
                sample = Sample(row, StoredBody.of(b"part %d" % part), "jpg", fields, extra_files=further)
                sample = sample.as_part(part, parts) if parts > 1 else sample
                if part == 2:
                    sample = sample.failed("too_small")
                metadata.add(sample)
                if sample.body is not None:
                    writer.write(sample)
                    written.append((sample.key, "jpg", b"part %d" % part))
        writer.close()
        assert [key for key, _, _ in written] == ["00000_0000", "00000_0001", "00000_0003", "00001"]
        if self.writer.extension is None:
            return
        assert read(self.writer, tmp_path / "shard") == written
        extra_files = {METADATA, "txt", "wav"} if self.writer.has_members else set()
        found = [set(files) - {"jpg"} for _, files in stored(self.writer, tmp_path / "shard")]
        assert found == [extra_files] * len(written)

    def test_long_keys_and_many_samples(self, tmp_path: Path) -> None:
        files = [("jpg", b"%d" % n) for n in range(700)]
        written = self.write(tmp_path / "shard", files, key="k" * 150 + "{:05d}")
        assert read(self.writer, tmp_path / "shard") == written

    def test_a_shard_without_samples(self, tmp_path: Path) -> None:
        self.write(tmp_path / "shard", [None, None])
        assert read(self.writer, tmp_path / "shard") == []

    def test_what_is_no_shard_is_damaged(self, tmp_path: Path) -> None:
        if self.writer.extension is None:
            return
        (tmp_path / "empty").touch()
        (tmp_path / "text").write_text("not a shard at all\n" * 1000)
        (tmp_path / "zeros").write_bytes(bytes(700))
        nested = tmp_path / "folder" / "inner"
        nested.mkdir(parents=True)
        for name in ("absent", *(["empty"] if self.has_end else []), "text", "zeros", "folder"):
            with pytest.raises(DamagedShard):
                read(self.writer, tmp_path / name)

    def test_a_file_cut_anywhere_is_damaged(self, tmp_path: Path) -> None:
        """Unless all of its samples are there still, as in a tar file that has lost nothing but padding."""
        written = self.write(tmp_path / "shard")
        if self.writer.extension:
            whole = (tmp_path / "shard").read_bytes()
            chance = random.Random(0)
            places = {0, 1, len(whole) // 2, len(whole) - 1, *(chance.randrange(len(whole)) for _ in range(60))}
            for place in sorted(places | set(range(0, len(whole), 512 * 131))):
                (tmp_path / "cut").write_bytes(whole[:place])
                found = self._read_or_none(tmp_path / "cut")
                assert found in (None, written) or (not self.has_end and found == written[: len(found or ())])
            (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])
            assert self._read_or_none(tmp_path / "cut") is None

    def test_garbled_bytes_are_damage_and_never_worse(self, tmp_path: Path) -> None:
        """Bytes that are garbled inside of a body come back so: hashes are there to tell."""
        self.write(tmp_path / "shard", [*FILES[:7], *FILES[8:]])
        chance = random.Random(0)
        if self.writer.extension:
            whole = (tmp_path / "shard").read_bytes()
            for _ in range(300):
                garbled = bytearray(whole)
                for _ in range(chance.choice((1, 1, 1, 8, 64))):
                    place = chance.randrange(len(garbled))
                    length = chance.choice((1, 1, 8, 512))
                    garbled[place : place + length] = chance.choice(
                        (chance.randbytes(length), bytes(length), b"\xff" * length, b"7" * length)
                    )
                (tmp_path / "garbled").write_bytes(garbled)
                self._read_or_none(tmp_path / "garbled")

    def _read_or_none(self, path: Path) -> Found | None:
        try:
            return read(self.writer, path)
        except DamagedShard:
            return None
