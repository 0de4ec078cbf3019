"""`any2ds estimate` says what a run would take, and writes nothing into the dataset."""

import hashlib
import json
import os
from typing import Any

import pytest

from tests.support.pictures import jpeg_of, photograph
from tests.support.play import Outcome, Play, Row, body_of

ROWS = {f"{n}.jpg": "ok" for n in range(6)} | {"6.jpg": "http_404", "7.jpg": "http_503"}


def figures(outcome: Outcome) -> dict[str, Any]:
    assert outcome.exit_code == 0, outcome.stderr
    found: dict[str, Any] = json.loads(outcome.stdout)
    return found


def estimated(play: Play, *arguments: str, **options: Any) -> dict[str, Any]:
    return figures(play.run("estimate", *arguments, json="-", **{"host_delay": 0, **options}))


@pytest.fixture
def trial() -> Play:
    """A play with a finished dataset."""
    play = Play(ROWS, number_sample_per_shard=4)
    play.run()
    return play


# --- the list ---


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet", "txt"])
def test_rows_duplicates_and_hosts_of_a_list_are_counted(trial: Play, form: str) -> None:
    urls = [f"http://H{n % 3}.example/{n % 90}.jpg" for n in range(100)]
    if form == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"url": urls}), trial.folder / "urls.parquet")
    else:
        lines = {"csv": ["url", *urls], "jsonl": [json.dumps({"url": url}) for url in urls]}.get(form, urls)
        (trial.folder / f"urls.{form}").write_text("\n".join(lines))
    found = estimated(trial, f"urls.{form}", from_dataset="out")["list"]
    assert (found["rows"], found["is_exact"], found["distinct"], found["hosts"]) == (100, True, 90, 3)
    assert found["duplicates"] == 0.1
    assert found["largest_hosts"] == {"h0.example": 34, "h1.example": 33, "h2.example": 33}


def test_urls_without_a_host_have_none(trial: Play) -> None:
    urls = ["data:,1", "DATA:text/plain;base64,QUJD", "file:///tmp/a", "mailto:me@a", "http:///2", "nonsense", ""]
    (trial.folder / "other.txt").write_text("\n".join([*urls, "http://me@A.example/1", "http://[::1]:81/2"]))
    assert estimated(trial, "other.txt", from_dataset="out")["list"]["largest_hosts"] == {"a.example": 1, "[::1]:81": 1}


def test_rows_that_cannot_be_read_are_not_stored(trial: Play) -> None:
    (trial.folder / "some.jsonl").write_text("\n".join(['{"url": "http://a/1"}'] * 9 + ["{broken"]))
    found = estimated(trial, "some.jsonl", from_dataset="out")
    assert (found["list"]["rows"], found["list"]["bad"]) == (10, 1)
    assert found["dataset"]["stored_rows"]["value"] == pytest.approx(9 * 0.75)


# --- the sample ---


def test_a_sample_of_the_list_is_fetched_into_a_dataset_of_its_own() -> None:
    play = Play(ROWS)
    outcome = play.run("estimate", json="-", sample=5, sample_folder="sample", host_delay=0)
    found = figures(outcome)
    assert (found["list"]["rows"], found["list"]["hosts"], found["sample"]["rows"]) == (8, 1, 5)
    assert outcome.requests.total() == 5
    assert outcome.files == {}
    assert found["sample"]["cpu_per_file"] > 0
    play.out = "sample"
    assert len(play.run("inspect").metadata) == 5
    again = estimated(play, from_dataset="sample")
    assert again["sample"]["outcomes"] == found["sample"]["outcomes"]
    assert again["sample"]["cpu_per_file"] == found["sample"]["cpu_per_file"]
    figures(play.run("estimate", "list.jsonl", json="-", sample=3, sample_folder="sample", host_delay=0))
    assert len(play.run("inspect").metadata) == 3


def test_a_folder_of_somebody_is_not_replaced(trial: Play) -> None:
    before = trial.files()
    outcome = trial.run("estimate", sample_folder="out")
    assert (outcome.exit_code, outcome.requests.total(), trial.files()) == (2, 0, before)
    assert "holds no sample of an estimate" in outcome.stderr


def test_a_host_is_asked_a_few_times_a_second_and_so_many_rows_as_that_allows() -> None:
    play = Play({f"{n}.jpg": "ok" for n in range(60)})
    outcome = play.run("estimate", json="-", host_delay=0.5)
    assert "a sample of 20 rows into estimate-sample, at most 2 a second per host: about 10 s" in outcome.stderr
    times = sorted(request.at for request in play.web.requests)
    assert (outcome.requests.total(), figures(outcome)["sample"]["rows"]) == (20, 20)
    assert times[-1] - times[0] > 19 * 0.45


