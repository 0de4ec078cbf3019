"""Lists, and what is wrong with them: each format, odd texts, bad rows, several lists, and rows from Python."""

import bz2
import datetime
import gzip
import json
import lzma
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.play import Outcome, Play, Row, write_rows

WEB = {"a.txt": "ok", "b.txt": "ok", "c.txt": "ok"}
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
}
ROWS = {
    "a.txt": Row(columns={"caption": "first, with a comma", "number": 1}),
    "b.txt": Row(columns={"caption": 'a "quoted"\tone', "number": None}),
    "c.txt": Row("http_404", columns={"caption": "ünï", "number": 3}),
}


def played(name: str, content: str | bytes, written_in: str = "utf-8", **options: Any) -> Outcome:
    """What a command makes of one list; `{web}` in a text is the web's address."""
    play = Play(WEB)
    data = content.replace("{web}", play.web.base_url).encode(written_in) if isinstance(content, str) else content
    (play.folder / name).write_bytes(data)
    return play.run("download", name, **options)


def columns(outcome: Outcome, *names: str) -> list[tuple[Any, ...]]:
    """Of each row of the metadata: the last part of its URL, and these columns."""
    return [((row["url"] or "").rpartition("/")[2], *(row[name] for name in names)) for row in outcome.metadata]


def _parquet_of(column: str) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"url": ["http://host/a"], column: [1]}), sink)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("list_format", ["csv", "tsv", "json", "jsonl", "parquet"])
def test_captions_and_further_columns_of_each_format_are_in_the_metadata(list_format: str) -> None:
    play = Play(ROWS, list_format=list_format, caption_col="caption", save_additional_columns="number")
    outcome = play.run()
    assert columns(outcome, "caption", "number") == [
        ("a.txt", "first, with a comma", 1),
        ("b.txt", 'a "quoted"\tone', None),
        ("c.txt", "ünï", 3),
    ]
    assert outcome.codes == {"success": 2, "http_404": 1}
    assert [sample.files["txt"].decode() for sample in outcome.samples] == ["first, with a comma", 'a "quoted"\tone']


@pytest.mark.parametrize("name", ["txt.gz", "txt.zst", "csv.xz", "tsv.bz2", "json.gz", "jsonl.zst", "jsonl.bz2"])
@pytest.mark.parametrize("named", [True, False], ids=["by its name", "by input_format"])
def test_a_compressed_list_is_read(name: str, named: bool) -> None:
    kind, _, compression = name.partition(".")
    play = Play(WEB, list_format=kind)
    (plain,) = play.write_list()
    listed = f"packed.{name}" if named else "packed.data"
    (play.folder / listed).write_bytes(COMPRESS[compression]((play.folder / plain).read_bytes()))
    outcome = play.run("download", listed, **({} if named else {"input_format": name}))
    assert outcome.code_of == dict.fromkeys(WEB, "success")


def test_a_compressed_parquet_list_is_read() -> None:
    play = Play(WEB, list_format="parquet")
    (plain,) = play.write_list()
    (play.folder / "list.parquet.gz").write_bytes(gzip.compress((play.folder / plain).read_bytes()))
    assert play.run("download", "list.parquet.gz").code_of == dict.fromkeys(WEB, "success")


def test_input_format_that_names_a_compression_reads_plain_files_too() -> None:
    play = Play(WEB, list_format="txt")
    play.write_list()
    (play.folder / "list.txt").rename(play.folder / "list")
    assert play.run("download", "list", input_format="txt.gz").code_of == dict.fromkeys(WEB, "success")


FORMS_OF_JSON = {
    "array on one line": '[{"url": "{web}a.txt", "n": 1}, {"url": "{web}b.txt", "n": 2}]',
    "array over lines": '[\n{"url": "{web}a.txt", "n": 1},\n{"url": "{web}b.txt", "n": 2}\n]\n',
    "object a line": '{"url": "{web}a.txt", "n": 1}\n{"url": "{web}b.txt", "n": 2}\n',
    "orient columns": '{"url":{"0":"{web}a.txt","1":"{web}b.txt"},"n":{"0":1,"1":2}}',
    "columns as arrays": '{"url":["{web}a.txt","{web}b.txt"],"n":[1,2]}',
}


@pytest.mark.parametrize("content", FORMS_OF_JSON.values(), ids=FORMS_OF_JSON.keys())
def test_a_form_of_json_is_read(content: str) -> None:
    outcome = played("list.json", content, save_additional_columns="n")
    assert columns(outcome, "n", "status") == [("a.txt", 1, "success"), ("b.txt", 2, "success")]


