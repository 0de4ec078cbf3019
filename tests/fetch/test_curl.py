from any2ds.buffer import Buffer
from any2ds.config import FetchOptions
from any2ds.fetch import CurlFetcher
from any2ds.testing.fetching import WebFetcherContract


class TestCurlFetcher(WebFetcherContract):
    def make_fetcher(self, options: FetchOptions, buffer: Buffer) -> CurlFetcher:
        return CurlFetcher(options, buffer)
