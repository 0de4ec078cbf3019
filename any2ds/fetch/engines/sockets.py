"""Says which of libcurl's sockets are ready, or that another thread wants something."""

from __future__ import annotations

import contextlib
import errno
import select
import selectors
import socket
import time
from collections import deque
from typing import Any

import pycurl

_STOPPED = 0.25  # seconds that a wait was longer than it should: the process was stopped, and sockets are ready since
_READ, _WRITE = 1, 2  # to libcurl, in `watch` and `socket_action`, and to `selectors`


class _Selector:
    """The interface of `select.epoll` where there is none. `selectors` alone take ten calls in Python to a transfer."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self.unregister = self._selector.unregister
        self.close = self._selector.close

    def register(self, fd: int, eventmask: int, /) -> None:
        self._selector.register(fd, eventmask)

    def modify(self, fd: int, eventmask: int, /) -> None:
        self._selector.modify(fd, eventmask)

    def poll(self, timeout: float, /) -> list[tuple[int, int]]:
        return [(key.fd, events) for key, events in self._selector.select(timeout)]


if hasattr(select, "epoll"):
    _MASKS = {_READ: select.EPOLLIN, _WRITE: select.EPOLLOUT, _READ | _WRITE: select.EPOLLIN | select.EPOLLOUT}
else:
    _MASKS = {mask: mask for mask in (_READ, _WRITE, _READ | _WRITE)}
_EVENTS = {mask: events for events, mask in _MASKS.items()}  # an error is both: whatever is waited for, fails


class Sockets:
    """Belongs to one thread, but for `ring`."""

    def __init__(self) -> None:
        self._poller = select.epoll() if hasattr(select, "epoll") else _Selector()
        self._watched: dict[int, int] = {}  # for what
        self._ready: deque[tuple[int, int]] = deque()  # found ready, and not yet attended to
        self._bell, self._bell_button = socket.socketpair()
        self._bell.setblocking(False)
        self._bell_button.setblocking(False)
        self._poller.register(self._bell.fileno(), _MASKS[_READ])
        self._closed = False
        self.waited = 0.0  # seconds

    @property
    def backlog(self) -> int:
        """How many are known to be ready and were not attended to."""
        return len(self._ready)

    def watch(self, events: int, fd: int, multi: Any, data: Any) -> None:
        """libcurl's `M_SOCKETFUNCTION`."""
        if self._closed:
            return
        is_watched = self._watched.pop(fd, 0) > 0
        try:
            if events == pycurl.POLL_REMOVE:
                if is_watched:
                    with contextlib.suppress(OSError):  # libcurl has closed it, and its number may be another file's
                        self._poller.unregister(fd)
                return
            if is_watched:
                self._poller.modify(fd, _MASKS[events])
            else:
                self._poller.register(fd, _MASKS[events])
            self._watched[fd] = events
        except OSError as error:
            if error.errno != errno.EBADF:  # libcurl has closed it, which happens with HTTP/2
                raise

    def attend(self, multi: Any, wait: float, most: int) -> None:
        """Let libcurl attend to up to `most` sockets that are ready; waits for one for at most `wait` seconds."""
        ready, watched = self._ready, self._watched
        if not ready:
            since = time.monotonic()
            ready.extend(self._poller.poll(max(0.0, wait)))
            if wait > 0:
                waited = time.monotonic() - since
                self.waited += waited
                if not ready and waited > wait + _STOPPED:
                    ready.extend(self._poller.poll(0))
        for _ in range(min(len(ready), most)):
            fd, mask = ready.popleft()
            if events := watched.get(fd):
                multi.socket_action(fd, events & _EVENTS.get(mask, _READ | _WRITE))
            elif fd == self._bell.fileno():
                self._silence()

    def ring(self) -> None:
        """End a waiting `attend`; may be called from any thread."""
        with contextlib.suppress(OSError):
            self._bell_button.send(b"\0")

    def close(self) -> None:
        self._closed = True
        self._poller.close()
        self._bell.close()
        self._bell_button.close()

    def _silence(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._bell.recv(4096):
                continue
