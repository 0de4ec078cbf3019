"""A run's last screen, its RunReport, the statistics of its shards, inspect, the report and the card say the same."""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import any2ds.cli
from any2ds.testing.server import serve
from tests.support.assortment import write

FAULTS = {"gone.jpg": ["404"], "busy.jpg": ["503"], "cut.jpg": ["truncated"], "denied.jpg": ["403"]}
RUNS: dict[str, dict[str, Any]] = {
    "one shard": {"output_format": "webdataset"},
    "several": {"output_format": "parquet", "number_sample_per_shard": 7, "dedupe": "run"},
    "resized": {"output_format": "files", "number_sample_per_shard": 30, "file_size": 64, "decode_check": True},
    "preset": {"preset": "img2dataset", "input_format": "jsonl", "output_format": "webdataset", "image_size": 64},
    "failures": {"output_format": "webdataset", "max_file_bytes": 1},
}
Outcomes = dict[str, tuple[str, str]]  # code -> rows and share, as they are shown


def _text(page: str) -> str:
    return html.unescape(re.sub("<[^>]*>", "", page))


@pytest.fixture(params=RUNS)
def made(
    request: pytest.FixtureRequest, tmp_path: Path, with_report: None, capsys: pytest.CaptureFixture[str]
) -> tuple[Path, any2ds.RunReport, str]:
    """A dataset, what the call returned, and the last screen."""
    names = write(tmp_path / "web")
    with serve(tmp_path / "web", FAULTS) as server:
        urls = [f"{server.url(name)}?{n}" for n in range(1100) for name in [[*names, *FAULTS][n % (len(names) + 4)]]]
        urls += ["nonsense", urls[0], urls[1]]
        (tmp_path / "urls.jsonl").write_text("".join(json.dumps({"url": url}) + "\n" for url in urls[-60:]))
        capsys.readouterr()
        report = any2ds.download(tmp_path / "urls.jsonl", tmp_path / "out", distributor="inline", **RUNS[request.param])
    return tmp_path / "out", report, capsys.readouterr().err


def test_all_say_the_same(made: tuple[Path, any2ds.RunReport, str], capsys: pytest.CaptureFixture[str]) -> None:
    out, run, screen = made
    stats = [json.loads(path.read_text()) for path in sorted(out.glob("*_stats.json"))]
    rows, stored = sum(each["count"] for each in stats), sum(each["successes"] for each in stats)
    outcomes = sum((Counter(each["status_dict"]) for each in stats), Counter())
    assert (rows, stored, outcomes) == (run.count, run.successes, Counter(run.status_dict))
    assert sum(outcomes.values()) == rows == 60
    failed = run.failed_to_download + run.failed_to_subsample
    assert f"60 rows, {stored} stored, {failed} failed" in screen
    assert f"60 rows: {stored} stored, {failed} failed; {len(stats)} shard" in repr(run)
    shown = {
        line.split()[0]: tuple(line.split()[1:3]) for line in screen.splitlines() if re.match(r"\w+ +\d+ +<?\d", line)
    }
    assert {code: rows for code, (rows, _) in shown.items()} == {code: str(rows) for code, rows in outcomes.items()}

    assert any2ds.cli.run(["inspect", str(out)]) == 0
    inspected = capsys.readouterr().out
    figures = any2ds.report(out, format="md")
    markdown = capsys.readouterr().out.replace("\\", "")
    any2ds.card(out, output=out / "card.md")
    card = (out / "card.md").read_text(encoding="utf-8").replace("`", "").replace("\\", "")
    (page,) = [path.read_text(encoding="utf-8") for path in out.rglob("report.html")]
    page = html.unescape(page.partition("<script")[0]).replace("\xa0", " ")

    cells = r"^\| (\w+) \| ([\d,]+) \| (\S+%) \|"
    assert {code: tuple(found) for code, *found in re.findall(cells, markdown, re.MULTILINE)} == shown
    assert {code: tuple(found) for code, *found in re.findall(cells, card, re.MULTILINE)} == shown
    of_page = r'<tr data-outcome="(\w+)".*?<td class="n">([\d,]+)</td><td class="n">(.*?)</td>'
    assert {code: tuple(found) for code, *found in re.findall(of_page, page)} == shown
    of_inspect = r"^  (\w+) +([\d,]+) +(<?[\d.]+%)"
    assert {code: tuple(found) for code, *found in re.findall(of_inspect, inspected, re.MULTILINE)} == shown
    repeated = re.findall(r"^(\w+) +([\d,]+) +(<?[\d.]+%)", _text(run._repr_html_()), re.MULTILINE)
    assert {code: tuple(found) for code, *found in repeated} == shown

    size = found[1] if (found := re.search(r"^([\d.]+ \w+) (?:\(.* received\) )?in ", screen, re.MULTILINE)) else ""
    share = shown.get("success", ("0", "0.0%"))[1]
    assert f"60: {stored} stored ({share}), {failed} failed" in inspected
    assert re.search(rf"^  files +{size}(,|$)", inspected, re.MULTILINE)
    assert f"| rows stored | {stored} ({share}) |" in markdown
    assert f"| size of the files | {size} |" in markdown
    assert f"| rows that are stored | {stored} ({share}) |" in card
    assert f"| size of the files | {size} |" in card
    tiles = dict(re.findall(r'data-figure="(\w+)">(.*?)<', page))
    assert (tiles["rows"], tiles["stored"], tiles["failed"], tiles["bytes"]) == ("60", str(stored), str(failed), size)
    assert f'data-figure="stored">{stored}</dd><dd>{share}</dd>' in page
    attempts = sum(each["attempts"] for each in stats)
    assert (int(tiles["attempts"]), run.attempts) == (attempts, attempts)

    if figures.timeline.pauses == 0:  # which a machine that stands still makes of several shards
        seconds, rate = re.findall(r" in ([\d.:]+(?: \w+)?)(?: \(.*\))?: (\S+) stored/s", screen)[-1]
        assert f" in {seconds}>" in repr(run)
        assert f"| time at work | {seconds}, {rate} stored/s |" in markdown
        assert f'data-figure="seconds">{seconds}</dd><dd>{rate} stored/s</dd>' in page
        assert f"({seconds})" in inspected

    offered = re.search(r"^to (retry what may work now \(.*?\):) any2ds", screen, re.MULTILINE)
    for text in (_text(page), markdown):
        found = re.search(r"^To (retry .*)", text, re.MULTILINE)
        assert (found and found[1]) == (offered and offered[1])
    for name, text in {
        "screen": screen,
        "inspect": inspected,
        "md": markdown,
        "card": card,
        "page": page,
    }.items():
        assert [line for line in text.split("\n") if line != line.rstrip()] == [], name
