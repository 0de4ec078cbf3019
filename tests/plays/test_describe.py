"""inspect, report and card say what is in a dataset, all with the same figures."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.play import WEB, Play, Row, body_of

FORMATS = ("files", "webdataset", "parquet", "tfrecord", "arrayrecord")
ROWS = {
    "a.jpg": Row(columns={"text": "<b>Kauz</b>"}),
    "b.png": Row(columns={"text": "Kauz zwei"}),
    "c.txt": Row(columns={"text": "Kauz drei"}),
    "d.jpg": Row("http_404", columns={"text": "Kauz vier"}),
    "e.jpg": Row("http_503", columns={"text": "Kauz fünf"}),
    "f.jpg": Row(columns={"text": "Kauz sechs"}),
}
SIZES = [len(body_of(name)) for name in ("a.jpg", "b.png", "c.txt", "f.jpg")]
OUTCOMES = {"success": 4, "http_404": 1, "http_503": 1}


def made(**options: Any) -> Play:
    play = Play(ROWS, **{"number_sample_per_shard": 4, "caption_col": "text", "output_format": "webdataset", **options})
    assert play.run().codes == OUTCOMES
    return play


# --- inspect ---


@pytest.mark.parametrize("output_format", FORMATS)
def test_inspect_counts_what_is_there_in_each_format(output_format: str) -> None:
    play = made(output_format=output_format)
    outcome = play.run("inspect", json="-")
    figures = json.loads(outcome.stdout)
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    assert figures["output_format"] == output_format
    assert (figures["shards"], figures["rows"], figures["samples"], figures["failed"]) == (2, 6, 4, 2)
    assert figures["outcomes"] == OUTCOMES
    assert (figures["bytes"], figures["measured"]) == (sum(SIZES), 4)
    assert (figures["sizes"]["smallest"], figures["sizes"]["largest"]) == (min(SIZES), max(SIZES))
    types = {name: each["files"] for name, each in figures["types"].items()}
    assert types == {"image/jpeg": 2, "image/png": 1, "text/plain": 1}
    assert figures["columns"]["caption"] == "string"
    assert [list_["rows"] for list_ in figures["lists"]] == [6]
    assert (figures["missing"], figures["unfinished"], figures["problems"]) == ([], 0, [])
    assert figures["options"]["number_sample_per_shard"] == 4


def test_inspect_shows_rows_on_the_screen_as_many_as_are_asked_for() -> None:
    play = made()
    for count in (0, 2, 4):
        screen = play.run("inspect", samples=count).stdout
        assert len(re.findall(r"^ *0000\d\d\.", screen, re.MULTILINE)) == count
    assert "http_503" in screen
    assert "caption" in screen


def test_inspect_writes_its_figures_into_a_file() -> None:
    play = made()
    outcome = play.run("inspect", json="figures.json")
    assert json.loads((play.folder / "figures.json").read_text())["rows"] == 6
    assert "rows" in outcome.stdout


def test_inspect_of_an_unfinished_dataset_says_what_is_missing() -> None:
    play = made(number_sample_per_shard=1)
    for file in Path(play.path).glob("00002*"):
        file.unlink()
    Path(play.path, "00004_stats.json").unlink()
    figures = json.loads(play.run("inspect", json="-").stdout)
    assert (figures["shards"], figures["rows"], figures["unfinished"]) == (4, 4, 1)
    assert 2 in figures["missing"]


def test_inspect_from_python_is_the_same() -> None:
    summary = made().run("inspect", way="python").result
    assert (summary.rows, summary.outcomes, summary.shards) == (6, OUTCOMES, 2)


# --- report ---


@pytest.mark.parametrize("output_format", FORMATS)
def test_the_figures_of_the_report_in_each_format(output_format: str) -> None:
    play = made(output_format=output_format)
    outcome = play.run("report", format="json")
    figures = json.loads(outcome.stdout)
    assert outcome.exit_code == 0
    assert (figures["rows"], figures["samples"], figures["successes"], figures["failed"]) == (6, 4, 4, 2)
    assert (figures["bytes"], figures["attempts"]) == (sum(SIZES), 6)
    assert figures["outcomes"] == OUTCOMES
    text = "data.txt" if output_format in ("files", "webdataset") else "txt"  # txt is the caption there
    assert figures["exts"] == {"jpg": 2, "png": 1, text: 1}
    assert (figures["sizes"]["count"], figures["sizes"]["total"]) == (4, sum(SIZES))
    (host,) = figures["hosts"]
    assert (host["rows"], host["failed"], host["outcomes"]) == (6, 2, OUTCOMES)
    assert figures["retryable"] == 1
    assert "any2ds retry" in figures["retry"]
    assert figures["problems"] == []


def test_the_page_has_figures_and_samples_and_no_markup_of_strangers() -> None:
    play = made()
    outcome = play.run("report")
    page = outcome.files["report.html"].decode()
    assert outcome.exit_code == 0
    assert page.startswith("<!DOCTYPE html>")
    assert "<script" not in page.replace('<script type="application/json"', "")
    assert "<b>Kauz" not in page
    assert "&lt;b&gt;Kauz&lt;/b&gt;" in page
    assert page.count("data:image/") >= 3
    assert all(code in page for code in OUTCOMES)
    assert "any2ds.load(" in page


def test_the_report_counts_labels_and_files_that_are_the_same_bytes() -> None:
    text = (
        "url,label,id\n"
        + "".join(f"{WEB}a.jpg?{n},{'odd' if n % 2 else 'even'},id-{n}\n" for n in range(6))
        + f"{WEB}b.png,odd,id-6\n"
    )
    options = {"save_additional_columns": "label", "key_col": "id", "output_format": "webdataset"}
    play = Play(ROWS, lists={"urls.csv": text}, **options)
    assert play.run().codes == {"success": 7}
    figures = json.loads(play.run("report", format="json").stdout)
    assert figures["labels"] == {"label": {"odd": 4, "even": 3}}
    assert (figures["repeated"], [group["files"] for group in figures["same_bytes"]]) == (5, [6])
    assert figures["hosts"][0]["name"] == play.web.base_url.partition("//")[2].rstrip("/")
    page = play.run("report").files["report.html"].decode()
    assert 'data-label="odd" data-samples="4"' in page
    assert 'data-same="6">' in page
    assert "label" in play.run("inspect").stdout
    assert "| `odd` | 4 |" in play.run("card", output="-").stdout


@pytest.mark.parametrize("samples", [0, 1])
def test_the_page_has_as_many_samples_as_are_asked_for(samples: int) -> None:
    play = made()
    page = play.run("report", samples=samples).files["report.html"].decode()
    assert page.count('src="data:image/') <= samples
    assert ("Kauz" in page) is bool(samples)


def test_the_report_as_markdown_and_into_a_file() -> None:
    play = made()
    text = play.run("report", format="md").stdout
    assert re.search(r"^\| rows \| 6 \|$", text, re.MULTILINE)
    assert re.search(r"http\\?_503 \| 1 \| 16\.7%", text)
    outcome = play.run("report", format="json", output="figures.json")
    assert json.loads((play.folder / "figures.json").read_text())["rows"] == 6
    assert "report.html" not in outcome.files


def test_a_run_leaves_its_report(with_report: None) -> None:
    play = Play(ROWS)
    assert "report.html" in play.run(report=True).files
    assert "report.html" not in Play(ROWS).run(report=False).files


def test_the_report_does_not_replace_a_file_of_others() -> None:
    play = made()
    Path(play.path, "report.html").write_text("mine")
    (play.folder / "mine.json").write_text('{"mine": 1}')
    assert play.run("report").exit_code == 2
    assert play.run("report", format="json", output="mine.json").exit_code == 2
    assert (play.folder / "mine.json").read_text() == '{"mine": 1}'
    assert play.files()["report.html"] == b"mine"


def test_the_report_from_python_is_the_same() -> None:
    play = made()
    figures = play.run("report", way="python", format="json", output=str(play.folder / "figures.json")).result
    assert (figures.rows, figures.outcomes) == (6, OUTCOMES)
    assert json.loads((play.folder / "figures.json").read_text())["rows"] == figures.rows


# --- card ---


def test_the_card_describes_the_dataset() -> None:
    play = made()
    outcome = play.run("card", license="cc-by-4.0", pretty_name="Some birds", language="en,de")
    text = outcome.files["README.md"].decode()
    assert outcome.exit_code == 0
    head, body = text.split("---\n")[1:3]
    assert all(words in head for words in ("Some birds", "cc-by-4.0", "en", "de", "size_categories", "[0-9]*.tar"))
    assert re.search(r"samples \| 4 ", body)
    assert re.search(r"http_503.*1", body)
    assert play.run("verify").exit_code == 0


@pytest.mark.parametrize("output_format", FORMATS)
def test_a_card_in_each_format(output_format: str) -> None:
    play = made(output_format=output_format)
    outcome = play.run("card", output="-")
    assert outcome.exit_code == 0
    assert re.search(r"rows of the list \| 6 ", outcome.stdout)
    assert "README.md" not in outcome.files
    assert ("[0-9]*.tar" in outcome.stdout) is (output_format == "webdataset")


def test_a_card_that_is_written_again_keeps_what_others_wrote() -> None:
    play = made()
    play.run("card", license="mit")
    path = Path(play.path, "README.md")
    text = path.read_text()
    path.write_text(text.replace("---\n", "---\nmine: 1\n", 1) + "\nmine below\n")
    again = play.run("card").files["README.md"].decode()
    assert "mine: 1" in again
    assert again.endswith("\nmine below\n")
    assert "mit" in again.split("---\n")[1]


def test_a_readme_of_others_is_left_alone_unless_forced() -> None:
    play = made()
    Path(play.path, "README.md").write_text("mine")
    outcome = play.run("card")
    assert (outcome.exit_code, outcome.files["README.md"]) == (2, b"mine")
    assert "force" in outcome.stderr
    assert b"size_categories" in play.run("card", "--force").files["README.md"]


def test_a_card_has_no_secrets_and_no_folders_of_this_machine() -> None:
    play = Play(ROWS, headers="X-Key: geheim", caption_col="text")
    play.run()
    text = play.run("card").files["README.md"].decode()
    assert "geheim" not in text
    assert str(play.folder) not in text


@pytest.mark.parametrize("command", ["inspect", "report", "card", "verify", "retry", "finish"])
@pytest.mark.parametrize("content", [None, b"x"], ids=["no folder", "no dataset"])
def test_each_command_refuses_what_is_no_dataset(command: str, content: bytes | None) -> None:
    play = Play()
    if content is not None:
        Path(play.path).mkdir()
        Path(play.path, "a.txt").write_bytes(content)
    outcome = play.run(command)
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert outcome.stderr.startswith("any2ds: ")
    assert outcome.names == ({"a.txt"} if content else set())


@pytest.mark.parametrize("command", ["inspect", "report", "card"])
def test_each_command_works_in_a_bucket(command: str) -> None:
    play = made(store="s3")
    outcome = play.run(command)
    assert outcome.exit_code == 0
    added = {"inspect": "", "report": "report.html", "card": "README.md"}[command]
    assert [name for name in outcome.files if name.endswith(added)]
