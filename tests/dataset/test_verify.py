"""Datasets that were really made, damaged in every way: each damage is found, and repaired by making shards again."""

import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from any2ds import UsageError, download, verify
from any2ds.core.errors import LockLost
from any2ds.core.manifest import Beginning, Segment
from any2ds.dataset.expected import ExpectedShards
from any2ds.dataset.shard_list import ranges_text
from any2ds.dataset.verify import verify as verification
from any2ds.dataset.verify.findings import KINDS, Finding
from any2ds.dataset.verify.verify import VerifyReport, how_many, lines
from any2ds.storage.lock.lock_file import Holder
from any2ds.storage.lock.owner import Owner
from any2ds.testing.processes import LONG, children, is_running, wait_until
from any2ds.testing.server import Server, serve

ROWS = 4  # in a shard
FORMATS = ("webdataset", "parquet", "files", "tfrecord", "arrayrecord", "dummy")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    media = tmp_path_factory.mktemp("media")
    chance = random.Random(0)
    for n in range(8):
        (media / f"{n}.bin").write_bytes(chance.randbytes(2000 + n))
    (media / "words.txt").write_text("some words")
    with serve(media) as running:
        yield running


def rows_of(server: Server, shards: int) -> list[dict[str, Any]]:
    """In each shard three files, of which one is a text, and a failure."""
    names = [name for n in range(shards) for name in (f"{n % 7}.bin", "absent", "words.txt", "7.bin")]
    return [{"url": f"{server.url(name)}?{n}", "caption": f"größe {n}", "n": n} for n, name in enumerate(names)]


def make(server: Server, out: Path, shards: int, **options: Any) -> None:
    given: dict[str, Any] = {
        "output_format": "webdataset",
        "caption_col": "caption",
        "save_additional_columns": ["n"],
        "number_sample_per_shard": ROWS,
        "compute_hash": "sha256",
        "distributor": "inline",
        "quiet": True,
    }
    download(rows_of(server, shards), output_folder=out, **{**given, **options})


def say_length(out: Path, rows: int | None, shards: int | None) -> None:
    """As a run does that has read its list to the end."""
    run = json.loads((out / ".any2ds/run").read_text())
    run["lists"][0] |= {"rows": rows, "shards": shards, "files": [{"name": "urls.txt", "size": 1, "version": None}]}
    (out / ".any2ds/run").write_text(json.dumps(run))


def kinds(report: VerifyReport) -> dict[int | None, set[str]]:
    found: dict[int | None, set[str]] = {}
    for finding in report.findings:
        assert finding.kind in KINDS
        found.setdefault(finding.shard_id, set()).add(finding.kind)
    return found


# --- what is right ---


@pytest.mark.parametrize("dedupe", ["shard", "run", "none"])
@pytest.mark.parametrize("output_format", FORMATS)
def test_what_a_run_has_made_is_right(output_format: str, dedupe: str, server: Server, tmp_path: Path) -> None:
    urls = [server.url(name) for name in ("0.bin", "1.bin", "0.bin", "absent", "words.txt", "0.bin", "words.txt")]
    odd = {
        "day": pa.array(range(7), pa.date32()),
        "at": pa.array([-(2**62), 2**62, *range(5)], pa.timestamp("ns")),
        "half": pa.array([float("nan"), float("inf"), 0.1, None, 1 / 3, 1e300, -0.0], pa.float64()),
        "less": pa.array([0.1] * 7, pa.float32()),
        "raw": pa.array([b"\xff"] * 7, pa.binary()),
        "nested": pa.array([{"a": [1, None]}] * 7),
        "large": pa.array(["ß"] * 7, pa.large_string()),
        "big": pa.array([2**63 - 1] * 7, pa.int64()),
        "a.b": pa.array([True, None] * 3 + [False], pa.bool_()),
    }
    for captions in (True, False):
        words = {"caption": pa.array(["a\n", None, "", "\x00", "ß" * 500, "x", "y"])} if captions else {}
        table = pa.table({"url": urls, **words, **odd})
        out = tmp_path / f"{captions}"
        download(
            table,
            output_folder=out,
            output_format=output_format,
            caption_col="caption" if captions else None,
            save_additional_columns=list(odd),
            number_sample_per_shard=3,
            dedupe=dedupe,
            compute_md5=captions,
            distributor="inline",
            quiet=True,
        )
        say_length(out, 7, 3)
        report = verify(out)
        assert (report.ok, report.findings, report.notes) == (True, (), ())
        assert (report.shards, report.shards_read, report.rows) == (3, 3, 7)
        assert report.samples == {"run": 3}.get(dedupe, 6)
        assert report.hashes == (("md5",) if captions and output_format != "dummy" else ())
        assert (report.bytes_read > 0) == (output_format != "dummy")


