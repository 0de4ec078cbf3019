"""Byte ranges over plain HTTP with libcurl: many at once, each exactly as it was asked for or not at all."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.request import getproxies_environment

import pycurl

from any2ds.fetch.engines.certificates import certificate_bundle
from any2ds.fetch.engines.sockets import Sockets
from any2ds.storage.addresses import Address

AT_ONCE = 256  # of a process
_RECEIVE_BUFFER = 1 << 18
_EVENTS_PER_TURN = 32
_LONGEST_WAIT = 1.0  # seconds until libcurl's clocks are looked at
_SLOWEST = 100  # bytes a second over `read_timeout`; less is silence
_REDIRECTS = 5
_ERROR_PAGE = 1 << 16  # bytes
_MOST_WHOLE = 1 << 30  # bytes of a file that is read as a whole
_KEPT = 64  # idle handles, each with a connection
_KEPT_LOOPS = 8  # idle ones, each with many

_CONTENT_RANGE = re.compile(rb"\r\ncontent-range: *bytes (\d+)-\d+/(\d+)", re.IGNORECASE)
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_VERSION = re.compile(rb"\r\n(?:etag|x-goog-generation): *([^\r]*)", re.IGNORECASE)
_TOO_LARGE = 63  # CURLE_FILESIZE_EXCEEDED
_UNKNOWN = 1


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes of a file that are wanted."""

    address: Address
    start: int
    size: int | None  # None: all of the file, from its start


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of asking for a range. `body` has all its bytes and no others if `is_whole`."""

    status: int  # of HTTP; 0 if there was no answer
    is_whole: bool
    body: bytes = b""
    file_size: int | None = None
    version: str | None = None  # of the file
    trouble: str = ""  # what libcurl reports; without the URL


class Ranges:
    """Asks for ranges, for any thread. Those of a process are `of_this_process`."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._slots = threading.Semaphore(AT_ONCE)
        self._handles: list[_Handle] = []  # idle; the one used last is taken first
        self._loops: list[_Loop] = []

    @staticmethod
    def of_this_process() -> Ranges:
        global _ranges
        if _ranges is None or _ranges.pid != os.getpid():
            if _ranges is not None:
                _OF_PARENTS.append(_ranges)  # to close its connections would end them for the parent, too
            _ranges = Ranges()
        return _ranges

    def fetch(self, wanted: Sequence[Range]) -> list[Answer]:
        """An answer for each, in this order. Never raises for what the network or a server does."""
        if len(wanted) == 1:
            return [self._one(wanted[0])]
        try:
            loop = self._loops.pop()
        except IndexError:
            loop = _Loop(self._slots)
        try:
            found = loop.run(wanted)
        except BaseException:  # Ctrl-C
            loop.close()
            raise
        self._loops.append(loop) if len(self._loops) < _KEPT_LOOPS else loop.close()
        return found

    def _one(self, wanted: Range) -> Answer:
        try:
            handle = self._handles.pop()
        except IndexError:
            handle = _Handle()
        with self._slots:
            handle.begin(wanted)
            try:
                handle.curl.perform()
            except pycurl.error as error:
                found = handle.end(*_parts(error))
            else:
                found = handle.end()
        if len(self._handles) < _KEPT:
            self._handles.append(handle)
        return found


_ranges: Ranges | None = None
_OF_PARENTS: list[Ranges] = []


