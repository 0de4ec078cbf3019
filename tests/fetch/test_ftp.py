"""Files on an FTP server, as rows of a list."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from any2ds.core.errors import InputError
from tests.support.ftp import Ftp


@pytest.fixture
def ftp(tmp_path: Path) -> Iterator[Ftp]:
    folder = tmp_path / "ftp"
    folder.mkdir()
    (folder / "a.bin").write_bytes(b"a" * 100_000)
    server = Ftp(folder)
    yield server
    server.close()


def test_rows_are_read_by_name_and_by_password(ftp: Ftp, fetched: Callable[..., Any], tmp_path: Path) -> None:
    anonymous = f"ftp://127.0.0.1:{ftp.port}"
    urls = [f"{anonymous}/a.bin", f"{ftp.url}/a.bin", f"{anonymous}/missing.bin"]
    report = fetched(urls, retries=0)
    assert (report.count, report.successes) == (3, 2)
    table = pq.read_table(tmp_path / "out/00000.parquet", columns=["data", "error_code"])
    assert table["data"].to_pylist() == [b"a" * 100_000, b"a" * 100_000, None]
    assert table["error_code"].to_pylist()[:2] == [None, None]


def test_it_is_no_output_folder(ftp: Ftp, fetched: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match="not for lists or datasets"):
        fetched([f"{ftp.url}/a.bin"], output_folder=f"{ftp.url}/out")
