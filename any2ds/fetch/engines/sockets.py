"""Says which of libcurl's sockets are ready, or that another thread wants something."""

from __future__ import annotations

import contextlib
import errno
import select
import selectors
import socket
import time
from collections import deque
from typing import Any, Protocol

import pycurl

_STOPPED = 0.25  # seconds that a wait was longer than it should: the process was stopped, and sockets are ready since
_READ, _WRITE = 1, 2  # to libcurl, in `watch` and `socket_action`, and to `selectors`


class _Poller(Protocol):
    """The poller of the system, whose masks are its own; the methods are those of `select.epoll`."""

    def register(self, fd: int, eventmask: int, /) -> None: ...
    def modify(self, fd: int, eventmask: int, /) -> None: ...
    def unregister(self, fd: int, /) -> None: ...
    def poll(self, timeout: float, /) -> list[tuple[int, int]]: ...
    def close(self) -> None: ...


class _Selector:
    """Where there is no epoll. Epoll is used as it is, since `selectors` take ten calls in Python to a transfer."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def register(self, fd: int, eventmask: int, /) -> None:
        self._selector.register(fd, eventmask)

    def modify(self, fd: int, eventmask: int, /) -> None:
        self._selector.modify(fd, eventmask)

    def unregister(self, fd: int, /) -> None:
        self._selector.unregister(fd)

    def poll(self, timeout: float, /) -> list[tuple[int, int]]:
        return [(key.fd, events) for key, events in self._selector.select(timeout)]

    def close(self) -> None:
        self._selector.close()


_DROPS_CLOSED = hasattr(select, "epoll")  # a socket that is closed is not watched any more
if _DROPS_CLOSED:
    _MASKS = {_READ: select.EPOLLIN, _WRITE: select.EPOLLOUT, _READ | _WRITE: select.EPOLLIN | select.EPOLLOUT}
else:
    _MASKS = {mask: mask for mask in (_READ, _WRITE, _READ | _WRITE)}
_EVENTS = {mask: events for events, mask in _MASKS.items()}  # an error is both: whatever is waited for, fails


class Sockets:
    """Belongs to one thread, but for `ring`."""

    def __init__(self) -> None:
        self._poller: _Poller = select.epoll() if _DROPS_CLOSED else _Selector()
        self._watched: dict[int, int] = {}  # for what
        # Sockets of kept connections that nobody uses now, which the system watches still: most are used again at once,
        # and to go on watching takes a fifth of the time of leaving one out and taking it in again.
        self._idle: set[int] = set()
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
        if events == pycurl.POLL_REMOVE:
            if self._watched.pop(fd, None):
                if _DROPS_CLOSED:
                    self._idle.add(fd)
                else:
                    self._poller.unregister(fd)
            return
        try:
            self._begin(fd, _MASKS[events])
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            self._watched.pop(fd, None)  # libcurl has closed it, which happens with HTTP/2
        else:
            self._watched[fd] = events

    def _begin(self, fd: int, mask: int) -> None:
        if fd in self._idle:
            self._idle.remove(fd)
            try:
                self._poller.modify(fd, mask)
            except FileNotFoundError:  # it was closed, and this is another one of its number
                self._poller.register(fd, mask)
        elif fd in self._watched:
            self._poller.modify(fd, mask)
        else:
            self._poller.register(fd, mask)

    def _leave_out(self, idle: int) -> None:
        self._idle.remove(idle)
        try:
            self._poller.unregister(idle)
        except OSError:  # closed here, but a forked process has it too, and the system still reports that one
            self._poller.close()
            self._poller = select.epoll()
            for fd, events in {self._bell.fileno(): _READ, **self._watched}.items():
                self._poller.register(fd, _MASKS[events])
            self._idle.clear()

    def attend(self, multi: Any, wait: float, most: int) -> None:
        """Let libcurl attend to up to `most` sockets that are ready; waits for one for at most `wait` seconds."""
        ready, watched = self._ready, self._watched
        if not ready:
            if wait > 0:
                since = time.monotonic()
                ready.extend(self._poller.poll(wait))
                waited = time.monotonic() - since
                self.waited += waited
                if not ready and waited > wait + _STOPPED:
                    ready.extend(self._poller.poll(0))
            else:
                ready.extend(self._poller.poll(0))
        for _ in range(min(len(ready), most)):
            fd, mask = ready.popleft()
            if events := watched.get(fd):
                multi.socket_action(fd, events & _EVENTS.get(mask, _READ | _WRITE))
            elif fd in self._idle:  # its server has closed it, most often, which libcurl sees before it uses it again
                self._leave_out(fd)
            elif fd == self._bell.fileno():
                self._silence()

    def ring(self) -> None:
        """End a waiting `attend`; may be called from any thread."""
        with contextlib.suppress(BlockingIOError, OSError):
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
