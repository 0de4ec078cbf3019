"""The card of a dataset: what it says, what it leaves alone; nothing of a list or a server is more than text in it."""

import io
import json
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from markdown_it import MarkdownIt

from any2ds import UsageError, card, download, inspect, retry, verify
from any2ds.core.layout import Layout
from any2ds.dataset.shards import ShardEntry
from any2ds.describe.card.hub import features_of_columns, features_of_members, header, size_category, split
from any2ds.describe.card.split_files import data_files, of_samples
from any2ds.describe.rendering import code, plain
from any2ds.testing.server import Server, serve
from tests.support.folder import names_in

EVIL = "<img src=x onerror=alert(1)> [a](http://evil) | `x` **b** \n---\nlicense: stolen\n<!-- any2ds card: end -->"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    media = tmp_path_factory.mktemp("media")
    for n in range(5):
        (media / f"{n}.bin").write_bytes(b"x" * (10 + n))
    with serve(media) as running:
        yield running


@pytest.fixture
def make(server: Server) -> Callable[..., Any]:
    def make(folder: Any, form: str = "webdataset", rows: int = 7, **options: Any) -> None:
        listed = [{"url": server.url(f"{n}.bin"), "caption": EVIL, "n": n, EVIL: "x"} for n in range(rows)]
        download(
            listed,
            output_folder=folder,
            output_format=form,
            caption_col="caption",
            save_additional_columns=["n", EVIL],
            **{"number_sample_per_shard": 3, "distributor": "inline", "quiet": True, **options},
        )

    return make


def head(text: str) -> dict[str, Any]:
    found, _ = split(text)
    assert found is not None
    return dict(found)


def rendered(text: str) -> str:
    """As HTML, with what people write in Markdown allowed: tables, HTML and links."""
    return str(MarkdownIt("commonmark", {"html": True, "linkify": False}).enable("table").render(split(text)[1]))


def test_what_was_not_sampled_and_did_not_fail_is_not_mentioned(make: Callable[..., Any], tmp_path: Path) -> None:
    make(tmp_path / "all", rows=5, number_sample_per_shard=10)
    text = card(tmp_path / "all").text
    assert "| types | `application/octet-stream` 100.0% |" in text
    assert "| median size of a file | 12 bytes |" in text
    assert "files vanish" not in text
    (config,) = head(text)["configs"]
    assert config["description"].endswith("of the files: with another one, `datasets` reads them anew")
    make(tmp_path / "many", rows=40, number_sample_per_shard=1)
    text = card(tmp_path / "many").text
    assert "(of a few shards)" in text
    assert "35 of 40 rows are not stored: files vanish" in text


def test_what_comes_from_a_list_is_text(make: Callable[..., Any], tmp_path: Path) -> None:
    folder = tmp_path / "a <b>_[x](y)"
    make(folder)
    made = card(folder, pretty_name=EVIL)
    page = rendered(made.text)
    assert "<img" not in page
    assert "<b>" not in page
    assert page.count("<a ") == 1  # to the home of any2ds
    assert "<strong>" not in page
    assert "license" not in head(made.text)
    struct = next(each["struct"] for each in head(made.text)["dataset_info"][0]["features"] if each["name"] == "json")
    assert EVIL in {each["name"] for each in struct}
    assert card(folder).text.count("any2ds card: what stands") == 1
    assert card(folder).text == card(folder).text


def test_text_and_code_cannot_be_left() -> None:
    for words in (EVIL, "`", "``a`", "a|b", "\\|", "*a*", "&lt;", "\x1b[31m", "a\u202eb", "$x$", "@me", "#1", ""):
        table = f"| a |\n|---|\n| {plain(words)} |\n| {code(words)} |\n"
        page = MarkdownIt("commonmark", {"html": True}).enable("table").render(table)
        assert page.count("<tr>") == 3, words
        assert not any(tag in page for tag in ("<img", "<em", "<strong", "<a ", "<!--", "\x1b"))


def test_what_people_add_stays(make: Callable[..., Any], tmp_path: Path) -> None:
    make(tmp_path)
    own = tmp_path / "README.md"
    first = card(tmp_path, license="mit", pretty_name="Birds").text
    reported = head(first) | {"task_categories": ["image-to-text"], "annotations_creators": ["found"]}
    reported["tags"] = [*reported["tags"], "birds"]
    own.write_text(f"{header(reported)}\nWords before.\n\n{split(first)[1]}\nWords behind.\n", encoding="utf-8")
    make(tmp_path, rows=10, incremental_mode="incremental")
    for _ in range(2):
        again = card(tmp_path).text
        assert "Words before." in again
        assert again.rstrip().endswith("Words behind.")
        assert "of 10 rows" in again
        found = head(again)
        assert found["task_categories"] == ["image-to-text"]
        assert found["tags"][-1] == "birds"
        assert (found["license"], found["pretty_name"]) == ("mit", "Birds")
    assert again == card(tmp_path).text
    own.write_text(again.replace('pretty_name: "Birds"', "pretty_name: [Birds"), encoding="utf-8")
    with pytest.raises(UsageError, match="header that cannot be understood"):
        card(tmp_path)


