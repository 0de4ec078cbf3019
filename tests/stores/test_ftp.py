"""Datasets on an FTP server, from lists and files on it."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from any2ds.testing.storing import StoreContract
from tests.support.ftp import Ftp, FtpPlace


@pytest.fixture(scope="module")
def ftp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ftp]:
    root: Path = tmp_path_factory.mktemp("ftp")
    server = Ftp(root)
    yield server
    server.close()


numbers = itertools.count()


class TestFtp(StoreContract):
    @pytest.fixture
    def place(self, ftp: Ftp) -> FtpPlace:
        return FtpPlace(ftp, f"place-{next(numbers)}")
