"""Moves bytes with libcurl: thousands of transfers on one `CurlMulti`, driven by socket events.

Knows nothing of schedules: it starts attempts, polls, and says how each ended. `curl_transfer` has what one transfer is
given and what becomes of it, `chain` where its redirects lead, `sockets` the events, `dns` the addresses of hosts.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pycurl

from any2ds.config.options import FetchOptions
from any2ds.core.bodies.buffer import Buffer
from any2ds.core.failures import Failure
from any2ds.core.processes import open_files
from any2ds.core.samples import Payload
from any2ds.fetch.engines.connections import Connections
from any2ds.fetch.engines.curl_transfer import Settings, Transfer
from any2ds.fetch.engines.dns import Addresses, Resolver, asks_dns
from any2ds.fetch.engines.sockets import Sockets
from any2ds.fetch.engines.transport import Phases
from any2ds.fetch.policy.hosts import Attempt
from any2ds.fetch.policy.robots import Robots
from any2ds.fetch.policy.schedule import spare_transfers
from any2ds.fetch.profiles import Profile, Profiles
from any2ds.fetch.urls import environment_has_proxy

# Sockets looked at per turn: enough to spread the cost of a turn over many transfers, few enough that a body is
# still in the processor's cache when it is hashed and written (measured: 16 to 64 beat 1 and 256 by 10 to 30 %).
_EVENTS_PER_TURN = 32
_LARGE_HEADERS = 1 << 15  # bytes of the headers of one answer that are unusual; libcurl keeps them with the handle
_MOST_HELD_HEADERS = 64 << 20  # bytes of all answers in flight whose headers are unusually large
_LOOK_AT_HEADERS = 1.0  # seconds

_Ended = list[tuple[Attempt, Payload | Failure]]


class CurlTransport:
    """Every method but `wake` belongs to one thread."""

    def __init__(self, profiles: Profiles, options: FetchOptions, buffer: Buffer, robots: Robots | None = None) -> None:
        self._profiles = profiles
        self._options = options  # those that do not differ by host
        self._buffer = buffer
        self._robots = robots  # whose rules hold for redirects too
        self._multi = pycurl.CurlMulti()
        self._sockets = Sockets()
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._sockets.watch)
        # Transfers that hang count as well: without room for them no connection would be kept.
        most = min(options.most_transfers, buffer.transfers)
        self._keep_connections(most + spare_transfers(options, most) + _EVENTS_PER_TURN)
        self._by_handle: dict[Any, Transfer] = {}
        self._by_attempt: dict[Attempt, Transfer] = {}
        self._idle: list[Transfer] = []
        self._connections = Connections()
        self._settings: dict[tuple[Profile, bool, bool], Settings] = {}
        # None where libcurl resolves, or a proxy of the environment does.
        self._resolver: Resolver[Transfer] | None = None
        if not (environment_has_proxy() or options.nameservers == ("os",)):
            self._resolver = Resolver(options.nameservers, self.wake)
        self._resolving: dict[Transfer, None] = {}  # wait for the addresses of their hosts, the longest wait first
        self._unsent: _Ended = []  # ended by us
        self._headers_looked_at = 0.0  # time.monotonic()
        self._closed = False

    @property
    def waited(self) -> float:
        return self._sockets.waited

    def phases(self) -> Phases:
        phases = Phases({"dns": len(self._resolving)})
        for attempt, transfer in self._by_attempt.items():
            if transfer.is_sent and not attempt.late:
                phases["bodies" if transfer.body.size else "answers"] += 1
        return phases

    def expect(self, transfers: int) -> None:
        """So many may be in flight from now on: idle connections beyond that are closed, since they may be too much."""
        self._keep_connections(transfers + min(_EVENTS_PER_TURN, 1 + transfers // 8))  # one turn ends several

    def _keep_connections(self, wanted: int) -> None:
        """Have so many connections, busy and idle, or as many as files may be open."""
        most = min(wanted, open_files.connections())
        # MAXCONNECTS closes one idle connection for each that comes back, MAX_TOTAL_CONNECTIONS as many as it takes
        # before a new one is made.
        self._multi.setopt(pycurl.M_MAXCONNECTS, most)
        self._multi.setopt(pycurl.M_MAX_TOTAL_CONNECTIONS, most)

    @property
    def backlog(self) -> int:
        """Sockets that are known to be ready and wait for `poll`."""
        return self._sockets.backlog

    def start(self, attempt: Attempt, url: str) -> None:
        """Begin to fetch `url`, which has been normalised."""
        if self._idle:
            transfer = self._idle.pop()
        else:
            transfer = Transfer(self._buffer, self._robots, self._connections)
            self._by_handle[transfer.handle] = transfer
        self._by_attempt[attempt] = transfer
        transfer.begin(attempt, url, self._settings_for(attempt, url))
        self._send(transfer)

    def poll(self, wait: float) -> _Ended:
        """Move bytes, waiting at most `wait` seconds for some to move; what ended since the last call.

        Raises OSError if a body could not be buffered on disk.
        """
        multi = self._multi
        # Asked for once a turn: with M_TIMERFUNCTION libcurl calls us twice for each transfer.
        if (milliseconds := multi.timeout()) >= 0:
            wait = min(wait, milliseconds / 1000)
        if self._unsent:
            wait = 0.0
        elif self._resolving and self._options.connect_timeout:
            wait = min(wait, max(0.0, next(iter(self._resolving)).connect_by - time.monotonic()))
        self._sockets.attend(multi, wait, _EVENTS_PER_TURN)
        if multi.timeout() == 0:
            multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
        if self._resolver is not None:
            self._send_resolved(self._resolver)
        self._bound_headers()
        ended: _Ended = []
        remaining = 1
        while remaining:
            remaining, complete, failed = multi.info_read()
            for handle in complete:
                self._end(self._by_handle[handle], ended, None)
            for handle, number, message in failed:
                self._end(self._by_handle[handle], ended, (number, message))
        for attempt, failure in self._unsent:
            if attempt in self._by_attempt:
                ended.append((attempt, failure))
                self._put_back(self._by_attempt[attempt])
        self._unsent.clear()
        return ended

    def received(self, attempt: Attempt) -> int:
        return self._by_attempt[attempt].received

    def cancel(self, attempt: Attempt) -> Failure:
        """Give an attempt up because its time is over, and say how far it came."""
        transfer = self._by_attempt[attempt]
        failure = self._timed_out(transfer)
        self._put_back(transfer)
        return failure

    def wake(self) -> None:
        """End a waiting `poll`; may be called from any thread."""
        self._sockets.ring()

    def close(self) -> None:
        """Abort everything. Returns at once, even while the system's resolver hangs."""
        if self._closed:
            return
        self._closed = True
        for transfer in self._by_attempt.values():
            if transfer.is_sent:
                self._multi.remove_handle(transfer.handle)
            transfer.body.release()
        for transfer in self._by_handle.values():
            transfer.handle.close()
        self._by_attempt.clear()
        if self._resolver is not None:
            self._resolver.close()
        # libcurl waits in here for look-ups that the resolver has not answered, up to 10 s: not in our time.
        threading.Thread(target=self._multi.close, name="any2ds-curl-close", daemon=True).start()
        self._sockets.close()

    def _settings_for(self, attempt: Attempt, url: str) -> Settings:
        profile = self._profiles.of(url) if self._profiles.differ else self._profiles.default
        kind = profile, attempt.asks != "", attempt.probe
        settings = self._settings.get(kind)
        if settings is None:
            settings = self._settings[kind] = Settings(*kind)
        return settings

    def _send(self, transfer: Transfer, resolved: Addresses | Failure | None = None) -> None:
        """Hand a transfer to libcurl as soon as its host is `resolved`; end it if its host may not, or cannot, be
        asked."""
        host = transfer.chain.host
        if transfer.proxy:
            if words := transfer.chain.ask_proxy(transfer.settings.options):
                resolved = Failure("fetch", "blocked_address", words)
        elif resolved is None and self._resolver is not None and asks_dns(host):
            resolved = self._resolver.lookup(host, transfer)
            if resolved is None:
                transfer.host = host
                self._resolving[transfer] = None
                return
        if isinstance(resolved, Failure):
            self._unsent.append((transfer.attempt, replace(resolved, final_url=transfer.chain.final_url)))
            return
        if resolved is not None:
            transfer.resolve(resolved)
        transfer.is_sent = True
        self._multi.add_handle(transfer.handle)

    def _send_resolved(self, resolver: Resolver[Transfer]) -> None:
        """Send the transfers whose hosts were resolved, and end those whose hosts could not be."""
        for transfer, resolved in resolver.finished():
            del self._resolving[transfer]
            transfer.host = ""
            transfer.shorten_connect_timeout()
            self._send(transfer, resolved)
        if self._resolving and self._options.connect_timeout:
            now = time.monotonic()
            for transfer in self._resolving:
                if transfer.connect_by > now:
                    break
                failure = replace(self._timed_out(transfer), code="timeout_connect")
                self._unsent.append((transfer.attempt, failure))

    def _timed_out(self, transfer: Transfer) -> Failure:
        failure = transfer.timed_out(self._resolver is not None and not transfer.proxy)
        is_deaf = transfer.host and self._resolver is not None and self._resolver.heard < transfer.started
        return replace(failure, blame="us") if is_deaf else failure  # if the name servers say nothing at all

    def _bound_headers(self) -> None:
        """End transfers whose answers have large headers, if those in flight have too much of them together."""
        if (now := time.monotonic()) - self._headers_looked_at < _LOOK_AT_HEADERS:
            return
        self._headers_looked_at = now
        held = 0
        for attempt, transfer in self._by_attempt.items():
            if transfer.is_sent and (size := transfer.handle.getinfo(pycurl.HEADER_SIZE)) > _LARGE_HEADERS:
                held += size
                if held > _MOST_HELD_HEADERS:
                    words = f"{size} bytes, while those of other answers take {_MOST_HELD_HEADERS}"
                    self._unsent.append((attempt, Failure("fetch", "headers_too_large", words)))

    def _end(self, transfer: Transfer, ended: _Ended, error: tuple[int, str] | None) -> None:
        """libcurl is done with a request: send it again, follow its redirect, or say what became of it."""
        if transfer.header_lines:
            transfer.read_headers()
        outcome: Payload | Failure | None = None
        if is_repeated := transfer.must_ask_again(error):
            transfer.drop_body()
        elif transfer.is_discarding and (location := transfer.location(error)):
            outcome = transfer.follow(location)
        else:
            outcome = transfer.outcome(error)
        if outcome is not None:
            ended.append((transfer.attempt, outcome))
            self._put_back(transfer)
            return
        self._multi.remove_handle(transfer.handle)
        transfer.is_sent = False
        transfer.prepare(self._settings_for(transfer.attempt, transfer.chain.at), is_repeated)
        self._send(transfer)

    def _put_back(self, transfer: Transfer) -> None:
        if transfer.is_sent:
            self._multi.remove_handle(transfer.handle)
            transfer.is_sent = False
        elif transfer in self._resolving and self._resolver is not None:
            del self._resolving[transfer]
            self._resolver.leave(transfer.host, transfer)
            transfer.host = ""
        if transfer.body.size:
            transfer.drop_body()
        del self._by_attempt[transfer.attempt]
        if transfer.handle.getinfo(pycurl.HEADER_SIZE) > _LARGE_HEADERS:
            del self._by_handle[transfer.handle]
            transfer.handle.close()
        else:
            self._idle.append(transfer)
