"""Rows wait for their host's robots.txt: thousands of hosts, simulated by a clock that the test turns."""

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable

import pytest

from any2ds.core.failures import Failure
from any2ds.core.rows import Row
from any2ds.core.samples import Fetched, Payload
from any2ds.fetch.policy.hosts import Attempt, HostPolicy
from any2ds.fetch.policy.robots import Robots
from any2ds.fetch.policy.schedule import Schedule, ScheduleLimits, host_name
from tests.support.params import sampled


class Bytes:
    def __init__(self, content: bytes) -> None:
        self.content, self.size = content, len(content)

    def read(self) -> bytes:
        return self.content

    def release(self) -> None:
        pass


def text(content: str) -> Payload:
    return Payload(Bytes(content.encode()), None, 200, None, 0.1)  # type: ignore[arg-type]


def status(number: int, retry_after: float | None = None) -> Failure:
    return Failure("fetch", f"http_{number}", http_status=number, retry_after=retry_after)


OK = text("")
Answer = Callable[[str, float], tuple[float, Payload | Failure]]
"""What comes of a URL that is asked for at a time: seconds, and the outcome."""


class Play:
    """Plays a list against servers, with time as a number."""

    def __init__(self, answer: Answer, slots: int = 256, retries: int = 0, everywhere: bool = False) -> None:
        self.robots = Robots("any2ds", "respect" if everywhere else "public")
        self.schedule = Schedule(ScheduleLimits(slots, 60, retries), HostPolicy(), random.Random(0), self.robots)
        self.answer = answer
        self.now = 0.0
        self.asked: list[tuple[float, str]] = []
        self.outcomes: dict[int, Fetched] = {}
        self.finished_at: dict[int, float] = {}

    def run(self, urls: Iterable[str], stock: int = 2000) -> None:
        schedule = self.schedule
        rows = (Row(0, n, str(n), url) for n, url in enumerate(urls, len(self.outcomes)))
        landing: list[tuple[float, int, Attempt, Payload | Failure]] = []
        order = itertools.count()
        more = True
        while more or not schedule.idle:
            if more and len(schedule.fresh) < stock and schedule.queued + schedule.deferred < 100_000:
                batch = list(itertools.islice(rows, stock))
                schedule.fresh.extend(batch)
                more = bool(batch)
            while attempt := schedule.next(self.now):
                url = attempt.row.url or ""
                self.asked.append((self.now, url))
                seconds, outcome = self.answer(url, self.now)
                heapq.heappush(landing, (self.now + seconds, next(order), attempt, outcome))
            self.note(schedule.given_up())
            step = min(landing[0][0] if landing else float("inf"), self.now + schedule.wait(self.now))
            self.now = step if step < float("inf") else self.now
            assert not schedule.overdue(self.now, lambda _: 0)
            while landing and landing[0][0] <= self.now:
                _, _, attempt, outcome = heapq.heappop(landing)
                ended = schedule.finish(attempt, outcome, self.now)
                self.note([ended] if ended else [])

    def note(self, ended: Iterable[Fetched]) -> None:
        for fetched in ended:
            assert fetched.row.position not in self.outcomes
            self.outcomes[fetched.row.position] = fetched
            self.finished_at[fetched.row.position] = self.now

    @property
    def counts(self) -> Counter[str]:
        return Counter(url for _, url in self.asked)

    @property
    def codes(self) -> Counter[str]:
        outcomes = (fetched.outcome for fetched in self.outcomes.values())
        return Counter(outcome.code if isinstance(outcome, Failure) else "success" for outcome in outcomes)


def serving(files: dict[str, Payload | Failure], seconds: float = 0.1) -> Answer:
    return lambda url, now: (seconds, files.get(url, OK))