# --- what is damaged ---

Damage = Callable[[Path, str], None]  # of the shard with that name, in that folder


def edit(file: str, change: Callable[[bytes], bytes]) -> Damage:
    def damage(out: Path, name: str) -> None:
        path = out / file.format(name)
        path.write_bytes(change(path.read_bytes()))

    return damage


def flipped(at: float | bytes) -> Callable[[bytes], bytes]:
    """One bit of the byte at this part of the file, or of the first one of these bytes."""

    def change(content: bytes) -> bytes:
        place = content.index(at) if isinstance(at, bytes) else int(len(content) * at)
        return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]

    return change


def gone(*files: str) -> Damage:
    def damage(out: Path, name: str) -> None:
        for file in files:
            path = out / file.format(name)
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return damage


def instead(file: str, of: Callable[[Path], object]) -> Damage:
    def damage(out: Path, name: str) -> None:
        gone(file)(out, name)
        of(out / file.format(name))

    return damage


def swapped(*files: str) -> Damage:
    """With the shard before, which is damaged by it as well."""

    def damage(out: Path, name: str) -> None:
        for file in files:
            one, other = out / file.format(name), out / file.format(f"{int(name) - 1:05d}")
            one.rename(out / "between")
            other.rename(one)
            (out / "between").rename(other)

    return damage


def stats(**values: Any) -> Damage:
    return edit("{}_stats.json", lambda content: json.dumps({**json.loads(content), **values}).encode())


def members(change: Callable[[list[tuple[str, bytes]]], list[tuple[str, bytes]]]) -> Damage:
    """Of a tar, which is written anew."""

    def damage(out: Path, name: str) -> None:
        path = out / f"{name}.tar"
        with tarfile.open(path) as tar:
            found = [(member.name, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]
        with tarfile.open(path, "w") as tar:
            for member, data in change(found):
                info = tarfile.TarInfo(member)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))

    return damage


def table(change: Callable[[pa.Table], pa.Table]) -> Damage:
    """Of the metadata, written anew."""

    def damage(out: Path, name: str) -> None:
        pq.write_table(change(pq.read_table(out / f"{name}.parquet")), out / f"{name}.parquet")

    return damage


def with_column(name: str, values: list[Any]) -> Damage:
    def change(found: pa.Table) -> pa.Table:
        at = found.schema.get_field_index(name)
        return found.set_column(at, found.schema.field(at), pa.array(values, found.schema.field(at).type))

    return table(change)


STATS: list[tuple[str, Damage, set[str], str]] = [
    ("stats say more rows", stats(count=5), {"stats", "list"}, "count is 5"),
    ("stats say more bytes", stats(bytes=1), {"stats"}, "bytes is 1"),
    ("stats say other outcomes", stats(status_dict={"success": 4}), {"stats"}, "status_dict[http_404] is 0"),
    ("stats of another shard", stats(shard_id=77), {"stats"}, "is of shard 77"),
    ("stats cut", edit("{}_stats.json", lambda content: content[:20]), {"stats"}, "cannot be understood"),
    ("stats of another kind", edit("{}_stats.json", lambda _: b"[1, 2]"), {"stats"}, "cannot be understood"),
    ("stats gone", gone("{}_stats.json"), {"unfinished"}, "without stats"),
    ("stats are a folder", instead("{}_stats.json", Path.mkdir), {"unfinished"}, "without stats"),
    ("stats are a pipe", instead("{}_stats.json", os.mkfifo), {"unfinished"}, "without stats"),
    ("data is a pipe", instead("{}.tar", os.mkfifo), {"data"}, "there is no data"),
    (
        "stats that lead in a circle",
        instead("{}_stats.json", lambda path: path.symlink_to(path)),
        {"unreadable"},
        "cannot be read",
    ),
]