class _Handle:
    """An easy handle of libcurl, for one range after the other."""

    def __init__(self) -> None:
        self.curl = curl = pycurl.Curl()
        curl.setopt(pycurl.NOSIGNAL, 1)
        curl.setopt(pycurl.BUFFERSIZE, _RECEIVE_BUFFER)
        curl.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1)  # a connection each is faster for bodies
        curl.setopt(pycurl.TCP_KEEPALIVE, 1)
        curl.setopt(pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS)
        curl.setopt(pycurl.REDIR_PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS)
        curl.setopt(pycurl.MAXREDIRS, _REDIRECTS)
        curl.setopt(pycurl.LOW_SPEED_LIMIT, _SLOWEST)
        self._settings: tuple[Any, ...] = ()
        self._chunks: list[bytes] = []
        self._head: list[bytes] = []
        self._wanted: Range | None = None

    def begin(self, wanted: Range) -> None:
        curl, at = self.curl, wanted.address
        settings = at.headers, at.follows, at.proxy, at.verify, at.connect_timeout, at.read_timeout
        if settings != self._settings:
            self._configure(at)
            self._settings = settings
        self._wanted, self._chunks, self._head = wanted, [], []
        curl.setopt(pycurl.URL, at.url)
        if wanted.size is None:
            curl.unsetopt(pycurl.RANGE)
            curl.setopt(pycurl.MAXFILESIZE_LARGE, _MOST_WHOLE)
        else:
            curl.setopt(pycurl.RANGE, f"{wanted.start}-{wanted.start + wanted.size - 1}")
            curl.setopt(pycurl.MAXFILESIZE_LARGE, max(wanted.size, _ERROR_PAGE))  # read, to keep the connection
        curl.setopt(pycurl.WRITEFUNCTION, self._chunks.append)
        curl.setopt(pycurl.HEADERFUNCTION, self._head.append)

    def _configure(self, at: Address) -> None:
        curl = self.curl
        curl.setopt(pycurl.HTTPHEADER, [*at.headers, "Accept-Encoding: identity"])
        curl.setopt(pycurl.FOLLOWLOCATION, int(at.follows))
        curl.setopt(pycurl.PROXY, at.proxy)  # empty: not even that of the environment
        curl.setopt(pycurl.NOPROXY, getproxies_environment().get("no", ""))
        curl.setopt(pycurl.SSL_VERIFYPEER, int(at.verify is not False))
        curl.setopt(pycurl.SSL_VERIFYHOST, 2 if at.verify is not False else 0)
        curl.setopt(pycurl.CAINFO, at.verify if isinstance(at.verify, str) else certificate_bundle())
        curl.setopt(pycurl.CONNECTTIMEOUT_MS, int(at.connect_timeout * 1000))
        curl.setopt(pycurl.LOW_SPEED_TIME, max(1, round(at.read_timeout)))

    def end(self, number: int = 0, message: str = "") -> Answer:
        """`number` and `message` are of libcurl, if it failed."""
        wanted, body = self._wanted, b"".join(self._chunks)
        assert wanted is not None
        head = b"".join(self._head)
        head = head[head.rfind(b"\r\nHTTP/") + 1 :]  # of the last of several answers
        self._chunks, self._head = [], []
        status = int(self.curl.getinfo(pycurl.RESPONSE_CODE))
        version = match[1].decode("latin-1") if (match := _VERSION.search(head)) else None
        start, size = None, None
        if status == 206 and (match := _CONTENT_RANGE.search(head)):
            start, size = int(match[1]), int(match[2])
        elif status == 200:
            start, size = 0, int(match[1]) if (match := _LENGTH.search(head)) else len(body)
        if number and not (number == _TOO_LARGE and status >= 200):
            return Answer(0, False, trouble=message or f"error {number} of libcurl")
        is_whole = start == wanted.start and len(body) == (size if wanted.size is None else wanted.size)
        return Answer(status, is_whole, body if is_whole else b"", size, version, message)


def _parts(error: pycurl.error) -> tuple[int, str]:
    number, message = (*error.args, "", "")[:2]
    return int(number or 0) or _UNKNOWN, str(message)


class _Loop:
    """Carries several ranges at once, for one thread at a time."""

    def __init__(self, slots: threading.Semaphore) -> None:
        self._slots = slots
        self._sockets = Sockets()
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._sockets.watch)
        self._multi.setopt(pycurl.M_MAXCONNECTS, AT_ONCE)
        self._idle: list[_Handle] = []
        self._busy: dict[Any, tuple[int, _Handle]] = {}  # by libcurl's handle, the place in what is wanted

    def run(self, wanted: Sequence[Range]) -> list[Answer]:
        found: list[Answer | None] = [None] * len(wanted)
        begun = 0
        try:
            while begun < len(wanted) or self._busy:
                while begun < len(wanted) and self._slots.acquire(blocking=not self._busy):
                    self._begin(begun, wanted[begun])
                    begun += 1
                for place, answer in self._turn():
                    found[place] = answer
        finally:
            for _ in self._busy:
                self._slots.release()
        return [answer for answer in found if answer is not None]

    def _begin(self, place: int, wanted: Range) -> None:
        handle = self._idle.pop() if self._idle else _Handle()
        self._busy[handle.curl] = place, handle
        handle.begin(wanted)
        self._multi.add_handle(handle.curl)

    def _turn(self) -> Iterator[tuple[int, Answer]]:
        multi = self._multi
        milliseconds = multi.timeout()
        wait = _LONGEST_WAIT if milliseconds < 0 else min(_LONGEST_WAIT, milliseconds / 1000)
        self._sockets.attend(multi, wait, _EVENTS_PER_TURN)
        if multi.timeout() == 0:
            multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
        remaining = 1
        while remaining:
            remaining, complete, failed = multi.info_read()
            for curl in complete:
                yield self._end(curl)
            for curl, number, message in failed:
                yield self._end(curl, number, message)

    def _end(self, curl: Any, number: int = 0, message: str = "") -> tuple[int, Answer]:
        self._multi.remove_handle(curl)
        place, handle = self._busy.pop(curl)
        self._slots.release()
        self._idle.append(handle)
        return place, handle.end(number, message)

    def close(self) -> None:
        for curl in list(self._busy):
            self._multi.remove_handle(curl)
            curl.close()
        for handle in self._idle:
            handle.curl.close()
        self._multi.close()
        self._sockets.close()
