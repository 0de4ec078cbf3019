"""What is installed decides nothing: a run stores the same on every machine, or it is refused."""

import hashlib
import json
import logging
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from any2ds import card, cli, download, inspect, report, retry
from any2ds.core.errors import OutputError, UnfitWorker
from any2ds.core.layout import RUN_FILE
from any2ds.testing.server import serve
from tests.support.params import sampled
from tests.support.pictures import encoded, jpeg, photograph
from tests.support.recordings import film, tone

ROOT = Path(__file__).parents[2]
EXTRAS = ["PIL", "aiohttp", "av", "charset_normalizer", "cv2", "lxml", "numpy", "pandas"]
EXTRAS += ["pypdfium2", "simplejpeg", "trafilatura", "yaml", "zstandard"]
DRAWING = b"<svg xmlns='http://www.w3.org/2000/svg'/>"

# Python imports a module of this name when it starts.
BLOCKER = f"""
import sys


class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRAS!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Blocker())
"""

QUIET = {"distributor": "inline", "quiet": True, "report": False, "allow_schemes": "file"}


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """PYTHONPATH for processes that find the core libraries only."""
    folder = tmp_path / "blocker"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(BLOCKER)
    return os.pathsep.join((str(folder), str(ROOT)))


@pytest.fixture
def web(tmp_path: Path) -> Path:
    folder = tmp_path / "www"
    folder.mkdir()
    picture = photograph(60, 40)
    files = {
        "a.jpg": jpeg(picture),
        "b.jpg": jpeg(picture)[:-100],
        "c.png": encoded(picture),
        "d.svg": DRAWING,
        "e.wav": tone(seconds=0.2),
        "f.mp4": film(seconds=0.2),
        "g.html": b"<!doctype html><html><body><p>Text</p></body></html>",
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    with zipfile.ZipFile(folder / "h.zip", "w") as archive:
        archive.writestr("a.jpg", files["a.jpg"])
    return folder


def python(script: str, path: str, folder: Path) -> Any:
    """What a process prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        check=True,
        timeout=100,
    )
    return json.loads(done.stdout)


def refusals(calls: list[Mapping[str, Any]], path: str, folder: Path) -> list[str | None]:
    """What `download` raises for each of `calls`, or `retry` for those without a url_list."""
    script = f"""
import json
from any2ds import download, retry
from any2ds.core.errors import MissingExtra

found = []
for call in json.loads({json.dumps(json.dumps(calls))}):
    try:
        (download if "url_list" in call else retry)(**call)
    except MissingExtra as error:
        found.append(str(error))
    else:
        found.append(None)
print(json.dumps(found))
"""
    found: list[str | None] = python(script, path, folder)
    return found


def hashes(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def written(folder: Path) -> Any:
    return json.loads((folder / RUN_FILE).read_text())


def reported(out: Path, folder: Path) -> dict[str, str]:
    """The report in each of its formats, and the card."""
    texts = {}
    for form in ("html", "md", "json"):
        report(out, format=form, output=folder / f"report.{form}")
        texts[form] = (folder / f"report.{form}").read_text()
    return {**texts, "card": card(out, output="-").text}


@pytest.mark.parametrize("output_format", sampled(["webdataset", "parquet"]))
def test_the_same_command_stores_the_same_bytes_and_metadata(
    output_format: str, web: Path, bare: str, tmp_path: Path
) -> None:
    with serve(web) as server:
        rows = {
            "url": [server.url(path.name) for path in sorted(web.iterdir())],
            "seen": pa.array([datetime(2024, 1, 2, 3, 4, 5)] * 8, pa.timestamp("ns")),
            "took": pa.array([1_500_000_000] * 8, pa.duration("ns")),
            "shot": pa.array([[datetime(2024, 1, 2)]] * 8, pa.list_(pa.timestamp("ns", "UTC"))),
        }
        pq.write_table(pa.table(rows), tmp_path / "urls.parquet")
        for name, path in (("bare", bare), ("full", str(ROOT))):
            command = [sys.executable, "-m", "any2ds", "--url_list=urls.parquet", f"--output_folder={name}"]
            command += [f"--output_format={output_format}", "--metadata_format=parquet,csv,jsonl", "--unpack"]
            command += ["--save_additional_columns=seen,took,shot", "--processes_count=1", "--quiet"]
            subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, check=True, timeout=100)
    bare_files, full_files = hashes(tmp_path / "bare"), hashes(tmp_path / "full")
    assert bare_files.keys() == full_files.keys()
    of_times = ("_stats.json", ".any2ds/run", "report.html")
    assert [
        name for name, found in bare_files.items() if found != full_files[name] and not name.endswith(of_times)
    ] == []
    table = pq.read_table(tmp_path / "full" / "00000.parquet")
    assert table["status"].to_pylist() == ["success"] * 8
    assert not {"width", "duration"}.intersection(table.column_names)
    if output_format == "parquet":
        assert table["data"].to_pylist()[:7] == [path.read_bytes() for path in sorted(web.iterdir())[:7]]


def test_an_option_that_is_given_is_refused_without_its_library(bare: str, tmp_path: Path) -> None:
    asked: list[tuple[dict[str, Any], str]] = [
        ({"file_size": 256}, "file_size needs a library that is not installed: pip install 'any2ds[image]'"),
        ({"file_size": 256, "resize_mode": "keep_ratio"}, "any2ds[image]"),
        ({"animated": "first"}, "any2ds[image]"),
        ({"encode_format": "keep"}, "any2ds[image]"),
        ({"preset": "img2dataset"}, "--preset=img2dataset needs a library"),
        ({"audio_format": "keep"}, "any2ds[audio]"),
        ({"video_audio": "keep"}, "any2ds[video]"),
        ({"min_duration": 1}, "any2ds[video]"),
        ({"decode_check": True}, "any2ds[image,video]"),
        ({"extract_text": True}, "any2ds[text]"),
    ]
    off: list[dict[str, Any]] = [
        {"file_size": 0},
        {"unpack": False, "extract_text": False, "decode_check": False},
        {"disable_all_reencoding": True},
    ]
    calls = [
        {"url_list": [{"url": "data:,a"}], "output_folder": f"refused{n}", **each} for n, (each, _) in enumerate(asked)
    ]
    calls += [{"url_list": [{"url": "data:,a"}], "output_folder": f"off{n}", **each} for n, each in enumerate(off)]
    found = refusals([{**QUIET, **call} for call in calls], bare, tmp_path)
    for (options, words), refusal in zip(asked, found[: len(asked)], strict=True):
        assert words in str(refusal), options
    assert found[len(asked) :] == [None] * len(off)
    assert not list(tmp_path.glob("refused*"))


def test_a_list_that_needs_a_library_is_refused_without_it(web: Path, bare: str, tmp_path: Path) -> None:
    (tmp_path / "urls.txt").write_text((web / "a.jpg").as_uri())
    with serve(tmp_path) as server:
        lists = [server.url("urls.txt"), "urls.txt"]
        calls = [{**QUIET, "url_list": each, "output_folder": f"out{n}"} for n, each in enumerate(lists)]
        https, plain = refusals(calls, bare, tmp_path)
        assert server.counts["urls.txt"] == 0
    assert "needs a library that is not installed: pip install 'any2ds[https]'" in str(https)
    assert plain is None
    assert not list(tmp_path.glob("out0"))


def test_only_yaml_that_people_wrote_needs_a_library(web: Path, bare: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("output_folder: of_yaml\n")
    (tmp_path / "c.json").write_text(json.dumps({"output_folder": "of_json", "report": True}))
    (tmp_path / "urls.txt").write_text((web / "a.jpg").as_uri())

    def any2ds(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "any2ds", *arguments]
        environment = {**os.environ, "PYTHONPATH": bare}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)

    refused = any2ds("urls.txt", "--config=c.yaml")
    assert refused.returncode != 0
    assert "pip install 'any2ds[yaml]'" in refused.stderr
    assert not (tmp_path / "of_yaml").exists()
    assert any2ds("urls.txt", "--config=c.json", "--processes_count=1", "--allow_schemes=file").returncode == 0
    assert "<svg" in (tmp_path / "of_json" / "report.html").read_text()
    readme = tmp_path / "of_json" / "README.md"
    assert any2ds("card", "of_json", "--license=mit").returncode == 0
    made = readme.read_bytes()
    assert any2ds("card", "of_json").returncode == 0
    assert readme.read_bytes() == made
    readme.write_bytes(made.replace(b'license: "mit"', b"license: mit"))
    assert any2ds("card", "of_json").returncode == 0
    assert readme.read_bytes() == made
    readme.write_bytes(made.replace(b'license: "mit"', b"license: &anchor mit"))
    refused = any2ds("card", "of_json")
    assert refused.returncode != 0
    assert "has a header that cannot be understood" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_going_on_without_a_library_that_made_the_finished_shards_is_refused(
    web: Path, bare: str, tmp_path: Path
) -> None:
    urls = [(web / name).as_uri() for name in ("a.jpg", "missing.jpg", "c.png")]
    out = tmp_path / "out"
    same = {**QUIET, "url_list": urls, "output_folder": str(out), "number_sample_per_shard": 2, "file_size": 16}
    download(**same)
    (out / "00001_stats.json").unlink()
    before = hashes(out)
    extended = {**same, "url_list": urls[:1], "incremental_mode": "extend"}
    again = {**QUIET, "output_folder": str(out), "codes": "all"}
    found = refusals([same, extended, again], bare, tmp_path)
    assert all("pip install 'any2ds[image]'" in str(refusal) for refusal in found), found
    assert "--file_size" in str(found[2])
    assert hashes(out) == before
    (web / "missing.jpg").write_bytes((web / "a.jpg").read_bytes())
    assert retry(**again).successes == 1
    assert pq.read_table(out / "00001.parquet")["width"].to_pylist() == [24]


def test_a_worker_without_a_library_ends_the_run(
    web: Path, bare: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", bare)  # of the worker processes
    urls = [(web / "a.jpg").as_uri()] * 6
    options: dict[str, Any] = {**QUIET, "distributor": "multiprocessing", "number_sample_per_shard": 1}
    with pytest.raises(UnfitWorker, match=r"the machine .* --file_size needs a library.*pip install 'any2ds\[image\]'"):
        download(urls, output_folder=tmp_path / "out", file_size=16, processes_count=2, **options)
    assert not list((tmp_path / "out").glob("0*"))


def test_another_version_of_a_library_is_told(web: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    out = tmp_path / "out"
    urls = [(web / name).as_uri() for name in ("a.jpg", "missing.jpg", "c.png")]
    options = {**QUIET, "output_folder": out, "number_sample_per_shard": 2, "file_size": 16}
    download(urls, **options)
    (step,) = written(out)["steps"]
    (now,) = step["libraries"]["pillow"]
    assert (step["name"], step["asked"], set(step["libraries"])) == (
        "image",
        ["file_size"],
        {"opencv", "pillow", "simplejpeg"},
    )

    def make_older() -> None:
        run = written(out)
        run["steps"][0]["libraries"]["pillow"] = ["1.0"]
        (out / RUN_FILE).write_text(json.dumps(run))

    for write_pending, told in (
        (lambda: download(urls, **options), 2),
        (lambda: retry(out, codes="all", **QUIET), 1),  # its segment says what it was begun with
    ):
        make_older()
        caplog.clear()
        with caplog.at_level(logging.WARNING, "any2ds"):
            write_pending()
            write_pending()
        assert [message for message in caplog.messages if f"pillow 1.0, now {now}" in message] == [
            message for message in caplog.messages if "versions" in message
        ]
        assert len([message for message in caplog.messages if "versions" in message]) == told


def test_a_step_that_was_asked_for_by_a_default_value_is_there_in_a_retry(web: Path, tmp_path: Path) -> None:
    out, late = tmp_path / "out", web / "late.jpg"
    urls = [(web / "a.jpg").as_uri(), late.as_uri()]
    download(urls, output_folder=out, encode_format="keep", **QUIET)
    late.write_bytes((web / "a.jpg").read_bytes())
    retry(out, codes="all", **QUIET)
    assert pq.read_table(out / "00001.parquet")["width"].to_pylist() == [60]
    with pytest.raises(OutputError, match="went through the steps image, and would now go through no step"):
        download(urls, output_folder=out, **QUIET)


def test_what_is_not_processed_is_shown_with_its_reason(
    web: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    (web / "e.svg").write_bytes(DRAWING)
    (web / "i.mid").write_bytes(b"MThd\x00\x00\x00\x06\x00\x00\x00\x01\x00\x60MTrk\x00\x00\x00\x04\x00\xff\x2f\x00")
    (web / "j.7z").write_bytes(b"7z\xbc\xaf\x27\x1c" + bytes(40))
    with serve(web) as server:
        urls = [server.url(name) for name in ("a.jpg", "d.svg", "e.svg", "i.mid", "j.7z", "late.svg")]
        made = download(urls, output_folder=out, file_size=16, audio_trim=1, unpack=True, **QUIET)
        expected = {
            "image/svg+xml is not decoded": 2,
            "application/x-7z-compressed is not unpacked": 1,
            "audio/midi is not sound": 1,
        }
        assert made.not_processed == expected
        (web / "late.svg").write_bytes(DRAWING)
        retry(out, codes="all", **QUIET)
    expected["image/svg+xml is not decoded"] += 1
    found = inspect(out)
    assert found.not_processed == found.to_json()["not_processed"] == expected
    assert cli.run(["inspect", str(out)]) == 0
    assert "not processed  3 files (image/svg+xml is not decoded)" in capsys.readouterr().out
    texts = reported(out, tmp_path)
    assert json.loads(texts["json"])["not_processed"] == expected
    assert 'data-not-processed="image/svg+xml is not decoded" data-files="3"' in texts["html"]
    assert all("| image/svg\\+xml is not decoded | 3 |" in texts[form] for form in ("md", "card"))
