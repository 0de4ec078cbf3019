"""HostPolicy: thousands of hosts of every kind, simulated by a clock that the test turns."""

import heapq
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

import pytest

from any2ds.core.failures import Failure
from any2ds.core.rows import Row
from any2ds.core.samples import Fetched, Payload
from any2ds.fetch.policy.hosts import Attempt, HostPolicy
from any2ds.fetch.policy.schedule import Schedule, ScheduleLimits, host_name
from tests.support.params import sampled

TIMEOUT = Failure("fetch", "timeout_total")
OK: Payload = Payload(body=None, media_type=None, http_status=200, final_url=None, seconds=0.1)  # type: ignore[arg-type]
Answer = Callable[[Attempt, float, int], tuple[float, Payload | Failure]]
"""What a host does with an attempt at a time while so many others are with it: seconds, and the outcome."""


class Simulation:
    """Plays a list against hosts, with time as a number."""

    def __init__(self, schedule: Schedule, answer: Answer, timeout: float = 10.0) -> None:
        self.schedule, self.answer, self.timeout = schedule, answer, timeout
        self.now = 0.0
        self.outcomes: dict[int, Fetched] = {}
        self.finished_at: dict[int, float] = {}
        self.at_host: Counter[str] = Counter()
        self.most_at_host: Counter[str] = Counter()
        self.starts: dict[str, list[float]] = defaultdict(list)

    def run(self, rows: Iterable[Row], stock: int = 2000) -> None:
        schedule, rows = self.schedule, iter(rows)
        landing: list[tuple[float, int, Attempt, Payload | Failure]] = []
        order = itertools.count()
        more = True
        while more or not schedule.idle:
            if more and len(schedule.fresh) < stock and schedule.queued + schedule.deferred < 100_000:
                batch = list(itertools.islice(rows, stock))
                schedule.fresh.extend(batch)
                more = bool(batch)
            while True:
                attempt = schedule.next(self.now)
                for fetched in schedule.given_up():
                    self.note(fetched)
                if attempt is None:
                    break
                host = host_name(attempt.row.url)
                self.at_host[host] += 1
                self.most_at_host[host] = max(self.most_at_host[host], self.at_host[host])
                self.starts[host].append(self.now)
                seconds, outcome = self.answer(attempt, self.now, self.at_host[host])
                if seconds >= self.timeout:
                    seconds, outcome = self.timeout, TIMEOUT
                heapq.heappush(landing, (self.now + seconds, next(order), attempt, outcome))
            if more and len(schedule.fresh) < stock and schedule.queued + schedule.deferred < 100_000:
                continue
            if not more and schedule.idle:
                break
            next_landing = landing[0][0] if landing else float("inf")
            step = min(next_landing, self.now + schedule.wait(self.now))
            self.now = step if step < float("inf") else self.now
            while landing and landing[0][0] <= self.now:
                _, _, attempt, outcome = heapq.heappop(landing)
                self.at_host[host_name(attempt.row.url)] -= 1
                if ended := schedule.finish(attempt, outcome, self.now):
                    self.note(ended)

    def note(self, fetched: Fetched) -> None:
        assert fetched.row.position not in self.outcomes
        self.outcomes[fetched.row.position] = fetched
        self.finished_at[fetched.row.position] = self.now


def rows(urls: Iterable[str]) -> Iterable[Row]:
    return (Row(0, n, str(n), url) for n, url in enumerate(urls))


def schedule(slots: int = 256, retries: int = 0, **policy: float) -> Schedule:
    return Schedule(ScheduleLimits(slots, retries=retries), HostPolicy(**policy), random.Random(0))  # type: ignore[arg-type]


def quick(attempt: Attempt, now: float, at_once: int) -> tuple[float, Payload | Failure]:
    return 0.1, OK


def test_one_host_gets_no_more_than_max_per_host_and_no_closer_than_host_delay() -> None:
    play = Simulation(schedule(max_per_host=3), quick)
    play.run(rows(["http://a/"] * 100))
    assert play.most_at_host["a"] == 3
    play = Simulation(schedule(host_delay=0.5), quick)
    play.run(rows(["http://a/"] * 20))
    gaps = [b - a for a, b in itertools.pairwise(play.starts["a"])]
    assert min(gaps) >= 0.5
    assert len(play.outcomes) == 20