METADATA: list[tuple[str, Damage, set[str], str]] = [
    ("metadata cut", edit("{}.parquet", lambda content: content[:-100]), {"metadata"}, "to its end"),
    ("a byte of a url", edit("{}.parquet", flipped(b"ttp://127")), {"metadata"}, "to its end"),
    ("metadata empty", edit("{}.parquet", lambda _: b""), {"metadata"}, "to its end"),
    ("metadata gone", gone("{}.parquet"), {"metadata"}, "there is no metadata"),
    ("metadata short", table(lambda found: found.slice(0, 3)), {"stats", "samples"}, "the metadata has 3"),
    ("a column gone", table(lambda found: found.drop_columns("ext")), {"metadata"}, "no column ext"),
    ("rows in another order", table(lambda found: found.take([1, 0, 2, 3])), {"keys"}, "not the key of its place"),
    (
        "a key twice",
        table(lambda found: found.take([0, 0, 2, 3])),
        {"keys", "stats"},
        "more than one row with the same key",
    ),
    ("an unknown status", with_column("status", ["success", "lost", "success", "success"]), {"metadata"}, "'lost'"),
    (
        "an unknown code",
        with_column("error_code", [None, "http_7", None, None]),
        {"metadata", "stats"},
        "'http_7' does not exist",
    ),
    ("a success without ext", with_column("ext", [None, None, "data.txt", "flat"]), {"metadata"}, "contradict each"),
]

TAR: list[tuple[str, Damage, set[str], str]] = [
    ("tar cut", edit("{}.tar", lambda content: content[:4000]), {"data"}, "to its end"),
    ("tar cut between samples", edit("{}.tar", lambda content: content[: 512 * 14]), {"data"}, "to its end"),
    ("tar empty", edit("{}.tar", lambda _: b""), {"data"}, "to its end"),
    ("tar gone", gone("{}.tar"), {"data"}, "there is no data"),
    ("tar header", edit("{}.tar", flipped(b"2.data.txt")), {"data"}, "to its end"),
    ("a byte of a body", edit("{}.tar", flipped(b"some words")), {"hash"}, "sha256 of the file is not that"),
    ("a byte of a caption", edit("{}.tar", flipped(b" \xc3\xa4"[:0] + b"gr\xc3\xb6")), {"samples"}, "not the caption"),
    (
        "a byte of a json",
        edit("{}.tar", flipped(b"application/octet")),
        {"samples"},
        "differs from the metadata in mime",
    ),
    ("a sample twice", members(lambda found: found + found[:3]), {"samples"}, "more than once"),
    ("a sample gone", members(lambda found: found[3:]), {"samples"}, "but not in the data"),
    ("a sample of nobody", members(lambda found: [*found, ("x.jpg", b"x")]), {"samples"}, "no success in the metadata"),
    ("samples out of order", members(lambda found: found[3:] + found[:3]), {"samples"}, "not in the order"),
    ("a member gone", members(lambda found: found[:2] + found[3:]), {"samples"}, "without its .json"),
    ("a file cut", members(lambda found: [(found[0][0], b"x"), *found[1:]]), {"samples"}, "not the size"),
    ("files of two samples exchanged", swapped("{}.tar"), {"samples"}, "no success in the metadata"),
    ("a whole shard under another number", swapped("{}.tar", "{}.parquet", "{}_stats.json"), {"stats", "keys"}, "key"),
]

FILES: list[tuple[str, Damage, set[str], str]] = [
    ("folder gone", gone("{}"), {"data"}, "there is no data"),
    ("folder is a file", instead("{}", Path.touch), {"data"}, "there is no data"),
    ("folder is empty", instead("{}", Path.mkdir), {"samples"}, "but not in the data"),
    ("file of nobody", lambda out, name: (out / name / "x.jpg").touch(), {"samples"}, "no success in the metadata"),  # type: ignore[func-returns-value]
    ("a pipe", lambda out, name: os.mkfifo(out / name / "x.jpg"), {"data"}, "x.jpg is no file"),
    ("file gone", gone("{0}/{0}2.data.txt"), {"samples"}, "or is not there"),
    ("file cut", edit("{0}/{0}2.data.txt", lambda content: content[:3]), {"samples"}, "not the size"),
    ("byte of a file", edit("{0}/{0}2.data.txt", flipped(0)), {"hash"}, "sha256"),
    ("json cut", edit("{0}/{0}2.json", lambda content: content[:9]), {"samples"}, "cannot be read"),
    (
        "a file that leads in a circle",
        instead("{0}/{0}2.data.txt", lambda path: path.symlink_to(path)),
        {"unreadable"},
        "symbolic links",
    ),
]


def garbled_length(content: bytes) -> bytes:
    """Of the footer of a parquet file, in the four bytes before its last four."""
    return content[:-8] + bytes([content[-8] ^ 0x55]) + content[-7:]


