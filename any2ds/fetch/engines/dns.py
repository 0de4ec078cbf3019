"""Resolves host names inside the process: c-ares asks the name servers in a thread of its own, answers are kept here.

What an operating system knows beyond its name servers and its hosts file (mDNS, NSS modules, the per-domain rules of
macOS and Windows) c-ares does not; names without a dot and `.local` are therefore left to libcurl, which asks the
system, and `--nameservers=os` leaves all of them to it.
"""

from __future__ import annotations

import re
import socket
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from any2ds.core.failures import Failure
from any2ds.core.processes import open_files

if TYPE_CHECKING:
    import pycares

Addresses = tuple[str, ...]
"""IPv4 and IPv6 in the order in which they are best tried (RFC 6724); never empty."""

W = TypeVar("W", bound=Hashable)
"""A waiter for a name."""

IN_FLIGHT = 256  # names asked for at once; the others queue
CACHED = 100_000  # names remembered
_LEAST_TTL, _MOST_TTL = 1.0, 3600.0  # seconds
# Our own memory of a name that does not exist is short, because c-ares keeps the answer for the zone's SOA minimum,
# and asking it costs 20 µs. It is made to forget, and to read the system's configuration again, this often:
_NEGATIVE = 1.0
_REFRESH = 60.0
_BROKEN = 5.0  # seconds for which SERVFAIL and other errors of all servers are remembered
# A try is short, since a lost datagram is the usual reason for silence; c-ares learns down to 0.25 s from the answers
# and doubles per round of servers. Short rounds that begin anew lose fewer names in 10 s than one long one.
_TRY = 1.0
_TRIES = 3  # per server and round
# Where some servers say that they failed, another may only have lost the question: so it is put again.
_ROUNDS = 3
_PAUSE = 0.25  # seconds between them
_LONGEST = 60.0  # seconds after which a name is given up that rows without a timeout wait for

# Numbers of ares.h, so that a run without names need not load the library.
_NO_DATA, _NO_NAME, _BAD_NAME, _TIMEOUT = 1, 4, 8, 12
_NO_SUCH_NAME = frozenset({_NO_DATA, _NO_NAME, _BAD_NAME})
_MEANINGS = {
    3: "the name servers say SERVFAIL",
    6: "the name servers refuse to answer",
    11: "no name server can be reached",
    _TIMEOUT: "no name server answered",
}
_SILENT = frozenset({11, _TIMEOUT})
_ENV_HOSTS = 1 << 8  # ARES_AI_ENVHOSTS: the variable CARES_HOSTS may name another hosts file; nobody needs root for it
_STREAM = int(socket.SOCK_STREAM)  # without it each address comes once per kind of socket

_NUMERIC = re.compile(r"\d+|0[xX][0-9a-fA-F]*")  # a last label that makes the whole host an IPv4 address (WHATWG)


@lru_cache(4096)
def asks_dns(host: str) -> bool:
    """Whether `host`, in ASCII and lower case, is a name for name servers: not an address, not one of the system's."""
    _, dot, last = host.rpartition(".")
    if not (dot and last) or last == "local" or host[0] == "[":
        return False
    return not (last[0].isdigit() and _NUMERIC.fullmatch(last))


@dataclass(slots=True)
class _Lookup(Generic[W]):
    """A name that is being resolved."""

    waiters: dict[W, None]  # those who want to be told, in their order
    since: float
    errors: int = 0  # rounds in which the servers failed