def test_a_good_host_soon_gets_all_there_is() -> None:
    play = Simulation(schedule(), quick)
    play.run(rows(["http://a/"] * 20_000))
    assert play.most_at_host["a"] == 256
    assert play.now < 1.2 * 20_000 / 256 * 0.1


def test_a_host_that_hangs_does_not_hold_up_the_others() -> None:
    def answer(attempt: Attempt, now: float, at_once: int) -> tuple[float, Payload | Failure]:
        return (99.0, OK) if host_name(attempt.row.url) == "hangs" else (0.1, OK)

    urls = ["http://hangs/"] * 3000 + [f"http://good{n % 50}/" for n in range(10_000)]
    play = Simulation(schedule(), answer)
    play.run(rows(urls))
    good = max(play.finished_at[n] for n in range(3000, 13_000))
    assert good < 2 * 10_000 / 240 * 0.1
    codes = {f.outcome.code for f in play.outcomes.values() if isinstance(f.outcome, Failure)}
    assert codes == {"timeout_total", "host_down"}
    assert len(play.outcomes) == 13_000
    assert play.now < good + 2 * 10


def test_a_few_slow_files_do_not_slow_their_host() -> None:
    dice = random.Random(1)

    def answer(attempt: Attempt, now: float, at_once: int) -> tuple[float, Payload | Failure]:
        return (99.0, OK) if dice.random() < 0.02 else (0.1, OK)

    play = Simulation(schedule(), answer)
    play.run(rows(["http://a/"] * 20_000))
    assert play.most_at_host["a"] == 256
    hanging = 20_000 * 0.02 * 10 / 256
    assert play.now < 1.3 * (20_000 * 0.1 / 256 + hanging) + 10


def test_a_host_that_bears_only_so_many_is_found_out_and_a_list_of_it_alone_succeeds() -> None:
    def answer(attempt: Attempt, now: float, at_once: int) -> tuple[float, Payload | Failure]:
        if at_once > 20:
            return 0.05, Failure("fetch", "http_429", retry_after=1.0)
        return 0.1, OK

    play = Simulation(schedule(), answer)
    play.run(rows(["http://a/"] * 5000))
    failed = [f for f in play.outcomes.values() if isinstance(f.outcome, Failure)]
    assert len(play.outcomes) == 5000
    assert len(failed) == 0
    assert play.now < 5 * 5000 / 20 * 0.1


def test_a_host_with_a_budget_per_second_is_asked_at_that_pace() -> None:
    answered: Counter[int] = Counter()

    def answer(attempt: Attempt, now: float, at_once: int) -> tuple[float, Payload | Failure]:
        answered[int(now)] += 1
        if answered[int(now)] > 10:
            return 0.02, Failure("fetch", "http_429", retry_after=1.0)
        return 0.05, OK

    play = Simulation(schedule(retries=3), answer)
    play.run(rows(["http://a/"] * 2000))
    failed = [f for f in play.outcomes.values() if isinstance(f.outcome, Failure)]
    assert len(failed) < 0.02 * 2000
    assert play.now < 4 * 2000 / 10


def refusing(code: str, retry_after: float | None = None) -> Failure:
    return Failure("fetch", code, retry_after=retry_after)


def takes(rate: float, burst: float = 1.0, retry_after: float | None = None, seconds: float = 0.02) -> Answer:
    """A host that takes so many requests a second, and answers the others with 429 after so many seconds."""
    tokens, refilled = burst, 0.0

    def answer(attempt: Attempt, now: float, at_once: int) -> tuple[float, Payload | Failure]:
        nonlocal tokens, refilled
        tokens, refilled = min(burst, tokens + (now - refilled) * rate), now
        if tokens < 1:
            return seconds, refusing("http_429", retry_after)
        tokens -= 1
        return 0.05, OK

    return answer


def bears(most: int, code: str, retry_after: float | None = None) -> Answer:
    """A host that refuses more than so many requests at once, faster than it answers the others."""
    return lambda attempt, now, at_once: (0.05, refusing(code, retry_after)) if at_once > most else (0.1, OK)