BODY = b"\n\0\0\0some words", b"\n\0\0\0Some words"  # as parquet has it, with its length

PARQUET: list[tuple[str, Damage, set[str], str]] = [
    ("parquet cut", edit("{}.parquet", lambda content: content[:3000]), {"metadata"}, "to its end"),
    ("parquet gone", gone("{}.parquet"), {"metadata"}, "there is no metadata"),
    ("a byte of a body", edit("{}.parquet", lambda content: content.replace(*BODY)), {"hash"}, "sha256"),
    ("the footer", edit("{}.parquet", garbled_length), {"metadata", "data"}, "to its end"),
    (
        "a body gone",
        with_column("data", [b"x" * 2000, None, None, b""]),
        {"samples", "hash"},
        "but not in the data",
    ),
    ("a body too many", with_column("data", [None, b"x", None, None]), {"data"}, "without its key or extension"),
]

CASES = {"webdataset": [*STATS, *METADATA, *TAR], "files": FILES, "parquet": PARQUET}


@pytest.mark.parametrize("output_format", CASES)
def test_each_damage_is_found_and_repaired_by_the_same_download(
    output_format: str, server: Server, tmp_path: Path
) -> None:
    out, cases = tmp_path / "out", CASES[output_format]
    shards = 2 * len(cases) + 2
    make(server, out, shards, output_format=output_format)
    say_length(out, shards * ROWS, shards)
    assert verify(out).ok
    run_file = (out / ".any2ds/run").read_bytes()
    alone = {2 * n + 1: case for n, case in enumerate(cases)}  # the shards between are left alone
    for number, (_, damage, _, _) in alone.items():
        damage(out, f"{number:05d}")
    gone(
        "{}_stats.json",
        *({"webdataset": ["{}.tar", "{}.tar.idx"], "files": ["{}"]}.get(output_format, [])),
        "{}.parquet",
    )(out, f"{shards - 1:05d}")
    report = verify(out)
    found = kinds(report)
    words = {number: "\n".join(f.message for f in report.findings if f.shard_id == number) for number in alone}
    for number, (name, _, wanted, said) in alone.items():
        assert wanted & found[number], name
        assert found[number] <= wanted | {"stats", "samples", "metadata", "hash"}, (name, words[number])
        assert said in words[number], (name, words[number])
        if "number" not in name and "exchanged" not in name:
            assert number - 1 not in found, (name, found)
    assert "missing" in found[None]
    assert f"shard {shards - 1} is missing" in "\n".join(lines(report, 1000))
    unreadable = {number for number, (_, _, wanted, _) in alone.items() if wanted == {"unreadable"}}
    assert set(report.broken) >= alone.keys() - unreadable
    assert not unreadable & set(report.broken)

    repaired = verify(out, repair=True)
    assert repaired.repaired == report.broken
    for number in report.broken:
        left = list(out.glob(f"{number:05d}*"))
        assert not any(path.is_file() and path.suffix for path in left), left  # but what is of another kind
    for number in unreadable:  # somebody has to look after it
        for path in [*out.glob(f"{number:05d}*")]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for stray in (finding for finding in report.findings if finding.kind == "stray"):
        path = out / stray.message.split()[0]
        path.rmdir() if path.is_dir() else path.unlink()
    for path in out.glob("*"):
        if output_format == "files" and path.is_file() and path.name.isdecimal():
            path.unlink()
    make(server, out, shards, output_format=output_format)
    (out / ".any2ds/run").write_bytes(run_file)
    last = verify(out)
    assert (last.ok, last.findings) == (True, ())


def test_a_duplicate_points_at_an_earlier_row(server: Server, tmp_path: Path) -> None:
    urls = [server.url("0.bin")] * 6
    download(urls, output_folder=tmp_path, dedupe="run", number_sample_per_shard=2, quiet=True, distributor="inline")
    assert verify(tmp_path).ok
    for values, said in (
        (["000000", "000000"], ""),
        (["000011", "000000"], "000010"),
        (["000003", "nonsense"], "000010, 000011"),
        ([None, "000010"], "000010"),
        (["000020", "000011"], "000010, 000011"),
    ):
        with_column("duplicate_of", values)(tmp_path, "00001")
        found = [finding.message.rpartition(": ")[2] for finding in verify(tmp_path).findings]
        assert found == ([said] if said else []), values


# --- the whole ---


