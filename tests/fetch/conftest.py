from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from any2ds.buffer import Buffer
from any2ds.config import Config
from any2ds.fetch import UrlFetcher
from any2ds.testing.fetching import rows_of
from any2ds.types import Failure, Payload

Fetch = Callable[..., list[Payload | Failure]]


@pytest.fixture
def fetch() -> Iterator[Fetch]:
    """Outcomes in the order of the list."""
    buffers = ExitStack()

    def fetch(urls: Iterable[str | None], **options: Any) -> list[Payload | Failure]:
        chosen = Config.from_options({"url_list": "-", "timeout": 20, "thread_count": 8, **options}).fetch
        buffer = buffers.enter_context(closing(Buffer(chosen.max_buffered_bytes, chosen.thread_count)))
        found = {}
        with closing(UrlFetcher(chosen, buffer)) as fetcher:
            for batch in fetcher.fetch(rows_of(urls)):
                for fetched in batch:
                    found[fetched.row.position] = fetched.outcome
        return [found[position] for position in sorted(found)]

    with buffers:
        yield fetch
