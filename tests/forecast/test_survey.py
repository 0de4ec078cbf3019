"""What is said of a list: rows, hosts, duplicates, and the rows that are drawn."""

import gzip
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from any2ds.config.options import Config
from any2ds.forecast.sketches import DistinctSample, FrequentItems
from any2ds.forecast.survey import Reservoir, survey


def surveyed(url_list: Any, size: int = 50, **options: Any) -> Any:
    return survey(Config.from_options({"url_list": url_list, **options}), size)


@pytest.mark.parametrize("name", ["urls.txt", "urls.txt.gz", "urls.parquet", "urls.csv", "urls.jsonl"])
def test_all_formats_say_the_same(tmp_path: Path, name: str) -> None:
    urls = [f"https://h{number % 900 % 7}.example/{number % 900}" for number in range(1000)]
    path = tmp_path / name
    if name.endswith("parquet"):
        pq.write_table(pa.table({"url": urls}), path, row_group_size=100)
    else:
        lines = {"csv": ["url", *urls], "jsonl": [f'{{"url": "{url}"}}' for url in urls]}.get(name[5:], urls)
        content = "\n".join(lines).encode()
        path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    found = surveyed(str(path), number_sample_per_shard=500)
    assert (found.rows, found.is_exact, found.read, found.distinct) == (1000, True, 1000, 900)
    assert found.duplicates == pytest.approx(0.1)
    assert found.duplicates_in_shards == 0
    assert found.hosts.count == 7
    assert sum(found.hosts.largest.values()) == 1000
    assert found.hosts.per_shard == 7
    assert found.sample.num_rows == 50
    assert set(found.sample["url"].to_pylist()) <= set(urls)


def test_bad_rows_and_schemes_are_counted() -> None:
    found = surveyed(["https://a/1", "http://b/2", "s3://bucket/key", "nonsense", "", None, "HTTPS://A/3"])
    assert found.schemes == {"https": 2, "": 3, "http": 1, "s3": 1}
    assert found.hosts.largest["a"] == 2


def test_urls_without_a_host_have_a_scheme() -> None:
    found = surveyed(
        ["data:,1", "DATA:text/plain;base64,QUJD", "file:///tmp/a", "file://host/a", "mailto:me@a", "htp://b/c"]
    )
    assert found.schemes == {"data": 2, "file": 1, "": 1, "mailto": 1, "htp": 1}
    assert (found.hosts.count, found.hosts.largest) == (0, {"": 3})


def test_hosts_are_named_as_the_engine_does_it() -> None:
    urls = ["http://me@A.example/1", "https://a.example/2", "http://[::1]:80/3", "ftp://a.example/4", "s3://bucket/5"]
    assert surveyed(urls).hosts.largest == {"a.example": 3, "[::1]:80": 1, "bucket": 1}
    hosts = {"*.example": {"max_per_host": 2}}
    assert surveyed(urls, hosts=hosts).hosts.largest == {"a.example": 3, "[::1]": 1, "bucket": 1}


def test_what_is_sampled_of_many_urls_is_no_matter_of_their_ends() -> None:
    """Their hash counts all but the beginning of long ones."""
    texts = [f"https://example.org/{number:07d}/picture.jpg" for number in range(40_000)]
    for urls in (texts, [f"https://h{number}.example/a" for number in range(40_000)], list(map(str, range(40_000)))):
        sample = DistinctSample(1000)
        sample.add(pa.array([url for url in urls for _ in range(2)]))
        assert sample.distinct == pytest.approx(40_000, rel=0.15)
        assert sample.repeated_share == 0.5


def test_a_limit_holds(tmp_path: Path) -> None:
    (tmp_path / "urls.txt").write_text("\n".join(f"http://h/{number}" for number in range(500)))
    assert surveyed(str(tmp_path / "urls.txt"), limit=120).rows == 120


