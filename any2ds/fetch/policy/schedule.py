"""Decides which row is attempted when. A state machine over a clock that is handed in: no sockets, no sleep.

Rows wait in a queue per host. The hosts that may start another transfer take turns, so that a slow host never holds
up the others; how many transfers a host gets, and how often, follows from its answers (`hosts.py`).

- A host is *silent* while it has not answered lately, or not after its last timeout.
- A transfer to a silent host is *late* when it takes longer than answers usually do. Late transfers wait in spare
  places, as far as there are any, and while too many are late, silent hosts come last.
- A transfer is *overdue* when no byte has come for `timeout` seconds, or when its total time is up.
- A transfer is *stalled* when it has been slower than `min_speed` for `stall_timeout` seconds; that ends it as well.
  libcurl's own rule is looked at only when something else wakes the transfer.
"""

from __future__ import annotations

import heapq
import itertools
import random
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from any2ds.config.options import FetchOptions
from any2ds.core.failures import Failure
from any2ds.core.metrics import Backlog
from any2ds.core.rows import Row
from any2ds.core.samples import Fetched, Payload
from any2ds.core.schemes import SERVERS, WEB
from any2ds.fetch.policy.hosts import BUSY, FIRST_AT_ONCE, LEAST_FIRST, SILENCE, Attempt, Host, HostPolicy, Slots
from any2ds.fetch.policy.robots import RETRIES, Robots, origin_of
from any2ds.fetch.urls import normalize

FIRST_BACKOFF = 1.0  # seconds; doubles with each attempt
MAX_BACKOFF = 60.0
# A 429 or 503 with Retry-After is repeated later and does not count as an attempt, up to this number.
MAX_DEFERRALS = 5
# Repeats of a 429 that names no time: from a host that answers others, and from one that answers nobody.
_MAX_DEFERRALS_UNASKED, _MAX_DEFERRALS_SILENT = 20, 2
# Idle hosts are remembered up to so many: those that bear much, and others that answer. To forget and to meet a host
# again takes 20 µs, a tenth of a row of 2 kB.
_PROVEN_HOSTS, _ANSWERING_HOSTS = 10_000, 1_000
_ROBOTS_PATIENCE = 2.0  # seconds for which another process is waited for that asks for a robots.txt
_LOOKED_AT = 1000  # rows in a row that may not start now, before others have their turn
_LOGINS = 8  # sessions with one sftp server or the like: 30 ms of CPU each, and OpenSSH turns away who begins many

# A transfer to a silent host is late after so many times the mean answer, and at least so many seconds.
_LATE, _LEAST_LATE = 3.0, 0.1
_FIRST_LATENCY = 0.3  # seconds, a guess until something was answered
_CROWDED = 8  # while one slot in so many is with a late one, hosts that answer come first
_MANY = 64  # fewer transfers than this are meant as a limit, also for those that hang
_AUTO_SPARE = 256  # with thread_count=auto
_MOST_SOCKETS = 400 if sys.platform == "win32" else 1 << 30  # select() takes 512
_MOST_SILENT = 4  # times the slots: so many silent hosts may wait before no others are looked for

# The time that one attempt may take grows by a second with so many bytes received. That is 64 kbit/s, the speed of an
# ISDN channel: a line that serves files today is faster, and what drips (500 bytes/s) ends soon after `timeout`.
BYTES_PER_SECOND = 8 << 10
# A host that is no faster with a large file than that would hold the run for days.
BYTES_PER_SECOND_LATER = 64 << 10
_BEGINNING = 32 << 20  # bytes, with which a thin line that many transfers share is borne for an hour
# How often in the time of `timeout` the transport is asked how many bytes an attempt has, since nobody reports each of
# them: the attempt ends when none has come for `timeout` seconds, or for up to a twentieth more.
LOOKS = 20
_LOOKS_AT_SPEED = 8  # the same in the time that it may be too slow


def spare_transfers(options: FetchOptions, most: int) -> int:
    """Transfers beyond `most` that may wait for silent hosts; threads, or a small number, are a real limit."""
    wanted = min(most, _AUTO_SPARE) if options.thread_count == "auto" else most
    if wanted < _MANY:
        return 0
    return max(0, min(wanted, _MOST_SOCKETS - most))


