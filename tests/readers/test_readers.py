"""What each reader makes of well-formed and of broken lists, seen through the rows that come out."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from any2ds.core import plugins
from any2ds.core.errors import MissingColumns, ReadError, WrongFormat
from any2ds.core.failures import Failure
from any2ds.core.rows import BAD_ROW_COLUMN
from any2ds.fetch.urls import normalize
from any2ds.readers.arrow import arrow_blocks
from any2ds.readers.contract import Field, Form, Wanted
from any2ds.readers.rows import TypedRows


class Columns(NamedTuple):
    """The columns of a list that a test reads."""

    url: str
    caption: str | None = None
    others: tuple[str, ...] = ()
    types: Mapping[str, pa.DataType] = MappingProxyType({})

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.url, self.caption, *self.others)))


URL = Columns("url")


def batches_of(
    format: str,
    data: bytes | io.BytesIO,
    columns: Columns,
    schema: pa.Schema | None = None,
    stops: bool = False,
    path: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a list; with a schema, of one that comes behind another."""
    form = Form(quoting="minimal" if format == "tsv" else "auto", rows=path)
    kinds = {columns.url: "url", columns.caption: "caption"}
    rows = TypedRows(
        [Field(name, name, kinds.get(name, ""), columns.types.get(name)) for name in columns.names],
        stops_at_bad_row=stops,
    )
    required = columns.names if schema is None else [columns.url]
    if schema is not None:
        list(rows.batches(arrow_blocks([pa.RecordBatch.from_pylist([{}], schema=schema)])))
    stream = io.BytesIO(data) if isinstance(data, bytes) else data
    wanted = Wanted(columns.names, frozenset(required), (columns.url,), schema is None and bool(columns.others))
    for batch in rows.batches(plugins.load("readers", format)(form).blocks(stream, wanted)):
        batch.validate(full=True)
        assert batch.schema.names == [*columns.names, BAD_ROW_COLUMN]
        yield batch


def read(format: str, data: bytes, columns: Columns = URL, schema: pa.Schema | None = None) -> list[dict[str, Any]]:
    rows, reasons = with_places(format, data, columns, schema)
    assert not any(reasons)
    return rows


