"""The test server over HTTP/2: a connection answers with those faults that make sense there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import RequestReceived, StreamReset
from h2.exceptions import ProtocolError
from multidict import CIMultiDict

from any2ds.testing.faults import Step, content_type_of
from any2ds.testing.server import Request, Script, Server, serve


@dataclass(frozen=True, slots=True)
class Question:
    """A request, and who sent it."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    port: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a question: the step of the script, and the file, if there is one."""

    step: Step
    body: bytes | None
    content_type: str


@dataclass(slots=True)
class _Sending:
    """The rest of a body, and what is done at its end."""

    rest: memoryview
    end: Callable[[int], None]


class Http2Server(Server):
    """A server that offers HTTP/2 besides HTTP/1.1, in the TLS handshake."""

    alpn = ("h2", "http/1.1")

    def _protocols(self, http1: Callable[[], asyncio.Protocol]) -> Callable[[], asyncio.Protocol]:
        self._connections: set[asyncio.Transport] = set()
        return lambda: Negotiating(http1, lambda: Http2Connection(self._ask, self._connections))

    def _abort(self) -> None:
        for transport in list(self._connections):
            transport.abort()

    def _ask(self, question: Question) -> Answer:
        path = unquote(question.target.partition("?")[0]).lstrip("/")
        headers = CIMultiDict(question.headers)
        step = self._record(
            Request(path, question.target, question.method, headers, question.port, time.monotonic(), "2")
        )
        file = self._find(path)
        return Answer(step, file.read_bytes() if file else None, content_type_of(file))


def serve_http2(folder: Path, script: Script | None = None) -> AbstractContextManager[Server]:
    """Serve `folder` over TLS, with HTTP/2."""
    return serve(folder, script, tls=True, kind=Http2Server)


class Negotiating(asyncio.Protocol):
    """Leaves a new connection to HTTP/2 or to HTTP/1.1, as the client has agreed to in the TLS handshake (ALPN)."""

    def __init__(self, http1: Callable[[], asyncio.Protocol], http2: Callable[[], asyncio.Protocol]) -> None:
        self._http1, self._http2 = http1, http2

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        chosen = transport.get_extra_info("ssl_object").selected_alpn_protocol()
        protocol = self._http2() if chosen == "h2" else self._http1()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)


class Http2Connection(asyncio.Protocol):
    """One connection; `ask` says what to answer, and `connections` holds it as long as it lives."""

    def __init__(self, ask: Callable[[Question], Answer], connections: set[asyncio.Transport]) -> None:
        self._ask = ask
        self._connections = connections
        self._h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self._sending: dict[int, _Sending] = {}
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self._transport)
        self._h2.initiate_connection()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        try:
            events = self._h2.receive_data(data)
        except ProtocolError:
            self._flush()
            self._transport.close()
            return
        for event in events:
            if isinstance(event, RequestReceived):
                self._answer(event)
            elif isinstance(event, StreamReset):
                self._sending.pop(event.stream_id, None)
        for stream, sending in list(self._sending.items()):
            self._send(stream, sending)
        self._flush()

    def _answer(self, event: RequestReceived) -> None:
        headers = cast("list[tuple[str, str]]", event.headers)
        named = dict(headers)
        port = (self._transport.get_extra_info("peername") or ("", 0))[1]
        answer = self._ask(Question(named[":method"], named[":path"], headers, port))
        stream, name, argument = event.stream_id, answer.step.fault.name, answer.step.argument
        whole = answer.body if answer.body is not None else b""
        half = whole[: len(whole) // 2]
        if name == "timeout":
            return
        if name == "hangup":
            self._transport.close()
        elif name == "NUMBER" or (name == "ok" and answer.body is None):
            status, extra = argument if name == "NUMBER" else (404, {})
            self._begin(stream, status, {"content-length": "0", **extra})
            self._h2.end_stream(stream)
        elif name == "long-header":
            # In pieces: to pack a long one costs the library the square of its length.
            self._begin(stream, 200, {f"x-long-{number}": "x" * 1000 for number in range(argument // 1000)})
            self._h2.end_stream(stream)
        else:
            extra = argument if name == "ok" else {}
            described = {"content-type": answer.content_type, "content-length": str(len(whole)), **extra}
            self._begin(stream, 200, described)
            body, end = {
                "ok": (whole, self._h2.end_stream),
                "truncated": (half, self._h2.end_stream),
                "reset": (half, self._reset),
                "stall": (half, _nothing),
            }[name]
            self._sending[stream] = _Sending(memoryview(body), end)

    def _begin(self, stream: int, status: int, headers: dict[str, str]) -> None:
        named = [(name.lower(), value) for name, value in headers.items()]
        self._h2.send_headers(stream, [(":status", str(status)), *named])

    def _send(self, stream: int, sending: _Sending) -> None:
        """As much as the client's windows allow."""
        while sending.rest:
            room = min(self._h2.local_flow_control_window(stream), self._h2.max_outbound_frame_size)
            if room <= 0:
                return
            self._h2.send_data(stream, bytes(sending.rest[:room]))
            sending.rest = sending.rest[room:]
        del self._sending[stream]
        sending.end(stream)

    def _reset(self, stream: int) -> None:
        self._h2.reset_stream(stream, ErrorCodes.INTERNAL_ERROR)

    def _flush(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(self._h2.data_to_send())


def _nothing(_: Any) -> None:
    """The stream stays open."""
