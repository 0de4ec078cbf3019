"""Values in nested columns, rows in lists, all columns, other names for columns, partitions in the names of folders."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from any2ds.config.options import InputOptions
from any2ds.readers.sources import Source
from tests.support.play import Outcome, Play

WEB = {"a.txt": "ok", "b.txt": "ok", "c.txt": "ok"}
PAGES = [
    {"id": 1, "page": {"lang": "en"}, "words": ["first", "second"], "images": [{"url": "a.txt", "alt": "A"}, None]},
    {"id": 2, "page": None, "words": [], "images": []},
    {"id": 3, "page": {"lang": "de"}, "words": None, "images": None},
    {"id": 4, "page": {"lang": None}, "words": ["only"], "images": [{"url": "b.txt", "alt": None}, {"url": "c.txt"}]},
]
WRITE: dict[str, Callable[[Path, list[dict[str, Any]]], object]] = {
    "l.jsonl": lambda file, rows: file.write_text("".join(json.dumps(row) + "\n" for row in rows)),
    "l.json": lambda file, rows: file.write_text(json.dumps(rows)),
    "l.parquet": lambda file, rows: pq.write_table(pa.Table.from_pylist(rows), file, row_group_size=2),
}


def with_urls(value: Any, web: str) -> Any:
    if isinstance(value, dict):
        return {key: with_urls(part, web) for key, part in value.items()}
    if isinstance(value, list):
        return [with_urls(part, web) for part in value]
    return web + value if isinstance(value, str) and value.endswith(".txt") else value


def played(name: str, rows: list[dict[str, Any]], **options: Any) -> Outcome:
    play = Play(WEB)
    WRITE[name](play.folder / name, with_urls(rows, play.web.base_url))
    return play.run("download", name, **options)


def columns(outcome: Outcome, *names: str) -> list[tuple[Any, ...]]:
    return [((row["url"] or "").rpartition("/")[2], *(row[name] for name in names)) for row in outcome.metadata]


@pytest.mark.parametrize("name", WRITE)
def test_each_element_of_a_list_is_a_row(name: str) -> None:
    outcome = played(
        name,
        PAGES,
        url_col="images[].url",
        caption_col="images[].alt",
        save_additional_columns="id,page.lang:lang,words[1]:word",
    )
    assert columns(outcome, "images_index", "caption", "id", "lang", "word") == [
        ("a.txt", 0, "A", 1, "en", "second"),
        ("b.txt", 0, None, 4, None, None),
        ("c.txt", 1, None, 4, None, None),
    ]
    assert outcome.codes == {"success": 3}


@pytest.mark.parametrize("name", WRITE)
def test_elements_may_be_urls(name: str) -> None:
    rows = [{"images": ["a.txt", None, "b.txt"], "url": "page"}, {"images": ["c.txt"], "url": "other"}]
    outcome = played(name, rows, url_col="images[]", save_additional_columns="url")
    assert columns(outcome, "images_index", "list_url") == [
        ("a.txt", 0, "page"),
        ("b.txt", 2, "page"),
        ("c.txt", 0, "other"),
    ]
    assert "'url' is stored as 'list_url'" in " ".join(outcome.screen.split())


@pytest.mark.parametrize("name", WRITE)
def test_a_value_in_an_object_is_a_url(name: str) -> None:
    rows = [{"image": {"url": "a.txt"}, "words": ["x", "y"]}, {"image": None, "words": []}]
    outcome = played(name, rows, url_col="image.url", caption_col="words[0]")
    assert columns(outcome, "caption", "error_code") == [("a.txt", "x", None), ("", None, "bad_url")]


@pytest.mark.parametrize("value", [list, pa.Table.from_pylist])
def test_python_values_have_paths_too(value: Callable[[list[dict[str, Any]]], Any]) -> None:
    play = Play(WEB, way="python")
    rows = value(with_urls(PAGES, play.web.base_url))
    outcome = play.run("download", rows, url_col="images[].url", save_additional_columns="id")
    assert columns(outcome, "id") == [("a.txt", 1), ("b.txt", 4), ("c.txt", 4)]


def test_a_column_named_as_a_path_is_that_column() -> None:
    outcome = played("l.parquet", [{"image.url": "a.txt", "image": {"url": "b.txt"}}], url_col="image.url")
    assert outcome.code_of == {"a.txt": "success"}


def test_shards_and_a_resumed_run_count_the_rows_of_elements() -> None:
    play = Play(WEB, number_sample_per_shard=2)
    rows = with_urls([{"images": list(WEB)[:1]}, {"images": list(WEB)[1:]}], play.web.base_url)
    WRITE["l.parquet"](play.folder / "l.parquet", rows)
    first = play.run("download", "l.parquet", url_col="images[]", limit="1")
    assert first.codes == {"success": 1}
    assert play.run("download", "l.parquet", url_col="images[]").codes == {"success": 3}


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        ([{"images": [{"alt": "x", "url": "a.txt"}]}], {"url_col": "images"}, "--url_col=images[].url"),
        ([{"url": {"src": "a.txt"}}], {}, "--url_col=url.src"),
        ([{"url": "a.txt", "c": ["x"]}], {"caption_col": "c"}, "--caption_col=c[0]"),
        ([{"images": ["a.txt"]}], {"url_col": "images[].url"}, "no column 'images[].url'"),
        ([{"images": ["a.txt"], "t": ["x"]}], {"url_col": "images[]", "caption_col": "t[]"}, "one list only"),
    ],
)
def test_what_has_no_value_is_refused_with_the_path_that_has(
    rows: list[dict[str, Any]], options: dict[str, str], words: str
) -> None:
    outcome = played("l.parquet", rows, **options)
    assert outcome.exit_code == 2
    assert words in " ".join(outcome.screen.split())


def test_a_url_that_is_an_object_in_json_names_its_path() -> None:
    outcome = played("l.jsonl", [{"image": {"src": "a.txt"}}, {"image": {"src": "b.txt"}}], url_col="image")
    assert outcome.exit_code != 0
    assert "--url_col=image.src" in " ".join(outcome.screen.split())


@pytest.mark.parametrize("name", ["l.parquet", "l.jsonl"])
def test_all_columns_are_carried_and_those_of_ours_get_another_name(name: str) -> None:
    rows = [{"url": "a.txt", "text": "x", "key": "k", "status": 7, "size": [1, 2]}]
    outcome = played(name, rows, caption_col="text", save_additional_columns="*")
    assert columns(outcome, "caption", "list_key", "list_status", "size") == [("a.txt", "x", "k", 7, [1, 2])]
    assert outcome.metadata[0]["key"] == "000000000"


def test_all_columns_of_standard_input_must_be_named() -> None:
    outcome = Play(WEB).run("download", "-", input_format="csv", save_additional_columns="*", stdin=b"url,c\n")
    assert outcome.exit_code == 2
    assert "name the columns" in outcome.screen


@pytest.mark.parametrize("value", [list, pa.Table.from_pylist, lambda rows: pa.Table.from_pylist(rows).to_pandas()])
def test_all_columns_of_values_in_python_are_carried(value: Callable[[list[dict[str, Any]]], Any]) -> None:
    play = Play(WEB, way="python")
    rows = [{"url": play.web.url("a.txt"), "n": 1, "list_key": "x", "key": "y", "tags[]": "t"}]
    outcome = play.run("download", value(rows), save_additional_columns=["*"])
    assert columns(outcome, "n", "list_key", "list_list_key", "tags[]") in (
        [("a.txt", 1, "x", "y", "t")],
        [("a.txt", 1, "y", "x", "t")],
    )


def test_columns_that_only_a_later_list_has_are_told() -> None:
    play = Play(WEB)
    (play.folder / "a.csv").write_text(f"url,n\n{play.web.url('a.txt')},1\n")
    (play.folder / "b.csv").write_text(f"url,n,late\n{play.web.url('b.txt')},2,x\n")
    outcome = play.run("download", "a.csv,b.csv", save_additional_columns="*")
    assert columns(outcome, "n") == [("a.txt", 1), ("b.txt", 2)]
    assert "leaves out: late" in " ".join(outcome.screen.split())


@pytest.mark.parametrize("name", ["l.jsonl", "l.json"])
def test_a_path_to_a_list_that_no_row_has_is_named(name: str) -> None:
    outcome = played(name, [{"images": ["a.txt"]}, {"images": []}], url_col="imges[]")
    assert (outcome.exit_code, outcome.requests) == (2, {})
    assert "no column 'imges[]'; columns that exist: images" in " ".join(outcome.screen.split())


@pytest.mark.parametrize("shuffle", [None, "1"])
def test_folders_of_partitions_are_columns(shuffle: str | None) -> None:
    play = Play(WEB)
    for name, folder in zip(
        WEB,
        ("lang=de/year=2024", "lang=en%20US/year=2025", "lang=__HIVE_DEFAULT_PARTITION__/year=2025"),
        strict=True,
    ):
        (play.folder / "lists" / folder).mkdir(parents=True)
        pq.write_table(pa.table({"url": [play.web.url(name)]}), play.folder / "lists" / folder / "part-0.parquet")
    options = {"save_additional_columns": "*", "column_types": "year:int32"}
    outcome = play.run("download", "lists", **options, **({"shuffle": shuffle} if shuffle else {}))
    assert sorted(columns(outcome, "lang", "year"), key=str) == [
        ("a.txt", "de", 2024),
        ("b.txt", "en US", 2025),
        ("c.txt", None, 2025),
    ]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_column_of_the_file_comes_before_its_folders_name(kind: str) -> None:
    play = Play(WEB)
    for name, folder in zip(WEB, ("lang=a", "lang=b", "other"), strict=True):
        (play.folder / "width=9/lists" / folder).mkdir(parents=True)
        row = {"url": play.web.url(name), "lang": "real"} if name != "b.txt" else {"url": play.web.url(name)}
        WRITE[f"l.{kind}"](play.folder / f"width=9/lists/{folder}/l.{kind}", [row])
    outcome = play.run("download", "width=9/lists", save_additional_columns="*")
    assert columns(outcome, "lang") == [("a.txt", "real"), ("b.txt", "b"), ("c.txt", "real")]
    assert "width" not in outcome.metadata[0] or outcome.metadata[0]["width"] is None


@pytest.mark.parametrize("name", ["l.parquet", "l.jsonl"])
def test_what_the_elements_of_one_large_row_repeat_takes_bounded_memory(name: str) -> None:
    rows = [{"id": "s", "images": []}] * 200 + [{"id": "x" * 1_000_000, "images": ["a.txt"] * 1000}]
    play = Play({"a.txt": "ok"})
    WRITE[name](play.folder / name, with_urls(rows, play.web.base_url))
    before = pa.total_allocated_bytes()
    source = Source(InputOptions(url_list=str(play.folder / name), url_col="images[]", save_additional_columns=("id",)))
    sizes = [(batch.num_rows, pa.total_allocated_bytes() - before) for batch in source.batches()]
    assert sum(rows for rows, _ in sizes) == 1000
    assert max(size for _, size in sizes) < 200 << 20
