"""Archives that strangers have prepared for recipes: nothing of them gets out of their folder, or takes the disk."""

import gzip
import io
import os
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from any2ds.core.errors import RunError
from tests.support.downloads import Downloads
from tests.support.params import sampled


@pytest.fixture
def dl(tmp_path: Path) -> Downloads:
    return Downloads(tmp_path / "cache")


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder of the user, beside the cache."""
    folder = tmp_path / "victim"
    folder.mkdir()
    (folder / "mine").write_text("mine")
    return folder


def member(name: str, content: bytes = b"", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=kind, linkname=target)


def make_tar(path: Path, members: Iterable[tuple[tarfile.TarInfo, bytes]], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return path


def cve_2025_4517(victim: Path) -> list[tuple[tarfile.TarInfo, bytes]]:
    """Python resolves a path that is longer than the system takes only in part, and finds its target inside."""
    members, folder = [], ""
    for letter in "abcdefghijklmnop":
        members += [member(f"{folder}{letter * 240}", type=tarfile.DIRTYPE), link(f"{folder}{letter}", letter * 240)]
        folder = f"{folder}{letter}/"
    long_way = f"{'/'.join('abcdefghijklmnop')}/{'q' * 250}"
    return [
        *members,
        link(long_way, "../" * 16),
        link("out", f"{long_way}/../../../../../../{victim.name}"),
        member("out/pwned", b"theirs"),
    ]


ATTACKS: dict[str, Callable[[Path], list[tuple[tarfile.TarInfo, bytes]]]] = {
    "CVE-2025-4517": cve_2025_4517,
    "a file through a link": lambda victim: [link("out", str(victim)), member("out/pwned", b"theirs")],
    "a file through a link within": lambda victim: [
        member("a", type=tarfile.DIRTYPE),
        link("b", "a"),
        member("b/pwned", b"theirs"),
    ],
    "a link up": lambda victim: [link("out", f"../../../{victim.name}/mine")],
    "a link through a link": lambda victim: [
        member("a/b", type=tarfile.DIRTYPE),
        link("a/up", "b/../.."),
        link("out", f"a/up/../../../{victim.name}/mine"),
    ],
    "a hard link": lambda victim: [link("out", f"../../../{victim.name}/mine", tarfile.LNKTYPE)],
    "a hard link to an absolute name": lambda victim: [link("out", str(victim / "mine"), tarfile.LNKTYPE)],
    "a file over a link": lambda victim: [link("out", str(victim / "mine")), member("out", b"theirs")],
    "a folder over a link": lambda victim: [link("out", str(victim)), member("out", type=tarfile.DIRTYPE)],
    "a link over a file": lambda victim: [member("out", b"theirs"), link("out", str(victim / "mine"))],
    "links in a circle": lambda victim: [link("a", "b"), link("b", "a")],
    "a link to nothing": lambda victim: [link("a", "b")],
    "a name that leads out": lambda victim: [member(f"a/../../../../{victim.name}/pwned", b"theirs")],
    "a file in a file": lambda victim: [member("a", b"theirs"), member("a/b", b"theirs")],
    "a device": lambda victim: [member("null", type=tarfile.CHRTYPE, devmajor=1, devminor=3)],
    "a pipe": lambda victim: [member("pipe", type=tarfile.FIFOTYPE)],
    "a name of 1,000 folders": lambda victim: [member("a/" * 1000 + "b", b"theirs")],
    "a long name": lambda victim: [member("a" * 2000, b"theirs")],
    "a name with NUL": lambda victim: [member("a", b"theirs", pax_headers={"path": "a\0b"})],
}


@pytest.mark.parametrize("mode", sampled(["w:gz", "w", "w:bz2", "w:xz"]))
@pytest.mark.parametrize("attack", ATTACKS)
def test_no_tar_leads_out_of_its_folder(attack: str, mode: str, victim: Path, dl: Downloads, tmp_path: Path) -> None:
    archive = make_tar(tmp_path / "evil.tar", ATTACKS[attack](victim), mode)
    with pytest.raises(RunError, match=r"evil\.tar: cannot be unpacked: "):
        dl.extract(archive)
    assert {path.name: path.read_text() for path in victim.iterdir()} == {"mine": "mine"}
    (extracted,) = (tmp_path / "cache").rglob("extracted")
    assert os.listdir(extracted) == []


def test_links_within_a_tar_lead_to_its_files(dl: Downloads, tmp_path: Path) -> None:
    archive = make_tar(
        tmp_path / "good.tar.gz",
        [
            link("./current", "newest"),  # before what it leads to
            member("./v1/", type=tarfile.DIRTYPE),
            member("./v1/a.txt", b"a"),
            link("./newest", "v1/."),
            link("./v1/b.txt", "../current/a.txt"),
            link("./c.txt", "v1/a.txt", tarfile.LNKTYPE),
            member("/absolute/d.txt", b"d"),
            member("./e.txt", b"earlier"),
            member("./e.txt", b"later"),
        ],
        "w:gz",
    )
    folder = dl.extract(archive)
    found = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.txt")}
    expected = {"v1/a.txt": "a", "v1/b.txt": "a", "c.txt": "a", "absolute/d.txt": "d", "e.txt": "later"}
    assert expected.items() <= found.items()
    assert (folder / "current" / "a.txt").read_text() == "a"
    assert os.readlink(folder / "current") == "v1"


def test_no_zip_leads_out_of_its_folder(victim: Path, dl: Downloads, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "evil.zip", "w") as archive:
        archive.writestr(f"../../../{victim.name}/pwned", "theirs")
    with pytest.raises(RunError, match=r"evil\.zip: cannot be unpacked: .*leads out of its folder"):
        dl.extract(tmp_path / "evil.zip")
    assert [path.name for path in victim.iterdir()] == ["mine"]


def test_a_zip_with_a_password_is_refused_in_words(dl: Downloads, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "secret.zip", "w") as archive:
        archive.writestr("a.txt", "a")
    content = bytearray((tmp_path / "secret.zip").read_bytes())
    for signature, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        content[content.index(signature) + flags] |= 1
    (tmp_path / "secret.zip").write_bytes(content)
    with pytest.raises(RunError, match="is encrypted, password required"):
        dl.extract(tmp_path / "secret.zip")


MANY_ZEROS = 1200 << 20


def zeros(path: Path) -> None:
    path.write_bytes(gzip.compress(bytes(1 << 20)) * (MANY_ZEROS >> 20))  # a gzip may have several members


def zipped_zeros(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive, archive.open("a", "w") as file:
        for _ in range(MANY_ZEROS >> 20):
            file.write(bytes(1 << 20))


def sparse(path: Path) -> None:
    """A tar of which one header says that a file is a hole of 1 TB."""
    info = tarfile.TarInfo("hole")
    info.pax_headers = {"GNU.sparse.map": "0,0", "GNU.sparse.size": str(1 << 40), "GNU.sparse.numblocks": "1"}
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(info)


@pytest.mark.parametrize(("name", "make"), [("a.gz", zeros), ("a.zip", zipped_zeros), ("a.tar", sparse)])
def test_what_unpacks_to_far_more_than_its_size_is_refused(
    name: str, make: Callable[[Path], None], dl: Downloads, tmp_path: Path
) -> None:
    make(tmp_path / name)
    with pytest.raises(RunError, match=r"it unpacks to more than 1,073,741,824 bytes"):
        dl.extract(tmp_path / name)
    (extracted,) = (tmp_path / "cache").rglob("extracted")
    assert os.listdir(extracted) == []


def test_a_tar_of_empty_files_without_number_is_refused(dl: Downloads, tmp_path: Path) -> None:
    info = tarfile.TarInfo("a")
    info.type = tarfile.DIRTYPE
    header = info.tobuf()
    with gzip.open(tmp_path / "many.tar.gz", "wb", compresslevel=1) as file:
        for _ in range(200):
            file.write(header * 1000)
    with pytest.raises(RunError, match=r"it has more than 1\d\d,\d{3} files and folders"):
        dl.extract(tmp_path / "many.tar.gz")


@pytest.mark.parametrize("name", ["long.tar", "long.tar.gz", "unnamed"])
def test_a_header_without_end_is_not_read(name: str, dl: Downloads, tmp_path: Path) -> None:
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1 << 32
    block = info.tobuf() + bytes(1 << 12)
    (tmp_path / name).write_bytes(gzip.compress(block) if name.endswith("gz") else block)
    with pytest.raises(Exception, match=r"a header of 4294967296 bytes|is no archive"):
        dl.extract(tmp_path / name)
    if name != "unnamed":
        with pytest.raises(tarfile.ReadError, match="a header of 4294967296 bytes"):
            dl.iter_archive(tmp_path / name)


def test_zstd_is_unpacked_and_read(dl: Downloads, tmp_path: Path) -> None:
    make_tar(tmp_path / "plain", [member("a/b.txt", b"b")])
    for name, content in {"a.tar.zst": (tmp_path / "plain").read_bytes(), "b.txt.zst": b"b\n"}.items():
        with pa.CompressedOutputStream(pa.OSFile(str(tmp_path / name), "wb"), "zstd") as file:
            file.write(content)
    assert (dl.extract(tmp_path / "a.tar.zst") / "a" / "b.txt").read_bytes() == b"b"
    assert dl.extract(tmp_path / "b.txt.zst").read_bytes() == b"b\n"
    read = [found for archive in ("a.tar.zst", "b.txt.zst") for found in dl.iter_archive(tmp_path / archive)]
    assert read == [("a/b.txt", b"b"), ("b.txt", b"b\n")]
