"""The functions of Python return what commands say, and raise what ends them."""

import json
from pathlib import Path
from typing import Any

import pytest

import any2ds
from tests.support.play import Play, body_of

ROWS = {"a.jpg": "ok", "b.jpg": "http_404", "c.txt": "ok"}


def test_download_returns_the_figures_of_the_run() -> None:
    outcome = Play(ROWS, number_sample_per_shard=2, way="python").run()
    report = outcome.result
    assert isinstance(report, any2ds.RunReport)
    assert (report.count, report.successes, report.shards, report.attempts) == (3, 2, 2, 3)
    assert (report.status_dict, report.exts) == ({"success": 2, "http_404": 1}, {"jpg": 1, "txt": 1})
    assert report.bytes == len(body_of("a.jpg")) + len(body_of("c.txt"))
    assert outcome.stdout == ""


def test_what_was_finished_before_is_not_counted_again() -> None:
    play = Play(ROWS, number_sample_per_shard=1, way="python")
    play.run("download", *play.write_list(["a.jpg"]))
    report = play.run().result
    assert (report.count, report.shards, report.skipped_shards) == (2, 2, 1)


@pytest.mark.parametrize("given", ["urls", "dicts", "table"])
def test_a_list_may_be_a_value(given: str) -> None:
    import pyarrow as pa

    play = Play(ROWS)
    urls = [play.web.url(name) for name in ROWS]
    rows = [{"url": url, "caption": f"about {n}"} for n, url in enumerate(urls)]
    lists: dict[str, Any] = {"urls": urls, "dicts": rows, "table": pa.Table.from_pylist(rows)}
    options = {} if given == "urls" else {"caption_col": "caption"}
    outcome = play.run("download", lists[given], way="python", **options)
    assert outcome.error is None
    assert outcome.codes == {"success": 2, "http_404": 1}
    if given != "urls":
        assert [sample.files["txt"].decode() for sample in outcome.samples] == ["about 0", "about 2"]


def test_a_run_with_missing_shards_raises_with_its_figures() -> None:
    play = Play(ROWS, store="s3", number_sample_per_shard=1, max_shard_retry=0, way="python")
    with play.bucket.refusing("403", "00001.tar"):
        error = play.run().error
    assert isinstance(error, any2ds.IncompleteRun)
    assert isinstance(error, any2ds.RunError)
    assert [failed.shard_id for failed in error.report.failed_shards] == [1]
    assert error.report.successes == 2


def test_nothing_stored_is_no_exception() -> None:
    outcome = Play({"a.jpg": "http_404"}, way="python").run()
    assert outcome.error is None
    assert (outcome.result.successes, outcome.result.status_dict) == (0, {"http_404": 1})


@pytest.mark.parametrize("command", ["retry", "verify", "inspect", "report", "card", "load"])
def test_each_function_raises_a_usage_error_where_there_is_no_dataset(command: str, tmp_path: Path) -> None:
    with pytest.raises(any2ds.UsageError, match="nothing_here") as raised:
        getattr(any2ds, command)(str(tmp_path / "nothing_here"))
    assert isinstance(raised.value, any2ds.Any2dsError)


def test_an_unknown_keyword_is_a_type_error_or_names_the_right_one() -> None:
    error = Play(ROWS).run(way="python", timeot=3).error
    assert isinstance(error, TypeError | any2ds.UsageError)
    assert "timeot" in str(error)


def test_a_path_may_be_a_path() -> None:
    play = Play(ROWS)
    (name,) = play.write_list()
    report = any2ds.download(
        play.folder / name, play.folder / "out", output_format="parquet", report=False, distributor="inline", quiet=True
    )
    assert report.successes == 2
    assert any2ds.inspect(play.folder / "out").rows == 3


def test_a_function_is_a_step() -> None:
    def shout(sample: any2ds.Sample) -> any2ds.Sample | None:
        return sample.with_data(sample.data.upper()) if sample.ext == "txt" else None

    play = Play(ROWS, way="python", transform=shout)
    outcome = play.run()
    assert outcome.error is None, outcome.error
    assert outcome.codes == {"success": 1, "http_404": 1, "filtered": 1}
    assert list(outcome.data.values()) == [body_of("c.txt").upper()]


def test_all_public_names_are_there() -> None:
    assert set(any2ds.__all__) <= set(dir(any2ds))
    for name in set(any2ds.__all__) - {"beam"}:
        assert getattr(any2ds, name) is not None
    with pytest.raises(AttributeError):
        any2ds.nothing_there  # noqa: B018


def test_records_are_read_without_another_library() -> None:
    play = Play({"a.txt": "ok"}, output_format="tfrecord")
    outcome = play.run()
    content = outcome.files["00000.tfrecord"]
    length = int.from_bytes(content[:8], "little")
    example = any2ds.parse_example(content[12 : 12 + length])
    assert (
        body_of("a.txt")
        in json.dumps(example, default=lambda value: value.decode()).encode().decode("unicode_escape").encode()
    )


def with_entry_point(play: Play, group: str, point: str, **modules: str) -> None:
    """A package of somebody else is installed for the commands of a play."""
    site = play.folder / "site"
    (site / "other-1.0.dist-info").mkdir(parents=True)
    (site / "other-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (site / "other-1.0.dist-info" / "entry_points.txt").write_text(f"[{group}]\n{point}\n")
    for name, code in modules.items():
        (site / f"{name}.py").write_text(code)
    play.environment["PYTHONPATH"] = str(site)


def test_a_recipe_of_an_installed_package_is_found_by_its_name() -> None:
    play = Play(way="command", environment={})
    code = """
import any2ds

class Gulls(any2ds.Recipe):
    VERSION = "1.0.0"

    def info(self):
        return any2ds.Info(features={"text": any2ds.Text()})

    def splits(self, dl):
        return {"train": [("a", {"text": "x"})]}
"""
    with_entry_point(play, "any2ds.recipes", "gulls = gulls_module:Gulls", gulls_module=code)
    assert "gulls" in play.run("recipes", data_dir="data").stdout
    assert play.run("build", "gulls", data_dir="data", report=False).exit_code == 0
    assert any2ds.load("gulls", data_dir=str(play.folder / "data"))[0]["text"] == "x"


def test_a_part_of_an_installed_package_that_cannot_be_imported_is_named() -> None:
    play = Play(ROWS, way="command")
    with_entry_point(play, "any2ds.reporters", "mail = mail_module:PART", mail_module="import nothing_there\n")
    outcome = play.run(reporters="mail")
    assert (outcome.exit_code, outcome.requests.total()) == (2, 0)
    assert "mail" in outcome.stderr
