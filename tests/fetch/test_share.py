"""The limits of a host hold for all fetchers of a run together, which know nothing of each other but their number."""

import heapq
import itertools
import random

import pytest

from any2ds.core.rows import Row
from any2ds.core.samples import Payload
from any2ds.fetch.policy.hosts import Attempt, HostPolicy
from any2ds.fetch.policy.schedule import Schedule, ScheduleLimits
from any2ds.fetch.policy.share import Share

OK: Payload = Payload(body=None, media_type=None, http_status=200, final_url=None, seconds=0.1)  # type: ignore[arg-type]
URL = "http://a.example/{}"


class Machines:
    """Fetchers with a list each, whose clocks differ, and one host that takes `seconds` to answer."""

    def __init__(self, shares: list[Share], policy: HostPolicy, seconds: float, rows: int) -> None:
        rng = random.Random(1)
        self.seconds = seconds
        self.at_once = self.most_at_once = 0
        self.starts: list[float] = []
        self.served = [0] * len(shares)
        self.schedules = []
        self.offsets = [rng.uniform(0, 1e5) for _ in shares]  # of the clock of each, which began when it did
        for share, offset in zip(shares, self.offsets, strict=True):
            schedule = Schedule(ScheduleLimits(1000), policy)
            schedule.divide(share, offset)
            schedule.time_of_day = 1.7e9 - offset
            schedule.fresh.extend(Row(0, n, str(n), URL.format(n)) for n in range(rows))
            self.schedules.append(schedule)

    def run(self, until: float = 1e6) -> float:
        """Seconds until all rows were fetched, or `until`."""
        order = itertools.count()
        events: list[tuple[float, int, int, Attempt | None]] = [
            (0.0, next(order), fetcher, None) for fetcher in range(len(self.schedules))
        ]
        heapq.heapify(events)
        now, looks = 0.0, [0.0] * len(self.schedules)
        while events and now < until:
            now, _, fetcher, attempt = heapq.heappop(events)
            schedule, clock = self.schedules[fetcher], now + self.offsets[fetcher]
            if attempt is not None:
                self.at_once -= 1
                self.served[fetcher] += 1
                schedule.finish(attempt, OK, clock)
            while started := schedule.next(clock):
                self.at_once += 1
                self.most_at_once = max(self.most_at_once, self.at_once)
                self.starts.append(now)
                heapq.heappush(events, (now + self.seconds, next(order), fetcher, started))
            if (wait := schedule.wait(clock)) < 1e9 and now + wait != looks[fetcher]:
                looks[fetcher] = now + wait
                heapq.heappush(events, (now + wait + 1e-6, next(order), fetcher, None))
        return now

    @property
    def least_apart(self) -> float:
        times = sorted(self.starts)
        return min(after - before for before, after in itertools.pairwise(times))


def processes(count: int) -> list[Share]:
    return [Share(((number, count),)) for number in range(count)]


def machines(count: int, each: list[int]) -> list[Share]:
    """With as many processes as `each` says of each machine."""
    return [Share(((m, count), (number, each[m]))) for m in range(count) for number in range(each[m])]


@pytest.mark.parametrize(
    ("shares", "max_per_host"),
    [
        (processes(1), 5),
        (processes(8), 64),
        (processes(8), 13),
        (processes(8), 8),
        (processes(8), 3),
        (processes(64), 4),
        (processes(5), 1),
        (machines(3, [4, 1, 2]), 16),
        (machines(3, [4, 1, 2]), 4),
        (machines(3, [4, 1, 2]), 2),
    ],
)
def test_no_more_at_once_than_the_host_allows_and_all_get_their_rows(shares: list[Share], max_per_host: int) -> None:
    run = Machines(shares, HostPolicy(max_per_host=max_per_host), seconds=0.2, rows=60)
    took = run.run()
    assert run.served == [60] * len(shares)
    assert run.most_at_once <= max_per_host
    at_best = 60 * len(shares) * 0.2 / max_per_host
    assert took < 4 * at_best + 15 * len(shares)  # turns cost some, and the last ones wait for theirs


def test_what_a_host_allows_is_used_where_all_have_rows_for_it() -> None:
    run = Machines(processes(8), HostPolicy(max_per_host=13), seconds=0.2, rows=1000)
    run.run()
    assert run.most_at_once == 13


@pytest.mark.parametrize("delay", [0.01, 0.3, 7.0])
@pytest.mark.parametrize("max_per_host", [1_000_000, 64, 3, 1])
@pytest.mark.parametrize("shares", [processes(8), machines(3, [4, 1, 2])])
def test_starts_of_all_are_apart_as_the_host_wants_it(shares: list[Share], max_per_host: int, delay: float) -> None:
    run = Machines(shares, HostPolicy(max_per_host, delay), seconds=0.001, rows=20)
    took = run.run()
    assert run.served == [20] * len(shares)
    assert run.least_apart >= delay - 1e-4
    assert took < 4 * 20 * len(shares) * max(delay, 0.03) + 15 * len(shares) * max(1.0, delay)


def test_delay_that_robots_txt_asks_for_is_that_of_all_together() -> None:
    run = Machines(processes(6), HostPolicy(), seconds=0.001, rows=0)
    for schedule, offset in zip(run.schedules, run.offsets, strict=True):
        schedule.fresh.extend(Row(0, n, str(n), URL.format(n)) for n in range(10))
        host = schedule._new_host("a.example", HostPolicy(), None)
        host.raise_delay(2.0)
        assert host.delay >= 6 * 2.0, offset
    run.run()
    assert run.served == [10] * 6
    assert run.least_apart >= 2.0 - 1e-4


@pytest.mark.parametrize("policy", [HostPolicy(max_per_host=1), HostPolicy(host_delay=1.0)])
def test_a_fetcher_that_is_alone_in_the_end_has_it_all(policy: HostPolicy) -> None:
    schedule = Schedule(ScheduleLimits(1000), policy)
    schedule.divide(Share(((63, 64),)), 1.0)
    schedule.fresh.extend(Row(0, n, str(n), URL.format(n)) for n in range(2))
    now = 1.0
    while (attempt := schedule.next(now)) is None:
        now += schedule.wait(now) + 1e-6
    schedule.finish(attempt, OK, now)
    now += 10.0  # it is the turn of others
    assert schedule.next(now) is None
    schedule.divide(Share(((0, 1),)), now)
    assert schedule.next(now + 1.0) is not None


def test_many_fetchers_begin_more_carefully_each() -> None:
    first = []
    for count in (1, 4, 64):
        schedule = Schedule(ScheduleLimits(1000), HostPolicy())
        schedule.divide(Share(((0, count),)), 0.0)
        schedule.fresh.extend(Row(0, n, str(n), URL.format(n)) for n in range(100))
        first.append(len(list(iter(lambda s=schedule: s.next(0.0), None))))  # type: ignore[misc]
    assert first == [16, 4, 2]


def test_hosts_forgotten_and_met_again_keep_to_the_share() -> None:
    share = Share(((3, 8),))
    schedule = Schedule(ScheduleLimits(1000), HostPolicy(max_per_host=16))
    schedule.divide(share, 0.0)
    for turn in range(5):
        schedule.fresh.extend(Row(0, n, str(n), URL.format(n)) for n in range(10))
        started = list(iter(lambda: schedule.next(float(turn)), None))  # noqa: B023
        assert len(started) == 2
        while started:
            schedule.finish(started.pop(), OK, float(turn))
            started += iter(lambda: schedule.next(float(turn)), None)  # noqa: B023
        assert schedule.hosts == 0
