"""`estimate()` of lists on loopback: what it says, what it leaves, and what it answers to a bad list."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import any2ds
from any2ds import RunError, UsageError, estimate, inspect
from any2ds.config.options import Config
from any2ds.forecast.sample import choose_rows
from any2ds.forecast.survey import survey
from any2ds.testing.server import Server, serve

TEN_SECONDS = "at most 4 a second per host: about 10 s"
LOOPBACK = [f"127.0.0.{number}" for number in range(1, 41)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    media = tmp_path_factory.mktemp("media")
    for n in range(10):
        (media / f"{n}.bin").write_bytes(os.urandom(1000 * (n + 1)))
    with serve(media, {"gone.bin": ["404"], "busy.bin": ["503"]}, host="0.0.0.0") as running:
        yield running


def url(server: Server, number: int, name: str | None = None) -> str:
    """Of one of ten files, on one of many hosts."""
    host = LOOPBACK[number % len(LOOPBACK)]
    return f"http://{host}:{server.port}/{name or f'{number % 10}.bin'}?{number}"


@pytest.fixture
def asked(tmp_path: Path) -> Any:
    """`estimate` with a sample in tmp_path."""

    def quietly(rows: Any, **options: Any) -> Any:
        defaults = {"sample_folder": tmp_path / "sample", "sample": 60, "machines": "1,4", "quiet": True}
        return estimate(rows, **{**defaults, "distributor": "inline", **options})

    return quietly


def test_what_it_says_of_a_list(server: Server, asked: Any, tmp_path: Path) -> None:
    rows = [url(server, number, "gone.bin" if number % 4 == 0 else None) for number in range(2000)]
    found = asked([*rows, *rows[:200]], number_sample_per_shard=100)
    said = found.to_json()
    assert (said["list"]["rows"], said["list"]["is_exact"], said["list"]["hosts"]) == (2200, True, 40)
    assert said["list"]["duplicates"] == pytest.approx(200 / 2200)
    success = said["sample"]["success"]
    assert success["low"] < 0.75 < success["high"]
    assert set(said["sample"]["outcomes"]) == {"success", "http_404"}
    assert said["dataset"]["shards"] == 22
    assert said["dataset"]["stored_bytes"] == pytest.approx(2200 * 0.75 * 5500, rel=0.35)
    assert [each["machines"] for each in said["predictions"]] == [1, 4]
    for each in said["predictions"]:
        assert 0 < each["seconds"]["low"] < each["seconds"]["value"] < each["seconds"]["high"]
    assert json.loads(json.dumps(said)) == said
    assert {each["option"] for each in said["advice"]} >= {"thread_count", "dedupe"}


def test_the_sample_is_a_dataset_to_look_at(server: Server, asked: Any, tmp_path: Path) -> None:
    rows = pa.table({"link": [url(server, number) for number in range(300)], "text": [str(n) for n in range(300)]})
    asked(rows, url_col="link", caption_col="text", output_format="webdataset", output_folder=tmp_path / "planned")
    found = inspect(tmp_path / "sample")
    assert (found.rows, found.successes, found.output_format) == (60, 60, "webdataset")
    assert "caption" in found.columns
    assert not (tmp_path / "planned").exists()


def test_an_earlier_sample_is_replaced_and_other_folders_are_not(server: Server, asked: Any, tmp_path: Path) -> None:
    asked([url(server, number) for number in range(100)])
    asked([url(server, number) for number in range(50)], output_format="parquet")
    assert inspect(tmp_path / "sample").rows == 50
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="holds no sample"):
        asked([url(server, 0)], sample_folder=tmp_path / "mine")
    assert os.listdir(tmp_path / "mine") == ["thesis.txt"]


def test_a_host_is_asked_a_few_times_a_second(server: Server, asked: Any) -> None:
    before = len(server.requests)
    asked([f"{server.base_url}{number % 10}.bin?{number}" for number in range(12)])
    times = sorted(request.at for request in server.requests[before:])
    assert len(times) == 12
    assert times[-1] - times[0] > 11 * 0.24


@pytest.mark.slow
def test_a_list_of_one_host_gets_a_clear_answer(server: Server, asked: Any) -> None:
    rows = [url(server, 40 * number) for number in range(5000)]
    found = asked(rows, sample=8, host_delay=0.02)
    assert any("all rows are on one host, 127.0.0.1:" in remark for remark in found.remarks)
    (advice,) = (each for each in found.advice if each.option == "max_per_host")
    assert "it needs 0:01:40, whatever you buy" in advice.reason
    found = asked(rows, sample=8)  # which takes seconds
    assert not any(each.option == "max_per_host" for each in found.advice)


def test_of_a_host_so_many_rows_are_fetched_as_its_pace_allows(server: Server, asked: Any) -> None:
    rows = [url(server, 40 * number) for number in range(300)]
    config = Config.from_options({"url_list": rows})
    chosen = choose_rows(config, survey(config, 300))
    assert (chosen.rows.num_rows, chosen.pace) == (40, f"{TEN_SECONDS}, 30 s if a robots.txt asks for a longer delay")
    assert chosen.weights == {f"127.0.0.1:{server.port}": 7.5}
    before = len(server.requests)
    found = asked(rows, sample=300, host_delay=0)  # as the user says
    assert len(found.model.sample.transfers) == 300
    assert len([each for each in server.requests[before:] if each.path != "robots.txt"]) == 300
    slow = Config.from_options({"url_list": rows, "host_delay": 2, "robots": "ignore"})
    assert choose_rows(slow, survey(slow, 300)).rows.num_rows == 20
    assert choose_rows(slow, survey(slow, 300)).pace == "at most one every 2 s per host: about 38 s"


@pytest.mark.parametrize("scheme", ["data", "file"])
def test_what_has_no_host_is_asked_at_any_pace(scheme: str, asked: Any, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"content")
    rows = [f"data:,{number}" if scheme == "data" else f"file://{tmp_path}/a.bin" for number in range(400)]
    config = Config.from_options({"url_list": [*rows, "nonsense"], "allow_schemes": "file"})
    chosen = choose_rows(config, survey(config, 300))
    assert (chosen.rows.num_rows, chosen.weights, chosen.seconds, chosen.pace) == (300, {}, 0.0, "")
    found = asked([*rows, "nonsense"], sample=300, machines=1, dedupe="none", allow_schemes="file")
    assert found.model.fetched == 400
    assert found.model.success.low < 400 / 401 < found.model.success.high
    assert found.model.sample.cost.seconds < 30  # at the pace of a host they take 75 s
    assert found.predictions[0].seconds.value > 0
    text = found.to_markdown()
    assert "| hosts | none |" in text
    assert f"| schemes | {scheme} 99.8%, no URL 0.2% |" in text


def test_of_files_that_may_not_be_read_it_names_the_option(asked: Any, tmp_path: Path) -> None:
    found = asked([f"file://{tmp_path}/{number}.bin" for number in range(40)], machines=1)
    assert not found.predictions
    assert "no URL of the sample can be fetched (scheme_not_allowed): If you trust the list: --allow_schemes=file" in (
        found.to_markdown()
    )


def test_hosts_and_what_has_none_are_asked_together(server: Server, asked: Any) -> None:
    rows = [row for number in range(200) for row in (f"data:,{number}", url(server, 40 * number))]
    config = Config.from_options({"url_list": rows})
    chosen = choose_rows(config, survey(config, 400))
    assert (chosen.rows.num_rows, chosen.weights) == (240, {f"127.0.0.1:{server.port}": 5.0})
    assert chosen.pace.startswith(TEN_SECONDS)


def test_rows_that_cannot_be_read_count_once(asked: Any, tmp_path: Path) -> None:
    lines = [f'{{"url": "data:,{number}"}}' if number % 10 else "{broken" for number in range(1, 200)]
    (tmp_path / "urls.jsonl").write_text("\n".join(lines))
    found = asked(tmp_path / "urls.jsonl", machines=1)
    assert (found.model.survey.bad, found.model.fetched) == (19, 180)
    assert found.model.survey.schemes == {"data": 180}


def test_rows_without_a_host_are_no_host(server: Server, asked: Any) -> None:
    rows = ["nonsense", "htp://some.where/1", "http:///2", *(url(server, 40 * number) for number in range(9))]
    found = asked(rows, host_delay=0)
    text = found.to_markdown()
    assert f"| hosts | 1; the largest: 127.0.0.1:{server.port} 75.0% |" in text
    assert "htp (cannot be fetched) 8.3%" in text
    assert "no URL 16.7%" in text
    assert found.model.stored.value == pytest.approx(9)
    assert found.model.received_bytes == pytest.approx(9 * 1000)


def test_machines_that_do_not_help_have_no_column(server: Server, asked: Any) -> None:
    found = asked([url(server, number) for number in range(200)], machines="1,4,16")
    assert [each.machines for each in found.predictions] == [1, 4, 16]
    assert "| machines" not in found.to_markdown()
    assert "|  | 1 |\n" in found.to_markdown()
    assert any("more machines do not help so small a list" in remark for remark in found.remarks)


def test_what_robots_txt_asks_for_is_known_of_the_sample(asked: Any, tmp_path: Path) -> None:
    (tmp_path / "media").mkdir()
    (tmp_path / "media" / "robots.txt").write_text("User-agent: *\nCrawl-delay: 0.3\n")
    (tmp_path / "media" / "a.bin").write_bytes(b"content")
    with serve(tmp_path / "media") as polite:
        rows = [f"{polite.base_url}a.bin?{number}" for number in range(1000)]
        found = asked(rows, sample=4, host_delay=0, robots="respect")
    assert found.model.slowest_host().crawl_delay == 0.3
    assert found.predictions[0].limit == "hosts"
    assert any("asks for 0.3 s between two requests: its 1,000 rows take 0:05:00" in each for each in found.remarks)


def test_a_long_delay_of_a_robots_txt_does_not_make_a_sample_long(
    server: Server, asked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The delay, which counts from the request for robots.txt, leaves no time for any row of the host: those of others
    stand for them, but for the time that they take."""
    monkeypatch.setattr("any2ds.forecast.sample.SECONDS_OF_DELAYS", 0.5)
    (tmp_path / "media").mkdir()
    (tmp_path / "media" / "robots.txt").write_text("User-agent: *\nCrawl-delay: 60\n")
    (tmp_path / "media" / "a.bin").write_bytes(b"content")
    with serve(tmp_path / "media") as polite:
        own = [f"{polite.base_url}a.bin?{number}" for number in range(12)]
        found = asked([*own, *(url(server, number) for number in range(28))], sample=40, host_delay=0, robots="respect")
    sample = found.model.sample
    assert sample.cost.seconds < 30  # the delays take eleven minutes
    host = polite.base_url.split("/")[2]
    assert (sample.delays, sample.hosts_not_fetched, len(sample.transfers)) == ({host: 60.0}, [host], 28)
    assert found.model.success.value == 1.0
    assert found.predictions[0].seconds.value > 12 * 60
    assert any(f"of {host} no row of the sample could be fetched" in remark for remark in found.remarks)
    assert inspect(tmp_path / "sample").outcomes == {"success": 28, "timeout_total": 12}
    again = asked([*own, *(url(server, number) for number in range(28))], from_dataset=str(tmp_path / "sample"))
    assert again.predictions[0].seconds.value > 12 * 60