def late_after(latency: float) -> float:
    """Seconds after which a transfer to a silent host is late, where answers take `latency` seconds."""
    return max(_LEAST_LATE, _LATE * latency)


def seconds_for(size: int) -> float:
    """Seconds that so many bytes may take, the first ones by far the most."""
    beginning = min(size, _BEGINNING)
    return beginning / BYTES_PER_SECOND + (size - beginning) / BYTES_PER_SECOND_LATER


def transfers_within(options: FetchOptions, connections: int) -> int:
    """Transfers at a time, as far as the options say, that are possible with so many open sockets."""
    if sys.platform == "win32":
        return min(options.most_transfers, _MOST_SOCKETS)
    # As many again may wait for silent hosts, and an eighth of all is kept idle.
    return max(1, min(options.most_transfers, connections * 4 // 9))


@dataclass(frozen=True, slots=True)
class ScheduleLimits:
    """The limits for all hosts together."""

    slots: int  # attempts in flight
    timeout: float = 0.0  # seconds without a byte of a body, after which an attempt ends; 0: no limit
    retries: int = 0  # further attempts after the first
    # Seconds for one attempt; 0: no limit; None: `timeout`, and what `seconds_for` the bytes received allows.
    total_timeout: float | None = None
    # Transfers beyond `slots` that may wait for silent hosts: they take next to nothing, and would take others' slots.
    spare: int = 0
    stall_timeout: float = 0.0  # seconds for which an attempt may be slower than `min_speed`; 0: no limit
    min_speed: int = 1  # bytes per second


def limits_of(options: FetchOptions, slots: int) -> ScheduleLimits:
    return ScheduleLimits(
        slots,
        timeout=options.timeout,
        stall_timeout=options.stall_timeout,
        min_speed=options.min_speed,
        retries=options.retries,
        total_timeout=options.total_timeout,
        spare=spare_transfers(options, slots),
    )


class Schedule:
    """Keeps to `limits`, and treats each host by `policy` and by how it answers.

    Where hosts differ, `host_of` returns the name under which a URL's host counts and its policy. `slots_of_hosts`
    keeps the limits of hosts together with other processes.
    """

    def __init__(
        self,
        limits: ScheduleLimits,
        policy: HostPolicy | None = None,
        rng: random.Random | None = None,
        robots: Robots | None = None,
        host_of: Callable[[str | None], tuple[str, HostPolicy]] | None = None,
        slots_of_hosts: Slots | None = None,
    ) -> None:
        self.slots, self.spare = limits.slots, limits.spare
        self.timeout = limits.timeout or float("inf")
        self.total_timeout = limits.total_timeout
        self._stall_timeout = limits.stall_timeout or float("inf")
        self._min_speed = limits.min_speed
        # Seconds between two looks at an attempt, and from its start until the first.
        self._look = min(self.timeout / LOOKS, self._stall_timeout / _LOOKS_AT_SPEED)
        self._first_look = min(self._look, limits.total_timeout or float("inf"))
        self.retries = limits.retries
        self.in_flight = 0
        self.fresh: deque[Row] = deque()  # rows that nobody has looked at; a feeder may append from another thread
        self.queued = 0  # rows that wait for their host, or for its robots.txt
        self.deferred = 0  # rows that wait for their time
        self.fetchers = 1  # that are at work at the same time: each begins with a part of what an unknown host gets
        self.shared_until = 0.0  # until then rows wait for nothing but what other processes do at their host
        self._slots_of_hosts = slots_of_hosts
        self._held: set[int] = set()  # of these slots
        self._policy = policy or HostPolicy()
        self._named = host_of
        self._rng = rng or random.Random()
        self._robots = robots
        self._interrupted = False  # there are more rows to look at right away
        self._hosts: dict[str, Host] = {}
        self._turn: deque[Host] = deque()  # hosts with waiting rows that may start one more now
        self._silent: dict[Host, None] = {}  # the same, but they are silent, and come when no other one wants the place
        self._latency = _FIRST_LATENCY  # mean seconds of an answer, lately
        self._to_silent: deque[tuple[float, Attempt]] = deque()  # that are not late yet, by the time of their start
        self._late = 0
        self._paused: list[tuple[float, int, Host]] = []  # hosts with waiting rows, by the time when they may start
        self._later: list[tuple[float, int, Attempt]] = []  # attempts by the time when they are due
        self._given_up: deque[Fetched] = deque()
        self._order = itertools.count()
        self._deadlines: list[tuple[float, int, Attempt]] = []  # of attempts; the finished drop out late

    @property
    def idle(self) -> bool:
        """Nothing in flight, nothing waiting."""
        return not (self.in_flight or self.fresh or self.queued or self._later or self._given_up)

    @property
    def has_more(self) -> bool:
        """Rows wait for a place or for their host's time, not for how another attempt ends."""
        return bool(self.fresh or self._turn or self._silent) or any(host.queue for _, _, host in self._paused)

    @property
    def hosts(self) -> int:
        """Hosts that are remembered: those with rows, those in trouble lately, and some that answer."""
        return len(self._hosts)

    @property
    def spared(self) -> int:
        """Transfers that wait for silent hosts, and take none of the slots."""
        return min(self._late, self.spare)

    @property
    def full(self) -> bool:
        """Whether all connections are busy."""
        return self.in_flight - min(self._late, self.spare) >= self.slots

    def backlog(self, now: float, most: int = 5) -> Backlog:
        """The backlog, with the hosts that most rows wait for; it looks at all hosts and all long transfers."""
        waited_for = [host for host in self._hosts.values() if host.queue or host.deferred]
        worst = heapq.nlargest(most, waited_for, key=lambda host: host.waiting)
        remaining = [host.seconds_left(now) for host in waited_for]
        remaining += [due - now for due, _, _ in self._later]
        remaining += [self._seconds_left(attempt, now) for _, _, attempt in self._deadlines if attempt.running]
        return Backlog(tuple(host.load(now) for host in worst), max(remaining, default=0.0))

    def _seconds_left(self, attempt: Attempt, now: float) -> float:
        """How long a transfer may go on: about as long as others, or once it is late to the end of its time."""
        expected = attempt.started + late_after(self._latency)
        end = self._end_of(attempt)
        return (expected if now < expected or end == float("inf") else end) - now

    def next(self, now: float) -> Attempt | None:
        """The attempt to start now, if there is room and a host that may be asked."""
        is_crowded = bool(self._to_silent or self._late) and self._crowded(now)
        if self.full:
            return None
        if self._later:
            self._queue_what_is_due(now)
        if self._paused:
            self._wake_hosts(now)
        if self._silent and not is_crowded:
            self._turn.extend(self._silent)
            self._silent.clear()
        return (
            (self._turn and self._from_hosts_in_turn(now, is_crowded))
            or self._from_fresh_rows(now, is_crowded)
            or self._from_silent_hosts(now, is_crowded)
        )

    def _queue_what_is_due(self, now: float) -> None:
        """Attempts whose time has come, such as retries, wait for their host from now on."""
        while self._later and self._later[0][0] <= now:
            attempt = heapq.heappop(self._later)[2]
            self.deferred -= 1
            attempt.host.deferred -= 1
            if attempt.host.down_until > now:
                self._give_up(attempt, now)
            else:
                self._queue(attempt, now)

    def _wake_hosts(self, now: float) -> None:
        """Hosts whose pause is over get their turn."""
        while self._paused and self._paused[0][0] <= now:
            host = heapq.heappop(self._paused)[2]
            self._offer_turn(host, now)
            self._forget(host, now)

    def _from_hosts_in_turn(self, now: float, is_crowded: bool) -> Attempt | None:
        while self._turn:
            host = self._turn.popleft()
            if is_crowded and self._comes_last(host):
                self._silent[host] = None
                continue
            if attempt := self._start_queued(host, now):
                return attempt
        return None

    def _from_fresh_rows(self, now: float, is_crowded: bool) -> Attempt | None:
        looked_at = 0
        while self.fresh and looked_at < _LOOKED_AT and len(self._silent) <= _MOST_SILENT * self.slots:
            looked_at += 1
            row = self.fresh.popleft()
            name, policy = (host_name(row.url), self._policy) if self._named is None else self._named(row.url)
            host = self._hosts.get(name) or self._new_host(name, policy, row.url)
            attempt = Attempt(row, host)
            if host.down_until > now:
                self._give_up(attempt, now)
                continue
            first = self._past_robots(attempt, now) if host.gated else attempt
            if first is None:
                continue
            comes_last = is_crowded and self._comes_last(host)
            if not host.queue and not comes_last and (started := self._start(first, now)):
                return started
            self._queue(first, now)
        self._interrupted = looked_at == _LOOKED_AT
        return None

    def _from_silent_hosts(self, now: float, is_crowded: bool) -> Attempt | None:
        """Nobody else wants the place."""
        while self._silent or self._turn:
            host = next(iter(self._silent)) if self._silent else self._turn.popleft()
            self._silent.pop(host, None)
            if is_crowded and host.silent and host.in_flight >= SILENCE:
                host.in_turn = False  # enough to tell whether it is down; it comes back when one of them ends
            elif attempt := self._start_queued(host, now):
                return attempt
        return None

    def _start_queued(self, host: Host, now: float) -> Attempt | None:
        """Start the first row that waits for a host whose turn it is."""
        host.in_turn = False
        if host.queue and host.queue[0].asks:
            self._drop_if_known(host, now)
        if host.queue and (attempt := self._start(host.queue[0], now)):
            host.queue.popleft()
            self.queued -= 1
            if host.queue:
                self._offer_turn(host, now)
            return attempt
        self._offer_turn(host, now)
        return None

    def _drop_if_known(self, host: Host, now: float) -> None:
        """Do not ask for a robots.txt that another process has brought in the meantime."""
        robots, attempt = self._robots, host.queue[0]
        if robots is not None and attempt.sent == 0 and robots.is_brought(attempt.asks, now):
            host.queue.popleft()
            self.queued -= 1
            self._return_rows(attempt, robots.release(attempt.asks))

    def given_up(self) -> list[Fetched]:
        """The rows that are not tried at all, because of their host or its robots.txt; each is returned once."""
        given_up = list(self._given_up)
        self._given_up.clear()
        return given_up

    def finish(self, attempt: Attempt, outcome: Payload | Failure, now: float) -> Fetched | None:
        """Record how an attempt ended, which may be suspended. None if the row is going to be tried again."""
        host = attempt.host
        if attempt.running:
            self._release(attempt)
        else:
            host.deferred -= 1
        host.learn(outcome, now, attempt.started, attempt.failed_from)
        if host.queue:
            self._go_on_with(host, now)
        if isinstance(outcome, Payload):
            self._latency += 0.05 * (outcome.seconds - self._latency)
        elif self._try_again(attempt, outcome, now):
            return None
        if attempt.asks:
            self._learn(attempt, outcome, now)
        if not host.in_flight:
            self._forget(host, now)
        return None if attempt.asks else Fetched(attempt.row, outcome, attempt.sent)

    def suspend(self, attempt: Attempt, now: float) -> None:
        """An attempt has ended, and `finish` or `excuse` will say later what follows from it."""
        attempt.host.deferred += 1
        self._release(attempt)
        self._offer_turn(attempt.host, now)

    def excuse(self, attempt: Attempt, now: float, failure: Failure | None = None) -> None:
        """An attempt that is suspended does not count: its row is tried again. Its host learns from `failure`."""
        attempt.host.deferred -= 1
        if failure is not None:
            attempt.host.learn(failure, now, attempt.started, attempt.failed_from)
            if attempt.host.queue:
                self._go_on_with(attempt.host, now)
        self._defer(replace(attempt, excuses=attempt.excuses + 1), now + self.backoff(attempt.excuses + 1))

    def postpone(self, attempt: Attempt, now: float) -> None:
        """An attempt has failed for a reason of this process: it does not count, and its row comes again."""
        self._release(attempt)
        self._defer(replace(attempt, sent=attempt.sent - 1), now + self.backoff(1))
        self._offer_turn(attempt.host, now)

    def close(self) -> None:
        """Nothing is in flight any more."""
        while self._held and self._slots_of_hosts is not None:
            self._slots_of_hosts.release(self._held.pop())

    def _release(self, attempt: Attempt) -> None:
        attempt.running = False
        if attempt.slot is not None:
            self._give_back(attempt.slot)
            attempt.slot = None
        self.in_flight -= 1
        attempt.host.in_flight -= 1
        if attempt.late:
            self._late -= 1
            attempt.late = False

    def _go_on_with(self, host: Host, now: float) -> None:
        """Give up the rows that wait for a host that has learned, or line it up for them."""
        if host.down_until > now:
            while host.queue:
                self.queued -= 1
                self._give_up(host.queue.popleft(), now)
        self._offer_turn(host, now)

    def overdue(self, now: float, received: Callable[[Attempt], int]) -> list[Attempt]:
        """The attempts that are overdue or stalled; each is returned once, and the caller finishes it.

        `received` returns how many bytes of its body an attempt has; it is called for long ones only, now and then.
        """
        overdue = []
        while (first := self._first()) and first.deadline <= now:
            heapq.heappop(self._deadlines)
            if (size := received(first)) != first.received:
                first.received, first.heard = size, now
            gained = size - first.paced_size
            if gained < 0 or gained >= self._min_speed * (now - first.paced):  # after a redirect there are less
                first.paced, first.paced_size = now, size
            first.is_stalled = now - first.paced >= self._stall_timeout
            if (end := self._end_of(first)) <= now or first.is_stalled:
                overdue.append(first)
            else:
                first.deadline = min(end, now + self._look)
                heapq.heappush(self._deadlines, (first.deadline, next(self._order), first))
        return overdue

    def _end_of(self, attempt: Attempt) -> float:
        """When its time is up if no more bytes come."""
        if self.total_timeout is None:
            end = attempt.started + self.timeout + seconds_for(attempt.received)
        else:
            end = attempt.started + (self.total_timeout or float("inf"))
        return min(end, attempt.heard + self.timeout)

    def wait(self, now: float) -> float:
        """Seconds until a deadline, a retry or a host is due; infinite if none is."""
        due = float("inf")
        if not self.full:
            if self._interrupted and self.fresh:
                return 0.0
            due = min(queue[0][0] if queue else due for queue in (self._later, self._paused))
        first = self._first()
        return max(0.0, min(due, first.deadline if first else float("inf")) - now)

    def backoff(self, attempt: int) -> float:
        """Seconds before the next attempt: exponential with full jitter, so that failures of one moment spread out."""
        doublings = min(attempt - 1, 60)  # 2.0**1024 overflows
        return self._rng.uniform(0, min(MAX_BACKOFF, FIRST_BACKOFF * 2.0**doublings))

    def _crowded(self, now: float) -> bool:
        """Whether those that hang take so many places that hosts that answer should have the others."""
        waiting = self._to_silent
        since = now - late_after(self._latency)
        while waiting and (waiting[0][0] <= since or not waiting[0][1].running):
            attempt = waiting.popleft()[1]
            if attempt.running and attempt.host.silent:
                attempt.late = True
                self._late += 1
        return self._late >= max(1, self.slots // _CROWDED)

    def _comes_last(self, host: Host) -> bool:
        """Where it is crowded: a silent host, but for a first attempt as long as it may wait in a spare place."""
        return host.silent and (host.in_flight > 0 or self._late >= self.spare)

    def _give_up(self, attempt: Attempt, now: float) -> None:
        failure = Failure("fetch", "host_down", f"{attempt.host.name} has not answered anything")
        if refusal := attempt.host.down_as:
            detail = refusal.detail if attempt.sent else "not asked"
            failure = replace(refusal, detail=f"{detail}: its host went on to refuse after the wait that it asked for")
        if self._try_again(attempt, failure, now):
            return
        if attempt.asks:
            self._learn(attempt, failure, now)
        else:
            self._given_up.append(Fetched(attempt.row, failure, attempt.sent))
        self._forget(attempt.host, now)

    def _try_again(self, attempt: Attempt, failure: Failure, now: float) -> bool:
        """Schedule another attempt after a failure; False if there is none."""
        if not failure.transient:
            return False
        wait = self.backoff(attempt.number)
        number, deferrals = attempt.number + 1, attempt.deferrals
        is_told_to_wait = failure.retry_after is not None or (failure.code == "http_429" and not attempt.asks)
        if failure.code in BUSY and is_told_to_wait:
            retry_after = failure.retry_after or 0.0
            if retry_after > attempt.host.policy.max_retry_after:
                return False
            wait += retry_after
            host, most = attempt.host, MAX_DEFERRALS
            if failure.retry_after is None:
                most = _MAX_DEFERRALS_SILENT if host.silent else _MAX_DEFERRALS_UNASKED
            if attempt.deferrals < most and host.down_until <= now:
                number, deferrals = attempt.number, attempt.deferrals + 1
        if number > (max(self.retries, RETRIES) if attempt.asks else self.retries) + 1:
            return False
        again = replace(
            attempt,
            number=number,
            deferrals=deferrals,
            was_refused=failure.code in BUSY,
            failed_from=min(attempt.failed_from, attempt.started),
        )
        self._defer(again, now + wait)
        return True

    def _defer(self, attempt: Attempt, due: float) -> None:
        self.deferred += 1
        attempt.host.deferred += 1
        heapq.heappush(self._later, (due, next(self._order), attempt))

    def _start(self, attempt: Attempt, now: float) -> Attempt | None:
        """Start an attempt, if its host may be asked now."""
        host = attempt.host
        if not host.may_start(now) or (attempt.asks and not self._claims(attempt, now)):
            return None
        if (host.is_limited or host.min_interval) and self._slots_of_hosts is not None:
            slot, wait = self._slots_of_hosts.acquire(host.name, host.policy.max_per_host, host.min_interval)
            if slot is None:
                host.wait_for_others(now + wait)
                return None
            attempt.slot = slot
            self._held.add(slot)
        attempt.running = True
        attempt.sent += 1
        attempt.started = attempt.heard = attempt.paced = now
        attempt.received = attempt.paced_size = 0
        self.in_flight += 1
        if host.silent:
            self._to_silent.append((now, attempt))
        host.start(now)
        attempt.deadline = now + self._first_look
        if attempt.deadline != float("inf"):
            heapq.heappush(self._deadlines, (attempt.deadline, next(self._order), attempt))
        return attempt

    def _queue(self, attempt: Attempt, now: float) -> None:
        attempt.host.line_up(attempt)
        self.queued += 1
        self._offer_turn(attempt.host, now)

    def _offer_turn(self, host: Host, now: float) -> None:
        """Line a host up that has waiting rows: for its turn, or for the moment when its pause is over."""
        if host.in_turn:
            if self._silent and not host.silent and host in self._silent:
                del self._silent[host]
                self._turn.append(host)
            return
        if not host.queue or not host.has_slot:
            return
        if host.not_before <= now:
            host.in_turn = True
            self._turn.append(host)
        elif host.woken_at != host.not_before:
            self.shared_until = max(self.shared_until, host.shared_until)
            host.woken_at = host.not_before
            heapq.heappush(self._paused, (host.not_before, next(self._order), host))

    def _new_host(self, name: str, policy: HostPolicy, url: str | None) -> Host:
        first = max(LEAST_FIRST, FIRST_AT_ONCE / self.fetchers)
        host = self._hosts[name] = Host(name, bounded(policy, name, url), first)
        host.gated = self._robots is not None and self._robots.asks(name)
        return host

    def _past_robots(self, attempt: Attempt, now: float) -> Attempt | None:
        """The attempt to begin for a row: itself if robots.txt lets it, that file if nobody has asked for it, or none,
        because the row waits for the file or is given up.

        The host's name in the list is not enough: the origin of the normalised URL decides.
        """
        robots, host = self._robots, attempt.host
        url = normalize(attempt.row.url)
        if robots is None or isinstance(url, Failure):  # which fails without being asked for
            return attempt
        attempt.url = url
        known = robots.known(url, now)
        if known is None:
            origin = origin_of(url) or ""
            self.queued += 1
            if not robots.hold(origin, attempt.row, now):
                return None
            return Attempt(Row(attempt.row.shard_id, -1, "", f"{origin}/robots.txt"), host, asks=origin)
        if known.delay:
            host.raise_delay(known.delay)
        refusal = known.refusal(url)
        if refusal is None:
            return attempt
        self._given_up.append(Fetched(attempt.row, refusal, 0))
        self._forget(host, now)
        return None

    def _learn(self, attempt: Attempt, outcome: Payload | Failure, now: float) -> None:
        """A robots.txt is known, or known to be out of reach: the rows that waited for it go back to the front."""
        if self._robots is not None:
            held = self._robots.learn(attempt.asks, outcome, now)
            attempt.host.raise_delay(self._robots.delay_of(f"{attempt.asks}/"))  # which counts from this request
            self._return_rows(attempt, held)

    def _return_rows(self, attempt: Attempt, held: list[Row]) -> None:
        self._give_back(attempt.claim)
        self.queued -= len(held)
        self.fresh.extendleft(reversed(held))

    def _claims(self, attempt: Attempt, now: float) -> bool:
        """Whether this process asks for a robots.txt now. Another one that does is waited for, but not for long: its
        answer may never come."""
        if attempt.claim is not None or self._slots_of_hosts is None:
            return True
        if self._robots is None or not self._robots.shares(attempt.asks):
            return True
        if attempt.claimed_at is None:
            attempt.claimed_at = now
        claim, wait = self._slots_of_hosts.acquire(_claim_of(attempt.asks), 1, 0.0)
        if claim is not None and not self._robots.is_brought(attempt.asks, now):
            attempt.claim = claim
            self._held.add(claim)
            return True
        if claim is not None:  # it has just been brought
            self._slots_of_hosts.release(claim)
        elif now - attempt.claimed_at >= _ROBOTS_PATIENCE:
            return True
        attempt.host.wait_for_others(now + wait)
        return False

    def _give_back(self, slot: int | None) -> None:
        if slot is not None and self._slots_of_hosts is not None:
            self._slots_of_hosts.release(slot)
            self._held.discard(slot)

    def _forget(self, host: Host, now: float) -> None:
        """Forget an idle host that has taught us nothing, if many are remembered; one that is to be left alone for a
        while, after that."""
        if host.busy:
            return
        if not host.silent and len(self._hosts) <= (_PROVEN_HOSTS if host.proven else _ANSWERING_HOSTS):
            return
        if host.forgettable(now):
            if self._hosts.get(host.name) is host:
                del self._hosts[host.name]
        elif host.woken_at != (until := max(host.not_before, host.down_until)) and until > now:
            host.woken_at = until
            heapq.heappush(self._paused, (until, next(self._order), host))

    def _first(self) -> Attempt | None:
        """The attempt whose deadline is next."""
        while self._deadlines and not self._deadlines[0][2].running:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][2] if self._deadlines else None


def _claim_of(origin: str) -> str:
    """The name of the slot of the process that asks for a robots.txt."""
    return f"robots.txt of {origin}"


def bounded(policy: HostPolicy, host: str, url: str | None) -> HostPolicy:
    """How a server is treated that is logged in to for each transfer at once, rather than sent a request. What has no
    host (data:, file:, and what is no URL) has no limits."""
    if not host:
        return HostPolicy(max_retry_after=policy.max_retry_after)
    if policy.max_per_host <= _LOGINS or (url or "").partition(":")[0].lower() not in SERVERS:
        return policy
    return replace(policy, max_per_host=_LOGINS)


def host_name(url: str | None) -> str:
    """The part of a URL that names the server, at 0.3 µs; exact for web URLs, good enough to distinguish hosts."""
    if not url:
        return ""
    scheme, _, rest = url.partition("://")
    authority = rest.partition("/")[0]
    if "@" in authority or scheme not in WEB:  # where the server is named depends on what else stands there
        normal = normalize(url)
        authority = "" if isinstance(normal, Failure) else normal.partition("://")[2].partition("/")[0]
        authority = authority.rpartition("@")[2]
    return authority.lower()
