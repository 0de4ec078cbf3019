"""The limits of a host hold for all fetchers of a run together, which know nothing of each other but their number."""

import heapq
import itertools
import random

import pytest

from any2ds.core.rows import Row
from any2ds.core.samples import Payload
from any2ds.fetch.policy.hosts import Attempt, HostPolicy
from any2ds.fetch.policy.schedule import Schedule, ScheduleLimits
from any2ds.fetch.policy.share import CLOCKS, LEAST_LEAD, LONGEST_REQUEST, Share

OK: Payload = Payload(body=None, media_type=None, http_status=200, final_url=None, seconds=0.1)  # type: ignore[arg-type]
START = 1.7e9  # time of day
EMPTY: frozenset[str] = frozenset()
URL = "http://a.example/{}"


class Board:
    """Announcements of fetchers, each by its own clock, that take some time to be made and to be read."""

    def __init__(self, took: float) -> None:
        self.took = took
        self.files: dict[int, list[tuple[float, frozenset[str]]]] = {}  # fetcher -> since when what has been there

    def seen(self, now: float, fetcher: int) -> frozenset[str]:
        others = [files for other, files in self.files.items() if other != fetcher]
        return frozenset().union(*(max((f for f in files if f[0] <= now), key=lambda f: f[0])[1] for files in others))


class OwnBoard:
    """What a fetcher, whose time of day is wrong by `wrong` seconds, has to do with a board."""

    def __init__(self, board: Board, fetcher: int, wrong: float) -> None:
        self.board, self.fetcher, self.wrong = board, fetcher, wrong
        self.now = self.looked_at = 0.0  # really; the time of day is that and an offset
        self.others: frozenset[str] = frozenset()
        self.lead = LEAST_LEAD + 2 * min(LONGEST_REQUEST, board.took)
        board.files[fetcher] = [(-1.0, frozenset())]

    @property
    def is_useless(self) -> bool:
        return self.board.took > LONGEST_REQUEST

    def of_others(self, age: float) -> frozenset[str] | None:
        if self.is_useless:
            return EMPTY
        if self.looked_at < (since := self.now - age):
            if self.now < since + self.board.took:
                return None
            self.looked_at = since
            self.others = self.board.seen(since, self.fetcher)
        return self.others

    def announce(self, slots: frozenset[str]) -> None:
        files = self.board.files[self.fetcher]
        if slots != files[-1][1]:
            files.append((self.now + self.board.took, slots))

    def announced(self) -> frozenset[str]:
        last = self.board.files[self.fetcher][-1]
        return last[1] if last[0] <= self.now or self.is_useless else EMPTY


class Machines:
    """Fetchers with a list each, whose clocks differ, and one host that takes `seconds` to answer."""

    def __init__(
        self,
        shares: list[Share],
        policy: HostPolicy,
        seconds: float,
        rows: int,
        *,
        took: float = 0.1,  # seconds, by an announcement
        wrong: float = 0.0,  # seconds, of each clock at most
    ) -> None:
        self.rng = random.Random(1)
        self.policy, self.seconds, self.wrong = policy, seconds, wrong
        self.cancelled = 0
        self.board = Board(took)
        self.boards: list[OwnBoard] = []
        self.now = 0.0
        self.at_once = self.most_at_once = 0
        self.starts: list[float] = []
        self.served: list[int] = []
        self.schedules: list[Schedule] = []
        self.offsets: list[float] = []  # of the clock of each, which began when it did
        self.looks: list[float] = []
        self.order = itertools.count()
        self.events: list[tuple[float, int, int, Attempt | None]] = []
        for share in shares:
            self.add(share, rows)

    def add(self, share: Share, rows: int) -> None:
        fetcher, offset = len(self.schedules), self.rng.uniform(0, 1e5)
        own = OwnBoard(self.board, fetcher, self.rng.uniform(-self.wrong, self.wrong))
        schedule = Schedule(ScheduleLimits(1000), self.policy)
        schedule.divide(share, self.now + offset)
        schedule.turns.time_of_day = START + own.wrong - offset
        schedule.turns.announcements = own
        schedule.fresh.extend(Row(0, n, str(n), URL.format(n)) for n in range(rows))
        self.schedules.append(schedule)
        self.offsets.append(offset)
        self.boards.append(own)
        self.served.append(0)
        self.looks.append(0.0)
        heapq.heappush(self.events, (self.now, next(self.order), fetcher, None))

    def divide(self, fetcher: int, share: Share) -> None:
        self.schedules[fetcher].divide(share, self.now + self.offsets[fetcher])

    def run(self, until: float = 1e6) -> float:
        """Seconds until all rows were fetched, or `until`."""
        events, looks = self.events, self.looks
        while events and events[0][0] < until:
            now, _, fetcher, attempt = heapq.heappop(events)
            self.now = now
            schedule, clock = self.schedules[fetcher], now + self.offsets[fetcher]
            self.boards[fetcher].now = now
            if attempt is not None and attempt.running:
                self.at_once -= 1
                self.served[fetcher] += 1
                schedule.finish(attempt, OK, clock)
            for late in schedule.turns.outlasting(clock):
                self.at_once -= 1
                self.cancelled += 1
                schedule.withdraw(late, clock)
            while started := schedule.next(clock):
                self.at_once += 1
                self.most_at_once = max(self.most_at_once, self.at_once)
                self.starts.append(now)
                heapq.heappush(events, (now + self.seconds, next(self.order), fetcher, started))
            wait = min(schedule.wait(clock), 0.06 if schedule.in_flight else 1e9)
            if wait < 1e9 and (looks[fetcher] <= now or now + wait < looks[fetcher]):
                looks[fetcher] = now + wait
                heapq.heappush(events, (now + wait + 1e-6, next(self.order), fetcher, None))
        return self.now

    @property
    def least_apart(self) -> float:
        times = sorted(self.starts)
        return min(after - before for before, after in itertools.pairwise(times))


