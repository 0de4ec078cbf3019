from dataclasses import replace

from any2ds.config.options import FetchOptions
from any2ds.core.bodies.buffer import Buffer
from any2ds.fetch.fetcher import UrlFetcher
from tests.support.fetching import WebFetcherContract


class TestRequestsFetcher(WebFetcherContract):
    http2 = False
    nameservers = False

    def make_fetcher(self, options: FetchOptions, buffer: Buffer) -> UrlFetcher:
        return UrlFetcher(replace(options, fetcher="requests"), buffer)

    test_faults_over_http2_have_their_codes = None  # it speaks HTTP/1.1
    # names are the system's matter
    test_of_a_name_with_two_addresses_the_one_that_works_is_asked = None
