"""What the answers' headers lead to."""

from contextlib import closing
from typing import Any

from any2ds.config.options import Config
from any2ds.core.bodies.buffer import Buffer
from any2ds.core.failures import Failure
from any2ds.core.samples import Payload
from any2ds.fetch.fetcher import UrlFetcher
from tests.support.fetching import _raw_server, rows_of


def fetch(*answers: bytes, **options: Any) -> list[Payload | Failure]:
    """The outcomes of as many rows, each of a server that answers just this, with the body `ok`."""
    chosen = Config.from_options({"url_list": "-", "timeout": 20, **options}).fetch
    whole = [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n" + answer + b"\r\n\r\nok" for answer in answers]
    found = {}
    with _raw_server(whole) as urls, closing(UrlFetcher(chosen, Buffer(1 << 24, 8))) as fetcher:
        for batch in fetcher.fetch(rows_of(urls)):
            for fetched in batch:
                found[fetched.row.position] = fetched.outcome
    return [found[position] for position in sorted(found)]


def test_validators_are_kept_as_they_are_given() -> None:
    found = fetch(b'ETag: "caf\xe9"\r\nLast-Modified: Sat, 01 Jan 2022 00:00:00 GMT', b"Expires: 0")
    assert isinstance(found[0], Payload)
    assert isinstance(found[1], Payload)
    assert (found[0].etag, found[0].last_modified) == ('"caf\xe9"', "Sat, 01 Jan 2022 00:00:00 GMT")
    assert (found[1].etag, found[1].last_modified) == (None, None)