# What a cell or a line becomes: list, options, and the metadata of each row beside its URL.
TEXTS: dict[str, tuple[str, str, str, dict[str, Any], list[tuple[Any, ...]]]] = {
    "quotes, brackets and blanks around a URL": (
        "l.txt",
        '{web}a.txt\r\n  <{web}b.txt> \n\n"{web}c.txt"',
        "utf-8",
        {},
        [("a.txt", "success"), ("b.txt", "success"), ("c.txt", "success")],
    ),
    "a byte order mark before the header": (
        "l.csv",
        "url,c\n{web}a.txt,é\n",
        "utf-8-sig",
        {"save_additional_columns": "c"},
        [("a.txt", "success", "é")],
    ),
    "utf-16": (
        "l.csv",
        "url,c\n{web}a.txt,é\n",
        "utf-16",
        {"save_additional_columns": "c"},
        [("a.txt", "success", "é")],
    ),
    "a byte that is not utf-8": (
        "l.csv",
        "url,c\n{web}a.txt,é\n{web}b.txt,x\n",
        "latin-1",
        {"save_additional_columns": "c"},
        [("a.txt", "success", "\ufffd"), ("b.txt", "success", "x")],
    ),
    "quoted value over lines": (
        "l.csv",
        'url,c\n{web}a.txt,"x\n""y"""\n\n{web}b.txt,z\n',
        "utf-8",
        {"save_additional_columns": "c"},
        [("a.txt", "success", 'x\n"y"'), ("b.txt", "success", "z")],
    ),
    "old Mac line ends": (
        "l.csv",
        "url,c\r{web}a.txt,x\r{web}b.txt,y\r",
        "utf-8",
        {"save_additional_columns": "c"},
        [("a.txt", "success", "x"), ("b.txt", "success", "y")],
    ),
    "numbers, dates and nulls are inferred": (
        "l.csv",
        "url,n,f,d\n{web}a.txt,7,1.5,2024-01-02\n{web}b.txt,,,\n",
        "utf-8",
        {"save_additional_columns": "n,f,d"},
        [("a.txt", "success", 7, 1.5, datetime.date(2024, 1, 2)), ("b.txt", "success", None, None, None)],
    ),
    "a column with 007 is text": (
        "l.tsv",
        "url\tn\n{web}a.txt\t007\n{web}b.txt\t8\n",
        "utf-8",
        {"save_additional_columns": "n"},
        [("a.txt", "success", "007"), ("b.txt", "success", "8")],
    ),
    "a column that is declared to be text": (
        "l.csv",
        "url,n,f\n{web}a.txt,7,1\n",
        "utf-8",
        {"save_additional_columns": "n,f", "column_types": "n:string,f:float"},
        [("a.txt", "success", "7", 1.0)],
    ),
    "a value that is not of its declared type": (
        "l.csv",
        "url,n\n{web}a.txt,7\n{web}b.txt,x\n{web}c.txt,9\n",
        "utf-8",
        {"save_additional_columns": "n", "column_types": "n:int"},
        [("a.txt", "success", 7), ("", "bad_row", None), ("c.txt", "success", 9)],
    ),
    "too few and too many values": (
        "l.csv",
        "url,n\n{web}a.txt\n{web}b.txt,1\n{web}c.txt,1,2\n",
        "utf-8",
        {"save_additional_columns": "n"},
        [("", "bad_row", None), ("b.txt", "success", 1), ("", "bad_row", None)],
    ),
    "a quote that is not closed": (
        "l.csv",
        'url,c\n{web}a.txt,"open\n{web}b.txt,x\n{web}c.txt,y\n',
        "utf-8",
        {"save_additional_columns": "c"},
        [("", "bad_row", None), ("b.txt", "success", "x"), ("c.txt", "success", "y")],
    ),
    "lines that are no objects": (
        "l.jsonl",
        '{"url":"{web}a.txt","n":1}\nnot json\n[1]\n{"url":"{web}b.txt","n":2}\n{"n":3}\n',
        "utf-8",
        {"save_additional_columns": "n"},
        [
            ("a.txt", "success", 1),
            ("", "bad_row", None),
            ("", "bad_row", None),
            ("b.txt", "success", 2),
            ("", "bad_url", 3),
        ],
    ),
    "half of a surrogate pair": (
        "l.jsonl",
        '{"url":"{web}a.txt","s":"cut \\ud83d"}\n',
        "utf-8",
        {"save_additional_columns": "s"},
        [("a.txt", "success", "cut \ufffd")],
    ),
    "lists and objects": (
        "l.jsonl",
        '{"url":"{web}a.txt","t":["x","y"],"o":{"p":1}}\n',
        "utf-8",
        {"save_additional_columns": "t,o"},
        [("a.txt", "success", ["x", "y"], {"p": 1})],
    ),
    "rows without a usable URL": (
        "l.csv",
        "url,n\n{web}a.txt,1\n,2\nword,3\nhttp://,4\n/etc/passwd,5\n",
        "utf-8",
        {"save_additional_columns": "n"},
        [
            ("a.txt", "success", 1),
            ("", "bad_url", 2),
            ("word", "bad_url", 3),
            ("", "bad_url", 4),
            ("passwd", "bad_url", 5),
        ],
    ),
    "another separator, and no header": (
        "l.csv",
        "{web}a.txt;x\n{web}b.txt;y\n",
        "utf-8",
        {"separator": ";", "columns": "url,c", "save_additional_columns": "c"},
        [("a.txt", "success", "x"), ("b.txt", "success", "y")],
    ),
    "a txt with columns": (
        "l.txt",
        "n1\t{web}a.txt\nn2\t{web}b.txt\n",
        "utf-8",
        {"separator": "tab", "columns": "n,url", "save_additional_columns": "n"},
        [("a.txt", "success", "n1"), ("b.txt", "success", "n2")],
    ),
    "comments, and blanks behind commas": (
        "l.csv",
        '# made today\nurl, c\n{web}a.txt, "x, y"\n# {web}b.txt, z\n',
        "utf-8",
        {"comment": "#", "separator": ", ", "save_additional_columns": "c"},
        [("a.txt", "success", "x, y")],
    ),
    "comments, and old Mac line ends": (
        "l.csv",
        "# one\r# two\rurl,c\r{web}a.txt,x\r #three\r{web}b.txt,#y\r",
        "utf-8",
        {"comment": "#", "save_additional_columns": "c"},
        [("a.txt", "success", "x"), ("b.txt", "success", "#y")],
    ),
    "another encoding": (
        "l.csv",
        "url,c\n{web}a.txt,é\n",
        "latin-1",
        {"encoding": "latin-1", "save_additional_columns": "c"},
        [("a.txt", "success", "é")],
    ),
    "quotes of a tsv that quote nothing": (
        "l.tsv",
        'url\tc\n{web}a.txt\t"Love" by an artist\n{web}b.txt\t"He said\n{web}c.txt\tthe end"\n',
        "utf-8",
        {"save_additional_columns": "c"},
        [
            ("a.txt", "success", '"Love" by an artist'),
            ("b.txt", "success", '"He said'),
            ("c.txt", "success", 'the end"'),
        ],
    ),
    "quoted values of a tsv": (
        "l.tsv",
        'url\tc\n{web}a.txt\t"x\ty ""z"""\n{web}b.txt\tw\n',
        "utf-8",
        {"save_additional_columns": "c"},
        [("a.txt", "success", 'x\ty "z"'), ("b.txt", "success", "w")],
    ),
    "two stray quotes with rows between them": (
        "l.csv",
        'url,c\n{web}a.txt,"He said\n{web}b.txt,x\n{web}c.txt,the end"\n',
        "utf-8",
        {"save_additional_columns": "c"},
        [("", "bad_row", None), ("b.txt", "success", "x"), ("c.txt", "success", 'the end"')],
    ),
    "urls made of columns": (
        "l.csv",
        "name,kind,url\na,txt,x\nb,txt,y\n",
        "utf-8",
        {"url_template": "{web}{name}.{kind}", "save_additional_columns": "name"},
        [("a.txt", "success", "a"), ("b.txt", "success", "b")],
    ),
    "urls made of lines": (
        "l.txt",
        "a.txt\nb.txt\n",
        "utf-8",
        {"url_template": "{web}{url}"},
        [("a.txt", "success"), ("b.txt", "success")],
    ),
    "references of html and invisible signs": (
        "l.txt",
        "\ufeff{web}a.txt\n\u200b{web}b.txt\n{web}c.txt?a=1&amp;b=2\n",
        "utf-8",
        {"unescape_html": "true"},
        [("a.txt", "success"), ("b.txt", "success"), ("c.txt?a=1&b=2", "success")],
    ),
    "zero bytes": (
        "l.txt",
        "\0{web}a.txt\0\n{web}b.t\0xt\n",
        "utf-8",
        {},
        [("a.txt", "success"), ("b.txt", "success")],
    ),
    "a label that is caption and column": (
        "l.csv",
        "url,label\n{web}a.txt,3\n",
        "utf-8",
        {"caption_col": "label", "save_additional_columns": "label"},
        [("a.txt", "success", 3)],
    ),
    "rows below a path": (
        "l.json",
        '{"info": {"n": [1]}, "data": {"items": [{"url": "{web}a.txt", "n": 1}, {"url": "{web}b.txt", "n": 2}]}}',
        "utf-8",
        {"rows": "data.items", "save_additional_columns": "n"},
        [("a.txt", "success", 1), ("b.txt", "success", 2)],
    ),
    "another column of URLs": (
        "l.csv",
        "url,link\nword,{web}a.txt\n",
        "utf-8",
        {"url_col": "link"},
        [("a.txt", "success")],
    ),
}