def processes(count: int) -> list[Share]:
    return [Share.of((number, count)) for number in range(count)]


def machines(count: int, each: list[int]) -> list[Share]:
    """With as many processes as `each` says of each machine."""
    return [Share.of((m, count), (number, each[m])) for m in range(count) for number in range(each[m])]


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


@pytest.mark.parametrize(("seconds", "took"), [(1.0, 0.01), (7.0, 0.4), (33.0, 0.1)])
@pytest.mark.parametrize("policy", [HostPolicy(3), HostPolicy(1), HostPolicy(3, 0.01), HostPolicy(2, 1.1)])
@pytest.mark.parametrize("shares", [processes(7), machines(3, [4, 1, 2])])
def test_transfers_that_outlast_turns_count_against_the_limit_and_come_to_their_end(
    shares: list[Share], policy: HostPolicy, seconds: float, took: float
) -> None:
    run = Machines(shares, policy, seconds, rows=4, took=took, wrong=CLOCKS / 2 - 0.01)
    run.run()
    assert run.served == [4] * len(shares)
    assert run.most_at_once <= policy.max_per_host
    assert run.cancelled == 0


def test_what_cannot_be_announced_in_time_is_cancelled_a_few_times() -> None:
    run = Machines(processes(4), HostPolicy(2), seconds=7.0, rows=2)
    for board in run.boards:
        board.announced = lambda: EMPTY  # type: ignore[method-assign]
    run.run(until=40)
    assert run.most_at_once == 2
    run.run(until=2000)
    assert run.cancelled == 4 * 2 * 3
    assert run.served == [2] * 4


@pytest.mark.parametrize("took", [0.97, 1.45, 20.0])
@pytest.mark.parametrize("policy", [HostPolicy(1), HostPolicy(2, 0.3)])
def test_a_slow_store_keeps_nobody_from_fetching(policy: HostPolicy, took: float) -> None:
    run = Machines(processes(4), policy, seconds=0.2, rows=12, took=took)
    assert run.run() < 400
    assert run.served == [12] * 4
    assert run.cancelled == 0
    assert run.most_at_once <= policy.max_per_host


@pytest.mark.parametrize("most", [3, 6, 10])
@pytest.mark.parametrize("count", [4, 8])
def test_what_outlasts_turns_counts_where_a_machine_gives_half_of_its_share_away(most: int, count: int) -> None:
    """Those of the new machine begin when what the others have beyond their smaller shares has had its time."""
    shares = [Share.of((machine, 2), (number, count)) for machine in range(2) for number in range(count)]
    run = Machines(shares, HostPolicy(most), seconds=60.0, rows=2)
    run.run(until=33)
    for number in range(count):
        run.divide(number, Share.of((0, 2), (0, 2), (number, count)))
    run.run(until=40)
    for number in range(count):
        run.add(Share.of((0, 2), (1, 2), (number, count)), rows=2)
    run.run()
    assert run.served == [2] * 3 * count
    assert run.most_at_once <= most


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
    schedule.divide(Share.of((63, 64)), 1.0)
    schedule.fresh.extend(Row(0, n, str(n), URL.format(n)) for n in range(2))
    now = 1.0
    while (attempt := schedule.next(now)) is None:
        now += schedule.wait(now) + 1e-6
    schedule.finish(attempt, OK, now)
    now += 10.0  # it is the turn of others
    assert schedule.next(now) is None
    schedule.divide(Share.of((0, 1)), now)
    assert schedule.next(now + 1.0) is not None


def test_many_fetchers_begin_more_carefully_each() -> None:
    first = []
    for count in (1, 4, 64):
        schedule = Schedule(ScheduleLimits(1000), HostPolicy())
        schedule.divide(Share.of((0, count)), 0.0)
        schedule.fresh.extend(Row(0, n, str(n), URL.format(n)) for n in range(100))
        first.append(len(list(iter(lambda s=schedule: s.next(0.0), None))))  # type: ignore[misc]
    assert first == [16, 4, 2]


def test_hosts_forgotten_and_met_again_keep_to_the_share() -> None:
    share = Share.of((3, 8))
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
