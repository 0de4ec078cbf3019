"""The loop with thread_count=auto, its schedule, window and breaker, against models of servers in virtual time."""

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable

import pytest

from any2ds.config.options import Config
from any2ds.core.bodies.buffer import Buffer
from any2ds.core.failures import Failure
from any2ds.core.rows import Row
from any2ds.core.samples import Payload
from any2ds.fetch.engines.transport import Phases
from any2ds.fetch.loop import Clock, Loop
from any2ds.fetch.policy.hosts import Attempt, HostPolicy
from any2ds.fetch.policy.schedule import Schedule, ScheduleLimits, spare_transfers

TIMEOUT = Failure("fetch", "timeout_total")
RESET = Failure("fetch", "reset")
BUSY = Failure("fetch", "http_503")
NEVER = 1e9  # seconds

Server = Callable[[int, str], tuple[float, Failure | None]]
"""For so many requests at once, this one included, and a URL: the seconds it takes, and what fails."""


class Time(Clock):
    """A clock, as the loop uses it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds


class Network:
    """A transport of one server, which passes the time while somebody polls."""

    waited = 0.0
    backlog = 0

    def __init__(self, server: Server, time: Time) -> None:
        self._server, self.time, self._order = server, time, itertools.count()
        self._ends: list[tuple[float, int, Attempt, Payload | Failure]] = []
        self._live: set[Attempt] = set()
        self.expected = 0
        self.sent: Counter[int] = Counter()  # by position of the row

    def phases(self) -> Phases:
        return Phases()

    def expect(self, transfers: int) -> None:
        self.expected = transfers  # so many idle connections are kept

    def wake(self) -> None:
        pass

    def start(self, attempt: Attempt, url: str) -> None:
        self._live.add(attempt)
        self.sent[attempt.row.position] += 1
        seconds, failure = self._server(len(self._live), url)
        answer = Payload(body=None, media_type=None, http_status=200, final_url=None, seconds=seconds)  # type: ignore[arg-type]
        heapq.heappush(self._ends, (self.time.seconds + seconds, next(self._order), attempt, failure or answer))

    def poll(self, wait: float) -> list[tuple[Attempt, Payload | Failure]]:
        first = self._ends[0][0] if self._ends else NEVER
        self.time.seconds = max(self.time.seconds, min(first, self.time.seconds + max(wait, 1e-4)))
        ended: list[tuple[Attempt, Payload | Failure]] = []
        while self._ends and self._ends[0][0] <= self.time.seconds:
            _, _, attempt, outcome = heapq.heappop(self._ends)
            if attempt in self._live:
                self._live.remove(attempt)
                ended.append((attempt, outcome))
        return ended

    def received(self, attempt: Attempt) -> int:
        return 0

    def cancel(self, attempt: Attempt) -> Failure:
        self._live.remove(attempt)
        return TIMEOUT

    def close(self) -> None:
        pass


class Rows:
    """A feeder without a thread."""

    exhausted = True
    waits = False
    stock = 0

    def refill(self) -> None:
        pass


Play = Callable[..., tuple[Counter[str], Network]]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    """Fetches URLs from a server: how the rows ended, "" where they succeeded, and the network in the end."""

    def run(server: Server, urls: list[str], thread_count: int | str = "auto") -> tuple[Counter[str], Network]:
        options = Config.from_options({"url_list": "-", "thread_count": thread_count, "robots": "ignore"}).fetch
        slots = options.most_transfers
        limits = ScheduleLimits(slots, options.timeout, options.retries, None, spare_transfers(options, slots))
        schedule = Schedule(limits, HostPolicy(), random.Random(0))
        schedule.fresh.extend(Row(0, number, str(number), url) for number, url in enumerate(urls))
        time = Time()
        monkeypatch.setattr("any2ds.fetch.loop.Clock", lambda: time)
        network = Network(server, time)
        loop = Loop(options, schedule, network, Buffer(options.max_buffered_bytes, slots), Rows())  # type: ignore[arg-type]
        codes: Counter[str] = Counter()
        for batch in loop.run():
            codes.update(done.outcome.code if isinstance(done.outcome, Failure) else "" for done in batch)
        return codes, network

    return run


def files(count: int, hosts: int) -> list[str]:
    return [f"http://h{number % hosts}.example/{number}" for number in range(count)]


@pytest.mark.parametrize("hosts", [1, 100])
@pytest.mark.parametrize(("failure", "seconds"), [(BUSY, 0.004), (RESET, 0.004), (TIMEOUT, NEVER)])
@pytest.mark.parametrize("bears", [50, 300])
def test_no_row_is_lost_to_a_server_that_fails_in_a_crowd(
    play: Play, bears: int, failure: Failure, seconds: float, hosts: int
) -> None:
    def server(crowd: int, url: str) -> tuple[float, Failure | None]:
        return (seconds, failure) if crowd > bears else (0.1, None)

    codes, network = play(server, files(3000, hosts))
    assert codes[""] >= 2990
    assert network.expected < 4 * bears
    assert sum(network.sent.values()) < 1.5 * 3000


def test_with_latency_many_transfers_are_in_flight_after_some_seconds(play: Play) -> None:
    codes, network = play(lambda crowd, url: (0.2, None), files(20_000, 100))
    assert codes == {"": 20_000}
    assert network.time.seconds < 6  # 15.6 with 256 from the start


@pytest.mark.parametrize("failure", [RESET, BUSY, TIMEOUT])
def test_rows_that_fail_by_themselves_are_seldom_tried_again(play: Play, failure: Failure) -> None:
    def server(crowd: int, url: str) -> tuple[float, Failure | None]:
        is_dead = int(url.rpartition("/")[2]) % 5 == 0
        return (NEVER if failure is TIMEOUT else 0.1, failure) if is_dead else (0.1, None)

    codes, network = play(server, files(5000, 500))
    assert codes[""] == 4000
    assert set(codes) <= {"", failure.code, "host_down"}
    assert sum(network.sent.values()) < 1.25 * 5000


def test_a_list_of_dead_rows_is_tried_once(play: Play) -> None:
    codes, network = play(lambda crowd, url: (0.05, RESET), files(1000, 1000))
    assert codes == {"reset": 1000}
    assert sum(network.sent.values()) < 1.1 * 1000


def test_silent_hosts_take_no_places_from_others(play: Play) -> None:
    def server(crowd: int, url: str) -> tuple[float, Failure | None]:
        return (0.1, None) if url.startswith("http://h") else (NEVER, TIMEOUT)

    urls = [
        f"http://s{number % 100}.example/{number}" if number % 4 == 0 else url
        for number, url in enumerate(files(8000, 200))
    ]
    codes, network = play(server, urls)
    assert codes[""] == 6000
    assert network.time.seconds < 40
