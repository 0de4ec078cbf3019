"""The report of a dataset: its figures are those of the metadata, and the page is one that a browser has no complaint
about."""

import html
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pypdfium2
import pytest

from any2ds import card, download, inspect, report, retry
from any2ds.cli import parse
from any2ds.config.commands import COMMANDS
from any2ds.config.options import Config
from any2ds.describe.rendering import plain
from any2ds.describe.shown import shown_url
from any2ds.describe.timeline import Spell, Work, timeline
from any2ds.testing.server import Server, serve
from tests.support.assortment import EVIL, assortment, write
from tests.support.browser import Browser, browser

WIDE_OR_NOT = "document.documentElement.scrollWidth > innerWidth"
FIGURES = "JSON.parse(document.getElementById('figures').textContent)"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as running:
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("web") / "media"
    write(folder)
    with serve(folder) as running:
        yield running


def rows_of(server: Server) -> list[dict[str, Any]]:
    """60 of many kinds: two thirds are there, some hosts are not, and captions and URLs are out for trouble."""
    names = list(assortment())
    rows = []
    for n in range(60):
        url = server.url(names[n % len(names)] if n % 5 else f"missing{n}.jpg") + f"?n={n}"
        rows.append({"url": url.replace("127.0.0.1", "localhost") if n % 3 else url, "caption": f"{n} {EVIL}"})
    rows[3]["url"] = "javascript:alert(1)"
    rows[4]["url"] = f'{server.url("photo0.jpg")}?"><img src=x onerror=alert(3)>\u202e'
    rows[6]["url"] = rows[6]["url"].replace("://", "://somebody:secret@")
    rows[7]["url"] = "http://nobody.invalid/a.jpg"
    return rows


