"""Rows in a random order: each once, the same for the same list and seed, and a dataset is completed in that order."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from any2ds import download
from any2ds.config.options import InputOptions
from any2ds.core.errors import InputError, OutputError, ReadError
from any2ds.core.reports import RunReport
from any2ds.readers.shuffle import Batches, RowGroup, mixed, shuffled
from any2ds.readers.sources import Source

Go = Callable[..., RunReport]
PER_SHARD = 50


def url(host: int, n: int) -> str:
    """A row that fails at once, so that nobody has to serve it."""
    return f"nope://host{host}/{n}"


def rows_of_hosts(hosts: int, rows: int, first: int = 0) -> list[str]:
    """A list sorted by host."""
    return [url(host, n) for host in range(first, first + hosts) for n in range(rows)]


def put_txt(path: Path, urls: list[str]) -> Path:
    path.write_text("".join(f"{each}\n" for each in urls))
    return path


def put_parquet(folder: Path, files: int = 3, groups: int = 4, rows: int = 20) -> Path:
    """A list in which each row group has a host of its own."""
    folder.mkdir(exist_ok=True)
    for file in range(files):
        urls = rows_of_hosts(groups, rows, first=file * groups)
        table = pa.table({"url": urls, "kind": pa.array([each[7:13] for each in urls]).dictionary_encode()})
        pq.write_table(table, folder / f"{file}.parquet", row_group_size=rows)
    return folder


def read(url_list: Any, seed: int | None, ends: bool = False, **options: Any) -> list[str]:
    with Source(InputOptions(url_list, shuffle=seed, **options)) as source:
        found = [url for batch in source.batches(ends) for url in batch["url"].to_pylist() or ["end"]]
        assert source.rows == len(found) - found.count("end")
    return found


LARGE = [RowGroup(0, number, 10_000 + number, 2**30) for number in range(50)]


def rows_of_group(group: RowGroup) -> Batches:
    for start in range(0, group.rows, 4096):
        numbers = range(start, min(start + 4096, group.rows))
        yield pa.RecordBatch.from_pydict({"group": pa.array([group.number] * len(numbers)), "n": pa.array(numbers)})


def of_large_groups(batches: Iterator[pa.RecordBatch]) -> list[tuple[int, int]]:
    rows = pa.Table.from_batches(batches).to_pydict()
    return list(zip(rows["group"], rows["n"], strict=True))


def host_of(row: str) -> str:
    return row.split("/")[2]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def go(out: Path) -> Go:
    options = {
        "output_folder": out,
        "output_format": "dummy",
        "number_sample_per_shard": PER_SHARD,
        "distributor": "inline",
        "quiet": True,
    }
    return lambda url_list, **given: download(url_list, **{**options, **given})


def stored(out: Path) -> list[str]:
    paths = sorted(out.glob("0*.parquet"))
    return [row for path in paths for row in pq.read_table(path, columns=["url"])["url"].to_pylist()]


def refused(go: Go, url_list: Any, **options: Any) -> str:
    with pytest.raises(OutputError) as caught:
        go(url_list, **options)
    return str(caught.value)


class TestOrder:
    def test_each_row_comes_once_in_an_order_that_follows_from_the_seed(self, tmp_path: Path) -> None:
        rows = rows_of_hosts(10, 30)
        table = pa.table({"url": rows})
        for given in (put_txt(tmp_path / "list.txt", rows), put_parquet(tmp_path / "lists"), table, rows):
            plain = read(given, None)
            found = read(given, 7)
            assert found != plain
            assert sorted(found) == sorted(plain)
            assert found == read(given, 7)
            assert found != read(given, 8)

    def test_the_order_is_that_of_earlier_versions(self, tmp_path: Path) -> None:
        """Datasets that were begun with them go on in it: where this fails, the new order needs a name of its own."""
        many = put_txt(tmp_path / "list.txt", [url(n // 1000, n % 1000) for n in range(120_000)])  # two windows
        large = [f"{number} {n}" for number, n in of_large_groups(shuffled(LARGE, rows_of_group, 7))]
        orders = read(many, 7), read(put_parquet(tmp_path / "lists"), 7), large
        digests = [hashlib.sha256("\n".join(order).encode()).hexdigest()[:16] for order in orders]
        assert digests == ["225f2451afbc22ec", "f71a3bca3b3a6675", "0df3036912ae758d"]

    def test_it_does_not_depend_on_how_rows_arrive(self) -> None:
        rows = pa.RecordBatch.from_pydict({"n": range(100)})

        def order(*sizes: int) -> list[int]:
            starts = [sum(sizes[:i]) for i in range(len(sizes))]
            parts = [rows.slice(start, size) for start, size in zip(starts, sizes, strict=True)]
            return [n for batch in mixed(parts, 7, window=32) for n in batch["n"].to_pylist()]

        found = order(100)
        assert sorted(found) == list(range(100))
        assert found == order(1, 31, 33, 35) == order(*[1] * 100)
        assert sorted(found[:32]) == list(range(32))

    def test_values_of_all_columns_stay_together(self, tmp_path: Path) -> None:
        given = put_parquet(tmp_path / "lists")
        with Source(InputOptions(str(given), shuffle=7, save_additional_columns=("kind",))) as source:
            rows = [row for batch in source.batches() for row in batch.to_pylist()]
        assert all(row["url"][7:13] == row["kind"] for row in rows)


class TestOverTheWholeList:
    def test_the_first_rows_are_of_most_row_groups(self, tmp_path: Path) -> None:
        given = put_parquet(tmp_path / "lists", files=5, groups=8, rows=50)
        assert len({host_of(row) for row in read(given, 7)[:200]}) > 35

    def test_large_lists_are_read_from_many_places_at_a_time(self) -> None:
        is_open, most = Counter[str](), 0

        def batches(group: RowGroup) -> Batches:
            nonlocal most
            is_open["now"] += 1
            most = max(most, is_open["now"])
            try:
                yield from rows_of_group(group)
            finally:
                is_open["now"] -= 1

        found = of_large_groups(shuffled(LARGE, batches, 7))
        assert len({group for group, _ in found[:10_000]}) == most == 32
        assert len(set(found)) == len(found) == sum(group.rows for group in LARGE)

    def test_each_file_by_itself(self, tmp_path: Path) -> None:
        folder = put_parquet(tmp_path / "lists")
        put_txt(tmp_path / "lists" / "a.txt", rows_of_hosts(2, 20, first=90))
        for given, files in ((folder, 3), (sorted(folder.iterdir()), 4)):
            parts = "\n".join(read(given, 7, ends=True)).split("\nend")[:-1]
            plain = "\n".join(read(given, None, ends=True)).split("\nend")[:-1]
            assert len(parts) == files
            for part, in_order in zip(parts, plain, strict=True):
                assert part != in_order
                assert sorted(part.split()) == sorted(in_order.split())

    def test_types_are_those_of_the_first_file(self, tmp_path: Path) -> None:
        for name, type in (("1", pa.int64()), ("2", pa.int8()), ("3", pa.null())):
            values = pa.array([None, None] if name == "3" else [1, 2], type)
            pq.write_table(pa.table({"url": [url(1, 1), url(1, 2)], "n": values}), tmp_path / f"{name}.parquet")
        for seed in range(5):
            with Source(InputOptions(str(tmp_path), save_additional_columns=("n",), shuffle=seed)) as source:
                assert source.schema.field("n").type == pa.int64()
                assert sum(batch.num_rows for batch in source.batches()) == 6

    @pytest.mark.parametrize("damage", ["footer", "data", "column"])
    def test_a_file_that_is_broken_is_named(self, tmp_path: Path, damage: str) -> None:
        folder = put_parquet(tmp_path / "lists")
        path = folder / "2.parquet"
        data = bytearray(path.read_bytes())
        data[4:60] = bytes(56)
        path.write_bytes({"footer": bytes(data[:-8]), "data": bytes(data), "column": b""}[damage])
        if damage == "column":
            pq.write_table(pa.table({"link": ["u"]}), path)
        with pytest.raises((ReadError, InputError), match=r"2\.parquet"):  # before the start, but for damaged data
            read(folder, 7)


class TestGoingOn:
    @pytest.fixture(params=["txt", "parquet"])
    def given(self, request: pytest.FixtureRequest, tmp_path: Path) -> Path:
        if request.param == "txt":
            return put_txt(tmp_path / "urls.txt", rows_of_hosts(12, 20))
        return put_parquet(tmp_path / "lists")

    def test_what_is_missing_is_made_in_the_same_order(self, go: Go, out: Path, given: Path, tmp_path: Path) -> None:
        go(given, shuffle=7)
        before = stored(out)
        assert before == read(given, 7)
        for name in ("00001_stats.json", "00001.parquet", "00003_stats.json"):
            (out / name).unlink()
        report = go(given, shuffle=7)
        assert (report.shards, report.skipped_shards) == (2, 3)
        assert stored(out) == before
        for rank in (1, 0):
            go(given, shuffle=7, rank=rank, world_size=2, output_folder=tmp_path / "ranks")
        assert stored(tmp_path / "ranks") == before

    def test_the_order_cannot_be_another_one(self, go: Go, out: Path, given: Path) -> None:
        go(given, shuffle=7)
        (out / "00001_stats.json").unlink()
        assert "(shuffle was 7, now 8)" in refused(go, given, shuffle=8)
        assert "(shuffle was 7, now None)" in refused(go, given)

    @pytest.mark.parametrize("mode", ["incremental", "extend"])
    def test_a_list_that_has_grown_is_refused(self, mode: str, go: Go, out: Path, given: Path, tmp_path: Path) -> None:
        go(given, shuffle=7)
        if given.is_dir():
            put_parquet(given, files=4)
        else:
            put_txt(given, rows_of_hosts(13, 20))
        words = refused(go, given, shuffle=7, incremental_mode=mode)
        assert "A shuffled list that has grown or changed comes in another order" in words
        more = put_txt(tmp_path / "more.txt", rows_of_hosts(1, 60, first=90))
        assert go(more, shuffle=7, incremental_mode="extend").count == 60
        assert stored(out)[240:] == read(more, 7)

    def test_what_can_be_read_only_once_is_compared_on_the_way(self, go: Go, out: Path) -> None:
        table = pa.table({"url": rows_of_hosts(12, 20)})
        go(table.to_reader(20), shuffle=7)
        before = stored(out)
        (out / "00001_stats.json").unlink()
        assert go(table.to_reader(33), shuffle=7).shards == 1
        assert stored(out) == before == read(table, 7)

    def test_the_first_of_equal_urls_is_the_first_in_that_order(self, go: Go, out: Path, tmp_path: Path) -> None:
        given = put_txt(tmp_path / "urls.txt", rows_of_hosts(4, 20) * 3)
        go(given, shuffle=7, dedupe="run")
        rows = [row for path in sorted(out.glob("0*.parquet")) for row in pq.read_table(path).to_pylist()]
        first = {row["url"]: row["key"] for row in reversed(rows)}
        assert all(
            row["duplicate_of"] == (first[row["url"]] if first[row["url"]] != row["key"] else None) for row in rows
        )
        assert sum(row["duplicate_of"] is not None for row in rows) == 160


def test_bad_rows_keep_their_reasons(tmp_path: Path) -> None:
    lines = [f"{url(0, n)},{n}" for n in range(40)]
    lines[20] = "nope://host/a,b,c,d"
    (tmp_path / "list.csv").write_text("url,id\n" + "\n".join(lines) + "\n")
    report = download(
        str(tmp_path / "list.csv"),
        tmp_path / "out",
        save_additional_columns="id",
        shuffle=3,
        distributor="inline",
        quiet=True,
    )
    rows = pq.read_table(tmp_path / "out" / "00000.parquet").to_pylist()
    (bad,) = (row for row in rows if row["error_code"] == "bad_row")
    assert report.count == len(rows) == 40
    assert "nope://host/a,b,c,d" in bad["error_message"]
    assert {row["id"] for row in rows if row is not bad} == set(range(40)) - {20}
    assert [row["id"] for row in rows if row is not bad] != sorted(set(range(40)) - {20})