@pytest.mark.parametrize("case", TEXTS.values(), ids=TEXTS.keys())
def test_what_becomes_of_rows_and_values(case: Any) -> None:
    name, content, encoding, options, expected = case
    outcome = played(name, content, encoding, **options)
    names = [one for one in options.get("save_additional_columns", "").split(",") if one]
    assert outcome.exit_code == 0
    assert [
        ((row["url"] or "").rpartition("/")[2], row["error_code"] or row["status"], *(row[one] for one in names))
        for row in outcome.metadata
    ] == expected
    assert sum(outcome.codes.values()) == len(expected)


def test_nan_and_infinity_are_missing_values_that_a_column_of_floats_keeps() -> None:
    text = '{"url":"{web}a.txt","n":NaN,"s":"x"}\n{"url":"{web}b.txt","n":1.5,"s":NaN}\n'
    first, second = played("l.jsonl", text, save_additional_columns="n,s").metadata
    assert math.isnan(first["n"])
    assert (second["n"], second["s"]) == (1.5, None)


def test_the_place_and_the_text_of_a_bad_row_are_in_its_message() -> None:
    _, bad = played("l.csv", "url,n\n{web}a.txt,1\n{web}b.txt,2,surplus\n").metadata
    assert bad["error_code"] == "bad_row"
    assert "row 3" in bad["error_message"]
    assert "surplus" in bad["error_message"]