@pytest.mark.parametrize("form", ["webdataset", "parquet", "files"])
def test_other_commands_do_not_mind_it(form: str, make: Callable[..., Any], tmp_path: Path) -> None:
    make(tmp_path, form, rows=4)
    before = card(tmp_path).text
    make(tmp_path, form, rows=7)
    retry(tmp_path, codes="all", quiet=True, distributor="inline")
    report = verify(tmp_path, quiet=True)
    assert report.ok
    assert not any("README" in note for note in report.notes)
    assert inspect(tmp_path).rows == 7
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == before
    after = card(tmp_path).text
    assert head(after)["configs"][0]["description"] != head(before)["configs"][0]["description"]
    make(tmp_path, form, rows=7, incremental_mode="overwrite")
    assert (tmp_path / "README.md").exists()
    assert {name for name in names_in(tmp_path) if name.startswith(".")} <= {
        ".any2ds/run",
        ".any2ds/segments",
        ".any2ds/shards",
    }


def test_a_dataset_without_a_finished_shard(make: Callable[..., Any], tmp_path: Path) -> None:
    make(tmp_path)
    for each in tmp_path.glob("0*"):
        each.unlink()
    made = card(tmp_path)
    assert "configs" not in head(made.text)
    assert "0 samples of 0 rows" in rendered(made.text)


def test_the_header_is_one_line_for_each_value() -> None:
    reported = {"a": EVIL, "b": ["---", "- x", "yes", "null", "1", "[z"], "größe": "…", "c\n---\nd": {"e": "\u2028"}}
    reported |= {"f": "\x00\x7f\x85\ufeff\U0001f600\U000e0001", "g": [], "h": {}, "i": 1, "j": None, "k": True, "l": ""}
    text = header(reported)
    assert [line for line in text.splitlines() if line.strip() == "---"] == ["---", "---"]
    assert split(text + "words\n---\n") == (reported, "words\n---\n")
    assert yaml.safe_load(io.StringIO(text.strip("-\n"))) == reported


def test_sizes_are_called_as_the_hub_does() -> None:
    names = [size_category(10**power) for power in range(13)]
    assert names[:5] == ["n<1K", "n<1K", "n<1K", "1K<n<10K", "10K<n<100K"]
    assert names[-4:] == ["1B<n<10B", "10B<n<100B", "100B<n<1T", "n>1T"]
    assert size_category(999) == "n<1K"


def test_types_that_have_no_name_there_are_left_to_datasets() -> None:
    known = pa.schema([("a", pa.list_(pa.struct([("b", pa.decimal128(5, 2))]))), ("data", pa.binary())])
    assert features_of_columns(known, "data", "image") is None
    assert features_of_columns(pa.schema([("m", pa.map_(pa.string(), pa.int8()))]), "data", "image") is None
    (field, *_) = features_of_members(["json"], known) or []
    assert json.dumps(field["struct"]) == json.dumps(
        [{"name": "a", "list": [{"name": "b", "dtype": "string"}]}, {"name": "data", "dtype": "string"}]
    )
    assert features_of_members(["npy", "json"], known) is None
    found = features_of_columns(pa.schema([("at", pa.timestamp("us", "UTC")), ("n", pa.null())]), "data", "image")
    assert found == [{"name": "at", "dtype": "timestamp[us, tz=UTC]"}, {"name": "n", "dtype": "string"}]


def test_patterns_of_a_split_are_those_of_its_shards_and_of_no_other() -> None:
    names = Layout(1, 2)  # some numbers have outgrown their digits
    shards = range(1200)
    files = {n: f"{names.shard_name(n)}.tar" for n in range(1200)}
    for first, last in [(0, 0), (0, 9), (3, 12), (5, 20), (9, 10), (10, 99), (40, 71), (98, 101), (7, 1003), (0, 1199)]:
        (found,) = data_files({"a": [(first, last)]}, names, shards, "tar")
        patterns = [found["path"]] if isinstance(found["path"], str) else found["path"]
        assert [n for n, file in files.items() if any(fnmatch(file, pattern) for pattern in patterns)] == list(
            range(first, last + 1)
        )
        assert len(patterns) <= 9
    lost = [1, 2, 7]  # a name has to be that of a file
    assert data_files({"a": [(0, 2)], "b": [(4, 4)], "c": [(5, 9)]}, names, lost, "tar") == [
        {"split": "a", "path": "0[1-2].tar"},
        {"split": "c", "path": "07.tar"},
    ]
    assert data_files({}, names, lost, "tar") == [{"split": "train", "path": "[0-9]*.tar"}]


@pytest.mark.parametrize(
    ("splits", "runs"),
    [
        ([{"a": 2}, {}, {"a": 1}, {"b": 1}, {"a": 1}], {"a": [(0, 2), (4, 4)], "b": [(3, 3)]}),
        ([{"a": 1}, {"a": 1, "b": 1}], {}),
        ([{"a": 1}, {"": 1}], {}),
        ([{"all": 1}], {}),
        ([{"no-split": 1}], {}),
        ([{"a": 1}, {"b": 1}] * 600, {}),
    ],
)
def test_shards_of_one_split_each_make_splits(splits: list[dict[str, int]], runs: dict[str, Any]) -> None:
    entries = (ShardEntry(n, 9, sum(own.values()), 0, 0, {}, own) for n, own in enumerate(splits))
    assert of_samples(entries) == runs
