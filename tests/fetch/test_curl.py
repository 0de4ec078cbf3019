from any2ds.config.options import FetchOptions
from any2ds.core.bodies.buffer import Buffer
from any2ds.fetch.fetcher import UrlFetcher
from tests.support.fetching import WebFetcherContract


class TestUrlFetcher(WebFetcherContract):
    def make_fetcher(self, options: FetchOptions, buffer: Buffer) -> UrlFetcher:
        return UrlFetcher(options, buffer)