def test_one_request_per_origin_before_its_first_row_and_disallowed_rows_are_never_asked_for() -> None:
    play = Play(serving({"http://a.org/robots.txt": text("User-agent: *\nDisallow: /no")}))
    play.run(["http://a.org/no/1", "http://a.org/yes", "http://A.org/no/2", "https://a.org/no", "http://a.org/yes"])
    assert play.counts == {
        "http://a.org/robots.txt": 1,
        "https://a.org/robots.txt": 1,
        "http://a.org/yes": 2,
        "https://a.org/no": 1,
    }
    first = [url for _, url in play.asked]
    assert first.index("http://a.org/robots.txt") < first.index("http://a.org/yes")
    assert first.index("https://a.org/robots.txt") < first.index("https://a.org/no")
    assert play.codes == {"success": 3, "robots": 2}
    assert {play.outcomes[n].attempts for n in (0, 2)} == {0}


def test_hosts_whose_rows_are_all_disallowed_are_forgotten() -> None:
    play = Play(serving({f"http://h{n}.org/robots.txt": text("User-agent: *\nDisallow: /") for n in range(1200)}))
    for _ in range(3):
        play.run(f"http://h{n}.org/" for n in range(1200))
    assert play.codes == {"robots": 3600}
    assert len(play.asked) == 1200
    assert play.schedule.hosts <= 1000


def test_a_robots_txt_does_not_wait_behind_the_rows_of_its_host() -> None:
    play = Play(serving({}))
    play.run(["http://a.org/"])
    play.run(["http://a.org/"] * 5000 + ["https://a.org/"], stock=10_000)
    assert [url for _, url in play.asked].index("https://a.org/robots.txt") < 1000


def test_spellings_that_mean_the_same_url_are_judged_the_same() -> None:
    play = Play(serving({"http://a.org/robots.txt": text("User-agent: *\nDisallow: /no")}))
    disallowed = [
        "http:\\\\a.org\\no",
        " HTTP://a.org/no",
        "http://x:y@a.org/no",
        "http://a.org:80/%6eo",
        "http:/a.org/no",
    ]
    disallowed += [
        "http://a.org\\no@localhost/",
        "http:\\\\a.org/no://localhost/",
        "http://a.org/x/../no",
        "http://a.org/x/%2E./no",
        "http://\uff41.org/no",
    ]
    play.run(disallowed)
    assert play.codes == {"robots": len(disallowed)}
    assert play.counts == {"http://a.org/robots.txt": 1}


def test_rows_that_wait_hold_no_slot_and_nobody_up() -> None:
    def answer(url: str, now: float) -> tuple[float, Payload | Failure]:
        return (30.0 if url == "http://slow.org/robots.txt" else 0.1), OK

    play = Play(answer, slots=2)
    play.run([f"http://slow.org/{n}" for n in range(1000)] + [f"http://b.org/{n}" for n in range(100)])
    assert max(play.finished_at[n] for n in range(1000, 1100)) < 15
    assert play.codes == {"success": 1100}


def test_hosts_that_are_exempt_are_not_asked_unless_everywhere() -> None:
    urls = ["http://localhost/a", "http://db/a", "http://127.0.0.1:8080/a", "ftp://a.org/a", "nonsense"]
    play = Play(serving({}))
    play.run(urls)
    assert not any(url.endswith("robots.txt") for _, url in play.asked)
    play = Play(serving({}), everywhere=True)
    play.run(urls)
    assert sum(url.endswith("robots.txt") for _, url in play.asked) == 3
    assert len(play.outcomes) == 5


def test_a_crawl_delay_keeps_requests_apart_also_when_the_host_was_idle() -> None:
    def answer(url: str, now: float) -> tuple[float, Payload | Failure]:
        return 0.1, text("User-agent: *\nCrawl-delay: 5") if url.endswith("robots.txt") else OK

    play = Play(answer)
    play.run(["http://a.org/x"] * 3)
    play.run(["http://a.org/x"] * 3)
    times = [now for now, _ in play.asked]  # robots.txt among them
    assert len(times) == 7
    assert all(b - a >= 5 for a, b in itertools.pairwise(times))
    assert play.counts["http://a.org/robots.txt"] == 1


