"""An HTTP server on loopback, embedded in the calling process, that serves a folder and fails as it is told to.

    with serve(folder, {"a.jpg": ["timeout", "ok"], "b.jpg": ["404"]}) as server:
        ...                       # server.url("a.jpg") -> http://127.0.0.1:<port>/a.jpg
    assert server.counts["a.jpg"] == 2

Each request of a scripted path takes the next entry of its list, and the last entry repeats; paths without a script
are answered with `ok`. The entries are the names in `faults.py`, or a status number such as `503`;
`python -m any2ds.testing.server --help` lists them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from aiohttp import web

from any2ds.core.errors import MissingExtra
from any2ds.testing.faults import FAULTS, STATUS, Exchange, Step
from any2ds.testing.processes import LONG

Script = Mapping[str, Sequence[str]]
"""Path below the folder -> what its requests get, one entry each; the last entry repeats."""

_OK = Step.parse("ok")
_TURNS = 5  # of the event loop, from a connection that waits to one that the server knows


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it arrived."""

    path: str  # decoded, without the leading slash and the query: the key of a script
    target: str  # as it was sent, with percent-encoding and query
    method: str
    headers: Mapping[str, str]  # case-insensitive
    port: int  # the client's: the same one again means the same connection
    at: float  # time.monotonic() of its arrival
    version: str = "1.1"  # of HTTP: 1.0, 1.1 or 2


