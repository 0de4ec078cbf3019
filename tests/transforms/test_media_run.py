"""Whole runs over sound and video: from a server into a dataset."""

import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import any2ds
from any2ds import download
from any2ds.core.errors import OptionError
from any2ds.testing.server import serve
from tests.support.recordings import film, heard, seen, tone


def test_a_list_of_sound_and_video_becomes_a_dataset(tmp_path: Path) -> None:
    folder = tmp_path / "web"
    folder.mkdir()
    (folder / "a.wav").write_bytes(tone(seconds=1.0))
    video = film(seconds=1.0)
    (folder / "b.mp4").write_bytes(video)
    (folder / "c.mp4").write_bytes(video[:-500])
    (folder / "d.txt").write_bytes(b"neither")
    with serve(folder) as server:
        report = download(
            [server.url(name) for name in ("a.wav", "b.mp4", "c.mp4", "d.txt")],
            output_folder=tmp_path / "out",
            output_format="webdataset",
            distributor="inline",
            quiet=True,
            audio_rate=16_000,
            audio_format="flac",
            clip_seconds=0.5,
            video_audio="split",
        )
    assert (report.successes, report.samples, report.failed_to_subsample) == (3, 5, 1)
    table = pq.read_table(tmp_path / "out" / "00000.parquet").to_pylist()
    rows = {row["key"]: row for row in table}
    first, second = rows["000000001_0000"], rows["000000001_0001"]
    sounds = [rows[f"000000000_000{part}"] for part in range(2)]
    assert [(one["clip_start"], one["clip_end"], one["duration"]) for one in sounds] == [(0, 0.5, 0.5), (0.5, 1, 0.5)]
    for sound in sounds:
        assert (sound["ext"], sound["sample_rate"], sound["codec"], sound["width"]) == ("flac", 16_000, "flac", None)
    assert (first["clip_start"], second["clip_start"], second["clip_end"]) == (0.0, 0.5, 1.0)
    assert (first["video_codec"], first["codec"], first["sample_rate"]) == ("h264", "flac", 16_000)
    assert rows["000000002"]["error_code"] == "not_decodable"
    with tarfile.open(tmp_path / "out" / "00000.tar") as tar:
        files = {one.name: tar.extractfile(one).read() for one in tar}  # type: ignore[union-attr]
    assert files["000000001_0001.flac"][:4] == files["000000000_0001.flac"][:4] == b"fLaC"
    assert len(seen(files["000000001_0001.mp4"])) == 13
    assert files["000000003.txt"] == b"neither"
    assert first["stored_bytes"] == len(files["000000001_0000.mp4"])
    assert first["bytes"] == len(video)


@pytest.mark.parametrize("output_format", ["webdataset", "parquet"])
def test_a_command_cuts_sound_by_a_column_of_its_list(output_format: str, tmp_path: Path) -> None:
    web = tmp_path / "web"
    web.mkdir()
    (web / "a.wav").write_bytes(tone(seconds=2.0, rate=8000))
    (web / "b.mp3").write_bytes(tone("mp3", "libmp3lame", 2.0, 44_100))
    out = tmp_path / "out"
    with serve(web) as server:
        rows = [("a.wav", "[[0, 0.5], [1, 3]]"), ("b.mp3", "[[1, 1.5]]"), ("a.wav", ""), ("b.mp3", "[[2, 1]]")]
        lines = [f'{server.url(name)},"{cuts}"' for name, cuts in rows]
        (tmp_path / "list.csv").write_text("url,cuts\n" + "\n".join(lines) + "\n")
        options = ["--clips_col=cuts", "--save_additional_columns=cuts", f"--output_format={output_format}"]
        command = [sys.executable, "-m", "any2ds", str(tmp_path / "list.csv"), str(out), *options]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    metadata = {row["key"]: row for row in pq.read_table(out / "00000.parquet").to_pylist()}
    shown = {key: (row["error_code"], row["clip_start"], row["clip_end"], row["ext"]) for key, row in metadata.items()}
    assert shown == {
        "000000000_0000": (None, 0, 0.5, "wav"),
        "000000000_0001": (None, 1, 2, "wav"),
        "000000001_0000": (None, 1, 1.5, "mp3"),
        "000000002": (None, None, None, "wav"),
        "000000003": ("bad_clips", None, None, None),
    }
    lengths = {found["key"]: heard(found["data"])[0].shape[1] for found in any2ds.load(out)}
    assert lengths.pop("000000001_0000") == pytest.approx(0.5 * 44_100, abs=2500)  # with the encoder's padding
    assert lengths == {"000000000_0000": 4000, "000000000_0001": 8000, "000000002": 16_000}
    assert any2ds.verify(out).ok


