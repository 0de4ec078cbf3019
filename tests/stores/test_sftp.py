"""Datasets on a real OpenSSH server, from lists and files on it."""

import itertools
from collections.abc import Iterator

import fsspec
import pytest

from tests.support.sftp import SftpPlace, SftpServer, serve_sftp
from tests.support.storing import StoreContract


@pytest.fixture(scope="module")
def sftp() -> Iterator[SftpServer]:
    with serve_sftp() as server:
        yield server


numbers = itertools.count()


class TestSftp(StoreContract):
    @pytest.fixture
    def place(self, sftp: SftpServer, monkeypatch: pytest.MonkeyPatch) -> SftpPlace:
        monkeypatch.setitem(fsspec.config.conf, "sftp", sftp.options)
        return sftp.new_place(f"place {next(numbers)}")