def test_a_list_of_nothing_but_such_a_host_is_estimated_by_its_delay(
    asked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("any2ds.forecast.sample.SECONDS_OF_DELAYS", 0.5)
    (tmp_path / "media").mkdir()
    (tmp_path / "media" / "robots.txt").write_text("User-agent: *\nCrawl-delay: 60\n")
    (tmp_path / "media" / "a.bin").write_bytes(b"content")
    with serve(tmp_path / "media") as polite:
        rows = [f"{polite.base_url}a.bin?{number}" for number in range(100)]
        found = asked(rows, sample=4, host_delay=0, robots="respect")
    assert any("its 100 rows take 1:40:00" in remark for remark in found.remarks)


def test_hosts_that_refuse_everything_are_counted(server: Server, asked: Any) -> None:
    rows = [url(server, host + 40 * n, "busy.bin" if host < 3 else None) for host in range(10) for n in range(4)]
    found = asked(rows, sample=40, host_delay=0, machines=1)
    assert any("3 hosts of the sample refuse everything" in remark for remark in found.remarks)


def test_an_empty_list_is_refused(asked: Any, tmp_path: Path) -> None:
    (tmp_path / "urls.txt").write_text("")
    with pytest.raises(UsageError, match="the url list is empty"):
        asked(tmp_path / "urls.txt")
    assert not (tmp_path / "sample").exists()


def test_without_a_network_it_says_so(asked: Any) -> None:
    with pytest.raises(RunError, match="is there a network"):
        asked([f"http://127.0.0.1:9/{number}" for number in range(20)])


def test_a_list_without_urls_is_no_estimate_of_time(asked: Any) -> None:
    found = asked(["nothing", "", None, "also nothing"])
    assert found.model.success.value == 0
    assert found.predictions == found.advice == ()
    assert any("no URL of the sample can be fetched (bad_url): is url_col=url" in remark for remark in found.remarks)
    assert "The whole list" not in found.to_markdown()


def test_rows_with_several_urls(server: Server, asked: Any, tmp_path: Path) -> None:
    """Hosts and transfers are those of all URLs, and a row is stored if all of its files are."""
    names = ["gone.bin" if number % 2 else None for number in range(300)]
    rows = pa.table(
        {
            "link": [url(server, number) for number in range(300)],
            "mask": [url(server, 1000 + number, name) for number, name in enumerate(names)],
        }
    )
    found = asked(rows, url_col="image:link,mask:mask", output_format="webdataset", sample=40)
    said = found.to_json()
    assert (said["list"]["rows"], said["list"]["hosts"]) == (300, 40)
    assert len(found.model.sample.transfers) == 80
    assert found.model.fetched == 600
    assert said["sample"]["success"]["low"] < 0.5 < said["sample"]["success"]["high"]
    assert inspect(tmp_path / "sample").rows == 40


def test_a_finished_dataset_is_a_sample(server: Server, asked: Any, tmp_path: Path) -> None:
    pq.write_table(pa.table({"url": [url(server, number) for number in range(3000)]}), tmp_path / "urls.parquet")
    trial = {"limit": 200, "quiet": True, "distributor": "inline", "output_format": "parquet"}
    any2ds.download(tmp_path / "urls.parquet", tmp_path / "trial", **trial)
    before = len(server.requests)
    found = estimate(from_dataset=tmp_path / "trial", machines=2, quiet=True)
    assert len(server.requests) == before
    assert found.model.survey.rows == 3000
    assert (len(found.model.sample.transfers), found.model.success.value) == (200, 1.0)
    assert found.predictions[0].seconds.value > 0
    again = estimate(from_dataset=tmp_path / "trial", machines=2, quiet=True)
    assert again.to_json() == found.to_json()


def test_a_sample_can_be_used_again(server: Server, asked: Any, tmp_path: Path) -> None:
    rows = [url(server, number) for number in range(500)]
    first = asked(rows)
    second = asked(rows, from_dataset=tmp_path / "sample")
    assert second.model.cpu == first.model.cpu
    assert second.model.shares == first.model.shares


def test_prices_are_those_of_the_file(server: Server, asked: Any, tmp_path: Path) -> None:
    (tmp_path / "prices.json").write_text('{"machine_hour": 3600, "currency": "EUR"}')
    found = asked([url(server, number) for number in range(100)], price=tmp_path / "prices.json", machines=1)
    only = found.predictions[0]
    assert only.costs.compute == pytest.approx(only.seconds.value)
    assert found.prices.currency == "EUR"
    for content, problem in {'{"machine": 1}': "is no price", '{"egress_gb": "much"}': "must be a number"}.items():
        (tmp_path / "prices.json").write_text(content)
        with pytest.raises(UsageError, match=problem):
            asked([url(server, 0)], price=tmp_path / "prices.json")


class Birds(any2ds.Recipe):
    """Files of a list."""

    VERSION = "1.0.0"
    rows: pa.Table

    def info(self) -> Any:
        return any2ds.Info(features={"image": any2ds.Image()})

    def splits(self, dl: Any) -> Any:
        return {"train": any2ds.UrlRows(self.rows, url_col="url")}


def test_dataset_of_a_recipe_is_a_sample_by_its_name(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a text list, of which a quarter is gone, with prices in YAML."""
    rows = [url(server, number, "gone.bin" if number % 4 == 0 else None) for number in range(400)]
    Birds.rows = pa.table({"url": rows[:100]})
    any2ds.build(Birds, data_dir=str(tmp_path / "built"), quiet=True, report=False, distributor="inline")
    (tmp_path / "urls.txt").write_text("\n".join(rows))
    (tmp_path / "prices.yaml").write_text("currency: CHF\nmachine_hour: 3600\n")
    monkeypatch.setenv("ANY2DS_DATA_DIR", str(tmp_path / "built"))
    found = estimate(tmp_path / "urls.txt", from_dataset="birds", price=tmp_path / "prices.yaml", quiet=True)
    assert found.model.success.value == 0.75
    assert found.model.success.low < 0.75 < found.model.success.high
    assert found.model.survey.rows == 400
    assert found.prices.currency == "CHF"
    assert found.predictions[0].costs.compute == pytest.approx(found.predictions[0].seconds.value)


def test_what_it_shows(server: Server, asked: Any) -> None:
    found = asked([url(server, number, "busy.bin" if number % 3 == 0 else None) for number in range(300)])
    assert repr(found).startswith("<Estimate ")
    assert len(repr(found)) < 200
    page = found._repr_html_()
    assert page.startswith("<pre")
    assert "http_503" in page
    text = found.to_markdown()
    assert "## The whole list" in text
    assert "--retries=1" in text
    assert all(line.count("|") >= 3 for line in text.splitlines() if line.startswith("|"))


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_screen_fits(server: Server, tmp_path: Path, columns: int) -> None:
    (tmp_path / "urls.txt").write_text("\n".join(url(server, number) for number in range(300)))
    command = [sys.executable, "-m", "any2ds", "estimate", "urls.txt", "--sample=40", "--machines=1,4,16"]
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert max(map(len, done.stdout.splitlines())) <= columns
    assert "the whole list" in done.stdout
    assert "fetching a sample of 40 rows into estimate-sample, at most 4 a second per host" in done.stderr


def test_formats_of_the_command_line(server: Server, tmp_path: Path) -> None:
    (tmp_path / "urls.txt").write_text("\n".join(url(server, number) for number in range(50)))
    command = [sys.executable, "-m", "any2ds", "estimate", "urls.txt", "--sample=20", "--quiet"]
    done = subprocess.run([*command, "--format=json"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["list"]["rows"] == 50
    assert done.stderr == ""
    of_the_same_list = [*command[:4], "--quiet", "--format=md", "--from=estimate-sample"]
    done = subprocess.run(of_the_same_list, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("## The list\n\n| | |\n|---|---|\n| rows | 50 |")
    (tmp_path / "nothing").mkdir()
    done = subprocess.run([*command, "--from=nothing"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "from_dataset" not in done.stderr
