"""Files that are compared with the hashes of their list: what is stored, what the metadata says, what is counted."""

import base64
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from any2ds import download, retry, verify
from any2ds.config.options import GROUPS, Config, HashCheck, flat, parse_groups
from any2ds.core.digests import digest_in, is_digest
from any2ds.core.errors import OptionError, UsageError
from any2ds.testing.server import Server, serve

Download = Callable[..., Any]
OTHER = hashlib.sha256(b"something else").hexdigest()


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("media")
    for n in range(10):
        (folder / str(n)).write_bytes(b"\x01file %d" % n)
    return folder


@pytest.fixture(scope="module")
def server(media: Path) -> Iterator[Server]:
    with serve(media, {"gone": ["404"]}) as running:
        yield running


def metadata(out: Path) -> list[dict[str, Any]]:
    return [row for path in sorted(out.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def column(out: Path, name: str) -> list[Any]:
    return [row[name] for row in metadata(out)]


def sha256(n: int) -> str:
    return hashlib.sha256(b"\x01file %d" % n).hexdigest()


# --- what becomes of a file that differs ---


def test_the_column_is_called_as_it_likes(server: Server, tmp_path: Path, fetched: Download) -> None:
    """Also as a column that any2ds writes, as in LAION's and DataComp's lists."""
    for n, name in enumerate(["sha256", "status", "expected_hash", "key", "caption", "a:b,c"]):
        rows = pa.table({"url": [server.url("1")], name: [sha256(1)]})
        out = tmp_path / str(n)
        fetched(rows, verify_hash=[name, "sha256"], output_folder=out)
        (row,) = metadata(out)
        assert (row["status"], row["expected_hash"], row["sha256"]) == ("success", sha256(1), sha256(1))
        assert row["hash_matches"] is True


def test_what_is_carried_as_well_stays_as_it_was(server: Server, tmp_path: Path, fetched: Download) -> None:
    raw = [bytes.fromhex(sha256(1)), None]
    rows = pa.table({"url": [server.url("1"), server.url("2")], "h": raw, "n": [1, 2]})
    fetched(rows, verify_hash="h:sha256", save_additional_columns="n,h")
    found = metadata(tmp_path / "out")
    assert [(row["n"], row["h"], row["expected_hash"], row["hash_matches"]) for row in found] == [
        (1, raw[0], sha256(1), True),
        (2, None, None, None),
    ]
    assert list(found[0])[:6] == ["key", "url", "expected_hash", "n", "h", "status"]


@pytest.mark.parametrize("format", ["csv", "jsonl", "json", "parquet", "tsv.gz"])
def test_lists_of_all_formats(server: Server, tmp_path: Path, fetched: Download, format: str) -> None:
    """Digests are text, though they may look like numbers."""
    rows = pa.table({"url": [server.url("1"), server.url("2")], "md5": ["1" * 32, "1e" + "0" * 30]})
    path = tmp_path / f"list.{format}"
    if format == "parquet":
        pq.write_table(rows, path)
    elif format.startswith("json"):
        text = json.dumps(rows.to_pylist()) if format == "json" else "\n".join(map(json.dumps, rows.to_pylist()))
        path.write_text(text)
    else:
        rows.to_pandas().to_csv(path, index=False, sep="," if format == "csv" else "\t")
    report = fetched(path, verify_hash="md5:md5")
    assert report.status_dict == {"hash_mismatch": 2}
    assert column(tmp_path / "out", "expected_hash") == rows["md5"].to_pylist()
    assert all("expected was 1" in message for message in column(tmp_path / "out", "error_message"))


@pytest.mark.parametrize(
    "values",
    [
        pa.array([bytes.fromhex(sha256(1)), None], pa.binary()),
        pa.array([bytes.fromhex(sha256(1)), None], pa.binary(32)),
        pa.array([bytes.fromhex(sha256(1)), None], pa.large_binary()),
        pa.array([sha256(1).encode(), None], pa.binary()),
        pa.array([sha256(1), None], pa.string()).dictionary_encode(),
        pa.array([bytes.fromhex(sha256(1)), None], pa.binary()).dictionary_encode(),
        pa.array([sha256(1), None], pa.large_string()),
        pa.array([sha256(1), None], pa.string_view()),
    ],
    ids=lambda values: str(values.type),
)
def test_columns_of_all_types(server: Server, tmp_path: Path, fetched: Download, values: pa.Array) -> None:
    fetched(pa.table({"url": [server.url("1"), server.url("2")], "h": values}), verify_hash="h:sha256")
    assert column(tmp_path / "out", "expected_hash") == [sha256(1), None]
    assert column(tmp_path / "out", "hash_matches") == [True, None]


def test_a_column_of_nothing_and_one_of_numbers(server: Server, tmp_path: Path, fetched: Download) -> None:
    rows = pa.table({"url": [server.url("1")], "none": pa.nulls(1), "number": [7]})
    fetched(rows, verify_hash="none:md5", output_folder=tmp_path / "a")
    assert column(tmp_path / "a", "hash_matches") == [None]
    fetched(rows, verify_hash="number:md5", output_folder=tmp_path / "b")
    assert column(tmp_path / "b", "error_code") == ["hash_mismatch"]


# --- rows with the same URL ---


@pytest.mark.parametrize(("dedupe", "way"), [("shard", "fail_row"), ("run", "drop"), ("none", "flag")])
def test_each_row_is_judged_by_its_own_hash(
    media: Path, tmp_path: Path, fetched: Download, dedupe: str, way: str
) -> None:
    expected = [OTHER, sha256(1), None, f" {sha256(1).upper()}", OTHER, "", sha256(1)]
    with serve(media) as own:
        rows = pa.table({"url": [own.url("1")] * 7, "h": expected})
        report = fetched(rows, verify_hash="h:sha256", on_hash_mismatch=way, dedupe=dedupe)
        assert own.counts["1"] == (7 if dedupe == "none" else 3)
    found = metadata(tmp_path / "out")
    matches = [False, True, None, True, False, None, True]
    other = {"fail_row": "failed_to_subsample", "drop": "dropped", "flag": "success"}[way]
    statuses = [other if match is False else "success" for match in matches]
    if dedupe == "run":
        assert [row["status"] for row in found] == [*statuses[:3], *["duplicate"] * 4]
        firsts = [None] * 3 + ["000000001", "000000000", "000000002", "000000001"]
        assert [row["duplicate_of"] for row in found] == firsts
        assert report.duplicates == 4
    else:
        assert [row["status"] for row in found] == statuses
        assert [row["hash_matches"] for row in found] == matches
    assert [row["expected_hash"] for row in found] == expected
    for row in found:
        has_file = row["status"] == "success"
        assert row["data"] == ((media / "1").read_bytes() if has_file else None)
    assert report.count == report.successes + report.failed_to_subsample + report.dropped + report.duplicates


# --- what cannot be ---


def test_a_later_file_without_the_column_is_refused_before_the_start(
    server: Server, tmp_path: Path, fetched: Download
) -> None:
    pq.write_table(pa.table({"url": [server.url("1")], "h": [sha256(1)]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"url": [server.url("2")]}), tmp_path / "2.parquet")
    with pytest.raises(UsageError, match=r"2\.parquet: no column 'h'"):
        fetched([tmp_path / "1.parquet", tmp_path / "2.parquet"], verify_hash="h:sha256")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "given",
    [
        "h:sha256",
        "h,sha256",
        "[h, sha256]",
        "(h, sha256)",
        '["h", "sha256"]',
        "['h','sha256']",
        ["h", "sha256"],
        ("h", "SHA256"),
        "h:sha-256",
        HashCheck("h", "sha256"),
    ],
)
def test_how_it_may_be_written(given: Any) -> None:
    config = Config.from_options({"url_list": "-", "verify_hash": given})
    assert config.output.verify_hash == HashCheck("h", "sha256")
    assert flat(parse_groups(config.to_options(), GROUPS)) == config.to_options()


@pytest.mark.parametrize(
    "given",
    ["", "h", ":md5", "h:", "h:crc32", "[h]", "[h, md5, x]", ["h"], ["h", 5], [], 5, {"h": "md5"}, "[]", b"h:md5"],
)
def test_how_it_may_not_be_written(given: Any) -> None:
    with pytest.raises(OptionError, match="verify_hash"):
        Config.from_options({"url_list": "-", "verify_hash": given})


# --- how digests are written ---

HASHES = ("md5", "sha256", "sha512")
kinds = st.sampled_from(HASHES)


@given(kinds, st.binary(max_size=20), st.booleans())
def test_every_spelling_of_a_digest_is_understood(kind: str, data: bytes, is_same: bool) -> None:
    digest = hashlib.new(kind, data if is_same else data + b"!").digest()
    found = hashlib.new(kind, data).hexdigest()
    standard, for_urls = base64.b64encode(digest).decode(), base64.urlsafe_b64encode(digest).decode()
    plain = [digest.hex(), digest.hex().upper(), standard, for_urls, standard.rstrip("="), for_urls.rstrip("=")]
    dashed = kind.replace("sha", "sha-")
    named = [f"{name}{mark}{p}" for name in (kind, kind.upper(), dashed) for mark in (":", "-", "=") for p in plain]
    for written in plain + named:
        assert digest_in(written, kind) == digest
        assert is_digest(written, found, kind) == is_same
        for other in HASHES:
            if other != kind:
                assert digest_in(written, other) is None


@given(kinds, st.text(max_size=140) | st.text("0123456789abcdefg =\n\u0661", min_size=20, max_size=140))
def test_what_is_no_digest_is_told(kind: str, written: str) -> None:
    found = digest_in(written, kind)
    size = hashlib.new(kind).digest_size
    assert found is None or len(found) == size
    if len(written) == 2 * size:
        assert (found is None) == bool(set(written) - set("0123456789abcdefABCDEF"))


@pytest.mark.parametrize("output_format", ["webdataset", "parquet"])
def test_a_column_of_the_list_with_the_name_of_a_hash_that_is_not_computed_is_carried(
    output_format: str, tmp_path: Path
) -> None:
    media = tmp_path / "media"
    media.mkdir()
    (media / "1").write_bytes(b"one")
    (media / "2").write_bytes(b"two")
    out = tmp_path / "out"
    with serve(media, {"2": ["404", "ok"]}) as server:
        rows = [{"url": server.url(name), "sha256": f"of {name}", "n": n} for n, name in enumerate(["1", "2"])]
        how = {"output_folder": out, "output_format": output_format, "distributor": "inline", "quiet": True}
        download(rows, save_additional_columns="sha256,n", **how)
        retry(out, codes="all", distributor="inline", quiet=True)
    found = [row for shard in (0, 1) for row in pq.read_table(out / f"0000{shard}.parquet").to_pylist()]
    assert [(row["status"], row["sha256"], row["n"]) for row in found] == [
        ("success", "of 1", 0),
        ("failed_to_download", "of 2", 1),
        ("success", "of 2", 1),
    ]
    report = verify(out, quiet=True)
    assert (report.ok, report.hashes) == (True, ("md5",))
    other = tmp_path / "b"
    with serve(media) as server:
        rows = [{"url": server.url("1"), "sha256": "of 1"}]
        download(rows, save_additional_columns="sha256", compute_hash="sha256", **{**how, "output_folder": other})
    (row,) = pq.read_table(other / "00000.parquet").to_pylist()
    assert (row["list_sha256"], row["sha256"]) == ("of 1", hashlib.sha256(b"one").hexdigest())
