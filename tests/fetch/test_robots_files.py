"""What processes share of robots.txt: by names, for an hour, in a folder that nobody else may write in."""

import os
from pathlib import Path

import pytest

from any2ds.fetch.robots_files import RobotsFiles


@pytest.mark.parametrize("content", [b"", b"User-agent: *\nDisallow: /\n", b"\n\n\xff\x00"])
def test_what_is_written_is_read_under_its_name_alone(tmp_path: Path, content: bytes) -> None:
    RobotsFiles(tmp_path / "f").write("any2ds https://a.org", content)
    files = RobotsFiles(tmp_path / "f")
    assert files.read("any2ds https://a.org") == content
    assert files.read("other https://a.org") is None
    (place,) = (tmp_path / "f").iterdir()
    place.write_bytes(b"any2ds https://b.org\n" + content)  # of a host that has the same place
    assert files.read("any2ds https://a.org") is None


def test_what_is_old_or_long_is_asked_for_again(tmp_path: Path) -> None:
    files = RobotsFiles(tmp_path / "f")
    files.write("a", b"#" * 100_000)
    assert files.read("a") is None
    files.write("a", b"x")
    (place,) = (tmp_path / "f").iterdir()
    os.utime(place, (1e9, 1e9))
    assert files.read("a") is None


def test_a_folder_that_others_may_write_in_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f").chmod(0o777)
    files = RobotsFiles(tmp_path / "f")
    files.write("a", b"x")
    assert files.read("a") is None
    assert not list((tmp_path / "f").iterdir())