def listed(first_shard: int, rows: int | None, shards: int | None) -> Segment:
    return Segment(first_shard, (), Beginning(0, ""), rows=rows, shards=shards)


@pytest.mark.parametrize(
    ("lists", "present", "missing", "beyond", "rows"),
    [
        ([listed(0, 25, 3)], [0, 1, 2], [], [], {0: 10, 2: 5, 3: None}),
        ([listed(0, 25, 3)], [1], [0, 2], [], {2: 5}),
        ([listed(0, 25, 3)], [0, 1, 2, 3], [], [3], {3: None}),
        ([listed(0, 20, 2), listed(2, 1, 1)], [0, 2], [1], [], {1: 10, 2: 1}),
        ([listed(0, None, None)], [0, 3], [1, 2], [], {0: 10, 3: None}),
        ([listed(0, 3, 1), listed(1, None, None)], [0, 1, 2], [], [], {0: 3, 1: 10, 2: None}),
        ([listed(0, None, None)], [], [], [], {0: None}),
        ([listed(0, 0, 0)], [], [], [], {}),
    ],
)
def test_which_shards_there_should_be(
    lists: list[Segment], present: list[int], missing: list[int], beyond: list[int], rows: dict[int, int | None]
) -> None:
    expected = ExpectedShards(lists, present, 10)
    assert (expected.missing, expected.beyond) == (missing, beyond)
    assert {shard_id: expected.rows(shard_id) for shard_id in rows} == rows


def test_numbers_as_ranges() -> None:
    assert ranges_text([3, 7, 8, 9, 12]) == "3, 7-9, 12"
    assert ranges_text(list(range(0, 50, 2))) == "0, 2, 4, 6, 8, 10, 12, 14, 16, 18 … and 15 more"


def test_gaps_and_lists_that_were_not_read_to_their_end(server: Server, tmp_path: Path) -> None:
    make(server, tmp_path, 5)
    gone("{}_stats.json", "{}.parquet", "{}.tar", "{}.tar.idx", ".any2ds/shards")(tmp_path, "00002")
    for rows, shards, said in (
        (None, None, {"shard 2 is missing", "was not read to its end"}),
        (17, 5, {"shard 2 is missing", "count is 4, but the list has 1 rows"}),
        (28, 7, {"3 shards (2, 5-6) are missing"}),
        (8, 2, {"2 shards (3-4) are not of this list, which has rows for 2 shards"}),
    ):
        say_length(tmp_path, rows, shards)
        report = verify(tmp_path)
        found = "\n".join(finding.message for finding in report.findings)
        assert all(words in found for words in said), found
        assert [finding.kind for finding in report.findings].count("shard_list") == 1  # it has shard 2
        assert len(report.findings) == len(said) + 1


def test_without_or_with_a_broken_run_file_shards_tell_themselves(server: Server, tmp_path: Path) -> None:
    make(server, tmp_path, 3)
    edit("{}.tar", flipped(b"some words"))(tmp_path, "00001")
    for content in (b"{", b"[]", b'{"options": 3}', b'{"options": {}, "lists": [7]}', None):
        (tmp_path / ".any2ds/run").write_bytes(content or b"")
        if content is None:
            (tmp_path / ".any2ds/run").unlink()
        assert kinds(verify(tmp_path)) == {1: {"hash"}, None: {"run_file"}}
        with pytest.raises(UsageError, match=r"\.any2ds/run"):
            verify(tmp_path, repair=True)


def test_leftovers_and_strays(server: Server, tmp_path: Path) -> None:
    make(server, tmp_path, 2)
    say_length(tmp_path, 8, 2)
    gone_process = subprocess.Popen([sys.executable, "-c", ""])
    gone_process.wait()
    from any2ds.storage.disk.staging import Owner

    staged = tmp_path / ".any2ds/tmp" / f"{Owner.here().host}-{gone_process.pid}-01234567"
    staged.mkdir(parents=True)
    (tmp_path / ".any2ds/probe-01234567").write_bytes(b"any2ds")
    (tmp_path / ".any2ds/lock").touch()
    (tmp_path / ".DS_Store").touch()
    assert {finding.kind for finding in verify(tmp_path).findings} == {"leftover"}
    repaired = verify(tmp_path, repair=True)
    assert repaired.ok
    assert not (tmp_path / ".any2ds/tmp").exists()
    assert not (tmp_path / ".any2ds/probe-01234567").exists()
    assert not (tmp_path / ".any2ds/lock").exists()
    (tmp_path / "README.md").touch()
    (tmp_path / "0001_stats.json").touch()
    (tmp_path / "old.tar").touch()
    (tmp_path / "notes\x1b[31m").mkdir()
    report = verify(tmp_path)
    assert [finding.message for finding in report.findings] == [
        "0001_stats.json belongs to no shard",
        "old.tar belongs to no shard",
    ]
    assert report.broken == ()
    assert "README.md" in report.notes[0]
    verify(tmp_path, repair=True)
    assert (tmp_path / "old.tar").exists()  # which any2ds did not write


