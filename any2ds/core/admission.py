"""Bounds how many things, and how many bytes of them, are held at a time: a thread that brings more waits here."""

from __future__ import annotations

import threading


class Admission:
    """Admits things by number, of which one may be larger than `most_bytes` if nothing else is held."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._held: dict[int, int] = {}  # number of a thing -> its bytes
        self._changed = threading.Condition()
        self._is_closed = False

    def acquire(self, number: int, size: int) -> bool:
        """Wait until there is room for a thing of `size` bytes, and hold it. False if `close` was called."""

        def has_room() -> bool:
            fits = len(self._held) < self._most and sum(self._held.values()) + size <= self._most_bytes
            return self._is_closed or not self._held or fits

        with self._changed:
            self._changed.wait_for(has_room)
            if not self._is_closed:
                self._held[number] = size
            return not self._is_closed

    def release(self, number: int) -> None:
        """Let go of a thing, if it is held."""
        with self._changed:
            self._held.pop(number, None)
            self._changed.notify_all()

    def close(self) -> None:
        """Admit nothing any more; who waits is told so."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
