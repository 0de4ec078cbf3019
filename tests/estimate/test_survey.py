"""Of lists that are too large to be read, random parts tell of the whole."""

import gzip
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from any2ds.config.options import Config
from any2ds.estimate.survey import survey

HOSTS = [f"https://h{number}.example" for number in range(4)]


@pytest.fixture(autouse=True)
def all_lists_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("any2ds.readers.blocks._BLOCKS", 100)
    monkeypatch.setattr("any2ds.readers.blocks.BLOCK", 2000)


def surveyed(url_list: Any, **options: Any) -> Any:
    return survey(Config.from_options({"url_list": str(url_list), **options}), 400, most_bytes=1000, part=20_000)


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


def tells_of_all(found: Any, rows: int = 40_000) -> bool:
    """Whether random blocks were read that tell of all."""
    drawn = Counter(url.rpartition("/")[0] for url in found.sample["url"].to_pylist())
    return bool(
        found.rows == pytest.approx(rows, rel=0.05)
        and 1000 < found.read < rows / 4
        and (found.is_exact, found.is_part, found.bad, found.error) == (False, True, 0, "")
        and set(drawn) == set(HOSTS)
        and min(drawn.values()) > 0.15 * drawn.total()
        and all(0.2 * rows < count < 0.3 * rows for count in found.hosts.values())
    )


def test_row_groups_are_drawn_at_random(tmp_path: Path) -> None:
    urls = [f"{HOSTS[number // 25_000]}/{number}" for number in range(100_000)]
    pq.write_table(pa.table({"url": urls}), tmp_path / "urls.parquet", row_group_size=500)
    found = surveyed(tmp_path / "urls.parquet")
    assert (found.rows, found.is_exact, found.is_part) == (100_000, True, True)
    assert 20_000 <= found.read <= 70_000
    assert sum(found.hosts.values()) == pytest.approx(100_000, rel=0.001)
    assert all(15_000 < rows < 35_000 for rows in found.hosts.values())
    assert found.sample.num_rows == 400


@pytest.mark.parametrize("name", ["txt", "csv", "jsonl"])
def test_blocks_of_text_are_drawn_at_random(tmp_path: Path, name: str) -> None:
    (tmp_path / f"urls.{name}").write_bytes(sorted_list(name))
    more: Any = {"caption_col": "caption", "save_additional_columns": ["n"]} if name == "csv" else {}
    assert tells_of_all(surveyed(tmp_path / f"urls.{name}", **more))


def test_blocks_are_those_of_all_files(tmp_path: Path) -> None:
    """Each with a header of its own; most have no block."""
    head, *lines = sorted_list("csv").replace(b'"two ""quotes"", and text"', b"one").splitlines(keepends=True)
    for number in range(400):
        (tmp_path / f"{number:03d}.csv").write_bytes(head + b"".join(lines[100 * number : 100 * number + 100]))
    found = surveyed(tmp_path, caption_col="caption")
    assert tells_of_all(found)
    assert set(found.sample["caption"].to_pylist()) == {"one"}


def test_blocks_come_from_stores(s3_server: None) -> None:
    import fsspec

    store = fsspec.filesystem("s3")
    store.mkdir("random-blocks")
    store.pipe_file("random-blocks/urls.txt", sorted_list("txt"))
    assert tells_of_all(surveyed("s3://random-blocks/urls.txt"))


@pytest.mark.parametrize("kind", ["compressed", "utf-16", "limited"])
def test_lists_without_blocks_are_read_as_a_whole(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    content = sorted_list("txt", 4000)
    path = tmp_path / ("urls.txt.gz" if kind == "compressed" else "urls.txt")
    content = gzip.compress(content) if kind == "compressed" else content
    path.write_bytes(content.decode().encode("utf-16") if kind == "utf-16" else content)
    found = surveyed(path, limit=3000 if kind == "limited" else None)
    rows = 3000 if kind == "limited" else 4000
    assert (found.rows, found.read, found.is_part) == (rows, rows, False)
    assert ("the whole list is read" in caplog.text) == (kind != "limited")
