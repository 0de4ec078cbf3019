"""What Python and pandas write where something is missing or was cut: NaN, Infinity, halves of surrogate pairs."""

import json
import math
import random
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from any2ds.config.options import InputOptions
from any2ds.readers.formats._document import Document
from any2ds.readers.formats._objects import parsed
from any2ds.readers.sources import Source

NAN, INFINITY = math.nan, math.inf
ROWS: list[dict[str, Any]] = [
    {"url": "http://a/0", "text": "a cat", "is_new": True, "label": 'a "NaN", \\', "part": {"of": "x"}},
    {"url": "http://a/1", "text": NAN, "is_new": NAN, "label": NAN, "part": {"of": NAN}},
    {"url": NAN, "text": "cut \ud83d", "is_new": False, "label": "\ude00", "part": {"of": "\ud83dx"}},
    {"url": "http://a/3", "text": -INFINITY, "is_new": None, "label": "\\ud83d", "part": {"of": "\ud83d\ude00"}},
]
TEXTS = {
    "text": ["a cat", None, "cut \ufffd", None],
    "is_new": [True, None, False, None],
    "label": ['a "NaN", \\', None, "\ufffd", "\\ud83d"],
}
PARTS = ["x", None, "\ufffdx", "\U0001f600"]


def forms(folder: Path) -> dict[str, Any]:
    """The rows as lists of each kind that may hold such values."""
    documents: dict[str, str] = {
        "lines.jsonl": "\n".join(map(json.dumps, ROWS)),
        "lines.json": "\n".join(map(json.dumps, ROWS)),
        "array.json": json.dumps(ROWS),
        "columns.json": json.dumps({name: [row[name] for row in ROWS] for name in ROWS[0]}),
    }
    for name, text in documents.items():
        (folder / name).write_text(text)
    return {
        **{name: str(folder / name) for name in documents},
        "dicts": ROWS,
        "frame": pd.DataFrame(ROWS, dtype=object),
    }


def read(url_list: Any, columns: tuple[str, ...], **options: Any) -> list[dict[str, Any]]:
    options = {"caption_col": "text", "save_additional_columns": columns, **options}
    source = Source(InputOptions(url_list=url_list, **options))
    return [row for batch in source.batches() for row in batch.to_pylist()]


def test_nan_is_null_and_a_half_of_a_pair_is_replaced_in_every_form_of_list(tmp_path: Path) -> None:
    for name, given in forms(tmp_path).items():
        found = read(given, ("is_new", "label", "part"))
        assert [row["url"] for row in found] == ["http://a/0", "http://a/1", None, "http://a/3"], name
        columns = {"text": "caption", "is_new": "is_new", "label": "label"}
        assert {name: [row[column] for row in found] for name, column in columns.items()} == TEXTS, name
        parts = [json.loads(row["part"]) if isinstance(row["part"], str) else row["part"] for row in found]
        assert [part["of"] for part in parts] == PARTS, name


@pytest.mark.parametrize("later", [NAN, INFINITY])
def test_numbers_are_null_where_their_column_has_no_nan(later: float, tmp_path: Path) -> None:
    """Rows of a later block, when the types are known."""
    rows = [{"url": f"http://a/{n}", "text": "", "n": n, "pair": [n]} for n in range(20_000)]
    rows += [{"url": "http://a/last", "text": "", "n": later, "pair": [later]}]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    last = read(str(path), ("n", "pair"))[-1]
    assert (last["url"], last["n"], last["pair"]) == ("http://a/last", None, [None])


def test_a_column_of_captions_that_is_all_nan_has_no_captions(tmp_path: Path) -> None:
    """As pandas writes a column in which everything is missing."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"url": ["http://a", "http://b"], "text": [NAN, NAN]}), path)
    assert [row["caption"] for row in read(str(path), ())] == [None, None]


def test_urls_with_a_half_of_a_pair_stay_rows() -> None:
    for given in (["http://a/\ud83d"], pd.Series(["http://a/\ud83d"], dtype=object)):
        assert [row["url"] for row in read(given, (), caption_col=None)] == ["http://a/\ufffd"]


SIGNS = ["\\", '"', "\ud83d", "\ude00", "\U0001f600", "a", "NaN", "Infinity", "-Infinity", ",", ":", "u", "n", "-", "é"]


def made(chance: random.Random, depth: int = 0) -> Any:
    """A value as Python may write it."""
    kind = chance.randrange(4 if depth < 3 else 2)
    if kind == 0:
        return "".join(chance.choices(SIGNS, k=chance.randrange(12)))
    if kind == 1:
        return chance.choice([NAN, INFINITY, -INFINITY, 1, -1.5, None, True])
    values = [made(chance, depth + 1) for _ in range(3)]
    return values if kind == 2 else {"".join(chance.choices(SIGNS, k=4)): value for value in values}


def as_text(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [as_text(part) for part in value]
    if isinstance(value, dict):
        return {as_text(key): as_text(part) for key, part in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def test_a_document_is_cut_into_its_values_wherever_it_is_cut_into_pieces() -> None:
    chance = random.Random(1)
    for _ in range(3000):
        values = [made(chance) for _ in range(4)]
        text = json.dumps(values, indent=chance.choice([None, 1])).encode()
        size = chance.randrange(1, 40)
        document = Document(iter([text[start : start + size] for start in range(0, len(text), size)]))
        found = [parsed(document.value() or b"") for _ in document.elements()]
        assert (as_text(found), document.peek()) == (as_text(values), b""), (text, size)