@pytest.mark.parametrize("dedupe", ["shard", "run"])
def test_bad_rows_are_rows_of_a_sound_dataset_and_stay_where_the_list_grows(dedupe: str) -> None:
    text = 'url,n\n{web}a.txt,1\nbad line\nhttp://me:secret@h/x,3,4\n{web}b.txt,"open\n{web}c.txt,5\n'
    play = Play(WEB, lists={"l.csv": text}, number_sample_per_shard=2, dedupe=dedupe, save_additional_columns="n")
    first = play.run()
    assert first.codes == {"success": 2, "bad_row": 3}
    messages = [row["error_message"].partition(": ")[0] for row in first.metadata if row["error_code"]]
    assert messages == ["row 3", "row 4", "row 5"]
    assert "secret" not in str(first.metadata)
    assert play.run("verify").exit_code == 0
    assert play.run("retry", codes="all").requests.total() == 0
    (play.folder / "l.csv").write_text(text.replace("{web}", play.web.base_url) + f"1,2,3\n{play.web.url('b.txt')},6\n")
    grown = play.run("download", "l.csv")
    assert (grown.codes, grown.requests) == ({"success": 3, "bad_row": 4}, {"b.txt": 1})
    assert play.run("verify").exit_code == 0


def test_a_later_value_of_another_type_fails_its_row_with_the_option_that_helps() -> None:
    play = Play(WEB)
    for name, file, value in (("1.csv", "a.txt", "1"), ("2.csv", "b.txt", "A12")):
        (play.folder / name).write_text(f"url,n\n{play.web.url(file)},{value}\n")
    outcome = play.run("download", "1.csv,2.csv", save_additional_columns="n")
    assert outcome.codes == {"success": 1, "bad_row": 1}
    assert "2.csv, row 2: column 'n': 'A12' is not int64" in outcome.metadata[1]["error_message"]
    assert "--column_types=n:string" in outcome.metadata[1]["error_message"]


