"""Unpacks archives: each file in one becomes a sample, or the row fails because there is too much in it."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import PurePosixPath
from typing import ClassVar

import pyarrow as pa

from any2ds.config.media import MediaOptions
from any2ds.core.bodies.stored import StoredBody
from any2ds.core.compression import kind_of
from any2ds.core.errors import NotDecodable
from any2ds.core.filetypes import recognize_file, type_of_name
from any2ds.core.samples import Sample
from any2ds.transforms.contract import Plan, Rejected
from any2ds.transforms.steps._archives import (
    Member,
    Meter,
    decompressed,
    gzip_name,
    is_blank,
    is_file,
    is_tar,
    joined,
    untarred,
    unzipped,
    zip_directory,
    zip_path,
)

_TYPES = frozenset(
    {
        "application/zip",
        "application/x-zip",
        "application/x-zip-compressed",
        "application/x-tar",
        "application/x-gtar",
        "application/x-compressed-tar",
        "application/gzip",
        "application/x-gzip",
        "application/x-gtar-compressed",
        "application/x-tgz",
        "application/x-bzip",
        "application/x-bzip2",
        "application/x-xz",
        "application/zstd",
        "application/x-zstd",
    }
)
_NOT_UNPACKED = frozenset(
    {
        "application/x-7z-compressed",
        "application/vnd.rar",
        "application/x-rar",
        "application/x-rar-compressed",
        "application/x-ace-compressed",
        "application/x-compress",
        "application/x-lzip",
        "application/x-lzma",
        "application/x-lzop",
        "application/x-cpio",
        "application/x-unix-archive",
        "application/vnd.ms-cab-compressed",
        "application/x-iso9660-image",
    }
)
_ZIP = (b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")
_PIECE = 1 << 18  # bytes
_HEAD = 1 << 10  # bytes that show whether it is a tar
_TAR_ENDS = (".tar", ".tgz", ".tbz2", ".tbz", ".txz", ".tzst", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")


class ArchiveTransform:
    """Unpacks archives, each once: an archive in an archive is a file like others."""

    columns: Mapping[str, pa.DataType] = {"path": pa.string()}
    unpacks: ClassVar[bool] = True

    def __init__(self, media: MediaOptions) -> None:
        self._new_meter = partial(Meter, media.files.unpack_max_files, media.files.unpack_max_bytes)

    def plan(self, sample: Sample) -> Plan | str | None:
        if sample.mime_type in _TYPES:
            return Plan(lambda: self._memory(sample.data), lambda: self._unpacked(sample))
        return f"{sample.mime_type} is not unpacked" if sample.mime_type in _NOT_UNPACKED else None

    def _memory(self, data: bytes) -> int:
        """Bytes that it unpacks to: by the directory of a zip, whose members must not be longer. Anything else is
        decompressed to know, since its header cannot be trusted."""
        meter = self._new_meter(len(data))
        try:
            if _is_zip(data):
                return min(
                    meter.allowed, sum(entry.file_size for entry in zip_directory(data, meter) if is_file(entry))
                )
            if (kind := kind_of(data)) is None:
                return min(meter.allowed, len(data))
            return sum(len(piece) for piece in meter.over(decompressed(data, kind)))
        except (NotDecodable, Rejected):  # which is raised again when it is unpacked
            return meter.allowed

    def _unpacked(self, sample: Sample) -> Sample | Sequence[Sample]:
        data = sample.data
        meter = self._new_meter(len(data))
        if _is_zip(data):
            entries = zip_directory(data, meter)
            if is_document([zip_path(entry) for entry in entries]):
                return sample
            return _samples(sample, list(unzipped(data, entries, meter)))
        kind = kind_of(data)
        pieces = meter.over(decompressed(data, kind) if kind else _cut(data))
        head = b""
        while len(head) < _HEAD and (piece := next(pieces, b"")):
            head += piece
        name = gzip_name(data) if kind == "gz" else ""
        if is_tar(head):
            return _samples(sample, list(untarred(chain((head,), pieces), meter)))
        if kind is None:
            if is_blank(data[:_HEAD]):
                return sample.failed("empty_archive")
            raise NotDecodable(f"not an archive, although its type is {sample.mime_type}")
        whole = joined(chain((head,), pieces))
        if (is_blank(whole) and _is_called_tar(sample, name)) or not whole:
            return sample.failed("empty_archive")
        meter.count_files(1)
        return _as_sample(sample, Member(name, whole))


PART = ArchiveTransform


def is_document(paths: Sequence[str]) -> bool:
    """Whether a zip with these paths is one file to people: an office document, an e-book, a program, an array …"""
    names = set(paths)
    return bool(
        names & {"[Content_Types].xml", "META-INF/MANIFEST.MF", "META-INF/container.xml", "AndroidManifest.xml"}
        or paths[:1] == ["mimetype"]  # OpenDocument, EPUB, OpenRaster, Krita
        or "doc.kml" in names  # KMZ
        or any(name.endswith((".dist-info/WHEEL", "/data.pkl")) for name in names)  # Python wheels, PyTorch
        or any(name.endswith(".app/Info.plist") and name.startswith("Payload/") for name in names)  # programs of iOS
        or (names and all(name.endswith(".npy") for name in names))  # npz
    )


def _samples(sample: Sample, members: Sequence[Member]) -> Sample | Sequence[Sample]:
    if not members:
        return sample.failed("empty_archive")
    if all(member.error for member in members):
        raise NotDecodable(f"{members[0].path}: {members[0].error}")
    return [_as_sample(sample, member) for member in members]


def _as_sample(sample: Sample, member: Member) -> Sample:
    if member.error:
        return sample.with_fields(path=member.path).failed("not_decodable", member.error)
    # The name is asked only where the bytes do not tell, and what it says becomes one of a table's extensions: nothing
    # that an archive calls its files gets into a name of ours.
    mime_type, ext = recognize_file(StoredBody.of(member.data), type_of_name(member.path))
    found = sample.with_data(member.data, ext).with_fields(mime_type=mime_type, path=member.path or None)
    is_archive = mime_type in _TYPES or mime_type in _NOT_UNPACKED
    return found.left_as_is(f"{mime_type} in an archive is not unpacked") if is_archive else found


def _is_zip(data: bytes) -> bool:
    if data[:4] in _ZIP:
        return True
    # A program that unpacks itself has one at its end, but so has a tar whose last file is one.
    return not kind_of(data) and not is_tar(data[:_HEAD]) and zipfile.is_zipfile(io.BytesIO(data))


def _is_called_tar(sample: Sample, name: str) -> bool:
    names = (name, sample.fields.get("final_url"), sample.url)
    return any(PurePosixPath(each.partition("?")[0]).name.lower().endswith(_TAR_ENDS) for each in names if each)


def _cut(data: bytes) -> Iterator[bytes]:
    return (data[start : start + _PIECE] for start in range(0, len(data), _PIECE))
