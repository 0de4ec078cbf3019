from collections.abc import Callable, Iterator

import pytest

from tests.support.s3 import Bucket, serve_buckets


@pytest.fixture(scope="module")
def buckets() -> Iterator[Callable[[], Bucket]]:
    with serve_buckets() as new_bucket:
        yield new_bucket
