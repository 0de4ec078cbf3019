"""Which files a url list means, what rows come of it, and what is raised when it breaks off."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import select
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from fsspec.registry import _registry

from any2ds.config.options import Config, InputOptions
from any2ds.config.parsers import list_format
from any2ds.core.errors import InputError, MissingColumns, MissingExtra, OptionError, ReadError, WrongFormat
from any2ds.core.rows import BAD_ROW_COLUMN as COLUMN
from any2ds.readers.sources import Source

FORMATS = ("txt", "csv", "tsv", "json", "jsonl", "parquet")
URLS = [f"http://a/{i}.jpg" for i in range(5)]


def content(format: str, urls: list[str] = URLS) -> bytes:
    table = pa.table({"url": urls, "n": range(len(urls))})
    if format == "txt":
        return "\n".join([*urls, ""]).encode()
    if format in ("csv", "tsv"):
        mark = "," if format == "csv" else "\t"
        return "\n".join([f"url{mark}n", *(f"{url}{mark}{i}" for i, url in enumerate(urls)), ""]).encode()
    if format == "json":
        return json.dumps(table.to_pylist()).encode()
    if format == "jsonl":
        return b"".join(json.dumps(row).encode() + b"\n" for row in table.to_pylist())
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue().to_pybytes())


COMPRESS = {
    "gz": gzip.compress,
    "bz2": lambda data: bz2.compress(data, 1),
    "xz": lambda data: lzma.compress(data, preset=0),
    "zst": zstd,
}


def put(path: Path, data: bytes | str = "http://a/1\n") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return str(path)


def _write(descriptor: int, data: bytes) -> None:
    with open(descriptor, "wb") as end:
        end.write(data)


def rows(url_list: Any, **options: Any) -> list[dict[str, Any]]:
    found = rows_and_reasons(url_list, **options)
    assert not any(reason for _, reason in found)
    return [row for row, _ in found]


def rows_and_reasons(url_list: Any, **options: Any) -> list[tuple[dict[str, Any], str]]:
    """The rows, each with why it could not be read; empty for those that could."""
    with Source(InputOptions(url_list=url_list, **options)) as source:
        batches = list(source.batches())
        assert all(batch.schema.names == [*source.schema.names, COLUMN] for batch in batches)
    return [(row, row.pop(COLUMN) or "") for batch in batches for row in batch.to_pylist()]


def left_out(url_list: Any, **options: Any) -> tuple[str, ...]:
    with Source(InputOptions(url_list=url_list, **options)) as source:
        return source.left_out


def urls(url_list: Any, **options: Any) -> list[str]:
    return [row["url"] for row in rows(url_list, **options)]


def _batches(url_list: Any, options: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    yield from Source(InputOptions(url_list=url_list, **options)).batches()


def until_broken(url_list: Any, **options: Any) -> tuple[list[str], ReadError]:
    found: list[str] = []
    with pytest.raises(ReadError) as caught:
        found.extend(
            url for batch in _batches(url_list, {"on_bad_row": "stop", **options}) for url in batch["url"].to_pylist()
        )
    return found, caught.value


class TestFormats:
    @pytest.mark.parametrize("format", FORMATS)
    @pytest.mark.parametrize("suffix", ["", *COMPRESS])
    def test_by_name(self, tmp_path: Path, format: str, suffix: str) -> None:
        data = COMPRESS[suffix](content(format)) if suffix else content(format)
        assert urls(put(tmp_path / f"list.{format}{suffix and '.' + suffix}", data)) == URLS
        assert len(list(tmp_path.iterdir())) == 1

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            ("a/list.CSV", ("csv", None)),
            ("part-0.snappy.parquet", ("parquet", None)),
            ("list.jsonl.gz", ("jsonl", "gz")),
            ("list.gz", (None, "gz")),
            ("list", (None, None)),
            ("parquet", (None, None)),
            ("gz", (None, None)),
            (".csv", ("csv", None)),
            ("v1.2/list", (None, None)),
            ("https://h/list.tsv.xz?sig=a/b.csv#x", ("tsv", "xz")),
            ("https://h.csv", (None, None)),
            ("zip://a.csv::s3://b/c.zip", ("csv", None)),
            ("list.ndjson", ("jsonl", None)),
        ],
    )
    def test_of_a_name(self, name: str, expected: tuple[str | None, str | None]) -> None:
        assert list_format(name) == expected

    def test_an_unknown_extension_is_txt_unless_a_format_is_given(self, tmp_path: Path) -> None:
        path = put(tmp_path / "list.lst", content("csv"))
        with pytest.raises(InputError, match=r"read as txt.*--input_format=csv reads it"):
            urls(path)
        assert urls(path, input_format="csv") == URLS

    @pytest.mark.parametrize("suffix", COMPRESS)
    def test_several_compressed_members_and_padding(self, tmp_path: Path, suffix: str) -> None:
        compress = COMPRESS[suffix]
        padding = b"\0" * 8 if suffix in ("gz", "xz") else b""
        data = compress(b"http://a/0\nhttp") + compress(b"://a/1\n") + padding
        assert urls(put(tmp_path / f"list.txt.{suffix}", data)) == ["http://a/0", "http://a/1"]


class TestFiles:
    def test_a_folder_is_read_in_order_at_any_depth(self, tmp_path: Path) -> None:
        for name in (
            "b/2.txt",
            "a.txt",
            "b/1.txt",
            "c.txt",
            ".any2ds/tmp/x.txt",
            ".git/x.txt",
            "_SUCCESS",
            ".x.txt",
            "README",
        ):
            put(tmp_path / name, f"http://{name}\n")
        assert urls(str(tmp_path)) == ["http://a.txt", "http://b/1.txt", "http://b/2.txt", "http://c.txt"]

    def test_files_of_a_folder_without_a_known_extension_are_txt(self, tmp_path: Path) -> None:
        for name in ("part-1", "part-0", "_SUCCESS"):
            put(tmp_path / name, f"http://{name}\n")
        assert urls(str(tmp_path)) == ["http://part-0", "http://part-1"]

    def test_input_format_chooses_in_a_folder(self, tmp_path: Path) -> None:
        put(tmp_path / "a.csv.gz", gzip.compress(content("csv")))
        put(tmp_path / "b.txt", "http://b\n")
        assert urls(str(tmp_path), input_format="csv") == URLS
        assert urls(str(tmp_path), input_format="txt") == ["http://b"]
        put(tmp_path / "c.csv", "url\nc\n")
        assert urls(str(tmp_path), input_format="csv.gz") == URLS
        assert urls(str(tmp_path), input_format="csv.xz") == [*URLS, "c"]

    def test_datasets_in_a_folder_are_no_lists(self, tmp_path: Path) -> None:
        for name in ("a.txt", "out/00000.parquet", "out/00000_stats.json", "out/00001/000010000.txt", "outer/b.txt"):
            put(tmp_path / name, f"http://{name}\n")
        assert urls(str(tmp_path)) == ["http://a.txt", "http://outer/b.txt"]
        for folder in (f"{tmp_path}/out", f"file://{tmp_path}/out/"):
            with pytest.raises(InputError, match="is a dataset that was written here"):
                Source(InputOptions(url_list=folder))

    def test_a_glob_and_lists_of_all_these(self, tmp_path: Path) -> None:
        for name in ("x/1.txt", "x/2.txt", "x/_3.txt", "y/4.txt", "z[1].txt"):
            put(tmp_path / name, f"http://{name}\n")
        found = urls([f"{tmp_path}/z[1].txt", f"{tmp_path}/x/*.txt", str(tmp_path / "y")])
        assert found == ["http://z[1].txt", "http://x/1.txt", "http://x/2.txt", "http://y/4.txt"]
        assert urls(f"{tmp_path}/x/_*") == ["http://x/_3.txt"]

    def test_empty_files_are_passed_over(self, tmp_path: Path) -> None:
        for name in ("a.csv", "c.csv"):
            put(tmp_path / name, "url,n\n")
        put(tmp_path / "b.csv", content("csv"))
        put(tmp_path / "d.csv", b"")
        assert urls(str(tmp_path), save_additional_columns=("n",)) == URLS

    def test_remote_files(self) -> None:
        fs = fsspec.filesystem("memory")
        fs.pipe(
            {"/lists/b.csv": b"url\nhttp://b\n", "/lists/a.parquet": content("parquet"), "/lists/_x.txt": b"http://x\n"}
        )
        with Source(InputOptions(url_list="memory://lists")) as source:
            assert source.files == ["memory:///lists/a.parquet", "memory:///lists/b.csv"]
        assert urls("memory://lists/*.csv") == ["http://b"]
        assert urls("memory://lists") == [*URLS, "http://b"]

    @pytest.mark.parametrize("name", ["list.csv", "list.parquet", "list.jsonl.gz", "list.parquet.gz"])
    def test_http_servers_without_ranges(self, tmp_path: Path, name: str) -> None:
        many = [f"http://a/{i * 7919 % 1_000_003}" for i in range(100_000)]
        data = content(name.split(".")[1], many)
        put(tmp_path / name, gzip.compress(data) if name.endswith(".gz") else data)
        with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(tmp_path))) as server:
            Thread(target=server.serve_forever).start()
            url = f"http://127.0.0.1:{server.server_port}"
            try:
                assert urls(f"{url}/{name}?signature=a/b.txt") == many
                with pytest.raises(InputError, match="no such file"):
                    Source(InputOptions(url_list=f"{url}/absent.txt"))
            finally:
                server.shutdown()

    @pytest.mark.parametrize("format", FORMATS)
    def test_pipes_are_read_once_as_standard_input_is(self, tmp_path: Path, format: str) -> None:
        data = gzip.compress(content(format))
        named = tmp_path / f"list.{format}.gz"
        os.mkfifo(named)
        ends = os.pipe()  # as a shell makes it for <(...)
        writers = [
            Thread(target=named.write_bytes, args=(data,)),
            Thread(target=_write, args=(ends[1], content(format))),
        ]
        for writer in writers:
            writer.start()
        for path, options in ((str(named), {}), (f"/dev/fd/{ends[0]}", {"input_format": format})):
            with Source(InputOptions(url_list=path, **options)) as source:
                assert (source.files, source.list_files, source.can_be_read_again) == ([path], (), False)
                assert [url for batch in source.batches() for url in batch["url"].to_pylist()] == URLS
        for writer in writers:
            writer.join()
        os.close(ends[0])

    @pytest.mark.parametrize(
        ("format", "line", "options"),
        [
            ("txt", "http://a/{}\n", ""),
            ("jsonl", '{{"url": "http://a/{}"}}\n', ""),
            ("jsonl", '{{"url": "http://a/{}", "c": "x"}}\n', ", caption_col='c'"),
        ],
    )
    def test_standard_input_is_used_as_it_arrives(self, format: str, line: str, options: str) -> None:
        program = (
            "from any2ds.config.options import InputOptions; from any2ds.readers.sources import Source\n"
            f"for batch in Source(InputOptions(url_list='-', input_format={format!r}{options})).batches():\n"
            "    print(*batch['url'].to_pylist(), flush=True)"
        )
        command = [sys.executable, "-c", program]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            for i in range(3):
                process.stdin.write(line.format(i).encode())
                process.stdin.flush()
                has_answered, _, _ = select.select([process.stdout], [], [], 60)
                if not has_answered:
                    process.kill()
                assert process.stdout.readline().decode() == f"http://a/{i}\n"


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


class TestFromPython:
    def test_a_list_of_urls(self) -> None:
        given = ["http://a/1.jpg", None, "s3://b/list.txt", " http://\ud800/"]
        assert urls(given) == ["http://a/1.jpg", None, "s3://b/list.txt", "http://\ufffd/"]

    @pytest.mark.parametrize("missing", ["", None, float("nan"), pd.NA, "  ", "example.org/a.jpg"])
    def test_what_is_no_url_is_a_row_and_never_a_file_or_a_folder(
        self, missing: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(tmp_path / "a.txt")
        monkeypatch.chdir(tmp_path)
        row = missing.strip() if isinstance(missing, str) else None
        assert urls([missing]) == [row]
        for first in ("http://a/1.jpg", "a.txt"):
            assert urls([first, missing]) == [first, row]
            assert urls((first, missing)) == [first, row]

    def test_web_urls_that_end_as_lists_do_are_urls(self, tmp_path: Path) -> None:
        given = ["http://a/1.txt", "HTTPS://a/2.json"]
        assert urls(given) == given
        assert urls([put(tmp_path / "a.txt"), given[0]]) == [f"{tmp_path}/a.txt", given[0]]

    def test_with_a_format_a_list_of_strings_is_files(self, tmp_path: Path) -> None:
        assert urls(["file://" + put(tmp_path / "a")], input_format="txt") == ["http://a/1"]
        with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(tmp_path))) as server:
            put(tmp_path / "b.csv", content("csv"))
            Thread(target=server.serve_forever).start()
            try:
                assert urls([f"http://127.0.0.1:{server.server_port}/b.csv"], input_format="csv") == URLS
            finally:
                server.shutdown()

    @pytest.mark.parametrize("given", [["a.txt", ""], ["a.txt", None], ["http://a/1.jpg"]])
    def test_what_cannot_be_files_is_refused_where_files_are_asked_for(self, given: list[Any]) -> None:
        for options in ({"url_list": given, "input_format": "txt"}, {"url_list": [Path("a.txt"), *given]}):
            with pytest.raises(OptionError, match="url_list"):
                Source(InputOptions(**options))

    def test_hints_at_lists_that_look_like_files(self) -> None:
        for given, words in (
            (["absent", None], "none of the 2 texts has a scheme"),
            (["http://a/1.txt"], "http://a/1.txt"),
        ):
            with Source(InputOptions(url_list=given)) as source:
                assert words in "".join(source.hints)
        with Source(InputOptions(url_list=["http://a/1.txt", "http://a/1.jpg", "x", None])) as source:
            assert source.hints == ()

    @pytest.mark.parametrize(
        ("written", "expected"),
        [
            ("a.txt,b.csv", ["http://a/1", *URLS]),
            ("a.txt, b.csv", ["http://a/1", *URLS]),
            ("[a.txt,b.csv]", ["http://a/1", *URLS]),
            ('["a.txt", "b.csv"]', ["http://a/1", *URLS]),
            ("c,d.txt", ["http://c"]),
            ('["http://a/1,2.jpg", null, ""]', ["http://a/1,2.jpg", None, ""]),
            ('[{"url": "http://a/1"}]', ["http://a/1"]),
        ],
    )
    def test_as_the_command_line_has_it(
        self, written: str, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(tmp_path / "a.txt")
        put(tmp_path / "b.csv", content("csv"))
        put(tmp_path / "c,d.txt", "http://c\n")
        monkeypatch.chdir(tmp_path)
        assert urls(Config.from_options({"url_list": written}).input.url_list) == expected

    def test_arrays_and_series_of_strings_are_urls(self) -> None:
        series = pd.Series(URLS)
        arrays = (series, series.astype("category"), pa.array(URLS), pa.chunked_array([URLS[:2], URLS[2:]]))
        for given in (*arrays, series.to_numpy(), np.array(URLS)):
            assert rows(given, url_col="link") == [{"url": url} for url in URLS]
        for given in (pd.Series(["a.txt", None, np.nan]), np.array(["a.txt", None, np.nan], object)):
            assert urls(given) == ["a.txt", None, None]
        assert urls(pd.Series([np.nan])) == [None]
        assert urls(pa.array([{"url": "u"}])) == ["u"]

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            (pd.Series([1]), "a Series of int64"),
            (pa.array([1.5]), "a DoubleArray of double"),
            (pa.chunked_array([[["u"]]]), "a ChunkedArray of list<"),
            (np.array([1.5]), "a ndarray of this"),
            (np.array([["u"]]), "a ndarray"),
        ],
    )
    def test_arrays_of_something_else(self, given: Any, words: str) -> None:
        with pytest.raises(OptionError, match=f"url_list cannot be .*{words}"):
            Source(InputOptions(url_list=given))


class TestColumns:
    def test_names_and_types(self, tmp_path: Path) -> None:
        table = pa.table(
            {
                "text": pa.array(["c"]).dictionary_encode(),
                "n": pa.array([7], pa.uint16()),
                "nothing": pa.nulls(1),
                "link": pa.array(["x://u"], pa.large_string()),
                "when": pa.array([0], pa.timestamp("ms", "UTC")),
            }
        )
        pq.write_table(table, tmp_path / "list.parquet")
        options = InputOptions(
            str(tmp_path / "list.parquet"),
            url_col="link",
            caption_col="text",
            save_additional_columns=("n", "when", "text", "nothing", "n"),
        )
        with Source(options) as source:
            assert source.schema == pa.schema(
                {
                    "url": pa.string(),
                    "caption": pa.string(),
                    "n": pa.uint16(),
                    "when": pa.timestamp("ms", "UTC"),
                    "text": pa.dictionary(pa.int32(), pa.string()),
                    "nothing": pa.string(),
                }
            )
            (batch,) = source.batches()
        assert batch.to_pylist()[0]["caption"] == batch.to_pylist()[0]["text"] == "c"

    def test_numbers_as_captions_are_text(self, tmp_path: Path) -> None:
        path = put(tmp_path / "a.csv", "url,n\nx://u,007\n")
        assert rows(path, caption_col="n") == [{"url": "x://u", "caption": "007"}]
        assert rows([{"url": "u", "n": 7}], caption_col="n") == [{"url": "u", "caption": "7"}]

    def test_bytes_that_are_not_utf8(self) -> None:
        table = pa.table({"url": [b"http://a/\xe9"], "text": [b"caf\xe9"]})
        assert rows(table, caption_col="text") == [{"url": "http://a/%E9", "caption": "caf\ufffd"}]

    @pytest.mark.parametrize(
        ("name", "options"),
        [
            ("status", {}),
            ("key", {"url_col": "key"}),
            ("url", {"url_col": "link"}),
            ("caption", {"caption_col": "text"}),
        ],
    )
    def test_names_that_are_taken(self, name: str, options: dict[str, str]) -> None:
        given = [{"url": "u", "link": "v", "text": "t", "key": "w", "status": "s", "caption": "c"}]
        found = rows(given, save_additional_columns=(name,), **options)
        assert found[0][f"list_{name}"] == given[0][name]
        with pytest.raises(OptionError, match=f"save_additional_columns: .*'{name}'"):
            rows(given, save_additional_columns=(f"text:{name}",), **options)

    def test_captions_that_are_no_text(self) -> None:
        with pytest.raises(InputError, match="'tags' holds list<item: string>, not text"):
            Source(InputOptions(url_list=pa.table({"url": ["u"], "tags": [["a"]]}), caption_col="tags"))

    @pytest.mark.parametrize(
        ("values", "kept"),
        [
            (pa.array(["a", None], pa.string_view()), pa.string()),
            (pa.array([b"a", b"b"], pa.binary_view()), pa.binary()),
            (pc.run_end_encode(pa.array(["a", "a"])), pa.string()),
            (pc.run_end_encode(pa.array([1, 2])), pa.int64()),
            (pa.array([["a"], None], pa.list_(pa.string_view())), pa.list_(pa.string())),
            (pa.array([["a"], []], pa.large_list(pa.string_view())), pa.large_list(pa.string())),
            (pa.array([{"x": b"a"}, None], pa.struct({"x": pa.binary_view()})), pa.struct({"x": pa.binary()})),
            (pa.array([[("k", "v")], []], pa.map_(pa.string(), pa.string_view())), pa.map_(pa.string(), pa.string())),
            (pa.DictionaryArray.from_arrays([0, 0], pa.array(["a"], pa.string_view())), pa.string()),
        ],
    )
    def test_views_and_run_lengths_become_plain(self, values: pa.Array, kept: pa.DataType) -> None:
        with Source(InputOptions(pa.table({"url": ["u", "v"], "x": values}), save_additional_columns=("x",))) as source:
            assert source.schema.field("x").type == kept
            (batch,) = source.batches()
        assert batch["x"].to_pylist() == values.to_pylist()

    @pytest.mark.parametrize(
        "values",
        [
            pa.nulls(1, pa.month_day_nano_interval()),
            pa.array([{}], pa.struct([])),
            pa.ListArray.from_arrays([0, 1], pc.run_end_encode(pa.array([1]))),
            pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])]),
        ],
        ids=lambda values: str(values.type),
    )
    def test_a_type_that_no_shard_can_hold(self, values: pa.Array) -> None:
        with pytest.raises(InputError, match=r"the column 'x' holds .* cannot be written to Parquet"):
            Source(InputOptions(pa.table({"url": ["u"], "x": values}), save_additional_columns=("x",)))

    def test_files_of_several_formats_and_types_become_one(self, tmp_path: Path) -> None:
        pq.write_table(pa.table({"url": ["x://u"], "n": pa.array([1], pa.int16())}), tmp_path / "1.parquet")
        put(tmp_path / "2.csv", "n,url\n2,v\n")
        put(tmp_path / "3.jsonl", '{"url":"w"}\n')
        pq.write_table(pa.table({"url": ["x"], "n": [4.0]}), tmp_path / "4.parquet")
        found = rows(str(tmp_path), save_additional_columns=("n",))
        urls = [(row["url"], row["n"]) for row in found]
        assert urls == [("x://u", 1), ("v", 2), ("w", None), ("x", 4)]

    def test_a_value_that_does_not_fit_the_first_file_ends_the_list_there(self, tmp_path: Path) -> None:
        pq.write_table(pa.table({"url": ["u"], "n": pa.array([1], pa.int8())}), tmp_path / "1.parquet")
        many = [*range(100), 1000, *range(100)]
        pq.write_table(pa.table({"url": [str(i) for i in range(201)], "n": many}), tmp_path / "2.parquet")
        found, error = until_broken(str(tmp_path), save_additional_columns=("n",))
        assert found == ["u", *(str(i) for i in range(100))]
        assert (error.path, error.where) == (str(tmp_path / "2.parquet"), "row 101")
        assert "int8" in error.reason


class TestColumnsLeftOut:
    @pytest.mark.parametrize("format", FORMATS)
    def test_of_each_format(self, tmp_path: Path, format: str) -> None:
        (tmp_path / f"list.{format}").write_bytes(content(format))
        assert left_out(tmp_path / f"list.{format}") == (() if format == "txt" else ("n",))
        if format != "txt":
            assert left_out(tmp_path / f"list.{format}", save_additional_columns=("n",)) == ()

    @pytest.mark.parametrize(
        "document",
        [
            '{"url": ["http://a/"], "n": [1]}',
            '{"url": {"0": "http://a/"}, "n": {"0": 1}}',
            '{"url": "http://a/", "n": 1}\n{"url": "http://b/"}',
        ],
    )
    def test_of_each_form_of_json(self, tmp_path: Path, document: str) -> None:
        (tmp_path / "list.json").write_text(document)
        assert left_out(tmp_path / "list.json") == ("n",)

    def test_columns_of_hashes_and_boxes_are_used(self) -> None:
        given = {"url_list": [{"url": "http://a/", "md5": "x", "boxes": "[]", "n": 1}], "output_folder": "out"}
        options = {"verify_hash": "md5,md5", "bbox_col": "boxes", "save_additional_columns": "boxes", "file_size": "8"}
        with Source.of(Config.from_options({**given, **options})) as rows:
            assert rows.left_out == ("n",)


class TestCannotStart:
    @pytest.mark.parametrize("name", ["list.csv", "list.parquet"])
    def test_a_web_server_that_is_not_there(self, name: str) -> None:
        with pytest.raises(InputError, match=r"cannot be opened: Cannot connect to host 127\.0\.0\.1:1 "):
            Source(InputOptions(url_list=f"https://127.0.0.1:1/{name}"))

    def test_an_empty_folder(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="no files in this folder"):
            Source(InputOptions(url_list=str(tmp_path)))

    @pytest.mark.parametrize(
        "options", [{"caption_col": "c"}, {"save_additional_columns": "c"}, {"verify_hash": "c:md5"}, {"bbox_col": "c"}]
    )
    @pytest.mark.parametrize("list_of_urls", [False, True])
    def test_columns_of_a_list_that_has_none(self, tmp_path: Path, options: Any, list_of_urls: bool) -> None:
        given = ["http://a/1"] if list_of_urls else put(tmp_path / "a.lst")
        with pytest.raises(InputError, match="holds nothing but URLs, and has no column 'c': ") as caught:
            Source.of(Config.from_options({"url_list": given, **options}))
        assert "\n" not in str(caught.value)

    def test_img2dataset_ignores_columns_of_a_list_that_has_none(self, tmp_path: Path) -> None:
        given = {
            "preset": "img2dataset",
            "url_list": put(tmp_path / "a.txt"),
            "caption_col": "caption",
            "save_additional_columns": '["id"]',
            "verify_hash": '["digest", "sha256"]',
        }
        with Source.of(Config.from_options(given)) as source:
            assert source.schema.names == ["url"]
            assert source.hints == (
                "the url list holds nothing but URLs, so these columns are ignored: caption, digest, id",
            )
        with pytest.raises(InputError, match="no column 'boxes'"):
            Source.of(Config.from_options({**given, "bbox_col": "boxes"}))

    def test_names_of_columns_do_not_reach_the_terminal_as_they_are(self, tmp_path: Path) -> None:
        path = put(tmp_path / "a.csv", ",".join(['"a\nb"', "\x1b[2Jé", "x" * 1000, *map(str, range(4997))]) + "\n1\n")
        with pytest.raises(MissingColumns) as caught:
            Source(InputOptions(url_list=path))
        message = str(caught.value)
        assert message.isprintable()
        assert r"exist: a\nb, \x1b[2Jé, " in message
        assert message.endswith(", 15, 16 … and 4,980 more; name the column of the URLs with --url_col=...")
        assert len(message) < 400 + len(path)

    def test_what_stands_in_a_list_does_not_reach_the_terminal_as_it_is(self, tmp_path: Path) -> None:
        with pytest.raises(ReadError) as caught:
            Source(InputOptions(url_list=put(tmp_path / "a.jsonl", '"\x1b[2J"\n')))
        assert str(caught.value).isprintable()

    def test_unknown_protocol(self) -> None:
        with pytest.raises(InputError, match="nope"):
            Source(InputOptions(url_list="nope://a/b.txt"))

    def test_a_library_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "gcsfs", None)
        monkeypatch.delitem(_registry, "gs", raising=False)  # another test may have loaded it
        with pytest.raises(MissingExtra, match=r"any2ds\[gcs\]"):
            Source(InputOptions(url_list="gs://bucket/a.txt"))


PARQUET = content("parquet")
TEXT = content("txt")


class TestNoText:
    @pytest.mark.parametrize("name", ["list", "list.txt", "list.csv", "list.tsv", "list.json", "list.jsonl"])
    @pytest.mark.parametrize(
        ("data", "words"),
        [
            (PARQUET, "this is a Parquet file, not text: --input_format=parquet reads it"),
            (b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01" + bytes(range(256)), "this is image/jpeg"),
            (TEXT.decode().encode("utf-16-le"), "UTF-16 without a byte order mark"),
            (TEXT.decode().encode("utf-16-be"), "UTF-16 without a byte order mark"),
            (bytes(range(1, 256)) * 9, "this is binary data"),
            (b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n", "this is application/pdf"),
            (gzip.compress(PARQUET), r"compressed \(gzip\): --input_format=\w+.gz reads it"),
            (bz2.compress(TEXT), r"compressed \(bzip2\): --input_format=\w+.bz2 reads it"),
        ],
    )
    def test_it_is_refused_before_the_start(self, tmp_path: Path, name: str, data: bytes, words: str) -> None:
        with pytest.raises(WrongFormat, match=words) as caught:
            Source(InputOptions(url_list=put(tmp_path / name, data)))
        assert name in str(caught.value)

    def test_archives(self, tmp_path: Path) -> None:
        put(tmp_path / "urls.txt", TEXT)
        for format, mime in (("zip", "application/zip"), ("tar", "application/x-tar")):
            path = shutil.make_archive(str(tmp_path / "list"), format, tmp_path, "urls.txt")
            with pytest.raises(WrongFormat, match=f"this is {mime}, not text"):
                Source(InputOptions(url_list=path, input_format="txt"))

    def test_the_format_of_what_is_compressed(self, tmp_path: Path) -> None:
        for name, options in (("a.txt.gz", {}), ("a", {"input_format": "txt.gz"})):
            with pytest.raises(WrongFormat, match=r"--input_format=parquet\.gz reads it"):
                Source(InputOptions(url_list=put(tmp_path / name, gzip.compress(PARQUET)), **options))
            assert urls(f"{tmp_path}/{name}", input_format="parquet.gz") == URLS

    def test_odd_bytes_in_a_text_are_no_reason(self, tmp_path: Path) -> None:
        odd = b"http://a/caf\xe9\n\xe9\xe8 \x01\x00\n" + TEXT
        assert urls(put(tmp_path / "list.txt", odd))[2:] == URLS

    def test_standard_input_is_refused_with_its_first_bytes(self) -> None:
        program = (
            "from any2ds.config.options import InputOptions; from any2ds.readers.sources import Source\n"
            "Source(InputOptions(url_list='-'))"
        )
        command = [sys.executable, "-c", program]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stderr is not None
            process.stdin.write(PARQUET[:20])
            process.stdin.flush()  # and is left open
            assert b"standard input (read as txt): this is a Parquet file" in process.stderr.read()


class TestDeclaredTypes:
    def test_of_lists_that_have_types(self, tmp_path: Path) -> None:
        table = pa.table({"url": ["x://u", "v"], "id": [1, 2], "day": ["2024-01-02", "soon"]})
        pq.write_table(table, tmp_path / "a.parquet")
        options: dict[str, Any] = {
            "save_additional_columns": ("id", "day"),
            "column_types": {"id": "string", "day": "timestamp[us]"},
        }
        for given in (table, str(tmp_path / "a.parquet"), table.to_pylist()):
            found = rows_and_reasons(given, **options)
            assert [row["id"] for row, _ in found] == ["1", None]
            assert [row["url"] for row, _ in found] == ["x://u", None]
            assert found[1][1].startswith("row 2: column 'day': ")

    @pytest.mark.parametrize(
        ("given", "types"),
        [
            ("id:string,score:float", {"id": "string", "score": "float64"}),
            ('{"a:b": "int"}', {"a:b": "int64"}),
            ("a:b:timestamp[ms]", {"a:b": "timestamp[ms]"}),
            ({"a": "float32", "b": "timestamp"}, {"a": "float32", "b": "timestamp[us]"}),
        ],
    )
    def test_as_they_are_given(self, given: Any, types: dict[str, str]) -> None:
        assert Config.from_options({"url_list": "x", "column_types": given}).input.column_types == types


class TestBreaksOff:
    @pytest.mark.parametrize(
        ("name", "data"),
        [
            ("parquet", b"PAR1"),
            ("parquet", content("parquet")[:-8]),
            ("txt.gz", b"v\nw\n"),
            ("txt.bz2", b"v\nw\n"),
            ("txt.xz", b"v\nw\n"),
            ("txt.zst", b"v\nw\n"),
            ("csv", b"link\nv\n"),
        ],
    )
    def test_broken_from_the_start(self, tmp_path: Path, name: str, data: bytes) -> None:
        path = put(tmp_path / f"b.{name}", data)
        with pytest.raises(InputError, match=rf"b\.{name}"):
            Source(InputOptions(url_list=path))
        with pytest.raises(InputError, match=rf"1 of 2 lists cannot be read.*\n.*b\.{name}: "):
            Source(InputOptions(url_list=[put(tmp_path / "a.txt", "u://a\n"), path]))

    @pytest.mark.parametrize(
        ("name", "data", "survive", "where"),
        [
            ("csv", b"url\nv\nw,1\nx\n", ["v"], "row 3"),
            ("jsonl", b'{"url":"v"}\n{"url"\n', ["v"], "line 2"),
            ("json", b'[{"url":"v"},', ["v"], "item 2"),
            ("txt.gz", gzip.compress(b"v\nw\n", mtime=0)[:-4], ["v", "w"], "row 2"),
            ("parquet.gz", gzip.compress(content("parquet"))[:-9], [], "row 0"),
        ],
    )
    def test_a_later_file(self, tmp_path: Path, name: str, data: bytes, survive: list[str], where: str) -> None:
        paths = [put(tmp_path / "a.txt", "u\n"), put(tmp_path / f"b.{name}", data), put(tmp_path / "c.txt", "z\n")]
        found, error = until_broken(paths)
        assert found == ["u", *survive]
        assert (error.path, error.where) == (paths[1], where)
        assert error.reason
        assert str(error).startswith(f"{paths[1]}: could be read only up to {where}: ")

    @pytest.mark.parametrize("format", ["txt", "csv", "tsv", "json", "jsonl"])
    @pytest.mark.parametrize("suffix", COMPRESS)
    def test_every_whole_row_before_a_break_in_a_compressed_file(
        self, tmp_path: Path, format: str, suffix: str
    ) -> None:
        many = [f"http://example.com/{i * 7919 % 100_003}/{i * 104_729 % 999_983}.jpg" for i in range(30_000)]
        data = content(format, many)
        broken = COMPRESS[suffix](data)
        broken = broken[: len(broken) * 3 // 4]
        found, error = until_broken(put(tmp_path / f"a.{format}.{suffix}", broken))
        assert found == many[: len(found)]
        assert len(found) > 15_000
        assert error.where == f"row {len(found)}"
        if suffix == "gz":
            text = zlib.decompressobj(31).decompress(broken)
            assert len(found) == text.count(b"http") - (format != "json" or not text.endswith(b"}"))
