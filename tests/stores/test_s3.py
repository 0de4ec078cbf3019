"""Datasets in S3, from lists and files in S3."""

from collections.abc import Callable, Iterator

import pytest
from s3fs import S3FileSystem

from tests.support.s3 import Bucket, serve_buckets
from tests.support.storing import StoreContract


@pytest.fixture(scope="module")
def new_bucket() -> Iterator[Callable[[], Bucket]]:
    with serve_buckets() as new:
        yield new


class TestS3(StoreContract):
    @pytest.fixture
    def place(self, new_bucket: Callable[[], Bucket], monkeypatch: pytest.MonkeyPatch) -> Bucket:
        bucket = new_bucket()
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        S3FileSystem.clear_instance_cache()
        return bucket