class Server:
    """A running server. What it saw can be read from any thread, also after it was closed."""

    alpn: Sequence[str] = ("http/1.1",)  # protocols that it offers in the TLS handshake

    def __init__(self, folder: Path, script: Script, host: str, port: int, ca_file: str | None) -> None:
        self.folder = folder.resolve()
        self.host = host
        self.port = port
        self.ca_file = ca_file  # with tls: the certificate that a client has to trust
        self.requests: list[Request] = []
        self.counts: Counter[str] = Counter()  # path -> requests
        self.handshakes = 0  # of TLS that a client has begun
        self.max_concurrent = 0  # the most requests that were being answered at one time
        self._concurrent = 0
        self._script = {
            path.lstrip("/"): [Step.parse(entry) for entry in entries] for path, entries in script.items() if entries
        }
        self._arrived = threading.Condition()
        self._thread: threading.Thread
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._released: asyncio.Event

    @property
    def base_url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.ca_file else 'http'}://{host}:{self.port}/"

    def url(self, path: str) -> str:
        """The URL of a file in the folder, given by its name."""
        return self.base_url + quote(path.lstrip("/"))

    def release(self) -> None:
        """Let every request that waits in `hold` go on, and later ones pass."""
        self._loop.call_soon_threadsafe(self._released.set)

    def wait_for(self, path: str, count: int = 1, within: float = LONG) -> None:
        """Returns once `path` was requested `count` times. Raises TimeoutError after `within` seconds."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: self.counts[path] >= count, within):
                raise TimeoutError(f"{path} was requested {self.counts[path]} times in {within} s, not {count}")

    def close(self) -> None:
        """Cut every connection and stop; the end of the `with` block does it too."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _greeted(self, *_: object) -> None:
        self.handshakes += 1

    def _protocols(self, http1: Callable[[], asyncio.Protocol]) -> Callable[[], asyncio.Protocol]:
        """What makes the protocol of a new connection; for servers that know another one besides `http1`."""
        return http1

    def _abort(self) -> None:
        """Cut the connections that another protocol than `http1` has."""

    def _start(self, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        ready: Future[None] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(listener, tls, ready)), name="any2ds-server", daemon=True
        )
        self._thread.start()
        ready.result()

    async def _run(self, listener: socket.socket, tls: ssl.SSLContext | None, ready: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop, self._released = asyncio.Event(), asyncio.Event()
        # Cancellation on disconnect is what ends the answers that never end by themselves.
        web_server = web.Server(
            self._handle, handler_cancellation=True, access_log=None, max_line_size=1 << 16, max_field_size=1 << 16
        )
        acceptor = await self._loop.create_server(self._protocols(web_server), sock=listener, ssl=tls, backlog=4096)
        ready.set_result(None)
        await self._stop.wait()
        # Connections that wait to be accepted come through first: asyncio leaks those that are half accepted at close.
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        acceptor.close()
        for connection in web_server.connections:
            if connection.transport is not None:
                connection.transport.abort()
        self._abort()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path.lstrip("/")
        transport = request.transport
        if transport is None:
            raise ConnectionResetError
        port = (transport.get_extra_info("peername") or ("", 0))[1]  # none if it is gone already
        version = f"{request.version.major}.{request.version.minor}"
        step = self._record(
            Request(path, request.raw_path, request.method, request.headers, port, time.monotonic(), version)
        )
        self._concurrent += 1
        self.max_concurrent = max(self.max_concurrent, self._concurrent)
        try:
            exchange = Exchange(request, transport, self._find(path), self._released)
            response = await step.fault.answer(exchange, step.argument)
            await response.prepare(request)
            await response.write_eof()
            return response
        finally:
            self._concurrent -= 1

    def _record(self, request: Request) -> Step:
        with self._arrived:
            self.requests.append(request)
            step = self._next_step(request.path)
            self.counts[request.path] += 1
            self._arrived.notify_all()
        return step

    def _next_step(self, path: str) -> Step:
        steps = self._script.get(path)
        return steps[min(self.counts[path], len(steps) - 1)] if steps else _OK

    def _find(self, path: str) -> Path | None:
        try:
            file = (self.folder / path).resolve()
            return file if file.is_relative_to(self.folder) and file.is_file() else None
        except (OSError, ValueError):  # a name too long, or one with a NUL
            return None


@contextmanager
def serve(  # the public options, by keyword
    folder: str | Path,
    script: Script | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    tls: bool = False,
    flaw: str = "",
    kind: type[Server] = Server,
) -> Iterator[Server]:
    """Serve `folder` from a thread of its own; at the end all connections are cut and the thread is gone.

    Port 0 takes a free one. `tls` makes a certificate for the run; `server.ca_file` is what a client then has to
    trust, and `flaw` one of `certificate.FLAWS`. `kind` is the class of the server. Raises ValueError for a script that
    makes no sense, OSError if the port is taken, and MissingExtra without the library for TLS
    (`pip install any2ds[testing]`).
    """
    with ExitStack() as stack:
        context, ca_file = None, None
        if tls:
            context, ca_file = _tls(host, Path(stack.enter_context(tempfile.TemporaryDirectory())), flaw)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = stack.enter_context(socket.create_server((host, port), family=family, backlog=4096))
        server = kind(Path(folder), script or {}, host, listener.getsockname()[1], ca_file)
        if context is not None:
            context.sni_callback = server._greeted
            context.set_alpn_protocols(server.alpn)
        server._start(listener, context)
        try:
            yield server
        finally:
            server.close()


def _tls(host: str, folder: Path, flaw: str) -> tuple[ssl.SSLContext, str]:
    try:
        from any2ds.testing.certificate import make_certificate
    except ModuleNotFoundError as error:
        raise MissingExtra("a test server with TLS", "testing") from error
    return make_certificate(host, folder, flaw)


def main() -> None:
    """Serves a folder until it is interrupted; the first line of output is the address."""
    described = "\n".join(f"  {f.usage:24} {f.answer.__doc__}" for f in (*FAULTS.values(), STATUS))
    parser = argparse.ArgumentParser(
        prog="python -m any2ds.testing.server",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Serves a folder on loopback, with faults where a script asks for them.",
        epilog='entries of a script, such as {"a.jpg": ["503", "ok"]}:\n' + described,
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0, the default, takes a free one")
    parser.add_argument("--script", type=Path, help="JSON file: path -> list of entries")
    arguments = parser.parse_args()
    script = json.loads(arguments.script.read_text(encoding="utf-8")) if arguments.script else {}
    with serve(arguments.folder, script, host=arguments.host, port=arguments.port) as server:
        sys.stdout.write(f"{server.base_url}\n")
        sys.stdout.flush()
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main()
