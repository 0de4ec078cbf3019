"""Says from the options how long fetching may show nothing at all, and when it is taken for stuck."""

from __future__ import annotations

from any2ds.config.options import FetchOptions
from any2ds.fetch.policy.allowance import MOST_DELAY
from any2ds.fetch.policy.schedule import LOOKS, MAX_BACKOFF

_GRACE = 30.0  # seconds
# Where a limit is off, the watchdog still needs one.
_LONGEST_CONNECT = 300.0  # seconds; systems give up after 75 to 130 per address
_LONGEST_STALL = 3600.0


def watchdog_limit(options: FetchOptions) -> float:
    """Seconds without any sign of life after which the fetcher is stuck; 0: it never is.

    The start and the end of an attempt are signs of life, so the number of retries does not matter: the longest
    silence is that of one attempt, or all rows waiting at once for the longest time that one may wait.
    """
    if options.watchdog_timeout is not None:
        return options.watchdog_timeout
    waits = MAX_BACKOFF + options.max_retry_after + max(options.host_delay, MOST_DELAY)
    return _longest_attempt(options) + waits + _GRACE


def process_limit(options: FetchOptions) -> float:
    """Seconds without any message after which a process is stuck; longer, so that the fetcher's comes first."""
    limit = watchdog_limit(options)
    return limit + min(limit, _GRACE)


def _longest_attempt(options: FetchOptions) -> float:
    """Seconds that one attempt may go on without a byte: those that come are signs of life."""
    if options.timeout:
        return min(options.timeout * (1 + 1 / LOOKS), options.total_timeout or float("inf"))
    if options.total_timeout:
        return options.total_timeout
    request = (options.connect_timeout or _LONGEST_CONNECT) + (options.stall_timeout or _LONGEST_STALL)
    return request * (1 + options.max_redirects)