# What is refused before anything is written, and a word that says why.
REFUSED: dict[str, tuple[str, str | bytes, dict[str, Any], str]] = {
    "csv without a header": ("l.csv", "{web}a.txt,x\n{web}b.txt,y\n", {}, "header"),
    "no column of URLs": ("l.csv", "link,c\n{web}a.txt,x\n", {}, "--url_col=link"),
    "no column of captions": ("l.csv", "url\n{web}a.txt\n", {"caption_col": "words"}, "'words'"),
    "no further column": ("l.csv", "url\n{web}a.txt\n", {"save_additional_columns": "words"}, "'words'"),
    "txt with columns": ("l.txt", "{web}a.txt\tx\n{web}b.txt\ty\n", {}, "--input_format=tsv"),
    "txt and an option for a column": ("l.txt", "{web}a.txt\n", {"caption_col": "words"}, "'words'"),
    "nothing that is a URL": ("l.txt", "no\nurls\nhere\n", {}, "URL"),
    "a picture": ("l.txt", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", {}, "image/png"),
    "parquet under another name": ("l.csv", b"PAR1\0\0\0\0PAR1", {}, "arquet"),
    "an empty list": ("l.txt", "", {}, "empty"),
    "a header alone": ("l.csv", "url,c\n", {}, "empty"),
    "an array of arrays": ("l.json", '[["{web}a.txt"]]', {}, "array"),
    "a column that any2ds writes": (
        "l.csv",
        "url,status\n{web}a.txt,x\n",
        {"save_additional_columns": "status:key"},
        "'key'",
    ),
    "another separator": ("l.csv", "url;c\n{web}a.txt;x\n", {}, "--separator=';'"),
    "an array in jsonl": ("l.jsonl", '[{"url": "{web}a.txt"}]', {}, "--input_format=json"),
    "rows one level down": ("l.json", '{"info": {}, "images": [{"url": "{web}a.txt"}]}', {}, "--rows=images"),
    "a Git-LFS pointer": (
        "l.parquet",
        "version https://git-lfs.github.com/spec/v1\noid sha256:4d\n",
        {},
        "git lfs pull",
    ),
    "a web page": ("l.csv", "<!DOCTYPE html><html><body>Not found</body></html>", {}, "web page"),
    "an error as parquet": ("l.parquet", "Access to dataset is restricted", {}, "Access to dataset"),
    "a parquet file that is cut off": ("l.parquet", b"PAR1\0\0\0\0PAR1", {}, "cut off or damaged"),
    "a parquet file with a damaged name": (
        "l.parquet",
        _parquet_of("other").replace(b"other", b"oth\x86r"),
        {},
        "damaged",
    ),
    "a template without columns": ("l.csv", "url\n{web}a.txt\n", {"url_template": "http://host/"}, "url_template"),
    "an encoding that there is not": ("l.csv", "url\n{web}a.txt\n", {"encoding": "latin-99"}, "encoding"),
    "a separator of two characters": ("l.csv", "url\n{web}a.txt\n", {"separator": "::"}, "separator"),
    "two columns of one name": ("l.csv", "url,url\n{web}a.txt,x\n", {}, "'url'"),
    "a type that there is not": ("l.csv", "url,n\n{web}a.txt,1\n", {"column_types": "n:word"}, "column_types"),
    "a format that there is not": ("l.csv", "url\n{web}a.txt\n", {"input_format": "xml"}, "input_format"),
    "a limit that is none": ("l.csv", "url\n{web}a.txt\n", {"limit": "-1"}, "limit"),
    "a shuffle that is no seed": ("l.csv", "url\n{web}a.txt\n", {"shuffle": "yes"}, "shuffle"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_a_list_is_refused_before_anything_is_written(case: Any) -> None:
    name, content, options, word = case
    outcome = played(name, content, **options)
    assert outcome.exit_code == 2
    assert word in outcome.screen
    assert not outcome.files
    assert not outcome.requests


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("l.jsonl", "no\njson\n"),
        ("l.csv", "url,c\na\nb\n"),
        # A column that may be null is said to be one that may not: Arrow ends a process that asks for its size.
        ("l.parquet", _parquet_of("other").replace(b"%\x02\x18\x03url", b"%\0\x18\x03url")),
    ],
    ids=["jsonl", "csv", "parquet"],
)
def test_a_list_of_which_nothing_can_be_read_ends_the_run(name: str, content: str | bytes) -> None:
    outcome = played(name, content)
    assert outcome.exit_code == 1
    assert name in outcome.screen
    assert not outcome.names


def test_a_list_that_is_not_there_is_refused() -> None:
    outcome = Play(WEB).run("download", "absent.csv")
    assert outcome.exit_code == 2
    assert "absent.csv" in outcome.screen


def test_on_bad_row_stop_reads_the_list_up_to_there() -> None:
    outcome = played("l.csv", "url,c\n{web}a.txt,x\n{web}b.txt\n{web}c.txt,z\n", on_bad_row="stop")
    assert outcome.exit_code == 1
    assert outcome.code_of == {"a.txt": "success"}
    assert "row 3" in outcome.screen


@pytest.mark.parametrize("cut", ["gzip", "array"])
def test_a_list_that_breaks_off_is_used_up_to_there(cut: str) -> None:
    play = Play(WEB, number_sample_per_shard=1000, dedupe="shard")
    if cut == "gzip":
        whole = gzip.compress("".join(f"{play.web.url('a.txt')}#{number}\n" for number in range(20_000)).encode())
        name, data = "l.txt.gz", whole[: len(whole) // 2]
    else:
        name, data = "l.json", json.dumps([{"url": play.web.url(name)} for name in WEB]).encode()[:-1]
    (play.folder / name).write_bytes(data)
    outcome = play.run("download", name)
    assert outcome.exit_code == 1
    assert name in outcome.screen
    rows = sum(outcome.codes.values())
    assert rows == 3 or cut == "gzip"
    assert 0 < rows < 20_000
    assert outcome.codes == {"success": rows}


def test_a_scheme_that_is_missing_is_added() -> None:
    play = Play(WEB)
    host = play.web.base_url.removeprefix("http://")
    (play.folder / "l.txt").write_text(f"//{host}a.txt\n{host}b.txt\n{play.web.url('c.txt')}\n")
    assert play.run("download", "l.txt", default_scheme="http").code_of == dict.fromkeys(WEB, "success")


@pytest.mark.parametrize("name", ["l.txt", "l.csv", "l.jsonl", "l.json"])
def test_bytes_that_are_not_of_the_encoding_are_told(name: str) -> None:
    kind = name.partition(".")[2]
    head, line = {"txt": ("", "%s\n"), "csv": ("url\n", "%s\n")}.get(kind, ("", '{"url": "%s"}\n'))
    content = head + line.replace("%s", "{web}a.txt?é") + line.replace("%s", "{web}b.txt")
    outcome = played(name, content, "latin-1", encoding="ascii")
    assert [row["url"].rpartition("/")[2] for row in outcome.metadata] == ["a.txt?\ufffd", "b.txt"]
    assert "some bytes are not ascii" in " ".join(outcome.screen.split())
    assert "some bytes" not in played(name, content, "latin-1", encoding="latin-1").screen


def test_a_template_makes_no_url_of_an_empty_cell() -> None:
    outcome = played("l.csv", "id,kind\na,txt\n,txt\n", url_template="{web}{id}.{kind}")
    assert outcome.requests == {"a.txt": 1}
    assert [row["url"] for row in outcome.metadata][1:] == [None]


def test_a_template_escapes_bytes_that_are_no_text_and_refuses_lists() -> None:
    play = Play(WEB)
    ids = pa.array([b"a.txt?", b"b.txt?\xe9"])
    pq.write_table(pa.table({"id": ids, "tags": [["x"], ["y"]]}), play.folder / "l.parquet")
    outcome = play.run("download", "l.parquet", url_template="{web}{id}")
    assert columns(outcome, "status") == [("a.txt?", "success"), ("b.txt?%E9", "success")]
    refused = play.run("download", "l.parquet", url_template="{web}{tags}")
    assert (refused.exit_code, refused.requests) == (2, {})
    assert "the column 'tags' holds list<" in refused.screen


def test_unescape_html_leaves_parameters_that_begin_as_references_do() -> None:
    text = "{web}a.txt?x=1&amp;y=2\n{web}b.txt?x=1&currency=usd&region=eu&section=3&copy=1\n"
    outcome = played("l.txt", text, unescape_html="true")
    assert columns(outcome) == [("a.txt?x=1&y=2",), ("b.txt?x=1&currency=usd&region=eu&section=3&copy=1",)]


# --- several lists ---


def test_all_bad_files_of_a_folder_are_named_at_once() -> None:
    play = Play(WEB)
    written(play, lists__a_parquet=["a.txt"], lists__e_parquet=["b.txt"])
    (play.folder / "lists/b.parquet").write_text("version https://git-lfs.github.com/spec/v1\n")
    (play.folder / "lists/c.parquet").write_bytes((play.folder / "lists/a.parquet").read_bytes()[:-9])
    pq.write_table(pa.table({"link": ["x"]}), play.folder / "lists/d.parquet")
    outcome = play.run("download", "lists")
    assert (outcome.exit_code, outcome.files, outcome.requests) == (2, {}, {})
    assert "3 of 5 lists cannot be read" in outcome.screen
    for words in (
        "b.parquet: this is a Git-LFS pointer",
        "c.parquet: this Parquet file is cut",
        "d.parquet: no column",
    ):
        assert words in outcome.screen


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_a_later_file_may_lack_any_column_but_that_of_the_urls(kind: str) -> None:
    play = Play(WEB)
    write_rows(play.folder / f"1.{kind}", [{"url": play.web.url("a.txt"), "caption": "x", "n": 1}])
    write_rows(play.folder / f"2.{kind}", [{"url": play.web.url("b.txt"), "more": 1}])
    outcome = play.run("download", f"1.{kind},2.{kind}", caption_col="caption", save_additional_columns="n")
    assert columns(outcome, "caption", "n") == [("a.txt", "x", 1), ("b.txt", None, None)]


def test_a_column_that_is_text_in_a_later_file_needs_a_type() -> None:
    play = Play(WEB)
    for name, value in (("1.parquet", 7), ("2.parquet", "x7")):
        pq.write_table(pa.table({"url": [play.web.url("a.txt")], "id": [value]}), play.folder / name)
    outcome = play.run("download", "1.parquet,2.parquet", save_additional_columns="id")
    assert (outcome.exit_code, outcome.requests) == (2, {})
    assert "--column_types=id:string" in outcome.screen
    again = play.run("download", "1.parquet,2.parquet", save_additional_columns="id", column_types="id:string")
    assert [row["id"] for row in again.metadata] == ["7", "x7"]


@pytest.mark.parametrize(
    ("first", "later", "expected"),
    [
        (pa.nulls(1), pa.array(["x"]), [None, "x"]),
        (pa.array([7]), pa.array(["512"]), [7, 512]),
        (pa.array([7]), pa.array(["512"]).dictionary_encode(), [7, 512]),
        (pa.array([b"x"]), pa.array(["y"]), [b"x", b"y"]),
    ],
    ids=["nulls alone", "texts of numbers", "categories of numbers", "binary"],
)
def test_texts_in_a_later_file_that_fit_the_type_of_the_first_are_read(
    first: pa.Array, later: pa.Array, expected: list[Any]
) -> None:
    play = Play(WEB)
    for name, values in (("1.parquet", first), ("2.parquet", later)):
        pq.write_table(pa.table({"url": [play.web.url("a.txt")], "id": values}), play.folder / name)
    outcome = play.run("download", "1.parquet,2.parquet", save_additional_columns="id")
    assert [row["id"] for row in outcome.metadata] == expected


@pytest.mark.parametrize("size", [100_000, 1_200_000], ids=["beyond the first look", "beyond the first block"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("2.json", '{"caption":{"0":"%s"},"url":{"0":"{web}b.txt"}}'),
        ("2.csv", "%s,url\nx,{web}b.txt\n"),
        ("2.jsonl", '{"caption":"%s"}\n{"url":"{web}b.txt"}\n'),
    ],
    ids=["columns of json", "header of csv", "lines of json"],
)
def test_a_list_whose_urls_come_late_is_read(name: str, content: str, size: int) -> None:
    play = Play(WEB)
    written(play, **{"1_jsonl": ["a.txt"]})
    text = (content % ("x" * size)).replace("{web}", play.web.base_url)
    (play.folder / name).write_text(text)
    found = columns(play.run("download", f"1.jsonl,{name}"), "status")
    assert (found[0], found[-1]) == (("a.txt", "success"), ("b.txt", "success"))


def test_a_large_document_without_rows_at_its_top_says_where_they_are() -> None:
    rows = ",".join(['{"url":"{web}a.txt"}'] * 60_000)
    outcome = played("list.json", '{"info":{},"images":[' + rows + '],"more":[]}')
    assert (outcome.exit_code, outcome.requests) == (2, {})
    assert "--rows=images" in outcome.screen


def written(play: Play, **names: list[str]) -> None:
    """Lists in the play's folder: name, with `__` for a slash and `_` for a dot -> files of the web."""
    for name, files in names.items():
        path = play.folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_rows(path, [{"url": play.web.url(file)} for file in files])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("b.csv,a.csv", ["b.txt", "a.txt"]),
        ("[b.csv, a.csv]", ["b.txt", "a.txt"]),
        ("*.csv", ["a.txt", "b.txt"]),
        ("deep", ["c.txt", "a.txt"]),
        ("**/*.jsonl", ["c.txt", "a.txt"]),
        (".", ["a.txt", "b.txt", "c.txt", "a.txt"]),
    ],
    ids=["names", "names in brackets", "glob", "folder", "glob at any depth", "folder of the play"],
)
def test_several_lists_are_read_in_order(given: str, expected: list[str]) -> None:
    play = Play(WEB, dedupe="none")
    written(play, a_csv=["a.txt"], b_csv=["b.txt"], deep__c_jsonl=["c.txt"], deep__er__a_jsonl=["a.txt"])
    outcome = play.run("download", given)
    assert [row["url"].rpartition("/")[2] for row in outcome.metadata] == expected
    assert outcome.codes == {"success": len(expected)}