def test_of_a_large_list_of_row_groups_a_random_part_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hosts of its row groups differ, as in a list that is sorted."""
    monkeypatch.setattr("any2ds.forecast.survey._LARGE", 1000)
    monkeypatch.setattr("any2ds.forecast.survey._PART", 20_000)
    urls = [f"https://h{number // 25_000}.example/{number}" for number in range(100_000)]
    pq.write_table(pa.table({"url": urls}), tmp_path / "urls.parquet", row_group_size=500)
    found = surveyed(str(tmp_path / "urls.parquet"), size=400)
    assert (found.rows, found.is_exact, found.is_part) == (100_000, True, True)
    assert 20_000 <= found.read <= 40_000
    assert found.hosts.count == 4
    assert sum(found.hosts.largest.values()) == pytest.approx(100_000, rel=0.001)
    assert all(15_000 < rows < 35_000 for rows in found.hosts.largest.values())
    drawn = Counter(url.split("/")[2] for url in found.sample["url"].to_pylist())
    assert sorted(drawn) == sorted(found.hosts.largest)
    assert drawn.total() == 400


HOSTS = [f"https://h{number}.example" for number in range(4)]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("any2ds.forecast.survey._LARGE", 1000)
    monkeypatch.setattr("any2ds.readers.blocks._BLOCKS", 100)
    monkeypatch.setattr("any2ds.readers.blocks.BLOCK", 2000)


def sorted_list(name: str, rows: int = 40_000) -> bytes:
    """A list whose hosts come one after the other; every third value of csv is quoted."""
    urls = [f"{HOSTS[number * 4 // rows]}/{number}" for number in range(rows)]
    if name.startswith("jsonl"):
        lines = [f'{{"url": "{url}"}}' for url in urls]
    elif name == "txt":
        lines = urls
    else:
        texts = ['"two ""quotes"", and text"' if number % 3 == 0 else "one" for number in range(rows)]
        lines = ["caption,url,n", *(f"{text},{url},{len(url)}" for text, url in zip(texts, urls, strict=True))]
    return "\n".join(lines).encode()


def of_a_part(found: Any, rows: int = 40_000) -> bool:
    """Whether random blocks were read that tell of all."""
    drawn = Counter(url.rpartition("/")[0] for url in found.sample["url"].to_pylist())
    return bool(
        found.rows == pytest.approx(rows, rel=0.05)
        and 1000 < found.read < rows / 4
        and (found.is_exact, found.is_part, found.bad, found.error) == (False, True, 0, "")
        and set(drawn) == set(HOSTS)
        and min(drawn.values()) > 0.15 * drawn.total()
        and all(0.2 * rows < count < 0.3 * rows for count in found.hosts.largest.values())
    )


@pytest.mark.parametrize("name", ["txt", "csv", "jsonl"])
def test_of_a_large_text_list_random_blocks_are_read(tmp_path: Path, name: str, small_blocks: None) -> None:
    (tmp_path / f"urls.{name}").write_bytes(sorted_list(name))
    more: Any = {"caption_col": "caption", "save_additional_columns": ["n"]} if name == "csv" else {}
    assert of_a_part(surveyed(str(tmp_path / f"urls.{name}"), 400, **more))


def test_blocks_are_those_of_all_files(tmp_path: Path, small_blocks: None) -> None:
    """Each with a header of its own; most have no block."""
    head, *lines = sorted_list("csv").replace(b'"two ""quotes"", and text"', b"one").splitlines(keepends=True)
    for number in range(400):
        (tmp_path / f"{number:03d}.csv").write_bytes(head + b"".join(lines[100 * number : 100 * number + 100]))
    found = surveyed(str(tmp_path), 400, caption_col="caption")
    assert of_a_part(found)
    assert set(found.sample["caption"].to_pylist()) == {"one"}


def test_blocks_come_from_stores(s3_server: None, small_blocks: None) -> None:
    import fsspec

    store = fsspec.filesystem("s3")
    store.mkdir("random-blocks")
    store.pipe_file("random-blocks/urls.txt", sorted_list("txt"))
    assert of_a_part(surveyed("s3://random-blocks/urls.txt", 400))


@pytest.mark.parametrize("kind", ["compressed", "utf-16", "limited"])
def test_what_has_no_blocks_is_read_as_a_whole(
    kind: str, tmp_path: Path, small_blocks: None, caplog: pytest.LogCaptureFixture
) -> None:
    content = sorted_list("txt", 4000)
    path = tmp_path / ("urls.txt.gz" if kind == "compressed" else "urls.txt")
    content = gzip.compress(content) if kind == "compressed" else content
    path.write_bytes(content.decode().encode("utf-16") if kind == "utf-16" else content)
    found = surveyed(str(path), limit=3000 if kind == "limited" else None)
    rows = 3000 if kind == "limited" else 4000
    assert (found.rows, found.read, found.is_part) == (rows, rows, False)
    assert ("the whole list is read" in caplog.text) == (kind != "limited")


def test_a_list_that_breaks_off_is_estimated_to_there(tmp_path: Path) -> None:
    whole = gzip.compress("\n".join(f"http://h/{random.Random(n).random()}" for n in range(200_000)).encode())
    (tmp_path / "urls.txt.gz").write_bytes(whole[: len(whole) // 2])
    found = surveyed(str(tmp_path / "urls.txt.gz"))
    assert found.error
    assert not found.is_exact


def test_each_row_is_drawn_with_the_same_chance() -> None:
    drawn: Counter[int] = Counter()
    for seed in range(400):
        reservoir = Reservoir(10, random.Random(seed))
        for start in range(0, 100, 7):
            reservoir.add(pa.record_batch({"n": list(range(start, min(100, start + 7)))}))
        rows = reservoir.table(pa.schema({"n": pa.int64()}))["n"].to_pylist()
        assert rows == sorted(set(rows))
        assert len(rows) == 10
        drawn.update(rows)
    thirds = [sum(drawn[n] for n in range(start, start + 33)) for start in (0, 33, 66)]
    assert all(abs(count - 1320) < 150 for count in thirds)


def test_sketches_hold_their_errors() -> None:
    rng = random.Random(1)
    values = [f"v{min(int(rng.paretovariate(0.7)), 10**7)}" for _ in range(200_000)]
    exact = Counter(values)
    frequent, distinct = FrequentItems(1000), DistinctSample(2000)
    for start in range(0, len(values), 5000):
        frequent.add(Counter(values[start : start + 5000]))
        distinct.add(pa.array(values[start : start + 5000]))
    for value, count in exact.most_common(20):
        assert count - frequent.error <= frequent.counts[value] <= count
    assert distinct.distinct == pytest.approx(len(exact), rel=0.1)
    assert all(exact[value] == count for value, count in distinct.counts.items())
