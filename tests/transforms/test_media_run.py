"""Whole runs over sound and video: from a server into a dataset."""

import io
import zipfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from any2ds import download
from any2ds.core.errors import OptionError
from tests.support.recordings import film


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
