from dataclasses import replace

from any2ds.buffer import Buffer
from any2ds.config import FetchOptions
from any2ds.fetch import UrlFetcher
from any2ds.testing.fetching import WebFetcherContract


class TestRequestsFetcher(WebFetcherContract):
    http2 = False
    nameservers = False

    def make_fetcher(self, options: FetchOptions, buffer: Buffer) -> UrlFetcher:
        return UrlFetcher(replace(options, fetcher="requests"), buffer)