@pytest.fixture(scope="module")
def dataset(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "out"
    download(
        rows_of(server),
        output_folder=out,
        output_format="webdataset",
        caption_col="caption",
        number_sample_per_shard=13,
        decode_check=True,
        distributor="inline",
        quiet=True,
        report=False,
    )
    for n, path in enumerate(sorted(out.glob("*_stats.json"))):  # a run that is long enough for charts over time
        stats = json.loads(path.read_text())
        times = {"start_time": stats["start_time"] + 20 * n, "end_time": stats["start_time"] + 20 * n + 25}
        path.write_text(json.dumps({**stats, **times, "duration": 25.0}))
    report(out)
    return out


def selected(query: str, folder: Path) -> list[tuple[Any, ...]]:
    return duckdb.sql(query.replace("METADATA", f"read_parquet('{folder}/*.parquet')")).fetchall()


@pytest.mark.parametrize(("width", "dark"), [(1200, False), (1200, True), (390, False)])
def test_a_browser_shows_it_without_complaints_and_requests(
    chromium: Browser, dataset: Path, width: int, dark: bool
) -> None:
    chromium.show(dataset / "report.html", width, dark=dark)
    assert chromium.complaints == []
    assert [url for url in chromium.requests if not url.startswith("data:")] == [(dataset / "report.html").as_uri()]
    assert not chromium.value(WIDE_OR_NOT)
    brightness = chromium.value("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]")
    assert brightness < 60 if dark else brightness > 200
    charts = chromium.value(
        "[...document.querySelectorAll('.chart svg[role=img]')].filter(one => one.clientWidth).length"
    )
    assert charts == chromium.value("document.querySelectorAll('figure.chart').length") >= 5
    assert chromium.value("[...document.images].every(one => one.complete && one.naturalWidth > 0)")
    assert len(chromium.picture()) > 50_000


def test_the_figures_on_the_page_are_those_of_the_metadata(chromium: Browser, dataset: Path) -> None:
    chromium.show(dataset / "report.html")
    figures = chromium.value(FIGURES)
    by_code = dict(selected("select coalesce(error_code, status), count(*) from METADATA group by 1", dataset))
    assert figures["outcomes"] == by_code
    shown = chromium.value(
        "Object.fromEntries([...document.querySelectorAll('[data-outcome]')].map("
        "one => [one.dataset.outcome, [+one.dataset.rows, one.cells[1].textContent]]))"
    )
    assert shown == {code: [rows, str(rows)] for code, rows in by_code.items()}
    tiles = chromium.value(
        "Object.fromEntries([...document.querySelectorAll('[data-figure]')].map("
        "one => [one.dataset.figure, one.textContent]))"
    )
    stored = by_code["success"]
    assert {name: tiles[name] for name in ("rows", "stored", "failed", "samples")} == {
        "rows": "60",
        "stored": str(stored),
        "failed": str(60 - stored),
        "samples": str(stored),
    }
    types = selected(
        "select mime_type, count(*), sum(bytes)::BIGINT from METADATA where status = 'success' group by 1", dataset
    )
    on_page = chromium.value(
        "[...document.querySelectorAll('[data-type]')].map("
        "one => [one.dataset.type, +one.dataset.files, +one.dataset.bytes])"
    )
    assert sorted(map(tuple, on_page)) == sorted(types)
    assert figures["bytes"] == sum(size for *_, size in types)
    for name, column in {"sizes": "bytes", "widths": "width", "heights": "height", "durations": "duration"}.items():
        found = selected(
            f"select count(x), sum(x)::DOUBLE, min(x)::DOUBLE, max(x)::DOUBLE from "
            f"(select {column} as x from METADATA where status = 'success')",
            dataset,
        )
        distribution = figures[name]
        assert (distribution["count"], distribution["smallest"], distribution["largest"]) == (
            found[0][0],
            found[0][2],
            found[0][3],
        )
        assert distribution["total"] == pytest.approx(found[0][1])
        assert sum(count for *_, count in distribution["ranges"]) == found[0][0]
    table = pq.read_table(sorted(dataset.glob("*.parquet"))).to_pylist()
    hosts: Counter[str] = Counter()
    for row in table:
        if row["status"] != "success":
            hosts[row["url"].partition("//")[2].partition("/")[0] or "(no host)"] += 1
    on_page = chromium.value(
        "Object.fromEntries([...document.querySelectorAll('[data-host]')].map("
        "one => [one.dataset.host, +one.dataset.failed]))"
    )
    assert on_page == hosts
    assert figures["host_count"] == 4
    in_time = sum(sum(spell["outcomes"].values()) for spell in figures["timeline"]["spells"])
    assert in_time == pytest.approx(60)


def test_it_says_what_the_dataset_is_and_which_command_makes_it(chromium: Browser, dataset: Path) -> None:
    chromium.show(dataset / "report.html")
    assert chromium.value("document.querySelector('h1').textContent") == "out"
    stored = selected("select count(*) from METADATA where status = 'success'", dataset)[0][0]
    assert chromium.value("document.title").startswith(f"out: {stored} ")
    command = chromium.value("document.querySelector('.configuration pre').textContent")
    options = Config.from_options(parse(shlex.split(command)[1:], COMMANDS["download"])).to_options()
    assert (options["output_format"], options["number_sample_per_shard"], options["decode_check"]) == (
        "webdataset",
        13,
        True,
    )
    assert "--timeout" not in command  # it has its default value
    assert options["output_folder"].endswith("/out")


def test_the_command_is_as_short_as_the_one_that_was_given(server: Server, tmp_path: Path) -> None:
    urls = tmp_path / "urls.txt"
    urls.write_text("\n".join([server.url("photo0.jpg"), server.url("photo1.jpg"), server.url("photo2.jpg")]))
    given = {"url_list": str(urls), "output_folder": str(tmp_path / "out"), "preset": "img2dataset", "image_size": 64}
    given |= {"output_format": "webdataset", "resize_mode": "center_crop", "limit": 2}
    download(**given, distributor="inline", quiet=True)
    words = shlex.split(report(tmp_path / "out").command)
    assert words[0] == "any2ds"
    assert sorted(words[1:]) == sorted(f"--{name}={value}" for name, value in given.items())


def test_a_retry_is_offered_until_one_gains_nothing(tmp_path: Path, with_report: None) -> None:
    (tmp_path / "web").mkdir()
    for name in ("early.txt", "late.txt", "never.txt"):
        (tmp_path / "web" / name).write_text("moss")
    out = tmp_path / "out"

    def offered() -> list[str]:
        page = html.unescape((out / "report.html").read_text(encoding="utf-8"))
        return re.findall(r'retry what may work now \((.*?)\):</p>\s*<pre class="command" id="retry">', page)

    with serve(tmp_path / "web", {"late.txt": ["503", "ok"], "never.txt": ["503"]}) as server:
        urls = [server.url(name) for name in ("early.txt", "late.txt", "never.txt")]
        download(urls, out, distributor="inline", quiet=True)
        assert offered() == ["2 rows"]
        assert retry(out, distributor="inline", quiet=True).successes == 1
        assert offered() == ["1 row"]
        assert retry(out, distributor="inline", quiet=True).successes == 0
        assert offered() == []


def test_how_to_load_it_stands_above_the_samples_and_the_contents_lead_to_all_sections(
    chromium: Browser, dataset: Path
) -> None:
    chromium.show(dataset / "report.html")
    titles = chromium.value("[...document.querySelectorAll('h2')].map(one => one.textContent)")
    assert titles.index("Load it") < titles.index("Samples")
    places = chromium.value("[...document.querySelectorAll('nav a')].map(one => one.getAttribute('href'))")
    assert len(places) >= 6
    assert all(chromium.value(f"!!document.querySelector('section {place}')") for place in places)


@pytest.mark.parametrize("width", [1200, 390, 320])
def test_no_word_of_ours_breaks(chromium: Browser, dataset: Path, width: int) -> None:
    chromium.show(dataset / "report.html", width)
    broken = """(() => {
        const found = [], walker = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT);
        while (walker.nextNode()) {
            const node = walker.currentNode;
            if (node.parentElement.closest(':not(.types td) > bdi, pre, a, .sample, svg, .configuration')) continue;
            for (const word of node.data.matchAll(/[^\\s/+-]+/g)) {
                const range = document.createRange();
                range.setStart(node, word.index);
                range.setEnd(node, word.index + word[0].length);
                const lines = new Set([...range.getClientRects()].map(one => Math.round(one.bottom / 8)));
                if (lines.size > 1) found.push(word[0]);
            }
        }
        return found;
    })()"""
    assert chromium.value(broken) == []


def work(start: float, end: float, outcomes: dict[str, int], size: int = 0) -> Work:
    return Work(start, end, end, outcomes, size)


def rows_in(spells: Iterable[Spell]) -> float:
    return sum(sum(spell.outcomes.values()) for spell in spells)


def test_ticks_of_time_are_round_numbers() -> None:
    for seconds in (0.3, 1, 7, 60, 100, 3000, 50_000, 10**6, 10**7):
        works = [work(1e9 + n * seconds / 50, 1e9 + (n + 1) * seconds / 50, {"success": 1}) for n in range(50)]
        found = timeline(works)
        unit = next((unit for unit in (86400, 3600, 60) if found.seconds > 2 * unit), 1)
        starts = [spell.start / unit for spell in found.spells]
        assert 1 < len(starts) <= 50
        assert all(abs(start * 10 - round(start * 10)) < 1e-6 for start in starts), starts
        assert rows_in(found.spells) == pytest.approx(50)
        assert sum(spell.seconds for spell in found.spells) == pytest.approx(found.seconds, rel=1e-6)


def test_what_strangers_wrote_is_text(chromium: Browser, dataset: Path) -> None:
    chromium.show(dataset / "report.html")
    assert chromium.value("document.querySelectorAll('script').length") == 1  # the figures
    links = chromium.value("[...document.querySelectorAll('section a[target]')].map(one => [one.protocol, one.rel])")
    assert {tuple(one) for one in links} == {("http:", "noopener noreferrer")}
    content = (dataset / "report.html").read_bytes()
    assert b"\0" not in content
    assert "\u202e" not in content.decode()
    assert "secret" not in content.decode()
    assert b"<img src=x" not in content
    captions = chromium.value("[...document.querySelectorAll('.caption')].map(one => one.textContent)")
    assert captions
    assert all("<script>alert(1)</script>\"'&amp;" in caption for caption in captions)
    assert chromium.value(
        "[...document.querySelectorAll('*')].every(one => ![...one.attributes].some("
        "attribute => attribute.name.startsWith('on') || attribute.name === 'style'))"
    )
    assert "default-src 'none'" in content.decode()


def test_charts_can_be_read_without_seeing_them(chromium: Browser, dataset: Path) -> None:
    chromium.show(dataset / "report.html")
    labels = chromium.value("[...document.querySelectorAll('.chart svg[role=img]')].map(one => one.ariaLabel)")
    assert any("are not counted" in label for label in labels if label.startswith("Time per successful"))
    assert any(label.startswith("Size of files: From 10 bytes to") for label in labels)
    assert chromium.value("[...document.querySelectorAll('.chart .bar')].every(one => one.querySelector('title'))")
    assert chromium.value("[...document.querySelectorAll('.chart .title')].length") >= 5
    assert chromium.value("[...document.images].every(one => one.alt)")


def test_it_is_printed_on_paper(chromium: Browser, dataset: Path) -> None:
    chromium.show(dataset / "report.html", dark=True)
    pages = pypdfium2.PdfDocument(chromium.pdf())
    assert 3 <= len(pages) <= 16
    assert [round(side) for side in pages[0].get_size()] == [595, 842]
    words = "".join(page.get_textpage().get_text_range() for page in pages)
    assert "DuckDB" in words
    assert "octet_length" in words  # what is folded on the screen
    pages.close()


def test_a_run_leaves_its_report(server: Server, tmp_path: Path, with_report: None) -> None:
    out = tmp_path / "out"
    options = {"output_folder": out, "output_format": "parquet", "distributor": "inline", "quiet": True}
    rows = [{"url": server.url(name)} for name in ("note.txt", "gone.txt")]
    download(rows, **options, report=False)
    assert not (out / "report.html").exists()
    retry(out, codes="all", distributor="inline", quiet=True)
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Moss grows slowly" in page
    assert 'data-outcome="http_404" data-rows="1"' in page
    (out / "report.html").unlink()
    download(rows, **options)  # there is nothing to do but this
    assert (out / "report.html").exists()
    before = (out / "report.html").stat().st_mtime_ns
    download(rows, **options)
    assert (out / "report.html").stat().st_mtime_ns == before
    download(rows[:1], **options, incremental_mode="overwrite")
    assert 'data-figure="rows">1<' in (out / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("place", ["-", None, "page.html"])
def test_what_is_opened_is_what_was_written(
    dataset: Path,
    tmp_path: Path,
    place: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    figures = report(dataset, output=place, open=True, samples=0)
    (path,) = [Path(unquote(urlsplit(url).path)) for url in opened]
    assert (path == dataset / "report.html") == (place is None)
    page = path.read_text(encoding="utf-8")
    assert json.dumps(figures.gathered) in page
    assert (page == capsys.readouterr().out) == (place == "-")


def test_text_in_markdown_is_text() -> None:
    assert plain("a|b\n<img> *x* [y](z) @somebody") == r"a\|b &lt;img&gt; \*x\* \[y\]\(z\) \@somebody"
    assert shown_url("http://user:password@host/\x00\u202ea") == "http://host/a"


@pytest.mark.parametrize("state", ["nothing finished", "failures alone", "broken stats and metadata"])
def test_datasets_in_any_state(chromium: Browser, tmp_path: Path, state: str) -> None:
    out = tmp_path / "out"
    rows = [{"url": f"javascript:{n}"} for n in range(9)]
    download(rows, output_folder=out, number_sample_per_shard=3, distributor="inline", quiet=True)
    if state == "nothing finished":
        (out / ".any2ds/shards").unlink()
        for path in out.iterdir():
            if path.is_file():
                path.unlink()
    elif state.startswith("broken"):
        (out / "00001_stats.json").write_text("{}")
        (out / "00002.parquet").write_text("none")
        (out / ".any2ds/shards").write_text("[")
    figures = report(out)
    chromium.show(out / "report.html", 390)
    assert (chromium.complaints, chromium.value(WIDE_OR_NOT)) == ([], False)
    if state == "nothing finished":
        assert (figures.shards, figures.rows, chromium.value("!!document.getElementById('empty')")) == (0, 0, True)
    elif state == "failures alone":
        assert (figures.rows, figures.failed, figures.bytes) == (9, 9, 0)
    else:
        assert (figures.rows, figures.failed, len(figures.problems)) == (None, 6, 2)
        assert chromium.value("document.getElementById('problems').children.length") == 2


def test_a_dataset_of_a_moment_has_no_charts_over_time(chromium: Browser, tmp_path: Path) -> None:
    out = tmp_path / "out"
    download([{"url": "javascript:"}, {"url": "x"}], output_folder=out, distributor="inline", quiet=True)
    stats = json.loads((out / "00000_stats.json").read_text())
    stats |= {"end_time": stats["start_time"] + 0.01, "duration": 0.01}  # a busy machine may take several moments
    (out / "00000_stats.json").write_text(json.dumps(stats))
    report(out)
    chromium.show(out / "report.html", width=390)
    titles = chromium.value("[...document.querySelectorAll('.chart h3')].map(title => title.textContent)")
    assert titles == []
    tiles = chromium.value("[...document.querySelectorAll('.tiles div')].map(tile => tile.innerText)")
    assert any("0 stored/s" in tile for tile in tiles)
    of_rows = "getComputedStyle(document.querySelector('[data-host] .n + .n'), '::before').content"
    assert chromium.value(of_rows) == '"of "'


@pytest.mark.slow
def test_of_ten_thousands_of_shards_some_are_looked_at(chromium: Browser, tmp_path: Path) -> None:
    out = tmp_path / "out"
    download([{"url": "javascript:"}], output_folder=out, number_sample_per_shard=10, distributor="inline", quiet=True)
    stats = json.loads((out / "00000_stats.json").read_text())
    listed = (out / ".any2ds/shards").read_bytes().splitlines()
    entry = json.loads(listed[1])
    count = 10_500
    for n in range(1, count):
        more = {"shard_id": n, "count": 10, "start_time": 1e9 + n, "end_time": 1e9 + n + 5, "latencies": {"-8": 10}}
        (out / f"{n:05d}_stats.json").write_text(json.dumps({**stats, **more, "status_dict": {"dns": 10}}))
    head = {**json.loads(listed[0] + b"0]}"), "shards": count, "count": 10 * count}
    del head["shardlist"]
    entries = ",\n".join(json.dumps({**entry, "shard_id": n, "count": 10}, separators=(",", ":")) for n in range(count))
    (out / ".any2ds/shards").write_text(f'{json.dumps(head)[:-1]},"shardlist":[\n{entries}\n]}}\n')
    figures = report(out)
    assert (figures.shards, figures.rows, figures.coverage.shards_of_stats) == (count, 10 * count, 10_000)
    assert not figures.is_whole
    assert figures.latencies["p50"] == pytest.approx(0.52, rel=0.05)
    assert [shown[:2] for shown in figures.latency_ranges] == [(0.5, 0.7)]
    chromium.show(out / "report.html")
    assert chromium.value("document.getElementById('sampled').textContent").startswith(
        "Sampled at random: outcomes and times are from 10,000 of the 10,500 shards ("
    )
    assert (out / "report.html").stat().st_size < 1_000_000
    summary = inspect(out)
    assert (summary.rows, summary.coverage.shards_of_stats) == (10 * count, 10_000)
    assert summary.outcomes["dns"] >= 99_990
    text = card(out, output="-").text
    assert "105,000 rows of a list" in text
    assert "## What became of the rows in 10,000 of the shards" in text
    (out / ".any2ds/shards").unlink()
    assert inspect(out).rows is None
    assert re.search(r"samples of (100,000|99,991) rows of a list", card(out, output="-").text)


def test_the_time_between_a_run_and_its_retry_is_no_time_at_work(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "out"
    rows = [{"url": server.url(name)} for name in ("note.txt", "facts.json", "gone.txt")]
    download(rows, output_folder=out, output_format="webdataset", distributor="inline", quiet=True)
    week = 7 * 86_400
    stats = json.loads((out / "00000_stats.json").read_text())
    earlier = {name: stats[name] - week for name in ("start_time", "end_time")}
    (out / "00000_stats.json").write_text(json.dumps({**stats, **earlier}))
    assert retry(out, codes="all", distributor="inline", quiet=True).count == 1
    found = report(out, format="json", output=tmp_path / "figures.json")
    assert found.started is not None
    assert found.ended is not None
    assert found.ended - found.started > week
    assert found.timeline.seconds < 600
    assert rows_in(found.timeline.spells) == pytest.approx(4)  # of which one was tried twice


def test_pauses_between_runs_are_left_out() -> None:
    works = [
        work(1000.0, 1010.0, {"success": 10}, 100),
        work(1005.0, 1020.0, {"dns": 5}),
        work(9000.0, 9020.0, {"success": 20}),
    ]
    found = timeline(works)
    assert (found.seconds, found.pauses) == (40.0, 1)
    assert rows_in(found.spells) == pytest.approx(35)
    assert rows_in(found.spells[len(found.spells) // 2 :]) == pytest.approx(20)
    assert sum(spell.bytes for spell in found.spells) == pytest.approx(100)
    assert timeline([work(0.0, 0.0, {"success": 1})]).spells == ()
    assert rows_in(timeline([work(5.0, 5.0, {"success": 1})]).spells) == 1


@pytest.mark.slow
def test_magnitudes_that_cannot_be_are_left_out(server: Server, tmp_path: Path) -> None:
    rows = [f"{server.url('photo0.jpg')}?n={n}" for n in range(5)]
    download(rows, output_folder=tmp_path / "out", distributor="inline", quiet=True, report=False, decode_check=True)
    metadata = tmp_path / "out" / "00000.parquet"
    table = pq.read_table(metadata)
    for name in ("duration", "width"):
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, pa.array([float("inf"), float("nan"), -1.0, None, 2.5], pa.float64()))
    pq.write_table(table, metadata)
    figures = report(tmp_path / "out")
    assert [(d.count, d.largest) for d in (figures.durations, figures.widths)] == [(1, 2.5), (1, 2.5)]
    assert "<h3>Duration</h3>" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
