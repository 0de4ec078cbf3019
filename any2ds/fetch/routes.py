"""Which engine carries which URL; together they look like one transport, and each is loaded when it is needed."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from any2ds.config.options import FetchOptions
from any2ds.core.errors import OptionError, UnfitWorker, error_text
from any2ds.core.schemes import FILE_SYSTEMS
from any2ds.fetch.urls import environment_has_proxy, normalize, scheme_of
from any2ds.storage.stores import Stores

if TYPE_CHECKING:
    from any2ds.core.bodies.buffer import Buffer
    from any2ds.core.failures import Failure
    from any2ds.core.samples import Payload
    from any2ds.fetch.engines.transport import Phases, Transport
    from any2ds.fetch.policy.hosts import Attempt
    from any2ds.fetch.policy.robots import Robots
    from any2ds.fetch.profiles import Profiles


def check(options: FetchOptions) -> None:
    """To be called before anything is made. Raises OptionError for an option that cannot be followed."""
    if options.nameservers not in (None, ("os",)) and _all_proxied(options):  # servers of the user's are to be asked
        raise OptionError("nameservers: a proxy resolves all names itself: leave out one of the two")


def _all_proxied(options: FetchOptions) -> bool:
    """Whether no host name is resolved here. libcurl takes the proxies of the environment by itself."""
    if environment_has_proxy():
        return True
    return bool(options.proxy) and all(values.get("proxy", options.proxy) for values in (options.hosts or {}).values())


class Routes:
    """A `transport.Transport` made of one for each engine that the list needs.

    One of them, curl if it is there, waits in `poll`; the threads of the others end its waiting when they have
    something, so that no engine waits for another one.
    """

    def __init__(
        self,
        profiles: Profiles,
        options: FetchOptions,
        buffer: Buffer,
        robots: Robots | None = None,
        stores: Stores | None = None,
    ) -> None:
        self._profiles, self._options, self._buffer, self._robots = profiles, options, buffer, robots
        self._stores = stores or Stores()
        self._expected = min(options.most_transfers, buffer.transfers)
        self._engines: dict[str, Transport] = {}
        self._by_scheme: dict[str, Transport] = {}
        self._main: Transport | None = None
        self._others: list[Transport] = []
        self._bell = threading.Event()  # rung before there is any transport
        self._waited = 0.0  # without one, or in one that was the main one before

    @property
    def waited(self) -> float:
        return self._waited + (self._main.waited if self._main is not None else 0.0)

    def phases(self) -> Phases:
        from any2ds.fetch.engines.transport import Phases

        return sum((engine.phases() for engine in self._engines.values()), Phases())

    @property
    def backlog(self) -> int:
        return self._main.backlog if self._main is not None else 0

    def expect(self, transfers: int) -> None:
        self._expected = transfers
        for engine in self._engines.values():
            engine.expect(transfers)

    def load_web_engine(self) -> None:
        """Have it before the first request, where the time of that matters."""
        self._choose("https://")

    def start(self, attempt: Attempt, url: str) -> None:
        (self._by_scheme.get(url[: url.index(":")]) or self._choose(url)).start(attempt, url)

    def poll(self, wait: float) -> list[tuple[Attempt, Payload | Failure]]:
        if self._main is None:
            since = time.monotonic()
            self._bell.wait(wait)
            self._bell.clear()
            self._waited += time.monotonic() - since
            return []
        ended = self._main.poll(wait)
        for other in self._others:
            ended += other.poll(0)
        return ended

    def received(self, attempt: Attempt) -> int:
        return self._engine_of(attempt).received(attempt)

    def cancel(self, attempt: Attempt) -> Failure:
        return self._engine_of(attempt).cancel(attempt)

    def wake(self) -> None:
        self._bell.set()
        if self._main is not None:
            self._main.wake()

    def close(self) -> None:
        for engine in self._engines.values():
            engine.close()

    def _engine_of(self, attempt: Attempt) -> Transport:
        """The one that carries an attempt in flight."""
        url = attempt.url or normalize(attempt.row.url)
        assert isinstance(url, str)  # or it would not have been started
        return self._by_scheme.get(scheme_of(url)) or self._choose(url)

    def _choose(self, url: str) -> Transport:
        scheme = scheme_of(url)
        name = "fsspec" if scheme in FILE_SYSTEMS else "curl"
        engine = self._by_scheme[scheme] = self._engines.get(name) or self._open(name)
        return engine

    def _open(self, name: str) -> Transport:
        engine: Transport
        options, buffer = self._options, self._buffer
        if name == "curl":
            try:
                from any2ds.fetch.engines.curl import CurlTransport
            except ImportError as error:  # such as in a process that has loaded TensorFlow, whose TLS is another one
                raise UnfitWorker(
                    f"libcurl cannot be loaded in this process ({error_text(error)}): leave out --distributor=inline,"
                    " or import pycurl before TensorFlow"
                ) from error

            engine = CurlTransport(self._profiles, options, buffer, self._robots)
        else:
            from any2ds.fetch.engines.fsspec import FileSystems, FsspecClient
            from any2ds.fetch.engines.threads import ThreadTransport

            systems = FileSystems(self._stores, options.allow_link_local)
            files = FsspecClient(options, systems, buffer.share // 2)
            engine = ThreadTransport(files.fetch, options, buffer, self.wake)
        if options.thread_count == "auto":
            engine.expect(self._expected)
        self._engines[name] = engine
        if self._main is None or name == "curl":
            self._waited = self.waited
            self._main = engine
        self._others = [other for other in self._engines.values() if other is not self._main]
        engine.wake()  # for whoever rang the bell of the one that waited before
        return engine