def with_places(
    format: str, data: bytes, columns: Columns = URL, schema: pa.Schema | None = None
) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows, and why each could not be read; empty for those that could."""
    rows = [row for batch in batches_of(format, data, columns, schema) for row in batch.to_pylist()]
    reasons = [row.pop(BAD_ROW_COLUMN) or "" for row in rows]
    return rows, reasons


def urls(format: str, data: bytes, columns: Columns = URL) -> list[str]:
    return [row["url"] for row in read(format, data, columns)]


def until_broken(
    format: str, data: bytes, columns: Columns = URL, schema: pa.Schema | None = None
) -> tuple[list[dict[str, Any]], ReadError]:
    rows: list[dict[str, Any]] = []
    batches = batches_of(format, data, columns, schema, stops=True)
    with pytest.raises(ReadError) as caught:
        rows.extend(row for batch in batches for row in batch.select(columns.names).to_pylist())
    return rows, caught.value


class Breaking(io.BytesIO):
    """A stream that fails where its bytes end, and hands out few at a time."""

    def read(self, size: int | None = -1) -> bytes:
        piece = super().read(min(size or 7, 7))
        if not piece:
            raise ReadError("", "connection lost")
        return piece


def until_lost(format: str, data: bytes, columns: Columns = URL) -> list[str]:
    rows: list[str] = []
    batches = batches_of(format, Breaking(data), columns)
    with pytest.raises(ReadError, match="connection lost"):
        rows.extend(url for batch in batches for url in batch["url"].to_pylist())
    return rows


class TestTxt:
    def test_one_url_a_line_whatever_it_contains(self) -> None:
        lines = ["http://a/x,y.jpg", 'http://a/"q"', "http://a/a b?c=d#e", "http://a/\u00fc", "no url"]
        assert urls("txt", "\n".join(lines).encode()) == lines

    def test_bytes_that_are_not_utf8_become_percent_escapes(self) -> None:
        assert urls("txt", b"http://a/caf\xe9\nhttp://a/\xc3\xa9\n") == ["http://a/caf%E9", "http://a/\u00e9"]

    @pytest.mark.parametrize("length", [2**16 + 1, 3 * 2**20])
    def test_a_line_that_is_too_long_is_a_bad_url_that_can_be_recognised(self, length: int) -> None:
        long = [
            b"http://a/" + b"x" * length,
            b"http://a/" + b" " * length + b"x",
            b" " * (2**16 - 20) + b"http://a/" + b"y" * length,
            b"http://a/" + "猫".encode() * length,
            b"http://a/" + b"\xe9" * length,
        ]
        given = urls("txt", b"http://a/1\n" + b"\nhttp://a/2\n".join(long))
        assert given[::2] == ["http://a/1"] + ["http://a/2"] * 4
        for url in given[1::2]:
            assert url.startswith("http://a/")
            assert url.endswith("…")
            outcome = normalize(url)
            assert isinstance(outcome, Failure)
            assert (outcome.code, outcome.detail) == ("bad_url", "the URL is longer than 65536 characters")

    def test_lines_across_blocks(self) -> None:
        lines = [f"http://example.com/{i}/" + "x" * (i % 97) for i in range(60_000)]
        assert urls("txt", "\r\n".join(lines).encode()) == lines

    def test_a_line_cut_off_by_a_failure_is_no_row(self) -> None:
        assert until_lost("txt", b"http://a/1\nhttp://a/2\nhttp://a/3") == ["http://a/1", "http://a/2"]


@pytest.mark.parametrize(("format", "mark"), [("csv", ","), ("tsv", "\t")])
class TestSeparated:
    COLUMNS = Columns("url", "caption", ("n",))

    @staticmethod
    def table(mark: str, *rows: str) -> bytes:
        return "\n".join(row.replace("|", mark) for row in rows).encode()

    @pytest.mark.parametrize("type", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
    def test_a_text_is_kept_as_it_is(self, format: str, mark: str, type: pa.DataType) -> None:
        """Also if a Parquet file before it has given it another type of text."""
        texts = ["NA", " pad ", "null", ""]
        schema = pa.schema({"url": pa.string(), "n": type})
        data = self.table(mark, "url|n", *(f"u|{text}" for text in texts))
        found = [row["n"] for row in read(format, data, Columns("url", None, ("n",)), schema)]
        assert [each if isinstance(each, str) else each.decode() for each in found] == texts

    @pytest.mark.parametrize("before", [0, 1, 5, 200_000])
    @pytest.mark.parametrize("bad", ["bad", "bad|2|3|4"])
    def test_everything_before_a_malformed_row_and_nothing_after(
        self, format: str, mark: str, before: int, bad: str
    ) -> None:
        good = [f"http://a/{i}|c\n|{i}".replace("c\n", '"c\nd"') for i in range(before)]
        rows, error = until_broken(format, self.table(mark, "url|caption|n", *good, bad, *good, bad, ""), self.COLUMNS)
        assert [row["url"] for row in rows] == [f"http://a/{i}" for i in range(before)]
        assert error.where == f"row {before + 2}"
        assert "for 3 columns" in error.reason

    @pytest.mark.parametrize("after", [0, 5, 400_000])
    def test_a_quote_that_is_never_closed(self, format: str, mark: str, after: int) -> None:
        lines = ["http://a/3|c"] * after
        data = self.table(mark, "url|caption", "http://a/1|c", 'http://a/2|"c', *lines)
        rows, error = until_broken(format, data, Columns("url", "caption"))
        assert rows == [{"url": "http://a/1", "caption": "c"}]
        assert error.where == "row 3"
        assert "quote" in error.reason

    @pytest.mark.parametrize(
        ("tail", "survive"),
        [("u3|", 2), ("u3", 2), ('u3|"c\n', 2), ("u3|c3\n", 3), ("u3|c3", 2), ('u3|"a\nb"\nu4', 3), ("", 2)],
    )
    def test_a_row_cut_off_by_a_failure_is_no_row(self, format: str, mark: str, tail: str, survive: int) -> None:
        data = self.table(mark, "url|caption", "u1|c1", "u2|c2", tail)
        assert until_lost(format, data, Columns("url", "caption")) == ["u1", "u2", "u3"][:survive]

    @pytest.mark.parametrize("before", [0, 1, 60_000])
    @pytest.mark.parametrize("bad", ["bad", "bad|2|3|4", 'bad|"open|3'])
    def test_the_list_goes_on_behind_a_malformed_row(self, format: str, mark: str, before: int, bad: str) -> None:
        good = [f"http://a/{i}|c|{i}" for i in range(before)]
        data = self.table(mark, "url|caption|n", *good, bad, *good, "http://a/x|c|1", "")
        rows, reasons = with_places(format, data, self.COLUMNS)
        assert [row["n"] for row in rows] == [*range(before), None, *range(before), 1]
        assert rows[before] == {"url": None, "caption": None, "n": None}
        assert [reason for reason in reasons if reason] == [reasons[before]]
        assert reasons[before].startswith(f"row {before + 2}: ")
        assert bad.replace("|", mark).split(mark)[0] in reasons[before]

    def test_an_open_quote_takes_no_more_than_its_line_where_none_follows(self, format: str, mark: str) -> None:
        good = [f"http://a/{i}|{'c' * 5000}" for i in range(1200)]  # more than is read at a time
        data = self.table(mark, "url|caption", good[0], 'u|"open', *good, '"v|c', good[0])
        rows, reasons = with_places(format, data, Columns("url", "caption"))
        urls = [line.partition("|")[0] for line in good]
        assert [row["url"] for row in rows] == [urls[0], None, *urls, None, urls[0]]
        assert [row for row, reason in enumerate(reasons) if reason] == [1, len(rows) - 2]

    @pytest.mark.parametrize(("between", "newline"), [(0, "\n"), (2, "\r\n"), (20_000, "\n")])
    @pytest.mark.parametrize("stray", ['u|"a 5 inch disk', '"u|a disk'])
    def test_a_quote_that_is_not_closed_before_a_delimiter_fails_its_line(
        self, format: str, mark: str, between: int, stray: str, newline: str
    ) -> None:
        good = ["http://a/1|c"] * between + ['http://a/2|"hello"', '"http://a/3"|"two ""words""\n|"', '|""', 'x|5" y']
        data = self.table(mark, "url|caption", *good, stray, *good, stray, *good).replace(b"\n", newline.encode())
        rows, reasons = with_places(format, data, Columns("url", "caption"))
        expected = ["c"] * between + ["hello", f'two "words"{newline}{mark}', "", '5" y']
        assert [row["caption"] for row in rows] == [*expected, None, *expected, None, *expected]
        places = [len(expected), 2 * len(expected) + 1]
        assert [row for row, reason in enumerate(reasons) if reason] == places
        shown = " ".join(stray.replace("|", mark).split())
        assert all(f"row {place + 2}: a quote is opened" in reasons[place] for place in places)
        assert all(repr(shown) in reasons[place] for place in places)

    def test_a_line_that_is_too_long_is_a_bad_row(self, format: str, mark: str) -> None:
        data = self.table(mark, "url|caption", "u|c", "x|" + "y" * 2**22, "v|c")
        rows, reasons = with_places(format, data, Columns("url", "caption"))
        assert [row["url"] for row in rows] == ["u", None, "v"]
        assert reasons[1] == "row 3: a row of more than 2097152 bytes"

    def test_long_values_and_nul_bytes(self, format: str, mark: str) -> None:
        long = "long\n" * 300_000
        data = self.table(mark, "url|caption", f'u|"{long}"', "v|a\0b", 'w|"c"', "bad")
        rows, reasons = with_places(format, data, Columns("url", "caption"))
        assert [row["caption"] for row in rows] == [long, "ab", "c", None]
        assert [bool(reason) for reason in reasons] == [False, False, False, True]

    def test_a_quote_in_the_header_that_is_never_closed(self, format: str, mark: str) -> None:
        with pytest.raises(ReadError, match="row 1: a quote is opened and never closed"):
            read(format, self.table(mark, 'url|"caption', "u|c"))

    def test_values_that_do_not_fit_fail_their_rows(self, format: str, mark: str) -> None:
        schema = pa.schema({"url": pa.string(), "i": pa.int64(), "f": pa.float64(), "t": pa.timestamp("s")})
        values = ["1|1|2024-01-02", "x|1|2024-01-02", "9" * 19 + "|1|", "2|1_0|", "|1.5|yesterday", "bad", "-7|nan|"]
        data = self.table(mark, "url|i|f|t", *(f"u|{value}" for value in values))
        rows, reasons = with_places(format, data, Columns("url", None, ("i", "f", "t")), schema)
        assert [row["i"] for row in rows] == [1, None, None, None, None, None, -7]
        named = [reason.partition(" is not ")[0] for reason in reasons]
        assert named == [
            "",
            "row 3: column 'i': 'x'",
            f"row 4: column 'i': '{'9' * 19}'",
            "row 5: column 'f': '1_0'",
            "row 6: column 't': 'yesterday'",
            f"row 7: 2 values for 4 columns: 'u{mark if mark == ',' else ' '}bad'",
            "",
        ]

    def test_a_header_that_is_missing(self, format: str, mark: str) -> None:
        for line, way in (("http://a/1", "--input_format=txt"), ("http://me:pw@a/1|c", "--columns=url,c1")):
            with pytest.raises(WrongFormat, match=f"looks like data, not a header .*{way}") as caught:
                urls(format, self.table(mark, line, line))
            assert "pw" not in str(caught.value)

    def test_blank_lines_are_no_rows(self, format: str, mark: str) -> None:
        rows, error = until_broken(format, self.table(mark, "url|n", "", "u|1", "", "v|2", "", "bad", "w|3"))
        assert [row["url"] for row in rows] == ["u", "v"]
        assert error.where == "row 4"

    def test_bytes_that_are_not_utf8(self, format: str, mark: str) -> None:
        data = self.table(mark, "url|caption").strip() + b"\nhttp://a/\xe9" + mark.encode() + b"caf\xe9\n"
        rows = read(format, data, Columns("url", "caption"))
        assert rows == [{"url": "http://a/%E9", "caption": "caf\ufffd"}]

    def test_a_header_that_is_not_utf8_or_has_several_lines(self, format: str, mark: str) -> None:
        data = self.table(mark, '|"two\nlines"|caf\xe9|url', "1|2|3|u").decode().encode("latin-1")
        assert read(format, b"\n" + data, Columns("url", "two\nlines", ("caf\ufffd",))) == [
            {"url": "u", "two\nlines": "2", "caf\ufffd": 3}
        ]


class TestJsonl:
    COLUMNS = Columns("url", "caption", ("n",))

    def test_null_and_absent_keys(self) -> None:
        data = b'\xef\xbb\xbf{"url":"u","caption":null}\r\n\n  \n{"n":2,"url":null,"caption":"c"}\n{"url":"w"}'
        assert read("jsonl", data, self.COLUMNS) == [
            {"url": "u", "caption": None, "n": None},
            {"url": None, "caption": "c", "n": 2},
            {"url": "w", "caption": None, "n": None},
        ]

    @pytest.mark.parametrize(
        ("values", "type"),
        [
            (["1", "2.5", "null"], pa.float64()),
            (["1", "-2"], pa.int64()),
            (["true", "null"], pa.bool_()),
            (["null"], pa.string()),
            (["[1, 2]", "[]"], pa.list_(pa.int64())),
            (['{"a": 1}', '{"a": null}'], pa.struct({"a": pa.int64()})),
            (["NaN", "1"], pa.float64()),
        ],
    )
    def test_types(self, values: list[str], type: pa.DataType) -> None:
        data = "\n".join(f'{{"url": "u", "n": {value}}}' for value in values).encode()
        (batch,) = batches_of("jsonl", data, Columns("url", None, ("n",)))
        assert batch.schema.field("n").type == type
        assert batch["n"].null_count == values.count("null")

    @pytest.mark.parametrize(
        "values", [[1, "a"], [True, 2], [{"a": 1}, {"b": 2}], [{}], [[]], [[1], "a"], [[1, "a"]], [2**63, None]]
    )
    def test_values_that_do_not_go_together_become_json_text(self, values: list[Any]) -> None:
        data = "\n".join(json.dumps({"url": "u", "n": value}) for value in values).encode()
        rows = read("jsonl", data, Columns("url", None, ("n",)))
        texts = [value if isinstance(value, str) or value is None else json.dumps(value) for value in values]
        assert [row["n"] and row["n"].replace(" ", "") for row in rows] == [t and t.replace(" ", "") for t in texts]

    @pytest.mark.parametrize(
        ("type", "fits", "misfit"),
        [
            (pa.int64(), "2.0", "2.5"),
            (pa.int64(), "2", '"2"'),
            (pa.int64(), "2", "true"),
            (pa.int64(), "2", "9223372036854775808"),
            (pa.float64(), "2", '"x"'),
            (pa.bool_(), "true", "1"),
            (pa.list_(pa.string()), '["x"]', '"x"'),
            (pa.struct({"a": pa.int64()}), "{}", '{"a": 1, "b": 2}'),
        ],
    )
    def test_a_later_value_that_does_not_fit_ends_the_list_there(
        self, type: pa.DataType, fits: str, misfit: str
    ) -> None:
        schema = pa.schema({"url": pa.string(), "n": type})
        data = f'{{"url":"u","n":{fits}}}\n\n{{"url":"v","n":{misfit}}}\n{{"url":"w","n":{fits}}}\n'.encode()
        rows, error = until_broken("jsonl", data, Columns("url", None, ("n",)), schema)
        assert [row["url"] for row in rows] == ["u"]
        assert error.where == "line 3"
        assert error.reason.startswith("column 'n': ")
        assert error.reason.endswith(
            f" is not {type}, the type of the first rows; --column_types=n:string declares another"
        )

    @pytest.mark.parametrize("before", [0, 3, 100_000])
    @pytest.mark.parametrize("bad", [b'{"url": "x"', b'["x"]', b"x", b'{"url": "\xe9"}', b'{"url":"a"} {"url":"b"}'])
    def test_everything_before_a_malformed_line_and_nothing_after(self, before: int, bad: bytes) -> None:
        good = b"".join(b'{"url": "http://a/%d"}\n' % i for i in range(before))
        rows, error = until_broken("jsonl", good + bad + b"\n" + good)
        assert [row["url"] for row in rows] == [f"http://a/{i}" for i in range(before)]
        assert error.where == f"line {before + 1}"

    def test_the_list_goes_on_behind_lines_and_values_that_are_bad(self) -> None:
        good = '{"url": "u", "n": 1}\n'
        bad = ['{"url": "x"', "[1]", "x", '{"url": {"0": "u"}, "n": 1}', '{"url": "u", "n": "A12"}', '{"n": 2.5}']
        schema = pa.schema({"url": pa.string(), "n": pa.int64()})
        data = (good + good.join(f"{line}\n" for line in bad) + good).encode()
        rows, reasons = with_places("jsonl", data, Columns("url", None, ("n",)), schema)
        assert [row["n"] for row in rows] == [1, None] * len(bad) + [1]
        assert [reason.partition(": ")[0] for reason in reasons if reason] == [f"line {2 * n + 2}" for n in range(6)]

    @pytest.mark.parametrize(
        "line",
        [
            '{"n": 1, "url": "\\u00e9é\\n"}',
            '{"n": null}',
            '{"url": "a", "url": "b"}',
            '{"url": "a", "n": 3.0}',
            '{"url": "a", "n": 3.5}',
            '{"url": "a", "n": 9223372036854775808}',
            '{"url": "a", "f": 3, "other": {"url": [NaN]}}',
            '{"url": "a", "f": 0.1234567890123456789}',
            '{"url": "a", "f": 1e400}',
            '{"url": 5, "n": true}',
            '{"url": ["a"]}',
            '{"url": "\\ud800"}',
            '{"url": "a"} {"url": "b"}',
            '{"url":\n"a"}',
            "[1]",
            "",
        ],
    )
    def test_a_line_is_read_alike_wherever_it_stands(self, line: str) -> None:
        schema = pa.schema({"url": pa.string(), "n": pa.int64(), "f": pa.float64()})
        columns = Columns("url", None, ("n", "f"))
        good = json.dumps({"url": "u" * 300, "n": 1, "f": 0.5}).encode() + b"\n"
        many = 4000  # more than a block
        odd = f"{line}\n".encode()
        first, why_first = with_places("jsonl", odd + good, columns, schema)
        rows, reasons = with_places("jsonl", good * many + odd + good * many, columns, schema)
        between = slice(many, len(rows) - many)
        assert str(rows[between]) == str(first[:-1])
        assert [why.partition(": ")[2] for why in reasons[between]] == [
            why.partition(": ")[2] for why in why_first[:-1]
        ]
        assert rows[: between.start] == rows[between.stop :] == first[-1:] * many

    def test_bad_lines_before_the_first_good_one(self) -> None:
        rows, reasons = with_places("jsonl", b'{\n}\n{"url": "u", "n": 1}\n', Columns("url", None, ("n",)))
        assert [(row["n"], bool(reason)) for row, reason in zip(rows, reasons, strict=True)] == [
            (None, True),
            (None, True),
            (1, False),
        ]
        with pytest.raises(ReadError, match="line 1"):
            urls("jsonl", b"x\n" * 5000)

    def test_a_line_cut_off_by_a_failure_is_no_row(self) -> None:
        assert until_lost("jsonl", b'{"url":"a"}\n{"url":"b"}\n{"url":"c"}') == ["a", "b"]


class TestJson:
    def test_an_array_of_objects(self) -> None:
        items = [{"url": f"http://a/{i}", "n": i / 2, "tags": [str(i)]} for i in range(40_000)]
        data = b"\xef\xbb\xbf \n" + json.dumps(items, indent=1).encode()
        assert read("json", data, Columns("url", None, ("n", "tags"))) == items

    @pytest.mark.parametrize("rows", [1, 3, 30_000])
    @pytest.mark.parametrize("indent", [None, 2])
    @pytest.mark.parametrize("orient", ["columns", "records"])
    def test_what_pandas_writes(self, orient: Any, indent: int | None, rows: int) -> None:
        frame = pd.DataFrame(
            {
                "n": range(rows),
                "url": [f"http://a/{n}" for n in range(rows)],
                "caption": ['é, "猫"' if n % 2 else None for n in range(rows)],
                "score": [n / 2 for n in range(rows)],
            }
        )
        expected = [
            {"url": f"http://a/{n}", "caption": 'é, "猫"' if n % 2 else None, "n": n, "score": n / 2}
            for n in range(rows)
        ]
        data = frame.to_json(orient=orient, indent=indent).encode()
        assert read("json", data, Columns("url", "caption", ("n", "score"))) == expected

    def test_a_single_row_over_several_lines(self) -> None:
        row = {"url": "u", "caption": "c", "tags": [{"a": 1}]}
        assert urls("json", json.dumps(row).encode()) == ["u"]
        assert urls("json", (json.dumps(row, indent=1) + "\n" + json.dumps(row, indent=1)).encode()) == ["u", "u"]

    def test_a_frame_without_the_column(self) -> None:
        frame = pd.DataFrame({"link": ["u", "v"], "n": [1, 2]})
        with pytest.raises(MissingColumns) as caught:
            urls("json", frame.to_json(orient="records").encode())
        assert caught.value.existing == ("link", "n")
        with pytest.raises(WrongFormat, match="without the column 'url', whose keys are link, n"):
            urls("json", frame.to_json().encode())

    @pytest.mark.parametrize("path", ["image", "images.data", "info.x"])
    def test_a_path_that_is_not_there(self, path: str) -> None:
        with pytest.raises(WrongFormat, match=f"--rows={path}: "):
            list(batches_of("json", b'{"info": {"y": 1}, "images": [{"url": "u"}]}', URL, path=path))

    def test_columns_that_do_not_have_the_same_rows(self) -> None:
        with pytest.raises(ReadError, match="do not have the same rows"):
            read("json", b'{"url": {"0": "u", "1": "v"}, "n": {"0": 1, "2": 2}}', Columns("url", None, ("n",)))

    @pytest.mark.parametrize("before", [0, 1, 50_000])
    @pytest.mark.parametrize(
        "bad", [b"", b'{"url": ', b'{"url": "x"]', b"{}, 7]", b"{}, []]", b'{}, "x", {"url": "y"}]']
    )
    def test_everything_before_the_break(self, before: int, bad: bytes) -> None:
        good = b"".join(b'{"url": "http://a/%d"}, ' % i for i in range(before))
        bad = b'{"url": "z"}, ' + bad
        rows, error = until_broken("json", b"[" + good + bad)
        behind = ["z", None] if b"{}" in bad else ["z"]
        assert [row["url"] for row in rows] == [*(f"http://a/{i}" for i in range(before)), *behind]
        assert error.where == f"item {before + len(behind) + 1}"

    def test_something_behind_the_array(self) -> None:
        rows, _ = until_broken("json", b'[{"url": "u"}] x')
        assert [row["url"] for row in rows] == ["u"]

    @pytest.mark.parametrize("data", [b'"u"', b'["http://a/1"]', b"[[1, 2]]", b"<html>", b'{"total": 1, "rows": []}'])
    def test_other_forms_are_refused_with_the_known_ones(self, data: bytes) -> None:
        with pytest.raises(WrongFormat, match=r"an array of objects, one object a line|--rows=rows reads the rows"):
            urls("json", data)

    def test_an_item_cut_off_by_a_failure_is_no_row(self) -> None:
        assert until_lost("json", b'[{"url":"a"},{"url":"b"},{"url":"c"') == ["a", "b"]


class TestParquet:
    @staticmethod
    def file(table: pa.Table, **options: Any) -> bytes:
        sink = io.BytesIO()
        pq.write_table(table, sink, **options)
        return sink.getvalue()

    def test_columns_keep_their_types(self) -> None:
        table = pa.table(
            {
                "unused": [b"x"],
                "n": pa.array([1], pa.uint8()),
                "time": pa.array([5], pa.timestamp("us", "UTC")),
                "a.b": pa.array([1.5], pa.float32()),
                "nested": pa.array([{"a": [1]}]),
                "url": ["u"],
            }
        )
        columns = Columns("url", None, ("n", "time", "a.b", "nested"))
        (batch,) = batches_of("parquet", self.file(table), columns)
        names = ["url", "n", "time", "a.b", "nested"]
        assert batch.select(names).schema == table.select(names).schema

    def test_batches_of_wide_rows_are_small(self) -> None:
        table = pa.table({"url": ["u"] * 3000, "blob": [bytes([i % 256]) * 2**14 for i in range(3000)]})
        data = self.file(table, use_dictionary=False, compression="none")
        batches = batches_of("parquet", data, Columns("url", None, ("blob",)))
        assert max(batch.nbytes for batch in batches) <= 2**25

    @pytest.mark.parametrize("keep", [0, 4, 1000, -1, -20])
    def test_truncated(self, keep: int) -> None:
        data = self.file(pa.table({"url": [f"http://a/{i}" for i in range(5000)]}))[:keep]
        rows, error = until_broken("parquet", data)
        assert (rows, error.where) == ([], "row 0")

    def test_what_stands_before_a_damaged_page_is_used(self) -> None:
        data = bytearray(self.file(pa.table({"url": [f"http://a/{i}" for i in range(600_000)]}), use_dictionary=False))
        middle = len(data) // 2
        data[middle : middle + 20_000] = b"x" * 20_000
        rows, error = until_broken("parquet", bytes(data))
        assert 0 < len(rows) < 300_000
        assert [row["url"] for row in rows] == [f"http://a/{i}" for i in range(len(rows))]
        assert error.where == f"row {len(rows)}"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("format", ["txt", "csv", "tsv", "json", "jsonl"])
def test_utf16_with_a_byte_order_mark(format: str, encoding: str) -> None:
    many = [f"http://a/é猫/{n}" for n in range(60_000 if format == "csv" else 100)]
    text = {
        "json": json.dumps([{"url": url} for url in many], ensure_ascii=False),
        "jsonl": "".join(json.dumps({"url": url}, ensure_ascii=False) + "\n" for url in many),
    }.get(format, "\n".join(many if format == "txt" else ["url", *many]))
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    assert urls(format, (mark + text).encode(encoding)) == many
