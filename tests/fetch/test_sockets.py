"""Which of libcurl's sockets are watched: also those of kept connections, while nobody uses them."""

import os
import select
import socket
from collections.abc import Iterator

import pycurl
import pytest

from any2ds.fetch.engines.sockets import Sockets

READ = pycurl.POLL_IN


class Multi:
    """What libcurl is asked to look at."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def socket_action(self, fd: int, events: int) -> None:
        self.asked.append(fd)


class Pair:
    """A connection: `own` belongs to libcurl, `peer` to the server."""

    def __init__(self) -> None:
        self.own, self.peer = socket.socketpair()
        self.fd = self.own.fileno()

    def close(self) -> None:
        self.own.close()
        self.peer.close()


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    sockets = Sockets()
    yield sockets
    sockets.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


def ready(sockets: Sockets, wait: float = 0.0) -> list[int]:
    multi = Multi()
    sockets.attend(multi, wait, 32)
    return multi.asked


def test_a_kept_connection_is_heard_when_it_is_used_again(sockets: Sockets, pair: Pair) -> None:
    for _ in range(3):
        sockets.watch(READ, pair.fd, None, None)
        pair.peer.send(b"x")
        assert ready(sockets, 5.0) == [pair.fd]
        pair.own.recv(1)
        sockets.watch(pycurl.POLL_REMOVE, pair.fd, None, None)
        assert ready(sockets) == []


def test_another_socket_with_the_number_of_a_closed_one_is_heard(sockets: Sockets, pair: Pair) -> None:
    other = Pair()
    sockets.watch(READ, pair.fd, None, None)
    sockets.watch(pycurl.POLL_REMOVE, pair.fd, None, None)
    pair.own.close()
    try:
        os.dup2(other.fd, pair.fd)
        sockets.watch(READ, pair.fd, None, None)
        other.peer.send(b"x")
        assert ready(sockets, 5.0) == [pair.fd]
    finally:
        sockets.watch(pycurl.POLL_REMOVE, pair.fd, None, None)
        os.close(pair.fd)
        other.close()


def test_a_socket_that_is_closed_already_is_not_watched(sockets: Sockets, pair: Pair) -> None:
    pair.own.close()
    sockets.watch(READ, pair.fd, None, None)
    assert ready(sockets) == []


def test_a_server_that_closes_a_kept_connection_wakes_us_once(sockets: Sockets, pair: Pair) -> None:
    sockets.watch(READ, pair.fd, None, None)
    sockets.watch(pycurl.POLL_REMOVE, pair.fd, None, None)
    pair.peer.close()
    assert ready(sockets, 5.0) == []
    assert not _is_busy(sockets)
    sockets.watch(READ, pair.fd, None, None)  # libcurl may use it all the same
    assert ready(sockets, 5.0) == [pair.fd]


def test_what_another_process_keeps_open_does_not_wake_us_without_end(sockets: Sockets, pair: Pair) -> None:
    used = Pair()
    sockets.watch(READ, used.fd, None, None)
    sockets.watch(READ, pair.fd, None, None)
    sockets.watch(pycurl.POLL_REMOVE, pair.fd, None, None)
    copy = os.dup(pair.fd)  # as a forked process has it
    pair.own.close()
    pair.peer.close()
    try:
        assert ready(sockets) == []
        assert not _is_busy(sockets)
        used.peer.send(b"x")
        assert ready(sockets, 5.0) == [used.fd]
    finally:
        os.close(copy)
        used.close()


def _is_busy(sockets: Sockets) -> bool:
    """Whether the system has something to report although nothing happens."""
    return bool(sockets._poller.poll(0))


if not hasattr(select, "epoll"):
    pytestmark = pytest.mark.skip("elsewhere nothing is watched that is not used")