def test_rows_that_a_step_refuses_are_not_stored() -> None:
    photo, page = jpeg_of(photograph(64, 64, 1), 2000), b"<html>" + bytes(1000)
    rows = {f"{n}.jpg": Row(body=photo if n % 4 else page) for n in range(40)}
    play = Play(rows, only_images=True, file_size=32)
    found = estimated(play)
    assert found["sample"]["outcomes"] == {"success": 0.75, "not_decodable": 0.25}
    assert found["dataset"]["stored_rows"]["value"] == 30
    assert play.run().codes == {"success": 30, "not_decodable": 10}


def test_rows_with_several_urls_need_all_of_them() -> None:
    lines = [f"{{web}}{n}.jpg,{{web}}{n % 6 + 6 * (n % 2)}.jpg" for n in range(6)]
    rows = {f"{n}.jpg": "ok" for n in range(6)} | {f"{n}.jpg": "http_404" for n in range(6, 12)}
    play = Play(rows, lists={"urls.csv": "\n".join(["link,mask", *lines])}, url_col="image:link,mask:mask")
    found = estimated(play)
    assert (found["list"]["rows"], found["sample"]["rows"]) == (6, 6)
    assert found["sample"]["success"]["value"] == 0.5
    assert found["list"]["largest_hosts"] == {play.web.base_url.split("/")[2]: 12}


NESTED = {"0.jpg": "ok", "1.jpg": "ok", "2.jpg": "ok", "3.jpg": "http_404"}


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"url_col": "images[].url"}, {"images_index"}),
        ({"url_col": "images[].url", "save_additional_columns": "*"}, {"images_index", "page", "a:b", "list_bytes"}),
        ({"url_col": "images[].url", "caption_col": "texts[0]", "save_additional_columns": "page:from"}, {"from"}),
        ({"url_col": "images[].url", "verify_hash": "images[].md5:md5", "referer_col": "page"}, {"page"}),
        ({"url_col": "images[0].url", "save_additional_columns": "images[1].url:other"}, {"other"}),
        ({"url_col": "a:images[0].url,b:images[1].url", "save_additional_columns": "*"}, {"page", "b_url"}),
        ({"url_col": "a:images[0].url,b:images[1].url", "verify_hash": "b:images[1].md5:md5"}, {"b_expected_hash"}),
        ({"url_template": "{page}0.jpg"}, {"url"}),
    ],
)
def test_a_sample_of_paths_and_renamed_columns(options: dict[str, Any], names: set[str]) -> None:
    rows = [
        {
            "images": [{"url": "{web}" + name, "md5": hashlib.md5(body_of(name)).hexdigest()} for name in pair],
            "page": "{web}",
            "texts": ["one", "two"],
            "a:b": 1,
            "bytes": 2,
        }
        for pair in (("0.jpg", "1.jpg"), ("2.jpg", "3.jpg"))
    ]
    play = Play(NESTED, lists={"list.jsonl": "\n".join(map(json.dumps, rows))}, **options)
    found = estimated(play, sample_folder="sample")
    each = "[]" in options.get("url_col", "")
    assert (found["list"]["rows"], found["sample"]["rows"]) == ((4, 4) if each else (2, 2))
    play.out = "sample"
    metadata = play.run("inspect").metadata
    assert names <= set(metadata[0])
    assert ("caption_col" in options) == (metadata[0].get("caption") == "one")
    play.options.clear()
    later = estimated(play, from_dataset="sample")  # which knows how the list is read
    assert later["list"] == found["list"]
    assert later["sample"]["outcomes"] == found["sample"]["outcomes"]


def test_the_delay_of_a_robots_txt_decides_the_time() -> None:
    play = Play({f"{n}.jpg": "ok" for n in range(300)} | {"robots.txt": Row(body=b"User-agent: *\nCrawl-delay: 0.3\n")})
    names = [f"{n}.jpg" for n in range(300)]
    play.write_list(names)
    found = estimated(play, "list.jsonl", robots="respect", sample=4)
    assert found["predictions"][0]["limit"] == "hosts"
    assert found["predictions"][0]["seconds"]["value"] == pytest.approx(90, abs=10)
    assert any("asks for 0.3 s between two requests: its 300 rows take 0:01:30" in each for each in found["remarks"])


@pytest.mark.slow
def test_a_long_delay_of_a_robots_txt_does_not_make_a_sample_long() -> None:
    play = Play({f"{n}.jpg": "ok" for n in range(12)} | {"robots.txt": Row(body=b"User-agent: *\nCrawl-delay: 60\n")})
    play.write_list([f"{n}.jpg" for n in range(12)])
    found = estimated(play, "list.jsonl", robots="respect", sample_folder="sample")
    assert found["sample"]["rows"] == 0
    assert found["predictions"][0]["seconds"]["value"] > 11 * 60
    assert any("no row of the sample could be fetched" in each for each in found["remarks"])