def once_busy(rows: int, busy: int) -> Answer:
    """Of so many rows, some chosen by chance get 503 the first time."""
    left = set(random.Random(1).sample(range(rows), busy))

    def answer(attempt: Attempt, now: float, at_once: int) -> tuple[float, Payload | Failure]:
        if attempt.row.position not in left:
            return 0.1, OK
        left.remove(attempt.row.position)
        return 0.1, refusing("http_503")

    return answer


def at_random(share: float, code: str, seconds: float = 0.1) -> Answer:
    """A host whose refusals have nothing to do with how much it is asked."""
    dice = random.Random(2)
    return lambda attempt, now, at_once: (seconds, refusing(code) if dice.random() < share else OK)


def during(start: float, end: float, code: str) -> Answer:
    """A host that refuses everything for a while."""
    return lambda attempt, now, at_once: (0.1, refusing(code) if start <= now < end else OK)


@pytest.mark.parametrize("busy", sampled([21, 50, 300]))
def test_a_few_503_among_many_answers_hardly_slow_a_host(busy: int) -> None:
    alone = Simulation(schedule(), quick)
    alone.run(rows(["http://a/"] * 3000))
    play = Simulation(schedule(retries=2), once_busy(3000, busy))
    play.run(rows(["http://a/"] * 3000))
    assert not any(isinstance(fetched.outcome, Failure) for fetched in play.outcomes.values())
    assert play.now < 1.3 * alone.now + 2  # the last retry waits for up to a second


@pytest.mark.parametrize(
    ("answer", "count", "best"),
    sampled(
        [
            (takes(20), 300, 300 / 20),
            (takes(20, burst=20), 300, 280 / 20),
            (takes(20, burst=20), 3000, 3000 / 20),
            (takes(20, burst=20, seconds=0.2), 300, 280 / 20),
            (takes(200, burst=200), 3000, 3000 / 200),
            (takes(20, retry_after=1.0), 300, 300 / 20),
            (takes(1), 60, 60),
            (bears(20, "http_429"), 5000, 5000 / 20 * 0.1),
            (bears(3, "http_429"), 500, 500 / 3 * 0.1),
            (bears(20, "http_429", 1.0), 5000, 5000 / 20 * 0.1),
        ]
    ),
)
def test_a_host_that_means_it_is_asked_at_its_pace_and_nothing_is_lost(answer: Answer, count: int, best: float) -> None:
    play = Simulation(schedule(), answer)
    play.run(rows(["http://a/"] * count))
    assert not any(isinstance(fetched.outcome, Failure) for fetched in play.outcomes.values())
    assert play.now < 2 * best


def test_503_for_more_than_so_many_at_once_is_a_limit_too() -> None:
    play = Simulation(schedule(retries=2), bears(20, "http_503"))
    play.run(rows(["http://a/"] * 5000))
    assert sum(isinstance(fetched.outcome, Failure) for fetched in play.outcomes.values()) == 0
    assert play.now < 2 * 5000 / 20 * 0.1


@pytest.mark.parametrize("code", sampled(["http_429", "http_503"]))
@pytest.mark.parametrize(("share", "seconds", "most"), sampled([(0.3, 0.1, 60), (0.5, 0.1, 400), (0.3, 3.0, 400)]))
def test_refusals_by_chance_do_not_end_in_a_crawl(code: str, share: float, seconds: float, most: float) -> None:
    play = Simulation(schedule(retries=10), at_random(share, code, seconds))
    play.run(rows(["http://a/"] * 3000))
    lost = sum(isinstance(fetched.outcome, Failure) for fetched in play.outcomes.values())
    assert lost < 0.01 * 3000
    assert play.now < most


@pytest.mark.parametrize("code", sampled(["http_429", "http_503"]))
@pytest.mark.parametrize("max_per_host", sampled([1, 1000]))
def test_a_host_that_refuses_every_other_request_is_not_left_alone(code: str, max_per_host: int) -> None:
    requests = itertools.count()
    play = Simulation(
        schedule(retries=10, max_per_host=max_per_host),
        lambda attempt, now, at_once: (0.1, refusing(code) if next(requests) % 2 else OK),
    )
    play.run(rows(["http://a/"] * 300))
    assert not any(isinstance(fetched.outcome, Failure) for fetched in play.outcomes.values())
    assert play.now < 200


