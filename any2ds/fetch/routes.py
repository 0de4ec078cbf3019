"""The engine that carries each URL: together they look like one transport, and each is loaded when it is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from any2ds.config.options import FetchOptions
from any2ds.core.errors import OptionError, UnfitWorker, error_text
from any2ds.core.schemes import FILE_SYSTEMS
from any2ds.fetch.urls import environment_has_proxy
from any2ds.storage.stores import Stores

if TYPE_CHECKING:
    from any2ds.core.bodies.buffer import Buffer
    from any2ds.core.failures import Failure
    from any2ds.core.samples import Payload
    from any2ds.fetch.engines.curl import CurlTransport
    from any2ds.fetch.engines.fsspec import FsspecClient
    from any2ds.fetch.engines.threads import Answer, ThreadTransfer
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
    """A `transport.Transport` of two: libcurl for URLs of the web, threads for those of file systems.

    libcurl is loaded for the first URL that needs it. From then on `poll` waits in it, and threads end that waiting
    when they have something.
    """

    def __init__(
        self,
        profiles: Profiles,
        options: FetchOptions,
        buffer: Buffer,
        robots: Robots | None = None,
        stores: Stores | None = None,
    ) -> None:
        from any2ds.fetch.engines.threads import ThreadTransport

        self._profiles, self._options, self._buffer, self._robots = profiles, options, buffer, robots
        self._stores = stores or Stores()
        self._expected = min(options.most_transfers, buffer.transfers)
        self._web: CurlTransport | None = None
        self._fsspec: FsspecClient | None = None
        self._files = ThreadTransport(self._fetch_file, options, buffer, self.wake)

    @property
    def waited(self) -> float:
        return self._files.waited + (self._web.waited if self._web is not None else 0.0)

    def phases(self) -> Phases:
        return self._files.phases() + self._web.phases() if self._web is not None else self._files.phases()

    @property
    def backlog(self) -> int:
        return (self._web or self._files).backlog

    def expect(self, transfers: int) -> None:
        self._expected = transfers
        self._files.expect(transfers)
        if self._web is not None:
            self._web.expect(transfers)

    def start(self, attempt: Attempt, url: str) -> None:
        if url[: url.index(":")] not in FILE_SYSTEMS:
            (self._web or self.load_web_engine()).start(attempt, url)
            return
        if self._fsspec is None:
            from any2ds.fetch.engines.fsspec import FileSystems, FsspecClient

            systems = FileSystems(self._stores, self._options.allow_link_local)
            self._fsspec = FsspecClient(self._options, systems, self._buffer.share // 2)
        self._files.start(attempt, url)

    def poll(self, wait: float) -> list[tuple[Attempt, Payload | Failure]]:
        if self._web is None:
            return self._files.poll(wait)
        ended = self._web.poll(wait)
        ended += self._files.poll(0)
        return ended

    def received(self, attempt: Attempt) -> int:
        return self._engine_of(attempt).received(attempt)

    def cancel(self, attempt: Attempt) -> Failure:
        return self._engine_of(attempt).cancel(attempt)

    def wake(self) -> None:
        self._files.wake()
        if self._web is not None:
            self._web.wake()

    def close(self) -> None:
        self._files.close()
        if self._web is not None:
            self._web.close()

    def load_web_engine(self) -> CurlTransport:
        """libcurl; called before the first request where the time of loading matters."""
        if self._web is None:
            try:
                from any2ds.fetch.engines.curl import CurlTransport
            except ImportError as error:  # such as in a process that has loaded TensorFlow, whose TLS is another one
                raise UnfitWorker(
                    f"libcurl cannot be loaded in this process ({error_text(error)}): leave out --distributor=inline,"
                    " or import pycurl before TensorFlow"
                ) from error

            self._web = CurlTransport(self._profiles, self._options, self._buffer, self._robots)
            if self._options.thread_count == "auto":
                self._web.expect(self._expected)
            self._web.wake()  # for a thread that has rung when there were only files
        return self._web

    def _engine_of(self, attempt: Attempt) -> Transport:
        """The one that carries an attempt in flight."""
        return self._files if self._web is None or self._files.carries(attempt) else self._web

    def _fetch_file(self, url: str, transfer: ThreadTransfer) -> Answer | Failure:
        assert self._fsspec is not None  # or it would not have been started
        return self._fsspec.fetch(url, transfer)
