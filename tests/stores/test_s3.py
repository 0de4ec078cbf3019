"""Datasets in S3, from lists and files in S3."""

from collections.abc import Callable

import pytest

from tests.support.s3 import Bucket, enter
from tests.support.storing import StoreContract


class TestS3(StoreContract):
    @pytest.fixture
    def place(self, new_bucket: Callable[[], Bucket], monkeypatch: pytest.MonkeyPatch) -> Bucket:
        bucket = new_bucket()
        enter(bucket, monkeypatch)
        return bucket