def test_passing_failures_of_robots_txt_are_tried_again_at_least_once() -> None:
    answers = iter([Failure("fetch", "reset"), text("User-agent: *\nDisallow: /no")])
    play = Play(lambda url, now: (0.1, next(answers) if url.endswith("robots.txt") else OK))
    play.run(["http://a.org/no", "http://a.org/yes"])
    assert play.codes == {"robots": 1, "success": 1}
    assert play.counts["http://a.org/robots.txt"] == 2


def test_retry_after_of_robots_txt_is_heeded() -> None:
    answers = iter([status(429, 20.0), status(503, 20.0), OK])
    play = Play(lambda url, now: (0.1, next(answers) if url.endswith("robots.txt") else OK))
    play.run(["http://a.org/x"])
    assert play.codes == {"success": 1}
    assert play.now > 40


def test_an_origin_out_of_reach_costs_its_rows_no_requests_and_is_asked_again_later() -> None:
    play = Play(serving({"http://a.org/robots.txt": status(500)}), retries=2)
    play.run(["http://a.org/x"] * 5000)
    assert play.codes == {"robots_unreachable": 5000}
    assert play.counts == {"http://a.org/robots.txt": 3}
    play.answer = serving({})
    play.run(["http://a.org/x"])
    assert play.codes["success"] == 0
    play.now += 601
    play.run(["http://a.org/x"])
    assert play.codes["success"] == 1
    assert play.counts == {"http://a.org/robots.txt": 4, "http://a.org/x": 1}


def test_rows_of_a_host_that_does_not_exist_say_so() -> None:
    play = Play(lambda url, now: (0.1, Failure("fetch", "dns", "no such name")))
    play.run(["http://a.invalid/x"] * 10)
    assert play.codes == {"dns": 10}
    assert play.counts == {"http://a.invalid/robots.txt": 2}


def test_a_robots_txt_that_waits_for_a_host_that_goes_down_is_given_up_with_its_rows() -> None:
    timeout = Failure("fetch", "timeout_total")
    schedule = Schedule(ScheduleLimits(100, 60), HostPolicy(), random.Random(0), Robots("any2ds"))
    schedule.fresh.append(Row(0, 0, "0", "http://a.org/"))
    file = schedule.next(0)
    assert file is not None
    schedule.finish(file, OK, 0.1)
    schedule.fresh.append(Row(0, 1, "1", "https://a.org/"))
    schedule.fresh.extend(Row(0, n, str(n), "http://a.org/") for n in range(2, 16))
    running = [attempt for _ in range(16) if (attempt := schedule.next(0.1))]
    second = next(attempt for attempt in running if attempt.asks)
    assert schedule.finish(second, timeout, 11) is None
    schedule.fresh.append(Row(0, 16, "16", "http://a.org/"))
    assert schedule.next(11) is None  # the host is silent
    assert schedule.next(13) is None  # to be tried once more, but not now
    assert schedule.queued == 3
    for attempt in running:
        if attempt is not second:
            schedule.finish(attempt, timeout, 13)
    assert schedule.queued == 0
    assert schedule.next(13) is None
    assert sorted(fetched.row.position for fetched in schedule.given_up()) == [1, 16]


def test_a_host_that_goes_down_while_another_robots_txt_of_it_is_awaited_ends_all_its_rows() -> None:
    def answer(url: str, now: float) -> tuple[float, Payload | Failure]:
        if url == "http://a.org/robots.txt":
            return 0.1, OK
        return 10.0, Failure("fetch", "timeout_total")

    play = Play(answer)
    play.run(["http://a.org/x"] * 500 + ["https://a.org/x"] * 500)
    assert len(play.outcomes) == 1000
    assert set(play.codes) <= {"timeout_total", "host_down", "robots_unreachable"}
    assert play.schedule.queued == play.schedule.deferred == play.schedule.in_flight == 0