def test_txt_files_beside_other_lists_and_datasets_are_no_lists() -> None:
    play = Play(WEB)
    written(play, lists__a_csv=["a.txt"], lists__notes_txt=["b.txt"], other_csv=["c.txt"])
    made = play.run("download", "other.csv", "lists/made")
    assert made.exit_code == 0
    assert (play.folder / "lists/made/00000.tar").is_file()
    assert play.run("download", "lists").code_of == {"a.txt": "success"}


def test_txt_files_beside_other_lists_are_read_where_their_format_is_asked_for() -> None:
    play = Play(WEB)
    written(play, lists__a_csv=["a.txt"], lists__notes_txt=["b.txt"])
    assert play.run("download", "lists", input_format="txt").code_of == {"b.txt": "success"}


def test_a_list_at_a_url_is_read() -> None:
    play = Play(WEB)
    write_rows(play.folder / "web/list.csv", [{"url": play.web.url("a.txt")}])
    write_rows(play.folder / "web/plain.csv", [{"url": play.web.url("b.txt")}])
    (play.folder / "web/plain.csv").rename(play.folder / "web/plain")
    assert play.run("download", play.web.url("list.csv")).code_of == {"a.txt": "success"}
    assert play.run("download", play.web.url("plain"), "second").exit_code == 2
    assert play.run("download", play.web.url("plain"), "second", input_format="csv").exit_code == 0
    assert (play.folder / "second/00000.tar").is_file()