@pytest.mark.slow
def test_repair_is_refused_while_a_run_is_at_work(server: Server, tmp_path: Path) -> None:
    make(server, tmp_path, 1)
    from any2ds.storage.disk.staging import staging

    with staging(tmp_path / ".any2ds/tmp"), pytest.raises(UsageError, match=f"process {os.getpid()}"):
        verify(tmp_path, repair=True)
    with staging(tmp_path / ".any2ds/tmp"):
        assert verify(tmp_path).ok


def test_what_was_taken_over_meanwhile_is_not_repaired(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(server, tmp_path, 2)
    (tmp_path / "00001.parquet").write_bytes(b"broken")
    check = verification._checked

    def slow_check(*arguments: Any) -> Any:
        owner = Owner("elsewhere", 12, "another kernel")
        (tmp_path / ".any2ds/lock").write_bytes(Holder("0" * 32, "download", 0.0, owner).to_bytes())
        return check(*arguments)

    monkeypatch.setattr(verification, "_checked", slow_check)
    with pytest.raises(LockLost, match="process 12 on elsewhere"):
        verify(tmp_path, repair=True)
    assert (tmp_path / "00001_stats.json").exists()


# --- a part of it ---


def test_a_sample_is_read_and_can_be_read_again(server: Server, tmp_path: Path) -> None:
    make(server, tmp_path, 20)
    for number in range(20):
        edit("{}.tar", flipped(b"some words"))(tmp_path, f"{number:05d}")
    report = verify(tmp_path, sample="10%")
    assert (report.shards, report.shards_read, report.rows) == (20, 2, 80)
    picked = {finding.shard_id for finding in report.findings if finding.kind == "hash"}
    assert len(picked) == 2
    again = verify(tmp_path, sample="10%", seed=report.seed)
    assert again.findings == report.findings
    assert f"--sample=10% --seed={report.seed}" in "\n".join(lines(report))
    others = [verify(tmp_path, sample=2) for _ in range(8)]
    assert len({other.findings for other in others}) > 1


def test_of_those_not_picked_files_and_counts_are_checked(server: Server, tmp_path: Path) -> None:
    make(server, tmp_path, 6)
    cut = edit("{}.tar", lambda content: content[:100])
    damages = [gone("{}.tar"), gone("{}.parquet"), instead("{}.parquet", Path.touch), stats(count=1), cut]
    for number, damage in enumerate(damages):
        damage(tmp_path, f"{number:05d}")
    seed = next(s for s in range(99) if random.Random(s).sample(range(6), 1) == [5])
    of_files = {0: {"data"}, 1: {"metadata"}, 2: {"metadata"}, 4: {"data"}}
    assert kinds(verify(tmp_path, sample=1, seed=seed)) == of_files
    (tmp_path / ".any2ds/shards").unlink()  # from where counts were, so that statistics are read
    assert kinds(verify(tmp_path, sample=1, seed=seed)) == {**of_files, 3: {"list", "stats"}, None: {"shard_list"}}


def test_how_many_a_sample_is() -> None:
    given = {
        ("1%", 1000): 10,
        ("1%", 10): 1,
        ("100%", 7): 7,
        ("0.1%", 1001): 2,
        ("20", 7): 7,
        ("3", 7): 3,
        ("5%", 0): 0,
    }
    assert {case: how_many(*case) for case in given} == given
    for wrong in ("0", "0%", "101%", "some", "1.5", "-1", "", 0):
        with pytest.raises(UsageError, match="such as 1%"):
            verify("x", sample=wrong or "0")


# --- made by others ---


def of_img2dataset(out: Path, output_format: str) -> None:
    """Two shards as img2dataset writes them: rows in the order of arrival, no number in the stats."""
    out.mkdir()
    for shard in ("00000", "00001"):
        order = [2, 0, 3, 1]
        key = [f"{shard}{n:04d}" for n in order]
        status = ["success", "success", "failed_to_download", "success"]
        columns: dict[str, Any] = {
            "url": [f"http://127.0.0.1/{n}" for n in order],
            "key": key,
            "status": status,
            "error_message": [None, None, "HTTP Error 404: Not Found", None],
            "md5": [None if s != "success" else "of something else" for s in status],
        }
        good = [k for k, s in zip(key, status, strict=True) if s == "success"]
        if output_format == "parquet":
            columns["jpg"] = pa.array([b"x" if s == "success" else None for s in status], pa.binary())
        pq.write_table(pa.table(columns), out / f"{shard}.parquet")
        if output_format == "webdataset":
            with tarfile.open(out / f"{shard}.tar", "w") as tar:
                for k in good:
                    for ext, data in (
                        ("jpg", b"x" * 100),
                        ("json", json.dumps({"key": k, "x": float("nan")}).encode()),
                    ):
                        info = tarfile.TarInfo(f"{k}.{ext}")
                        info.size = len(data)
                        tar.addfile(info, io.BytesIO(data))
        elif output_format == "files":
            (out / shard).mkdir()
            for k in good:
                (out / shard / f"{k}.jpg").write_bytes(b"x")
                (out / shard / f"{k}.json").write_text(json.dumps({"key": k}))
        figures = {"count": 4, "successes": 3, "failed_to_download": 1, "failed_to_resize": 0, "duration": 1.5}
        times = {"start_time": 1.7e9, "end_time": 1.7e9 + 5, "status_dict": {"success": 3, "HTTP Error 404": 1}}
        (out / f"{shard}_stats.json").write_text(json.dumps({**figures, **times}))


@pytest.mark.parametrize("output_format", ["webdataset", "files", "parquet"])
def test_datasets_of_img2dataset_are_checked_as_far_as_they_tell(output_format: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    of_img2dataset(out, output_format)
    report = verify(out)
    assert (report.findings, report.rows, report.samples, report.hashes) == ((), 8, 6, ())
    assert any("not made by any2ds" in note for note in report.notes)
    with pytest.raises(UsageError, match="not made by any2ds"):
        verify(out, repair=True)
    data = {"webdataset": "{}.tar", "files": "{}", "parquet": "{}.parquet"}[output_format]
    swapped(data)(out, "00001")
    wanted = {"keys"} if output_format == "parquet" else {"samples"}
    assert kinds(verify(out)) == {0: wanted, 1: wanted}
    swapped(data)(out, "00001")
    stats(successes=2)(out, "00000")
    stats(count=2, successes=1)(out, "00001")
    assert kinds(verify(out)) == {0: {"stats"}, 1: {"stats"}}
    gone(data)(out, "00001")
    assert kinds(verify(out))[1] == ({"metadata"} if output_format == "parquet" else {"data", "stats"})


# --- elsewhere, and in parallel ---


@pytest.mark.slow
def test_remote_datasets_are_read_through_copies_that_do_not_stay(
    server: Server, s3_server: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    s3 = fsspec.filesystem("s3")
    s3.mkdir("bucket")
    for output_format in ("webdataset", "files"):
        out = f"s3://bucket/{output_format}"
        make(server, out, 3, output_format=output_format)  # type: ignore[arg-type]
        report = verify(out)
        assert (report.findings, report.samples, report.shards_read) == ((), 9, 3)
        name = "00001.tar" if output_format == "webdataset" else "00001/000012.data.txt"
        content = s3.cat_file(f"bucket/{output_format}/{name}")
        s3.pipe_file(f"bucket/{output_format}/{name}", flipped(b"some words")(content))
        s3.rm_file(f"bucket/{output_format}/00002_stats.json")
        assert kinds(verify(out, sample=2)) in ({1: {"hash"}, 2: {"unfinished"}}, {2: {"unfinished"}})
        assert verify(out, repair=True).repaired == (1, 2)
        left = {path.rsplit("/", 1)[-1] for path in s3.ls(f"bucket/{output_format}", refresh=True)}
        assert left == {
            ".any2ds",
            "00000.parquet",
            "00000_stats.json",
            *({"00000.tar", "00000.tar.idx"} if "w" in output_format else {"00000"}),
        }
        make(server, out, 3, output_format=output_format)  # type: ignore[arg-type]
        monkeypatch.setattr("any2ds.dataset.verify.verify._SMALL", 0 if output_format == "files" else 1 << 30)
        assert verify(out, processes_count=1).ok  # in another process, too
    assert [path for path in tmp_path.iterdir() if path.name.startswith("any2ds-")] == []
    with pytest.raises(UsageError, match=r"no such folder|no dataset"):
        verify("s3://bucket/absent")


def test_processes_find_what_one_finds(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(server, tmp_path, 9)
    edit("{}.tar", flipped(b"some words"))(tmp_path, "00003")
    alone = verify(tmp_path)
    monkeypatch.setattr("any2ds.dataset.verify.verify._SMALL", 0)
    together = verify(tmp_path, processes_count=3)
    assert together.findings == alone.findings
    assert (together.rows, together.bytes_read, together.hashes) == (alone.rows, alone.bytes_read, alone.hashes)


# --- the command ---


def any2ds(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "any2ds", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=LONG, encoding="utf-8")


def test_exit_codes_and_words(server: Server, tmp_path: Path) -> None:
    make(server, tmp_path / "out", 3)
    right = any2ds("verify", "out", cwd=tmp_path)
    progress = [line for line in right.stderr.splitlines() if "shards checked" in line]  # where it takes long
    assert (right.returncode, right.stderr.splitlines()) == (0, progress)
    assert "3 shards, 12 rows, 9 samples" in right.stdout
    assert right.stdout.endswith("no problems found\n")
    edit("{}.tar", lambda content: content[:4000])(tmp_path / "out", "00001")
    wrong = any2ds("verify", "out", "--json=report.json", cwd=tmp_path)
    assert wrong.returncode == 1
    assert wrong.stdout.startswith("shard 1: data: 00001.tar cannot be read to its end")
    assert "1 shard to be made again" in wrong.stdout
    written = json.loads((tmp_path / "report.json").read_text())
    assert written["findings"][0]["shard"] == 1
    assert written["broken_shards"] == [1]
    repaired = any2ds("verify", "out", "--repair", "--json=-", cwd=tmp_path)
    assert (repaired.returncode, json.loads(repaired.stdout)["repaired_shards"]) == (1, [1])
    refused = any2ds("verify", "absent", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == "any2ds: 'absent': no such folder\n"


def test_what_is_no_dataset_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "00000.txt").touch()
    (tmp_path / "tars").mkdir()
    (tmp_path / "tars" / "00000.tar").touch()
    for folder, said in (("empty", "no dataset"), ("00000.txt", "is a file"), ("tars", "no dataset")):
        with pytest.raises(UsageError, match=said):
            verify(tmp_path / folder)


def test_what_is_said_is_bounded_and_printable() -> None:
    findings = tuple(Finding("data", f"bad \x1b[31m {n}", n) for n in range(1000))
    shown = list(lines(VerifyReport("x", findings=findings)))
    assert len(shown) < 50
    assert "and 960 more (data 960); --json=FILE has them all" in "\n".join(shown)


def open_files(pid: int) -> list[str]:
    found = []
    with suppress(OSError):  # it, or the process, has just been closed
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found.append(os.readlink(file))
    return found


def test_ctrl_c_ends_it_and_its_processes(server: Server, tmp_path: Path) -> None:
    make(server, tmp_path / "out", 3, output_format="files")
    with open(tmp_path / "out" / "00001" / "000012.data.txt", "wb") as hole:
        hole.truncate(1 << 40)  # takes hours to read
    script = (
        "import any2ds.dataset.verify.verify as v, sys; v._SMALL = 0\nfrom any2ds.cli import main\n"
        "main(['verify', 'out', '--processes_count=2', '--quiet'])"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_until(lambda: any("000012.data.txt" in name for pid in children(running.pid) for name in open_files(pid)))
    readers = children(running.pid)
    running.send_signal(signal.SIGINT)
    said, words = running.communicate(timeout=LONG)
    assert (running.returncode, said, words) == (130, "", "any2ds: interrupted\n")
    assert not any(map(is_running, readers))


def test_a_file_of_somebody_else_with_the_name_of_a_shard_is_told_and_not_removed(
    server: Server, tmp_path: Path
) -> None:
    make(server, tmp_path / "out", 2)
    (tmp_path / "out" / "00099.tar").write_bytes(b"a tar of a person")
    report = verify(tmp_path / "out", repair=True, quiet=True)
    assert (report.ok, report.repaired) == (False, ())
    assert any("00099.tar" in note for note in report.notes)
    assert (tmp_path / "out" / "00099.tar").read_bytes() == b"a tar of a person"
