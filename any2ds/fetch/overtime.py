"""Transfers that outlast the turn of their process at a host, made known to all processes of a run, without a
coordinator: by the names of files in the output folder, which all of them see.

A file stands for some slots until a time that its name has; it is renewed, and removed when the transfers have ended.
What a killed process leaves counts until then. Whoever begins a turn lists the folder.

Where the folder is out of reach or slow, processes fetch as if nobody announced anything: a host may see more transfers
than it allows then, which is better than a run that waits for ever.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from any2ds.core import layout
from any2ds.core.errors import error_text
from any2ds.fetch.policy.share import CLOCKS, LEAST_LEAD, LONGEST_REQUEST
from any2ds.storage.folders import OutputFolder

log = logging.getLogger(__name__)

_LIFE = 60.0  # seconds that a file counts unless it is renewed, which happens at half of them
_SHRINKS = 1.0  # seconds between two files of which the later has fewer slots, for others to have them sooner
_SLOTS = 16  # in a name, which is to be shorter than 143 characters
_SLOT = 4  # characters of the name of a slot
_RETRY, _LONGEST_PAUSE = 0.5, 8.0  # seconds
_LEAVING = 2.0  # seconds in which a process that ends removes its files
_REMEMBERED = 8  # requests whose time tells how long the next one takes
_TRIES = 5  # at a file in a folder that another process may just be removing


@dataclass(frozen=True, slots=True)
class _File:
    slots: frozenset[str] = frozenset()  # that others surely see
    made: float = 0.0  # time.monotonic()


class Overtime:
    """`Announcements` by files, which a thread of its own writes and lists; it begins when it is needed."""

    def __init__(self, output: Callable[[], OutputFolder]) -> None:
        """`output` is called in that thread, and had better try nothing twice."""
        self._new_output = output
        self._id = uuid.uuid4().hex[:12]
        self._number = 0
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._wanted: frozenset[str] = frozenset()
        self._files: dict[str, _File] = {}  # that may be there
        self._shrinks_at = 0.0
        self._look_since = -math.inf  # by time.monotonic(); a list that was begun then or later is wanted
        self._looked_at = -math.inf
        self._others: frozenset[str] = frozenset()
        self._took: tuple[float, ...] = ()  # seconds of the last requests
        self._asked_at = math.inf  # since when a request is under way
        self._has_failed = False
        self._is_told = False

    @property
    def lead(self) -> float:
        return LEAST_LEAD + 2 * min(LONGEST_REQUEST, max(self._took, default=0.0))

    @property
    def _is_useless(self) -> bool:
        slow = time.monotonic() - self._asked_at > LONGEST_REQUEST or max(self._took, default=0.0) > LONGEST_REQUEST
        return self._has_failed or slow

    def of_others(self, age: float) -> frozenset[str] | None:
        since = time.monotonic() - age
        if self._looked_at >= since:
            return self._others
        if since > self._look_since:
            with self._change:
                self._look_since = since
                self._tell()
        return frozenset() if self._is_useless else None

    def announce(self, slots: frozenset[str]) -> None:
        if slots != self._wanted:
            with self._change:
                self._wanted = slots
                self._tell()

    def announced(self) -> frozenset[str]:
        if self._is_useless:
            return self._wanted
        oldest = time.monotonic() - _LIFE
        return frozenset().union(*(file.slots for file in [*self._files.values()] if file.made > oldest))

    def close(self) -> None:
        """Nothing of it is in flight any more. Waits for the store, but not for long."""
        with self._change:
            self._is_closing = True
            self._change.notify()
        if self._thread is not None:
            self._thread.join(_LEAVING)

    def _tell(self) -> None:
        if self._thread is None and not self._is_closing:
            self._thread = threading.Thread(target=self._run, name="any2ds-overtime", daemon=True)
            self._thread.start()
        self._change.notify()

    def _run(self) -> None:
        folder: _Folder | None = None
        pause = _RETRY
        while True:
            with self._change:
                self._change.wait_for(self._has_work, self._pause())
                wanted, is_closing = self._wanted, self._is_closing
            try:
                if folder is None:
                    self._asked_at = time.monotonic()
                    folder = _Folder(self._new_output())
                    self._asked_at = math.inf
                if is_closing:
                    folder.leave([*self._files])
                    return
                if self._looked_at < self._look_since:
                    self._look(folder)
                self._publish(folder, wanted)
                self._has_failed, pause = False, _RETRY
                if self._is_useless:
                    self._warn(f"its store takes {max(self._took):.1f} s for a request")
                else:
                    self._is_told = False
            except Exception as error:  # every file system has exceptions of its own
                self._has_failed = True
                if is_closing:
                    return
                self._warn(error_text(error))
                with self._change:
                    self._change.wait_for(lambda: self._is_closing, pause)
                pause = min(_LONGEST_PAUSE, 2 * pause)

    def _warn(self, why: str) -> None:
        log.log(
            logging.DEBUG if self._is_told else logging.WARNING,
            "processes cannot tell each other through the output folder which transfers outlast their turns: "
            "hosts may see more of them than --max_per_host for a while (%s)",
            why,
        )
        self._is_told = True

    @contextmanager
    def _request(self) -> Iterator[None]:
        """Measure it."""
        began = self._asked_at = time.monotonic()
        try:
            yield
        finally:
            self._asked_at = math.inf
        self._took = (*self._took[1 - _REMEMBERED :], time.monotonic() - began)

    def _has_work(self) -> bool:
        if self._is_closing or self._looked_at < self._look_since:
            return True
        kept, missing = self._plan(self._wanted)
        return bool(missing) or len(kept) < len(self._files)

    def _pause(self) -> float | None:
        """Seconds until files have to be renewed, or may be made anew with fewer slots."""
        if not self._files:
            return None
        due = min(file.made for file in self._files.values()) + _LIFE / 2
        if any(not file.slots <= self._wanted for file in self._files.values()):
            due = min(due, self._shrinks_at)
        return max(0.01, due - time.monotonic())

    def _plan(self, wanted: frozenset[str]) -> tuple[list[str], frozenset[str]]:
        """The files that may stay, and the slots that need others."""
        now = time.monotonic()
        kept = []
        missing = wanted
        for name, file in self._files.items():
            has_room = file.slots <= wanted or (now < self._shrinks_at and file.slots & wanted)
            if file.slots and has_room and now < file.made + _LIFE / 2:
                kept.append(name)
                missing -= file.slots
        return kept, missing

    def _publish(self, folder: _Folder, wanted: frozenset[str]) -> None:
        kept, missing = self._plan(wanted)
        slots, until = sorted(missing), round((time.time() + _LIFE) * 1000)
        for start in range(0, len(slots), _SLOTS):
            self._number += 1
            some = slots[start : start + _SLOTS]
            name = f"{until:013d}.{self._id}.{self._number}.{''.join(some)}"
            self._files[name] = _File()  # whether it comes to be there or not
            with self._request():
                folder.add(name)
            self._files[name] = _File(frozenset(some), time.monotonic())
            kept.append(name)
        if old := [name for name in self._files if name not in kept]:
            self._shrinks_at = time.monotonic() + _SHRINKS
            folder.remove(old)
            for name in old:
                del self._files[name]

    def _look(self, folder: _Folder) -> None:
        began, now = time.monotonic(), time.time()
        others: set[str] = set()
        expired = []
        with self._request():
            names = folder.names()
        for name in names:
            until, _, rest = name.partition(".")
            author, _, rest = rest.partition(".")
            if author == self._id or not until.isdigit():
                continue
            left = int(until) / 1000 - now
            if left < -2 * CLOCKS:
                expired.append(name)
            elif left < _LIFE + 2 * CLOCKS:  # else its clock is wrong by more
                content = rest.partition(".")[2]
                others.update(content[at : at + _SLOT] for at in range(0, len(content), _SLOT))
        self._others, self._looked_at = frozenset(others), began
        with suppress(Exception):  # others try it as well
            folder.remove(expired)


class _Folder:
    """`layout.OVERTIME_FOLDER` of an output folder: nothing in it has to outlive a power failure."""

    def __init__(self, output: OutputFolder) -> None:
        self._output = output
        self._path = Path(output.path) / layout.OVERTIME_FOLDER if output.is_local else None
        self._own = f"look.{uuid.uuid4().hex[:12]}"
        if self._path is None:
            output.create_folder(layout.OVERTIME_FOLDER)

    def names(self) -> Sequence[str]:
        if self._path is None:
            return self._output.names(layout.OVERTIME_FOLDER)
        # Network disks keep lists for a while, but not those of folders that this machine has changed meanwhile.
        self.add(self._own)
        names = os.listdir(self._path)
        self.remove([self._own])
        return names

    def add(self, name: str) -> None:
        if self._path is None:
            self._output.write(f"{layout.OVERTIME_FOLDER}/{name}", b"any2ds")
            return
        for left in reversed(range(_TRIES)):
            try:
                for folder in (self._path.parent, self._path):  # but not what is above: it may have been a mount
                    folder.mkdir(exist_ok=True)
                (self._path / name).touch()
                return
            except FileNotFoundError:
                if not left:
                    raise

    def remove(self, names: Sequence[str]) -> None:
        if self._path is None:
            if names:
                self._output.remove_many([f"{layout.OVERTIME_FOLDER}/{name}" for name in names])
            return
        for name in names:
            with suppress(FileNotFoundError):
                (self._path / name).unlink()

    def leave(self, names: Sequence[str]) -> None:
        """Remove them, and the folder if nothing is in it."""
        self.remove(names)
        if self._path is not None:
            with suppress(OSError):
                self._path.rmdir()
                self._path.parent.rmdir()