@pytest.mark.parametrize("code", sampled(["http_429", "http_503"]))
def test_a_host_that_refused_everything_for_seconds_soon_gets_all_there_is(code: str) -> None:
    play = Simulation(schedule(retries=2), during(1.0, 4.0, code))
    play.run(rows(["http://a/"] * 30_000))
    assert not any(isinstance(fetched.outcome, Failure) for fetched in play.outcomes.values())
    assert play.now < 30_000 / 256 * 0.1 + 3 + 10


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_host_that_refuses_each_file_once_loses_nothing_and_is_not_left_alone(share: float) -> None:
    dice, asked = random.Random(5), set()

    def answer(attempt: Attempt, now: float, at_once: int) -> tuple[float, Payload | Failure]:
        is_first = attempt.row.url not in asked
        asked.add(attempt.row.url)
        return 0.05, refusing("http_503") if is_first and dice.random() < share else OK

    play = Simulation(schedule(retries=1), answer)
    play.run(rows(f"http://a/{n}" for n in range(3000)))
    assert not any(isinstance(fetched.outcome, Failure) for fetched in play.outcomes.values())
    assert play.now < 20


def test_a_limit_by_the_minute_without_retry_after_is_waited_for() -> None:
    asked: Counter[int] = Counter()

    def answer(attempt: Attempt, now: float, at_once: int) -> tuple[float, Payload | Failure]:
        asked[int(now // 60)] += 1
        return (0.05, OK) if asked[int(now // 60)] <= 100 else (0.02, refusing("http_429"))

    play = Simulation(schedule(), answer)
    play.run(rows(["http://a/"] * 400))
    assert not any(isinstance(fetched.outcome, Failure) for fetched in play.outcomes.values())
    assert play.now < 2 * 4 * 60


def test_a_host_that_refuses_for_ever_without_retry_after_is_given_up_within_minutes() -> None:
    play = Simulation(schedule(), during(0.0, 1e9, "http_429"))
    play.run(rows(["http://a/"] * 2000))
    assert {f.outcome.code for f in play.outcomes.values() if isinstance(f.outcome, Failure)} == {"http_429"}
    assert play.now < 120
    assert len(play.starts["a"]) < 60


def test_503_that_asks_to_come_back_for_some_files_does_not_stop_their_host() -> None:
    busy = set(random.Random(1).sample(range(3000), 150))
    later: set[int] = set()

    def answer(attempt: Attempt, now: float, at_once: int) -> tuple[float, Payload | Failure]:
        if attempt.row.position in busy - later:
            later.add(attempt.row.position)
            return 0.1, refusing("http_503", 60.0)
        return 0.1, OK

    play = Simulation(schedule(), answer)
    play.run(rows(["http://a/"] * 3000))
    assert max(at for number, at in play.finished_at.items() if number not in busy) < 10
    assert min(play.finished_at[number] for number in busy) > 60
    assert play.now < 80


def test_a_wait_that_is_too_long_is_not_waited_for() -> None:
    def answer(attempt: Attempt, now: float, at_once: int) -> tuple[float, Payload | Failure]:
        return 0.1, Failure("fetch", "http_503", retry_after=3600.0)

    play = Simulation(schedule(retries=5, max_retry_after=60), answer)
    play.run(rows(["http://a/"] * 3))
    assert len(play.outcomes) == 3
    assert play.now < 200


def test_a_host_that_recovers_is_asked_more_again() -> None:
    def answer(attempt: Attempt, now: float, at_once: int) -> tuple[float, Payload | Failure]:
        return (0.05, Failure("fetch", "http_503")) if now < 20 else (0.1, OK)

    play = Simulation(schedule(), answer)
    play.run(rows(["http://a/"] * 30_000))
    late = [count for count in play.starts["a"] if count > play.now - 1]
    assert len(late) > 100


def test_hosts_take_turns() -> None:
    play = Simulation(schedule(slots=8), quick)
    play.run(rows([f"http://h{n // 1000}/" for n in range(4000)]))
    # The list is sorted by host, but as soon as one is at its limit the next gets its share.
    assert play.most_at_host["h0"] == 8
    play = Simulation(schedule(slots=8, max_per_host=2), quick)
    play.run(rows([f"http://h{n // 1000}/" for n in range(4000)]))
    assert play.now < 1.2 * 4000 * 0.1 / 8


@pytest.mark.parametrize("count", sampled([25_000, 250_000]))
def test_many_rows_of_thousands_of_hosts_of_every_kind_all_come_back_once(count: int) -> None:
    dice = random.Random(3)
    kinds = {n: dice.choices(["good", "slow", "hangs", "busy", "gone"], [90, 4, 2, 2, 2])[0] for n in range(5000)}

    def answer(attempt: Attempt, now: float, at_once: int) -> tuple[float, Payload | Failure]:
        kind = kinds[int(host_name(attempt.row.url)[1:])]
        if kind == "slow":
            return 3.0, OK
        if kind == "hangs":
            return 99.0, OK
        if kind == "busy" and at_once > 2:
            return 0.1, Failure("fetch", "http_429", retry_after=1.0)
        if kind == "gone":
            return 0.1, Failure("fetch", "http_404")
        return 0.1, OK

    play = Simulation(schedule(slots=4000, retries=1), answer)
    play.run(rows(f"http://h{int(dice.paretovariate(0.3)) % 5000}/" for _ in range(count)))
    assert len(play.outcomes) == count
    assert play.schedule.idle
    assert play.schedule.in_flight == play.schedule.queued == play.schedule.deferred == 0
    codes = Counter(f.outcome.code for f in play.outcomes.values() if isinstance(f.outcome, Failure))
    assert set(codes) <= {"timeout_total", "http_404", "http_429", "host_down"}
    assert play.schedule.hosts < 2000


def test_of_many_idle_hosts_few_are_remembered() -> None:
    play = Simulation(schedule(), quick)
    play.run(rows(f"http://h{n}/" for n in range(10_000)))
    assert play.schedule.hosts <= 1000


def hostile_list() -> list[str]:
    """125 hosts that hang, 50 that only refuse, many that are quick to say no, and 200 good ones."""
    urls = [f"http://hangs{n % 125}/" for n in range(875)] + [f"http://busy{n % 50}/" for n in range(350)]
    urls += [f"http://gone{n % 750}/" for n in range(5425)] + [f"http://good{n % 200}/" for n in range(13_350)]
    random.Random(1).shuffle(urls)
    return urls


def hostile(attempt: Attempt, now: float, at_once: int) -> tuple[float, Payload | Failure]:
    host = host_name(attempt.row.url)
    if host.startswith("hangs"):
        return 99.0, OK
    if host.startswith("busy"):
        return 0.01, Failure("fetch", "http_429", http_status=429, retry_after=1.0)
    return (0.1, OK) if host.startswith("good") else (0.01, Failure("fetch", "http_404"))


class InFlight(Schedule):
    """Notes the most transfers at once, and the most of them that were not late."""

    most = most_prompt = 0

    def next(self, now: float) -> Attempt | None:
        attempt = super().next(now)
        self.most = max(self.most, self.in_flight)
        self.most_prompt = max(self.most_prompt, self.in_flight - self._late)
        return attempt


def test_a_third_of_bad_hosts_costs_the_good_ones_little_and_two_timeouts_at_the_end() -> None:
    urls = hostile_list()
    alone = Simulation(schedule(), hostile)
    alone.run(rows(url for url in urls if "good" in url))
    made = InFlight(ScheduleLimits(256, spare=256), HostPolicy(), random.Random(0))
    play = Simulation(made, hostile)
    play.run(rows(urls))
    good = max(at for n, at in play.finished_at.items() if "good" in urls[n])
    assert good < 1.15 * alone.now
    assert play.now < good + 2 * 10
    assert made.most_prompt == 256
    assert made.most <= 512
    by_kind: dict[str, set[str]] = defaultdict(set)
    for n, fetched in play.outcomes.items():
        outcome = fetched.outcome
        by_kind[urls[n][7:11]].add(outcome.code if isinstance(outcome, Failure) else "success")
    assert by_kind == {
        "hang": {"timeout_total", "host_down"},
        "busy": {"http_429"},
        "gone": {"http_404"},
        "good": {"success"},
    }
    assert len(play.outcomes) == len(urls)
    assert sum(len(starts) for host, starts in play.starts.items() if host.startswith("hangs")) < 4.3 * 125
    assert made._late == made.in_flight == made.queued == 0


def test_without_spare_places_the_slots_are_a_limit_for_hosts_that_hang_too() -> None:
    urls = hostile_list()
    made = InFlight(ScheduleLimits(256), HostPolicy(), random.Random(0))
    play = Simulation(made, hostile)
    play.run(rows(urls))
    assert made.most == 256
    assert len(play.outcomes) == len(urls)
    assert play.now < 40


def test_a_host_that_stops_refusing_after_a_while_loses_nothing() -> None:
    def answer(attempt: Attempt, now: float, at_once: int) -> tuple[float, Payload | Failure]:
        return (0.01, Failure("fetch", "http_429", retry_after=1.0)) if now < 3 else (0.1, OK)

    play = Simulation(schedule(), answer)
    play.run(rows(["http://a/"] * 2000))
    assert all(not isinstance(f.outcome, Failure) for f in play.outcomes.values())


def test_big_files_that_take_too_long_do_not_make_their_host_count_as_down() -> None:
    def answer(attempt: Attempt, now: float, at_once: int) -> tuple[float, Payload | Failure]:
        if now < 25:
            return 10.0, Failure("fetch", "timeout_total", http_status=200, received=10_000_000)
        return 4.0, OK

    play = Simulation(schedule(), answer, timeout=10.1)
    play.run(rows(["http://a/"] * 200))
    codes = {f.outcome.code for f in play.outcomes.values() if isinstance(f.outcome, Failure)}
    assert codes == {"timeout_total"}
    assert sum(not isinstance(f.outcome, Failure) for f in play.outcomes.values()) > 100


def test_a_host_that_hangs_is_given_up_after_two_timeouts_however_its_rows_come() -> None:
    def answer(attempt: Attempt, now: float, at_once: int) -> tuple[float, Payload | Failure]:
        return (99.0, OK) if "hangs" in host_name(attempt.row.url) else (0.1, OK)

    urls = ["http://hangs/"] + ["http://good/"] * 3000 + ["http://hangs/"] * 500 + ["http://good/"] * 3000
    play = Simulation(schedule(slots=100), answer)
    play.run(rows(urls))
    assert play.now < 25
    assert len(play.starts["hangs"]) < 40


@pytest.mark.parametrize("seconds", [5.0, 20.0])
def test_after_an_outage_of_a_host_all_of_its_rows_come_soon(seconds: float) -> None:
    play = Simulation(schedule(retries=1), during(1.0, 1.0 + seconds, "http_503"))
    play.run(rows(f"http://h{n % 5}/" for n in range(20_000)))
    assert not any(isinstance(fetched.outcome, Failure) for fetched in play.outcomes.values())
    assert play.now < 20_000 / 256 * 0.1 + 3 * seconds


def test_a_host_is_one_while_a_row_of_it_waits_to_be_tried_again() -> None:
    plan = schedule(retries=1, max_per_host=1)
    plan.fresh.extend(rows(["http://a/"] * 3))
    first = plan.next(0.0)
    assert first is not None
    assert plan.finish(first, Failure("fetch", "reset"), 0.1) is None  # comes again
    second = plan.next(0.2)
    assert second is not None
    assert second.host is first.host
    assert [plan.next(now) for now in (0.3, 5.0)] == [None, None]  # one at a time


def test_hosts_that_went_down_are_forgotten_with_their_last_row() -> None:
    plan = schedule(retries=2)
    play = Simulation(plan, lambda attempt, now, at_once: (99.0, OK))
    play.run(rows(f"http://h{n % 100}/" for n in range(800)))
    plan.next(play.now + 1000.0)
    assert plan.hosts == 0