def test_sound_that_is_split_off_is_a_column_where_a_format_has_no_further_files(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(film(seconds=0.5))
    for output_format in ("parquet", "tfrecord"):
        download(
            [{"url": f"file://{tmp_path}/a.mp4"}, {"url": "data:,text"}],
            output_folder=tmp_path / output_format,
            output_format=output_format,
            distributor="inline",
            quiet=True,
            allow_schemes="file",
            video_audio="split",
        )
        sounds = pq.read_table(tmp_path / output_format / "00000.parquet")["wav"].to_pylist()
        assert sounds[0][:4] == b"RIFF"
        assert sounds[1] is None


@pytest.mark.parametrize(
    "asked",
    [
        {"video_size": 64},
        {"resize_mode": "border", "file_size": 256},
        {"file_size": 512},
        {"extract_text": True},
        {"min_duration": 2},
        {"frames": 3, "file_size": 0},
        {"bbox_col": "faces", "save_additional_columns": "faces"},
    ],
)
def test_what_disable_all_reencoding_would_leave_out_is_refused(asked: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=rf"disable_all_reencoding .* {next(iter(asked))} would have no effect"):
        download(
            [{"url": "data:,a", "faces": "[]"}], output_folder=tmp_path / "o", disable_all_reencoding=True, **asked
        )
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("option", ["bbox_col", "clips_col"])
@pytest.mark.parametrize(("column", "what"), [("url", "url_col"), ("text", "caption_col")])
def test_boxes_and_clips_cannot_be_in_a_column_that_is_another_thing(
    option: str, column: str, what: str, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=f"{option}: '{column}' is {what} already"):
        download(
            [{"url": "data:,a", "text": "[[0, 0, 1, 1]]"}],
            output_folder=tmp_path / "o",
            caption_col="text",
            **{option: column},
        )
    assert not (tmp_path / "o").exists()


def test_what_disable_all_reencoding_does_not_leave_out(tmp_path: Path) -> None:
    inside = io.BytesIO()
    with zipfile.ZipFile(inside, "w") as archive:
        archive.writestr("broken.jpg", b"\xff\xd8\xff no image")
        archive.writestr("broken.mp3", b"ID3 no sound")
    (tmp_path / "a.zip").write_bytes(inside.getvalue())
    (tmp_path / "mine.py").write_text("def step(sample):\n    return sample.with_data(sample.data + b'!')\n")
    report = download(
        [f"file://{tmp_path}/a.zip"],
        output_folder=tmp_path / "o",
        distributor="inline",
        quiet=True,
        allow_schemes="file",
        disable_all_reencoding=True,
        unpack=True,
        transform=f"{tmp_path}/mine.py:step",
        file_size=0,
        resize_mode="no",
    )
    assert (report.successes, report.samples) == (1, 2)
    assert (tmp_path / "o/00000/000000000_0000.jpg").read_bytes() == b"\xff\xd8\xff no image!"
    table = pq.read_table(tmp_path / "o" / "00000.parquet")
    assert table["path"].to_pylist() == ["broken.jpg", "broken.mp3"]
    assert not {"width", "duration", "pages"}.intersection(table.column_names)
