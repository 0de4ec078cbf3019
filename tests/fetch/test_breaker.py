"""Whose fault a failure is, judged by a clock that the test turns."""

import pytest

from any2ds.core.errors import NetworkDown
from any2ds.core.failures import Failure
from any2ds.core.rows import Row
from any2ds.fetch.policy.breaker import MAX_EXCUSES, Breaker
from any2ds.fetch.policy.hosts import Attempt, Host, HostPolicy
from tests.support.params import sampled

RESET, TIMEOUT = Failure("fetch", "reset"), Failure("fetch", "timeout_total")
UNREACHABLE = Failure("fetch", "connect", "Network is unreachable", blame="us")
NO_SERVER = Failure("fetch", "dns", "no name server answered", blame="us")


def attempt(host: str = "a.test", started: float = 0.0, excuses: int = 0) -> Attempt:
    row = Row(0, 0, "0", f"http://{host}/x")
    return Attempt(row, Host(host, HostPolicy()), started=started, excuses=excuses)


def verdicts(breaker: Breaker, now: float) -> list[bool]:
    return [excused for _, _, excused in breaker.judged(now)]


def heard(now: float = 0.0, patience: float = 0.0, host: str = "127.0.0.1") -> Breaker:
    breaker = Breaker(patience, now)
    breaker.hear(now, attempt(host, started=now))
    return breaker


def silent(breaker: Breaker, start: float, end: float, in_flight: int = 100, more: bool = True) -> list[str]:
    """Turns without a sign of life, ten a second; the probes that are asked for."""
    probes = []
    for turn in range(round((end - start) * 10) + 1):
        now = start + turn / 10
        breaker.look(now, in_flight, more)
        probes += [witness.url for witness in breaker.probes(now)]
    return probes


def test_a_failure_counts_when_others_are_answered_after_it() -> None:
    breaker = heard()
    assert breaker.doubts(attempt(), RESET, 1.0)
    breaker.look(1.0, 10)
    assert verdicts(breaker, 1.0) == []
    assert not breaker.idle
    breaker.hear(1.1, attempt("b.test"))
    assert verdicts(breaker, 1.1) == [False]
    assert breaker.idle


def test_failures_that_tell_of_the_host_are_never_in_doubt() -> None:
    breaker = heard()
    for failure in (Failure("fetch", "http_404", http_status=404), Failure("fetch", "dns", blame="host")):
        assert not breaker.doubts(attempt(), failure, 1.0)


def test_silence_with_probes_unanswered_is_an_outage_that_excuses() -> None:
    breaker = heard()
    assert silent(breaker, 0.0, 10.0)[:1] == ["http://127.0.0.1/x"]
    assert breaker.paused
    assert breaker.holding
    assert breaker.doubts(attempt(started=0.0), TIMEOUT, 10.0)
    assert verdicts(breaker, 10.0) == [True]
    breaker.hear(31.0)
    breaker.look(31.0, 10)
    assert not breaker.holding
    # What was under way before it ended is excused as well, what began later is not.
    for started, expected in ((25.0, True), (31.5, False)):
        assert breaker.doubts(attempt(started=started), TIMEOUT, 40.0)
        breaker.hear(40.0)
        assert verdicts(breaker, 40.0) == [expected]


def test_an_answered_probe_makes_failures_count() -> None:
    breaker = heard()
    for second in range(0, 20, 3):
        probes = silent(breaker, second, second + 2.5)
        assert len(probes) == (2 if second else 1)  # of each host that is known
        assert not breaker.paused
        breaker.hear(second + 2.5, attempt(host="b.test", started=second + 2.0))
    assert breaker.doubts(attempt(started=10.0), TIMEOUT, 21.0)
    assert verdicts(breaker, 21.0) == [False]  # it had long been silent when others were not


def test_many_failures_at_once_stop_new_transfers_until_it_is_known_why() -> None:
    breaker = heard()
    for _ in range(20):
        assert breaker.doubts(attempt(started=0.1), RESET, 0.2)
    assert silent(breaker, 0.2, 0.8)
    assert breaker.holding
    assert not breaker.paused
    breaker.hear(0.9)
    assert verdicts(breaker, 0.9) == [False] * 20
    assert not breaker.holding


def test_a_few_quick_failures_at_the_end_of_a_run_are_not_worth_a_probe() -> None:
    breaker = heard()
    for _ in range(3):
        assert breaker.doubts(attempt(started=0.1), RESET, 0.2)
    assert silent(breaker, 0.2, 1.0, in_flight=0) == []
    assert verdicts(breaker, 1.0) == []  # there are more rows, and they will tell
    assert silent(breaker, 1.0, 1.5, in_flight=0, more=False) == []
    assert verdicts(breaker, 1.5) == [False] * 3


def test_nobody_is_probed_and_nothing_held_before_anybody_has_answered() -> None:
    breaker = Breaker(0.0, 0.0)
    for _ in range(1000):
        assert not breaker.doubts(attempt(), TIMEOUT, 1.0)
    assert silent(breaker, 0.0, 60.0) == []
    assert not breaker.holding


def test_a_machine_without_a_network_stops_at_the_start_and_tries_one_row_at_a_time() -> None:
    breaker = Breaker(0.0, 0.0)
    for _ in range(1000):
        assert breaker.doubts(attempt(), UNREACHABLE, 1.0)
    assert breaker.holding
    assert verdicts(breaker, 1.0) == [True] * 1000
    assert [breaker.try_one(second) for second in (1.0, 1.5, 2.5, 3.0)] == [True, False, False, True]
    breaker.hear(4.0, attempt())
    breaker.look(4.0, 1)
    assert not breaker.holding