def test_a_dataset_is_taken_as_the_sample(trial: Play) -> None:
    outcome = trial.run("estimate", json="-", from_dataset="out", machines="1,3")
    found = figures(outcome)
    assert outcome.requests.total() == 0
    assert found["sample"]["outcomes"] == {"success": 0.75, "http_404": 0.125, "http_503": 0.125}
    assert found["sample"]["success"]["low"] < 0.75 < found["sample"]["success"]["high"]
    assert found["dataset"]["stored_rows"]["value"] == 6
    assert found["dataset"]["stored_bytes"] == pytest.approx(sum(len(body_of(f"{n}.jpg")) for n in range(6)), rel=0.01)
    assert found["dataset"]["shards"] == 2
    assert [run["machines"] for run in found["predictions"]] == [1, 3]
    for run in found["predictions"]:
        assert run["seconds"]["low"] <= run["seconds"]["value"] <= run["seconds"]["high"]
        assert run["rows_per_second"] == pytest.approx(8 / run["seconds"]["value"], rel=0.3)
    assert "retries" in {advice["option"] for advice in found["advice"]}


@pytest.mark.parametrize("way", ["inside", "python"])
def test_a_config_file_may_name_the_dataset_and_wins_over_its_options(trial: Play, way: Any) -> None:
    trial.options.clear()
    config = trial.folder / "estimate.json"
    config.write_text(json.dumps({"from_dataset": trial.path, "number_sample_per_shard": 2, "retries": 3}))
    outcome = trial.run("estimate", way=way, config=str(config))
    assert (outcome.exit_code or 0, outcome.error, outcome.requests.total()) == (0, None, 0), outcome.stderr
    if way == "inside":
        assert estimated(trial, config=str(config))["dataset"]["shards"] == 4
        assert estimated(trial, config=str(config), number_sample_per_shard=8)["dataset"]["shards"] == 1


# --- when there is nothing to estimate ---


def test_without_a_network_it_says_so() -> None:
    play = Play({}, lists={"urls.txt": "\n".join(f"http://127.0.0.1:9/{n}" for n in range(20))})
    outcome = play.run("estimate", host_delay=0)
    assert outcome.exit_code == 1
    assert "is there a network" in outcome.stderr


def test_a_list_of_which_nothing_can_be_fetched_has_no_time() -> None:
    found = estimated(Play({}, lists={"urls.txt": "file:///a\nfile:///b"}))
    assert (found["predictions"], found["advice"], found["sample"]["success"]["value"]) == ([], [], 0)
    said = "(scheme_not_allowed): If you trust the list: --allow_schemes=file"
    assert any(said in remark for remark in found["remarks"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"machines": "0"}, "machines"),
        ({"machines": "x"}, "machines"),
        ({"bandwidth": "fast"}, "bandwidth"),
        ({"from_dataset": "nothing"}, "nothing"),
        ({"format": "pdf"}, "format"),
        ({"sample": 0}, "sample"),
        ({"timeot": 1}, "timeout"),
    ],
    ids=str,
)
def test_wrong_options_are_refused(trial: Play, options: dict[str, Any], said: str) -> None:
    outcome = trial.run("estimate", **{"from_dataset": "out", **options} if "sample" not in options else options)
    assert (outcome.exit_code, outcome.requests.total()) == (2, 0)
    assert said in outcome.stderr


# --- what it says ---


def test_the_screen_has_the_same_figures(trial: Play) -> None:
    text = trial.run("estimate", from_dataset="out").stdout
    assert text.lstrip().startswith("the list")
    assert "75.0%" in text
    assert "http" in text


@pytest.mark.parametrize("columns", [60, 120])
def test_the_screen_fits(trial: Play, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "COLUMNS", str(columns))
    outcome = trial.run("estimate", way="command", from_dataset="out")
    assert max(map(len, outcome.stdout.splitlines())) <= columns
    assert "More machines do not help" in " ".join(outcome.stdout.split())


def test_a_faster_line_takes_no_longer(trial: Play) -> None:
    slow, fast = (
        estimated(trial, from_dataset="out", bandwidth=line, machines="1")["predictions"][0]
        for line in ("1kbit", "1Gbit")
    )
    assert slow["seconds"]["value"] > fast["seconds"]["value"]
    assert slow["limit"] == "bandwidth"


def test_estimate_from_python(trial: Play) -> None:
    outcome = trial.run("estimate", way="python", from_dataset=trial.path, machines=[1, 2], output_format="webdataset")
    assert outcome.error is None
    assert [run.machines for run in outcome.result.predictions] == [1, 2]
    assert outcome.result.to_json()["list"]["rows"] == 8
    assert repr(outcome.result).startswith("<Estimate 75% of 8 rows stored")
    assert "http_503" in outcome.result._repr_html_()
