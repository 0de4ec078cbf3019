"""The yardstick: the least that Python can do with libcurl to turn a list of URLs into one tar file.

One thread, one `CurlMulti` driven by epoll through `socket_action`, connections kept, 256 transfers in flight; each
body is received, hashed (sha256 or md5) and written as a tar member beside a small JSON member, with headers made from
a template and `writev`, so that no body is ever copied inside Python.

What it leaves out, and any2ds does: samples in the order of the list, the metadata table and the shard's statistics,
translating failures (it stops at the first), timeouts, retries, redirects, bounds on memory, recognising the file type,
normalising URLs, temporary names, more than one shard or process. It needs Linux.

    python benchmarks/bare.py URLS.txt OUT.tar --hash=sha256 [--ca-file=ca.pem]

prints its figures as one line of JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import select
import time
from typing import Any

import orjson
import pycurl

IN_FLIGHT = 256
_BLOCK = 512
# A ustar header with everything in it that does not change: mode 0644, owner 0, time 0.
_OWNER = b"".join((b"0000644\0", b"0000000\0", b"0000000\0"))
_REST = (b"0" + bytes(100) + b"ustar\x0000").ljust(_BLOCK - 156, b"\0")
_TIME = b"00000000000\0"
_FIXED_SUM = sum(_OWNER) + sum(_TIME) + sum(_REST) + 8 * ord(" ")
_ZEROS = bytes(_BLOCK)


def header(name: bytes, size: int) -> bytes:
    digits = b"%011o\0" % size
    checksum = _FIXED_SUM + sum(name) + sum(digits)
    return b"%b%b%b%b%06o\0 %b" % (name.ljust(100, b"\0"), _OWNER, digits, _TIME, checksum, _REST)


class Transfer:
    """A libcurl handle, used again for one URL after the other."""

    __slots__ = ("chunks", "handle", "number", "url")

    def __init__(self, ca_file: str | None) -> None:
        self.chunks: list[bytes] = []
        self.handle = handle = pycurl.Curl()
        handle.setopt(pycurl.NOSIGNAL, 1)
        handle.setopt(pycurl.BUFFERSIZE, 1 << 18)
        handle.setopt(pycurl.WRITEFUNCTION, self.chunks.append)
        handle.setopt(pycurl.TIMEOUT, 60)
        if ca_file:
            handle.setopt(pycurl.CAINFO, ca_file)


class Tar:
    """Writes samples to a file as they come."""

    def __init__(self, path: str, new_hash: Any) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self._new_hash = new_hash
        self.samples = 0
        self.bytes = 0

    def write(self, number: int, url: str, chunks: list[bytes]) -> None:
        digest = self._new_hash()
        for chunk in chunks:
            digest.update(chunk)
        size = sum(map(len, chunks))
        described = orjson.dumps(
            {"key": f"{number:09d}", "url": url, "status": "success", "bytes": size, "hash": digest.hexdigest()}
        )
        padding = _ZEROS[: -size % _BLOCK]
        end = _ZEROS[: -len(described) % _BLOCK]
        tail = b"".join((padding, header(b"%09d.json" % number, len(described)), described, end))
        parts = [header(b"%09d.jpg" % number, size), *chunks, tail]
        written = os.writev(self._fd, parts)
        if written != _BLOCK + size + len(tail):
            raise OSError(f"{written} bytes written of a sample of {_BLOCK + size + len(tail)}")
        self.samples += 1
        self.bytes += size

    def close(self) -> None:
        os.write(self._fd, 2 * _ZEROS)
        os.close(self._fd)


def run(urls: list[str], tar: Tar, ca_file: str | None) -> None:
    multi, epoll = pycurl.CurlMulti(), select.epoll()
    socket_action, info_read = multi.socket_action, multi.info_read
    watched: set[int] = set()
    timer: float | None = None

    def watch(events: int, fd: int, _multi: Any, _data: Any) -> None:
        if events == pycurl.POLL_REMOVE:
            if fd in watched:
                watched.discard(fd)
                epoll.unregister(fd)
            return
        mask = (select.EPOLLIN if events & pycurl.POLL_IN else 0) | (select.EPOLLOUT if events & pycurl.POLL_OUT else 0)
        if fd in watched:
            epoll.modify(fd, mask)
        else:
            watched.add(fd)
            epoll.register(fd, mask)

    def set_timer(milliseconds: int) -> None:
        nonlocal timer
        timer = None if milliseconds < 0 else time.monotonic() + milliseconds / 1000

    multi.setopt(pycurl.M_SOCKETFUNCTION, watch)
    multi.setopt(pycurl.M_TIMERFUNCTION, set_timer)
    multi.setopt(pycurl.M_MAXCONNECTS, IN_FLIGHT + 64)
    by_handle = {transfer.handle: transfer for transfer in (Transfer(ca_file) for _ in range(IN_FLIGHT))}
    free = list(by_handle.values())
    todo = iter(enumerate(urls))
    flying = 0
    while True:
        while free and (job := next(todo, None)):
            transfer = free.pop()
            transfer.number, transfer.url = job
            transfer.handle.setopt(pycurl.URL, transfer.url)
            multi.add_handle(transfer.handle)
            flying += 1
        if not flying:
            break
        wait = -1.0 if timer is None else max(0.0, timer - time.monotonic())
        # 32 at a time: a body is then still in the processor's cache when it is hashed and written.
        for fd, events in epoll.poll(wait, 32):
            if fd in watched:
                socket_action(fd, events & 1 | (events & select.EPOLLOUT) >> 1 | (events & 0x18 and pycurl.CSELECT_ERR))
        if timer is not None and timer <= time.monotonic():
            timer = None
            socket_action(pycurl.SOCKET_TIMEOUT, 0)
        more = True
        while more:
            more, complete, failed = info_read()
            for handle in complete:
                transfer = by_handle[handle]
                if handle.getinfo(pycurl.RESPONSE_CODE) != 200:
                    raise RuntimeError(f"{transfer.url}: status {handle.getinfo(pycurl.RESPONSE_CODE)}")
                multi.remove_handle(handle)
                tar.write(transfer.number, transfer.url, transfer.chunks)
                transfer.chunks.clear()
                free.append(transfer)
                flying -= 1
            for handle, _, words in failed:
                raise RuntimeError(f"{by_handle[handle].url}: {words}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("urls")
    parser.add_argument("tar")
    parser.add_argument("--hash", choices=("sha256", "md5"), default="sha256")
    parser.add_argument("--ca-file")
    arguments = parser.parse_args()
    with open(arguments.urls, encoding="utf-8") as lines:
        urls = lines.read().split()
    started = time.monotonic()
    tar = Tar(arguments.tar, getattr(hashlib, arguments.hash))
    run(urls, tar, arguments.ca_file)
    tar.close()
    print(json.dumps({"samples": tar.samples, "bytes": tar.bytes, "seconds": time.monotonic() - started}))


if __name__ == "__main__":
    main()