def test_a_short_list_ends_without_a_network() -> None:
    breaker = Breaker(0.0, 0.0)
    for _ in range(100):
        assert breaker.doubts(attempt(), UNREACHABLE, 1.0)
    assert silent(breaker, 1.0, 1.1, in_flight=0, more=False) == []
    assert not breaker.holding
    assert verdicts(breaker, 1.1) == [False] * 100


def test_patience_ends() -> None:
    breaker = heard(patience=30.0)
    silent(breaker, 0.0, 29.0)
    with pytest.raises(NetworkDown, match="nothing has answered for 30 s"):
        silent(breaker, 29.0, 31.0)


def test_waiting_for_the_list_is_no_silence() -> None:
    breaker = heard(patience=30.0)
    assert silent(breaker, 0.0, 1000.0, in_flight=0) == []
    assert not breaker.paused


def test_silent_name_servers_excuse_while_known_hosts_answer() -> None:
    for host, expected in (("b.test", [True, True, True, False, False]), ("127.0.0.1", [False] * 5)):
        breaker = heard(host=host)
        found = []
        for excuses in range(MAX_EXCUSES):
            assert breaker.doubts(attempt(excuses=excuses), NO_SERVER, 1.0)
            breaker.hear(1.0)
            found += verdicts(breaker, 1.0)
        assert found == expected


def test_no_row_is_excused_for_ever() -> None:
    breaker = heard()
    silent(breaker, 0.0, 10.0)
    assert breaker.paused
    assert not breaker.doubts(attempt(excuses=MAX_EXCUSES), TIMEOUT, 10.0)


def test_a_few_failures_for_which_everything_else_waits_are_worth_a_probe_after_all() -> None:
    breaker = heard()
    assert breaker.doubts(attempt(started=0.1), RESET, 0.2)
    assert silent(breaker, 0.2, 1.9, in_flight=0) == []
    assert silent(breaker, 1.9, 2.5, in_flight=0)
    breaker.hear(2.6)
    assert verdicts(breaker, 2.6) == [False]


def test_a_few_failures_for_which_everything_else_waits_are_settled_where_nobody_can_be_probed() -> None:
    breaker = Breaker(0.0, 0.0)
    assert breaker.doubts(attempt(), UNREACHABLE, 0.2)
    assert silent(breaker, 0.2, 3.5, in_flight=0) == []
    assert verdicts(breaker, 3.5) == []
    silent(breaker, 3.5, 4.5, in_flight=0)
    assert verdicts(breaker, 4.5) == [False]


def test_the_last_row_of_a_list_that_times_out_is_no_outage_before_a_probe_could_be_answered() -> None:
    breaker = heard()
    assert silent(breaker, 0.0, 9.9, in_flight=1, more=False) == []
    assert breaker.doubts(attempt(started=0.0), TIMEOUT, 10.0)
    assert silent(breaker, 10.0, 10.1, in_flight=0, more=False) == ["http://127.0.0.1/x"]
    assert not breaker.paused
    breaker.hear(10.2)  # the probe's answer
    assert verdicts(breaker, 10.2) == [False]
    assert breaker.doubts(attempt(started=10.3), TIMEOUT, 20.3)
    assert silent(breaker, 20.3, 23.0, in_flight=0, more=False)
    assert breaker.paused  # where nothing comes of it


def test_the_quickest_url_of_a_host_is_its_witness() -> None:
    breaker = Breaker(0.0, 0.0)
    for path, seconds in (("slow", 4.5), ("quick", 0.02), ("slower", 5.0)):
        answered = attempt()
        answered.row = Row(0, 0, "0", f"http://a.test/{path}")
        breaker.hear(seconds, answered)
    assert silent(breaker, 5.0, 7.1) == ["http://a.test/quick"]


def test_several_hosts_are_asked_at_once_and_each_gets_a_multiple_of_its_own_time() -> None:
    breaker = Breaker(0.0, 0.0)
    for number, seconds in enumerate((0.1, 0.2, 0.1, 3.0)):
        breaker.hear(3.0, attempt(f"h{number}.test", started=3.0 - seconds))
    asked = silent(breaker, 3.0, 5.0)
    assert len(asked) == len(set(asked)) == 3
    silent(breaker, 5.0, 19.9)
    assert not breaker.paused  # the host that took 3 s may take 15
    silent(breaker, 19.9, 20.1)
    assert breaker.paused


@pytest.mark.parametrize(
    ("started", "failed", "failure", "excused"),
    sampled(
        [
            (7.0, 17.0, TIMEOUT, True),  # the silence from 9 on took most of its time
            (0.0, 10.0, TIMEOUT, False),  # it had waited for long before
            (0.0, 10.0, RESET, True),  # which the outage may have done at any time
            (20.0, 35.0, TIMEOUT, True),  # it began in the outage
            (31.5, 41.5, TIMEOUT, False),
        ]
    ),
)
def test_an_outage_excuses_what_it_covers(started: float, failed: float, failure: Failure, excused: bool) -> None:
    breaker = heard(9.0)
    silent(breaker, 9.0, 14.0)
    assert breaker.paused
    breaker.hear(31.0)
    assert breaker.doubts(attempt(started=started), failure, failed)
    breaker.hear(max(31.0, failed))
    assert verdicts(breaker, max(31.0, failed)) == [excused]
