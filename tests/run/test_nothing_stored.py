"""What is no list of URLs is refused before anything is sent; a run that stores nothing has its own exit code."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from any2ds import download
from any2ds.core.errors import InputError
from any2ds.core.reports import RunReport
from any2ds.testing.server import Server, serve


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "web"
    folder.mkdir()
    for name in ("a.jpg", "b.jpg", "c, d.jpg"):
        (folder / name).write_text(name)
    with serve(folder, {"gone.jpg": ["404"] * 9, "shut.jpg": ["403"] * 9}) as found:
        yield found


def run(url_list: Any, out: Path, **options: Any) -> RunReport:
    return download(url_list, out, **{"output_format": "files", "distributor": "inline", "quiet": True, **options})


def any2ds(*arguments: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "any2ds", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, check=False, encoding="utf-8")


def refused(server: Server, url_list: Path, **options: Any) -> str:
    """The words with which a list is refused; nothing was sent, and nothing was written."""
    out = url_list.parent / "out"
    with pytest.raises(InputError) as caught:
        run(url_list, out, **options)
    assert not server.counts
    assert not out.exists()
    return str(caught.value).replace('"', "")


class TestFirstRows:
    @pytest.mark.parametrize("count", [1, 3000])
    @pytest.mark.parametrize("format", ["csv", "tsv", "jsonl", "json", "parquet"])
    def test_a_column_without_a_url_is_refused(self, server: Server, tmp_path: Path, format: str, count: int) -> None:
        table = pd.DataFrame(
            {"text": [f"Photo: a dog {n}" for n in range(count)], "link": [server.url("a.jpg")] * count}
        )
        path = tmp_path / f"list.{format}"
        if format in ("csv", "tsv"):
            table.to_csv(path, index=False, sep="\t" if format == "tsv" else ",")
        elif format == "parquet":
            table.to_parquet(path)
        else:
            table.to_json(path, orient="records", lines=format == "jsonl")
        words = refused(server, path, url_col="text")
        rows = "the first row is no URL" if count == 1 else f"none of the first {min(count, 1000):,} rows is a URL"
        assert f"{rows} such as https://host/a.jpg, but 'Photo: a dog 0'; " in words
        assert words.endswith("the column 'link' has some: --url_col=link")
        assert run(path, tmp_path / "out", url_col="link", limit=3).successes == min(count, 3)

    def test_one_url_among_them_is_enough(self, server: Server, tmp_path: Path) -> None:
        path = tmp_path / "list.txt"
        path.write_text("\n".join([*map(str, range(999)), server.url("a.jpg"), "more"]))
        report = run(path, tmp_path / "out")
        assert (report.count, report.successes, report.status_dict["bad_url"]) == (1001, 1, 1000)
        path.write_text("\n".join([*map(str, range(1000)), server.url("a.jpg")]))
        assert "none of the first 1,000 rows is a URL" in refused_anyway(path)

    def test_one_url_in_a_later_file_is_enough(self, server: Server, tmp_path: Path) -> None:
        (tmp_path / "lists").mkdir()
        (tmp_path / "lists/a.txt").write_text("one\ntwo\n")
        (tmp_path / "lists/b.txt").write_text(server.url("a.jpg"))
        assert run(tmp_path / "lists", tmp_path / "out").status_dict == {"bad_url": 2, "success": 1}

    def test_rows_from_python(self, server: Server, tmp_path: Path) -> None:
        assert run(["no url", None], tmp_path / "out").status_dict == {"bad_url": 2}  # a few just fail
        with pytest.raises(InputError, match="none of the first 1,000 rows is a URL"):
            run(pd.DataFrame({"url": ["no url"] * 1000}), tmp_path / "other")

    def test_paths_are_told_how_to_be_written(self, server: Server, tmp_path: Path) -> None:
        (tmp_path / "list.txt").write_text("/data/a.wav\n/data/b.wav\n")
        words = refused(server, tmp_path / "list.txt")
        assert "a path of this machine is written file:///folder/a.jpg, and read with --allow_schemes=file" in words

    @pytest.mark.parametrize("text", ["www.example.com/a.jpg", "//example.com/a.jpg", "cdn.example.com/a.jpg"])
    def test_urls_without_a_scheme(self, server: Server, tmp_path: Path, text: str) -> None:
        (tmp_path / "list.txt").write_text(f"{text}\n")
        assert refused(server, tmp_path / "list.txt").endswith("; https:// is missing in front")
        (tmp_path / "list.csv").write_text(f"url,n\n{text},1\n")
        assert refused(server, tmp_path / "list.csv").endswith("; https:// is missing in front")

    @pytest.mark.parametrize("format", ["csv", "parquet", "jsonl"])
    def test_the_column_that_has_urls_is_named(self, server: Server, tmp_path: Path, format: str) -> None:
        path = tmp_path / f"list.{format}"
        for place, advice in (
            (server.url("a.jpg"), "the column 'place' has some: --url_col=place"),
            ("here", "the column 'url' holds none; name the column of the URLs with --url_col=..."),
        ):
            table = pd.DataFrame({"url": ["1", "2"], "n": [1, 2], "place": [place, place]})
            if format == "csv":
                table.to_csv(path, index=False)
            elif format == "parquet":
                table.to_parquet(path)
            else:
                table.to_json(path, orient="records", lines=True)
            assert refused(server, path).endswith(advice)


def refused_anyway(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        run(path, path.parent / "another")
    return str(caught.value)


class TestTextWithColumns:
    @pytest.mark.parametrize(
        ("lines", "advice"),
        [
            (["{a}\ta dog", "{b}\ta cat"], "read it with --input_format=tsv"),
            (["n01440764\t{a}", "n01440765\t{b}"], "read it with --input_format=tsv"),
            (["url\tcaption", "{a}\ta dog"], "input_format=tsv reads it"),
            (["gbifID\ttype\tidentifier", "1\tStillImage\t{a}"], "--input_format=tsv --url_col=identifier reads it"),
            (["url,caption", "{a},a dog"], "input_format=csv reads it"),
            (["{a},a dog", "{b},a black cat"], "read it with --input_format=csv"),
            (["1,{a}", "2,{b}"], "read it with --input_format=csv"),
        ],
    )
    def test_it_is_refused_before_anything_is_sent(
        self, server: Server, tmp_path: Path, lines: list[str], advice: str
    ) -> None:
        a, b = server.url("a.jpg"), server.url("b.jpg")
        path = tmp_path / "list.txt"
        path.write_text("\n".join(line.format(a=a, b=b) for line in lines))
        words = refused(server, path)
        assert "its lines have several columns" in words
        assert words.endswith(advice)

    def test_urls_with_commas_and_blanks_are_urls(self, server: Server, tmp_path: Path) -> None:
        path = tmp_path / "list.txt"
        names = ("c, d.jpg", "a.jpg?size=1,2", "a.jpg?x=y z,w")
        path.write_text("\n".join(f"{server.url('')}{name}" for name in names))
        assert run(path, tmp_path / "out").successes == 3

    def test_a_single_line_with_a_tab_is_a_row_as_any_other(self, server: Server, tmp_path: Path) -> None:
        path = tmp_path / "list.txt"
        path.write_text("\n".join([f"{server.url('a.jpg')}\tx", *[server.url("b.jpg")] * 19]))
        assert run(path, tmp_path / "out").successes == 19

    def test_captions_that_some_lines_lack(self, server: Server, tmp_path: Path) -> None:
        captions = [*["a private caption"] * 5, ""] * 10
        for lines in (captions, ["", *captions], [*["a private caption"], *[""] * 9]):
            path = tmp_path / "list.txt"
            path.write_text("".join(f"{server.url('a.jpg')}\t{caption}\n" for caption in lines))
            assert "its lines have several columns" in refused(server, path)

    def test_mirrors_and_options_as_aria2_takes_them(self, server: Server, tmp_path: Path) -> None:
        path = tmp_path / "list.txt"
        path.write_text(f"{server.url('a.jpg')}\t{server.url('b.jpg')}\n  out=a.jpg\n  dir=pictures\n" * 3)
        assert refused(server, path).endswith(
            "a txt holds one URL a line: keep the first URL of each line, and leave out lines that are none"
        )


def test_rows_that_all_fail_behind_stored_ones_are_not_nothing(server: Server, tmp_path: Path) -> None:
    urls = tmp_path / "urls.txt"
    urls.write_text(server.url("a.jpg") + "\n")
    options = [urls, tmp_path / "out", "--number_sample_per_shard=1"]
    assert any2ds(*options).returncode == 0
    urls.write_text(urls.read_text() + server.url("gone.jpg") + "\n")
    assert any2ds(*options).returncode == 0
