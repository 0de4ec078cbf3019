"""Datasets in GCS, as an emulator has it, from lists and files in GCS."""

from collections.abc import Iterator
from types import SimpleNamespace

import fsspec
import gcsfs
import pytest

from tests.support.gcs import GcsPlace, GcsServer, serve_gcs
from tests.support.storing import StoreContract


@pytest.fixture(scope="module")
def gcs() -> Iterator[GcsServer]:
    with serve_gcs() as server:
        yield server


@pytest.fixture
def bucket(gcs: GcsServer, monkeypatch: pytest.MonkeyPatch) -> GcsPlace:
    place = gcs.new_place()
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(fsspec.config.conf, "gs", {"token": "anon"})
    # gcsfs waits for a second and more before each of its own tries, which adds up.
    monkeypatch.setattr("gcsfs.retry.random", SimpleNamespace(random=lambda: -0.95))
    gcsfs.GCSFileSystem.clear_instance_cache()
    return place


class TestGcs(StoreContract):
    @pytest.fixture
    def place(self, bucket: GcsPlace) -> GcsPlace:
        return bucket