def test_a_long_list_of_one_disallowed_host_is_given_up_in_turns() -> None:
    play = Play(serving({"http://a.org/robots.txt": text("User-agent: any2ds\nDisallow: /")}))
    schedule, most = play.schedule, 0
    schedule.fresh.append(Row(0, 0, "0", "http://a.org/"))
    attempt = schedule.next(0)
    assert attempt is not None
    schedule.fresh.extend(Row(0, n, str(n), "http://a.org/") for n in range(1, 50_000))
    assert schedule.next(0) is None
    schedule.finish(attempt, text("User-agent: any2ds\nDisallow: /"), 0.1)
    reported = 0
    while not schedule.idle:
        assert schedule.next(0.1) is None
        assert schedule.wait(0.1) == 0 or not schedule.fresh
        found = schedule.given_up()
        reported, most = reported + len(found), max(most, len(found))
    assert (reported, most) == (50_000, 1000)


@pytest.mark.parametrize("count", sampled([20_000, 100_000]))
def test_many_rows_of_thousands_of_hosts_all_come_back_once(count: int) -> None:
    dice = random.Random(3)
    kinds = [
        text("User-agent: *\nDisallow: /no\nCrawl-delay: 0.05"),
        text("User-agent: other\nDisallow: /"),
        status(404),
        status(503),
        Failure("fetch", "timeout_total"),
        Failure("fetch", "dns"),
    ]
    weights = [30, 20, 40, 3, 3, 4]
    files = {f"h{n}.org": dice.choices(kinds, weights)[0] for n in range(5000)}

    def answer(url: str, now: float) -> tuple[float, Payload | Failure]:
        assert "/no" not in url or files[host_name(url)] is not kinds[0]
        file = files[host_name(url)]
        if url.endswith("/robots.txt"):
            return (10.0 if file is kinds[4] else 0.1), file
        assert not isinstance(file, Failure) or file is kinds[2]
        return 0.1, OK

    play = Play(answer, slots=4000)
    hosts = (int(dice.paretovariate(0.3)) % 5000 for _ in range(count))
    play.run(f"{dice.choice(['http', 'https'])}://h{host}.org/{dice.choice(['no', 'yes'])}" for host in hosts)
    assert len(play.outcomes) == count
    assert play.schedule.queued == play.schedule.deferred == play.schedule.in_flight == 0
    assert set(play.codes) <= {"success", "robots", "robots_unreachable", "dns", "host_down"}
    once = [n for url, n in play.counts.items() if url.endswith("robots.txt") and files[host_name(url)] in kinds[:3]]
    # Again after ten minutes for those out of reach, but for these only after a day.
    assert max(once) == 1
    assert play.robots.take_cost().files >= count // 20
    assert play.schedule.hosts < 5000


class OtherProcess:
    """Asks for all files of robots.txt, and has the slots for that; the content is what it has brought."""

    content: bytes | None = None

    def acquire(self, host: str, limit: int, delay: float) -> tuple[int | None, float]:
        return None, 0.03

    def release(self, slot: int) -> None: ...

    def read(self, name: str) -> bytes | None:
        return self.content

    def write(self, name: str, content: bytes) -> None: ...


@pytest.fixture
def other() -> OtherProcess:
    return OtherProcess()


@pytest.fixture
def shared(other: OtherProcess) -> Schedule:
    robots = Robots("any2ds", files=other)
    schedule = Schedule(ScheduleLimits(4, 60), HostPolicy(), random.Random(0), robots, slots_of_hosts=other)
    schedule.fresh.append(Row(0, 0, "0", "http://a.org/x"))
    assert schedule.next(0.0) is None
    return schedule


@pytest.mark.parametrize(("content", "url"), [(b"", "http://a.org/x"), (b"User-agent: *\nDisallow: /x\n", None)])
def test_a_robots_txt_that_another_process_brings_is_not_asked_for(
    other: OtherProcess, shared: Schedule, content: bytes, url: str | None
) -> None:
    other.content = content
    attempt = shared.next(0.5)
    assert (attempt and attempt.row.url) == url
    assert [done.outcome.code for done in shared.given_up() if isinstance(done.outcome, Failure)] == (
        [] if url else ["robots"]
    )
    assert shared.queued == 0


def test_a_robots_txt_that_another_process_does_not_bring_is_asked_for_after_all(shared: Schedule) -> None:
    assert shared.next(1.0) is None
    attempt = shared.next(3.0)
    assert attempt is not None
    assert attempt.row.url == "http://a.org/robots.txt"
