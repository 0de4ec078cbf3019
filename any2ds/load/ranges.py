"""Byte ranges over plain HTTP with libcurl: each exactly as it was asked for or not at all."""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass
from typing import Any
from urllib.request import getproxies_environment

import pycurl

from any2ds.fetch.engines.certificates import certificate_bundle
from any2ds.storage.addresses import Address

_RECEIVE_BUFFER = 1 << 18
_SLOWEST = 100  # bytes a second over `read_timeout`; less is silence
_REDIRECTS = 5
_ERROR_PAGE = 1 << 16  # bytes
_MOST_WHOLE = 1 << 30  # bytes of a file that is read as a whole

_CONTENT_RANGE = re.compile(rb"\r\ncontent-range: *bytes (\d+)-\d+/(\d+)", re.IGNORECASE)
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_VERSION = re.compile(rb"\r\n(?:etag|x-goog-generation): *([^\r]*)", re.IGNORECASE)
_TOO_LARGE = 63  # CURLE_FILESIZE_EXCEEDED


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to asking for a range. `body` has all its bytes and no others if `is_whole`."""

    status: int  # of HTTP; 0 if there was no answer
    is_whole: bool
    body: bytes = b""
    file_size: int | None = None
    version: str | None = None  # of the file
    trouble: str = ""  # what libcurl reports; without the URL


def fetch(address: Address, start: int, size: int | None) -> Answer:
    """The answer to one request for `size` bytes, None for all of the file. Each thread keeps a connection.

    Never raises for what the network or a server does.
    """
    own = getattr(_own, "handle", None)
    if own is None or own[0] != os.getpid():
        if own is not None:
            _HANDLES_OF_PARENTS.append(own)  # to close its connection would end it for the parent, too
        own = _own.handle = os.getpid(), _Handle()
    return own[1].fetch(address, start, size)


_own = threading.local()
_HANDLES_OF_PARENTS: list[Any] = []


class _Handle:
    """An easy handle of libcurl."""

    def __init__(self) -> None:
        self._curl = curl = pycurl.Curl()
        curl.setopt(pycurl.NOSIGNAL, 1)
        curl.setopt(pycurl.BUFFERSIZE, _RECEIVE_BUFFER)
        curl.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1)  # a connection each is faster for bodies
        curl.setopt(pycurl.TCP_KEEPALIVE, 1)
        curl.setopt(pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS)
        curl.setopt(pycurl.REDIR_PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS)
        curl.setopt(pycurl.MAXREDIRS, _REDIRECTS)
        curl.setopt(pycurl.LOW_SPEED_LIMIT, _SLOWEST)

    def fetch(self, address: Address, start: int, size: int | None) -> Answer:
        curl, chunks, head = self._curl, list[bytes](), list[bytes]()
        self._configure(address)
        if size is None:
            curl.unsetopt(pycurl.RANGE)
            curl.setopt(pycurl.MAXFILESIZE_LARGE, _MOST_WHOLE)
        else:
            curl.setopt(pycurl.RANGE, f"{start}-{start + size - 1}")
            curl.setopt(pycurl.MAXFILESIZE_LARGE, max(size, _ERROR_PAGE))  # read, to keep the connection
        curl.setopt(pycurl.WRITEFUNCTION, chunks.append)
        curl.setopt(pycurl.HEADERFUNCTION, head.append)
        number, message = 0, ""
        try:
            curl.perform()
        except pycurl.error as error:
            number, message = (int(error.args[0]) if error.args else 1, str(error.args[-1:]))
        return _answer(curl, b"".join(head), b"".join(chunks), (start, size), number, message)

    def _configure(self, at: Address) -> None:
        curl = self._curl
        curl.setopt(pycurl.URL, at.url)
        curl.setopt(pycurl.HTTPHEADER, [*at.headers, "Accept-Encoding: identity"])
        curl.setopt(pycurl.FOLLOWLOCATION, int(at.follows))
        curl.setopt(pycurl.PROXY, at.proxy)  # empty: not even that of the environment
        curl.setopt(pycurl.NOPROXY, getproxies_environment().get("no", ""))
        curl.setopt(pycurl.SSL_VERIFYPEER, int(at.verify is not False))
        curl.setopt(pycurl.SSL_VERIFYHOST, 2 if at.verify is not False else 0)
        curl.setopt(pycurl.CAINFO, at.verify if isinstance(at.verify, str) else certificate_bundle())
        curl.setopt(pycurl.CONNECTTIMEOUT_MS, int(at.connect_timeout * 1000))
        curl.setopt(pycurl.LOW_SPEED_TIME, max(1, round(at.read_timeout)))


def _answer(curl: Any, head: bytes, body: bytes, wanted: tuple[int, int | None], number: int, message: str) -> Answer:
    """`number` and `message` are of libcurl, if it failed."""
    head = head[head.rfind(b"\r\nHTTP/") + 1 :]  # of the last of several answers
    status = int(curl.getinfo(pycurl.RESPONSE_CODE))
    if number and not (number == _TOO_LARGE and status >= 200):
        return Answer(0, False, trouble=message or f"error {number} of libcurl")
    version = match[1].decode("latin-1") if (match := _VERSION.search(head)) else None
    start, size = None, None
    if status == 206 and (match := _CONTENT_RANGE.search(head)):
        start, size = int(match[1]), int(match[2])
    elif status == 200:
        start, size = 0, int(match[1]) if (match := _LENGTH.search(head)) else len(body)
    is_whole = start == wanted[0] and len(body) == (size if wanted[1] is None else wanted[1])
    return Answer(status, is_whole, body if is_whole else b"", size, version, message)