@pytest.mark.parametrize(
    ("content", "options"),
    [
        ("{web}a.txt\n{web}b.txt\n", {}),
        ("url,c\n{web}a.txt,x\n{web}b.txt,y\n", {"input_format": "csv"}),
        ('{"url":"{web}a.txt"}\n{"url":"{web}b.txt"}\n', {"input_format": "jsonl"}),
    ],
    ids=["txt", "csv", "jsonl"],
)
def test_standard_input_is_a_list(content: str, options: dict[str, Any]) -> None:
    play = Play(WEB)
    outcome = play.run("download", "-", stdin=content.replace("{web}", play.web.base_url).encode(), **options)
    assert outcome.exit_code == 0
    assert outcome.code_of == {"a.txt": "success", "b.txt": "success"}


# --- which rows, in which order ---


def test_limit_makes_the_first_rows_and_the_same_command_without_it_the_rest() -> None:
    play = Play({f"{number}.txt": "ok" for number in range(5)}, number_sample_per_shard=2)
    assert list(play.run(limit=1).requests) == ["0.txt"]
    third = play.run(limit=3)
    assert (third.shards, sorted(third.requests)) == (["00000", "00001"], ["1.txt", "2.txt"])
    last = play.run()
    assert (last.codes, sorted(last.requests)) == ({"success": 5}, ["3.txt", "4.txt"])
    assert [row["url"].rpartition("/")[2] for row in last.metadata] == [f"{number}.txt" for number in range(5)]


@pytest.mark.parametrize("list_format", ["txt", "parquet"])
def test_shuffle_puts_rows_into_an_order_of_its_seed(list_format: str) -> None:
    names = [f"{number:02}.txt" for number in range(40)]
    play = Play(dict.fromkeys(names, "ok"), list_format=list_format, number_sample_per_shard=25)

    def order(seed: int) -> list[str]:
        rows = play.run(shuffle=seed, incremental_mode="overwrite").metadata
        return [row["url"].rpartition("/")[2] for row in rows]

    first = order(7)
    assert first != names
    assert sorted(first) == names
    assert order(7) == first
    assert order(8) not in (first, names)