class Resolver(Generic[W]):
    """Every method belongs to one thread; `wake` is called from another when `finished` has something to tell.

    `nameservers` are addresses with an optional port, all of which are tried; None takes those of the system.
    """

    def __init__(
        self,
        nameservers: tuple[str, ...] | None,
        wake: Callable[[], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nameservers = nameservers
        self._wake = wake
        self._now = now
        # c-ares has a memory of its own, which costs 20 µs to ask: a row of a known host should not.
        self._known: dict[str, tuple[float, Addresses | Failure]] = {}  # until when, what
        self._pending: dict[str, _Lookup[W]] = {}  # each is with c-ares, or in one of the next two
        self._queue: deque[str] = deque()
        self._paused: deque[tuple[float, str]] = deque()  # until when, which
        self._asking = 0
        self._answers: deque[tuple[str, Any, int | None]] = deque()  # filled by c-ares' thread
        self._channel: pycares.Channel | None = None  # made for the first name, so that lists without names pay nothing
        self._refresh_at = 0.0
        self.heard = 0.0  # when a name server last said anything; 0 if none ever has

    def lookup(self, host: str, waiter: W) -> Addresses | Failure | None:
        """The addresses of `host`, for which `asks_dns` holds; None if `finished` will tell the waiter."""
        known = self._known.get(host)
        if known is not None and known[0] > self._now():
            return known[1]
        if host not in self._pending:
            self._pending[host] = _Lookup({}, self._now())
            self._queue.append(host)
        self._pending[host].waiters[waiter] = None
        self._ask()
        return None

    def leave(self, host: str, waiter: W) -> None:
        """Do not tell this waiter; what nobody waits for is not asked for again."""
        if lookup := self._pending.get(host):
            lookup.waiters.pop(waiter, None)

    def finished(self) -> list[tuple[W, Addresses | Failure]]:
        """The waiters whose names were resolved, or could not be, since the last call."""
        found: list[tuple[W, Addresses | Failure]] = []
        if not (self._answers or self._paused):
            return found
        while self._paused and self._paused[0][0] <= self._now():
            self._queue.append(self._paused.popleft()[1])
        while self._answers:
            host, result, error = self._answers.popleft()
            self._asking -= 1
            if error not in _SILENT:
                self.heard = self._now()
            lookup = self._pending[host]
            if self._asks_again(host, lookup, error):
                continue
            outcome, seconds = _read(host, result, error)
            if error is not None and open_files.are_exhausted():
                outcome = Failure("fetch", "dns", "too many open files (ulimit -n)", blame="open_files")
            else:
                self._remember(host, outcome, seconds)
            del self._pending[host]
            found += [(waiter, outcome) for waiter in lookup.waiters]
        self._ask()
        return found

    def _asks_again(self, host: str, lookup: _Lookup[W], error: int | None) -> bool:
        """Whether it was not the last word: a round of servers did not answer, or failed for the first times."""
        if error is None or error in _NO_SUCH_NAME or self._now() - lookup.since > _LONGEST:
            return False
        if error == _TIMEOUT:
            self._queue.append(host)
            return True
        lookup.errors += 1
        if lookup.errors == _ROUNDS:
            return False
        self._paused.append((self._now() + _PAUSE, host))
        return True

    def close(self) -> None:
        """Returns at once; what was being asked for is dropped."""
        self._queue.clear()
        if self._channel is not None:
            self._channel.close()  # a thread of pycares waits for what is under way
            self._channel = None

    def _ask(self) -> None:
        while self._queue and self._asking < IN_FLIGHT:
            host = self._queue.popleft()
            if self._pending[host].waiters:
                self._asking += 1
                self._send(host)
            else:
                del self._pending[host]

    def _send(self, host: str) -> None:
        import pycares

        def answered(result: Any, error: int | None) -> None:
            self._answers.append((host, result, error))
            if len(self._answers) == 1:
                self._wake()

        try:
            if self._channel is None:
                self._channel = _channel(self._nameservers)
                self._refresh_at = self._now() + _REFRESH
            elif self._refresh_at <= self._now():
                self._channel.reinit()
                self._refresh_at = self._now() + _REFRESH
            self._channel.getaddrinfo(host, None, type=_STREAM, flags=_ENV_HOSTS, callback=answered)
        except (pycares.AresError, ValueError) as error:  # UnicodeError is one: a name that cannot be asked for
            answered(str(error), _BAD_NAME)

    def _remember(self, host: str, outcome: Addresses | Failure, seconds: float) -> None:
        self._known.pop(host, None)
        self._known[host] = (self._now() + seconds, outcome)
        if len(self._known) > CACHED:
            del self._known[next(iter(self._known))]


def _channel(nameservers: tuple[str, ...] | None) -> pycares.Channel:
    import pycares

    # Search domains are the system's; they make no sense to other name servers.
    flags = pycares.ARES_FLAG_NOSEARCH if nameservers else None
    # Not `lookups`: pycares 5.2.1 hands c-ares a text that it has freed already. By default: the hosts file, then DNS.
    return pycares.Channel(servers=nameservers, flags=flags, timeout=_TRY, tries=_TRIES)


def _read(host: str, result: Any, error: int | None) -> tuple[Addresses | Failure, float]:
    """What c-ares said of a host, and for how many seconds it holds."""
    if error is None and result.nodes:
        addresses = tuple(dict.fromkeys(node.addr[0].decode() for node in result.nodes))
        ttl = min(part.ttl for part in (*result.nodes, *result.cnames))
        return addresses, min(max(float(ttl), _LEAST_TTL), _MOST_TTL)
    if error is None or error in _NO_SUCH_NAME:
        message = "the name has no address" if error in (None, _NO_DATA) else "there is no such name"
        return Failure("fetch", "dns", f"{message}: {host}", blame="host"), _NEGATIVE
    message = _MEANINGS.get(error) or f"c-ares error {error}"
    return Failure("fetch", "dns", f"{message}: {host}", blame="us" if error in _SILENT else None), _BROKEN
