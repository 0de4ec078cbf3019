"""Knows the connections that libcurl keeps, so that no row gets what was left on one by an earlier answer.

libcurl itself does not look at a connection that it has used within the last second.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

ZERO_BYTES = b"\0\0\0\0"
if sys.platform != "win32":
    from fcntl import ioctl
    from termios import FIONREAD

    def has_bytes(socket: int) -> bool:
        """Whether bytes wait to be read. Raises OSError for a socket that is closed."""
        return ioctl(socket, FIONREAD, ZERO_BYTES) != ZERO_BYTES
else:  # there it is not known

    def has_bytes(socket: int) -> bool:
        return False


_REMEMBERED = 4096  # origins

Connection = tuple[str, int, int]
"""The address and port of the server, and our port."""

Origin = tuple[str, str, str]


@dataclass(slots=True)
class Kept:
    """A connection of HTTP/1 that has had an answer: servers of HTTP/2 send when they like."""

    socket: int
    user: object  # that has begun the last request: libcurl gives it to the next one before it tells of its end


class Connections:
    """The kept connections of one libcurl multi handle; those that it has closed are forgotten with their sockets."""

    def __init__(self) -> None:
        self.kept: dict[Connection, Kept] = {}
        self._connection_of: dict[int, Connection] = {}  # by socket, whose number is used again when it was closed
        self.distrusted: set[Origin] = set()  # they have sent more than their answers: no connection of theirs is kept

    def begins(self, connection: Connection, user: object) -> bool:
        """Note that a request is going to be sent; whether there is something on the connection already."""
        kept = self.kept.get(connection)
        if kept is None:
            return False
        kept.user = user
        try:
            return has_bytes(kept.socket)
        except OSError:  # the socket of a former connection, which was closed
            return False

    def keep(self, connection: Connection, socket: int, user: object) -> None:
        if (former := self._connection_of.get(socket)) is not None:
            self.kept.pop(former, None)
        self._connection_of[socket] = connection
        self.kept[connection] = Kept(socket, user)

    def distrust(self, origin: Origin) -> None:
        """Let each request to an origin that has sent more than its answers have a connection of its own."""
        if len(self.distrusted) < _REMEMBERED:
            self.distrusted.add(origin)