@pytest.mark.parametrize(
    ("dedupe", "requests", "codes", "first"),
    [
        ("shard", {"a.txt": 2, "b.txt": 1}, {"success": 6}, [None] * 6),
        ("run", {"a.txt": 1, "b.txt": 1}, {"success": 2, "duplicate": 4}, [None, 0, None, 0, 2, 0]),
        ("none", {"a.txt": 4, "b.txt": 2}, {"success": 6}, [None] * 6),
    ],
)
def test_rows_with_one_url(dedupe: str, requests: Any, codes: Any, first: list[int | None]) -> None:
    urls = ["a.txt", "a.txt#part", "b.txt", "a.txt", "b.txt", " a.txt"]
    if dedupe == "shard":
        urls[4] = "a.txt"  # so that the second shard has one file alone
    text = "".join(f"{{web}}{url}\n" if url[0] != " " else f" {{web}}{url[1:]}\n" for url in urls)
    play = Play(WEB, lists={"l.txt": text}, number_sample_per_shard=3, dedupe=dedupe)
    outcome = play.run()
    assert outcome.requests == requests
    assert outcome.codes == codes
    keys = [row["key"] for row in outcome.metadata]
    assert [row.get("duplicate_of") for row in outcome.metadata] == [
        None if position is None else keys[position] for position in first
    ]
    stored = [row["url"].partition("#")[0].rpartition("/")[2] for row in outcome.metadata if row["status"] == "success"]
    assert [sample.data.decode() for sample in outcome.samples] == [f"the text of {name}\n" for name in stored]


def test_a_failure_is_shared_by_rows_with_one_url() -> None:
    play = Play({"a.txt": "http_404"}, lists={"l.txt": "{web}a.txt\n{web}a.txt\n"})
    outcome = play.run()
    assert (outcome.codes, outcome.requests) == ({"http_404": 2}, {"a.txt": 1})


# --- rows from Python ---


def _urls(play: Play) -> list[str]:
    return [play.web.url(name) for name in ("a.txt", "b.txt")]


VALUES: dict[str, Callable[[list[str]], Any]] = {
    "list of URLs": lambda urls: urls,
    "tuple of URLs": tuple,
    "Series": pd.Series,
    "NumPy array": np.array,
    "Arrow array": pa.array,
    "Arrow table": lambda urls: pa.table({"url": urls}),
    "Arrow stream": lambda urls: pa.RecordBatchReader.from_batches(
        pa.schema([("url", pa.string())]), [pa.record_batch({"url": [url]}) for url in urls]
    ),
    "DataFrame": lambda urls: pd.DataFrame({"url": urls}),
    "list of dicts": lambda urls: [{"url": url} for url in urls],
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
def test_a_value_of_python_is_a_list(value: Callable[[list[str]], Any]) -> None:
    play = Play(WEB, way="python")
    outcome = play.run("download", value(_urls(play)))
    assert outcome.error is None
    assert outcome.code_of == {"a.txt": "success", "b.txt": "success"}
    assert outcome.result.successes == 2


def test_what_is_no_url_among_values_of_python_is_a_row_that_fails() -> None:
    play = Play(WEB, way="python")
    outcome = play.run("download", [play.web.url("a.txt"), None, float("nan"), "", "word"])
    assert outcome.codes == {"success": 1, "bad_url": 4}


def test_columns_of_a_frame_are_carried() -> None:
    play = Play(WEB, way="python")
    frame = pd.DataFrame({"link": _urls(play), "words": ["x", None], "score": [0.5, 1.5]})
    outcome = play.run("download", frame, url_col="link", caption_col="words", save_additional_columns=["score"])
    assert columns(outcome, "caption", "score") == [("a.txt", "x", 0.5), ("b.txt", None, 1.5)]


@pytest.mark.parametrize("kind", ["a Path", "several Paths", "names of files", "one text"])
def test_files_from_python_are_lists(kind: str) -> None:
    play = Play(WEB, way="python")
    written(play, a_csv=["a.txt"], b_csv=["b.txt"])
    given: Any = {
        "a Path": Path("a.csv"),
        "several Paths": [Path("a.csv"), Path("b.csv")],
        "names of files": ["a.csv", "b.csv"],
        "one text": "*.csv",
    }[kind]
    expected = {"a.txt": "success"} if kind == "a Path" else {"a.txt": "success", "b.txt": "success"}
    assert play.run("download", given).code_of == expected


@pytest.mark.parametrize("given", ["", 7, {"a": 1}], ids=["empty text", "number", "mapping"])
def test_what_is_no_list_is_refused_in_python(given: Any) -> None:
    outcome = Play(WEB, way="python").run("download", given)
    assert outcome.error is not None
    assert "url_list" in str(outcome.error)
    assert not outcome.files
