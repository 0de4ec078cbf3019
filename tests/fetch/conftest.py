from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from any2ds.config.options import Config
from any2ds.core.bodies.buffer import Buffer
from any2ds.core.failures import Failure
from any2ds.core.samples import Payload
from any2ds.core.schemes import GUARDED
from any2ds.fetch.fetcher import UrlFetcher
from tests.support.fetching import rows_of

Fetch = Callable[..., list[Payload | Failure]]


@pytest.fixture
def fetch() -> Iterator[Fetch]:
    """Outcomes in the order of the list."""
    buffers = ExitStack()

    def fetch(urls: Iterable[str | None], **options: Any) -> list[Payload | Failure]:
        defaults = {"url_list": "-", "timeout": 100, "thread_count": 8, "allow_schemes": sorted(GUARDED)}
        chosen = Config.from_options({**defaults, **options}).fetch
        buffer = buffers.enter_context(closing(Buffer(chosen.max_buffered_bytes, chosen.most_transfers)))
        found = {}
        with closing(UrlFetcher(chosen, buffer)) as fetcher:
            for batch in fetcher.fetch(rows_of(urls)):
                for fetched in batch:
                    found[fetched.row.position] = fetched.outcome
        return [found[position] for position in sorted(found)]

    with buffers:
        yield fetch


@pytest.fixture
def one(fetch: Any) -> Any:
    return lambda url, **options: fetch([url], **options)[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.jpg").write_bytes(b"body" * 100)
    return tmp_path
