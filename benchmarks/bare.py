"""The yardstick: the least that Python can do with libcurl to turn a list of URLs into one tar file. It needs Linux.

One thread, one `CurlMulti` driven by epoll through `socket_action`, connections kept, 256 transfers in flight; each
body is received, hashed and written as a tar member beside a small JSON member, with headers made from a template and
`writev`, so that no body is ever copied inside Python.

What it leaves out, and any2ds does: samples in the order of the list, the metadata table and the shard's statistics,
translating failures (it stops at the first), timeouts, retries, redirects, bounds on memory, recognising the file type,
normalising URLs, temporary names, more than one shard or process.
"""

from __future__ import annotations

import hashlib
import os
import select
import time
from pathlib import Path
from typing import Any

import orjson
import pycurl

_IN_FLIGHT = 256
_BLOCK = 512
# A ustar header with everything in it that does not change: mode 0644, owner 0, time 0.
_OWNER = b"\0".join((b"0000644", b"0000000", b"0000000", b""))
_REST = (b"0" + bytes(100) + b"ustar\x0000").ljust(_BLOCK - 156, b"\0")
_TIME = b"00000000000\0"
_FIXED_SUM = sum(_OWNER) + sum(_TIME) + sum(_REST) + 8 * ord(" ")
_ZEROS = bytes(_BLOCK)


def fetch_into_tar(list: str, tar: str, hash: str, ca_file: str = "") -> dict[str, float]:
    urls = Path(list).read_text(encoding="utf-8").split()
    file = os.open(tar, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    began = time.monotonic()
    _Loop(urls, file, getattr(hashlib, hash), ca_file).run()
    os.write(file, 2 * _ZEROS)
    os.close(file)
    took = time.monotonic() - began
    os.unlink(tar)
    return {"rows": len(urls), "open": took, "open_rate": len(urls) / took}


def tar_header(name: bytes, size: int) -> bytes:
    digits = b"%011o\0" % size
    checksum = _FIXED_SUM + sum(name) + sum(digits)
    return b"%b%b%b%b%06o\0 %b" % (name.ljust(100, b"\0"), _OWNER, digits, _TIME, checksum, _REST)


def write_sample(file: int, number: int, url: str, chunks: list[bytes], new_hash: Any) -> None:
    digest = new_hash()
    for chunk in chunks:
        digest.update(chunk)
    size = sum(map(len, chunks))
    fields = {"key": f"{number:09d}", "url": url, "status": "success", "bytes": size, "hash": digest.hexdigest()}
    described = orjson.dumps(fields)
    padding, end = _ZEROS[: -size % _BLOCK], _ZEROS[: -len(described) % _BLOCK]
    tail = b"".join((padding, tar_header(b"%09d.json" % number, len(described)), described, end))
    if os.writev(file, [tar_header(b"%09d.jpg" % number, size), *chunks, tail]) != _BLOCK + size + len(tail):
        raise OSError("a sample was written in part")


class _Loop:
    """Transfers in flight, as libcurl asks for events of their sockets."""

    def __init__(self, urls: list[str], file: int, new_hash: Any, ca_file: str) -> None:
        self._urls, self._file, self._new_hash, self._ca_file = urls, file, new_hash, ca_file
        self._epoll, self._watched, self._timer = select.epoll(), set[int](), 0.0
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._set_timer)
        self._multi.setopt(pycurl.M_MAXCONNECTS, _IN_FLIGHT + 64)
        self._chunks: dict[Any, list[bytes]] = dict(self._new_handle() for _ in range(_IN_FLIGHT))

    def _new_handle(self) -> tuple[Any, list[bytes]]:
        handle, chunks = pycurl.Curl(), list[bytes]()
        handle.setopt(pycurl.NOSIGNAL, 1)
        handle.setopt(pycurl.BUFFERSIZE, 1 << 18)
        handle.setopt(pycurl.WRITEFUNCTION, chunks.append)
        handle.setopt(pycurl.TIMEOUT, 60)
        if self._ca_file:
            handle.setopt(pycurl.CAINFO, self._ca_file)
        return handle, chunks

    def _watch(self, events: int, fd: int, _multi: Any, _data: Any) -> None:
        mask = (select.EPOLLIN if events & pycurl.POLL_IN else 0) | (select.EPOLLOUT if events & pycurl.POLL_OUT else 0)
        if events == pycurl.POLL_REMOVE:
            if fd in self._watched:
                self._watched.discard(fd)
                self._epoll.unregister(fd)
        elif fd in self._watched:
            self._epoll.modify(fd, mask)
        else:
            self._watched.add(fd)
            self._epoll.register(fd, mask)

    def _set_timer(self, milliseconds: int) -> None:
        self._timer = 0.0 if milliseconds < 0 else time.monotonic() + milliseconds / 1000

    def run(self) -> None:
        free, numbers, todo = list(self._chunks), dict[Any, int](), iter(enumerate(self._urls))
        socket_action = self._multi.socket_action
        while True:
            while free and (job := next(todo, None)):
                handle = free.pop()
                numbers[handle], url = job
                handle.setopt(pycurl.URL, url)
                self._multi.add_handle(handle)
            if not numbers:
                return
            wait = max(0.0, self._timer - time.monotonic()) if self._timer else -1.0
            # 32 at a time: a body is then still in the processor's cache when it is hashed and written.
            for fd, events in self._epoll.poll(wait, 32):
                if fd in self._watched:
                    # epoll's bits as libcurl's: in, out, error
                    socket_action(fd, events & 1 | (events & 4) >> 1 | (events & 0x18 and pycurl.CSELECT_ERR))
            if self._timer and self._timer <= time.monotonic():
                self._timer = 0.0
                socket_action(pycurl.SOCKET_TIMEOUT, 0)
            more = 1
            while more:
                more, complete, failed = self._multi.info_read()
                for handle in complete:
                    self._multi.remove_handle(handle)
                    number, chunks = numbers.pop(handle), self._chunks[handle]
                    if handle.getinfo(pycurl.RESPONSE_CODE) != 200:
                        raise RuntimeError(f"{self._urls[number]}: {handle.getinfo(pycurl.RESPONSE_CODE)}")
                    write_sample(self._file, number, self._urls[number], chunks, self._new_hash)
                    chunks.clear()
                    free.append(handle)
                for handle, _, words in failed:
                    raise RuntimeError(f"{self._urls[numbers[handle]]}: {words}")
