"""Transfers that outlast the turn of their process at a host, made known to all processes of a run, without a
coordinator: by the names of files in the output folder, which all of them see.

A file stands for some slots until a time that its name has; it is renewed, and removed when the transfers have ended.
What a killed process leaves counts until then. Whoever begins a turn lists the folder once. Most processes write none.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from any2ds.core import layout
from any2ds.core.errors import error_text
from any2ds.fetch.policy.share import CLOCKS, LEAST_LEAD, MOST_LEAD
from any2ds.storage.folders import OutputFolder

log = logging.getLogger(__name__)

_LIFE = 60.0  # seconds that a file counts unless it is renewed
_RENEWED = 0.5  # of these are left then
_SHRINKS = 1.0  # seconds between two files of which the later has fewer slots, for others to have them sooner
_SLOTS = 48  # in a name: disks take 255 characters
_SLOT = 4  # characters of the name of a slot
_RETRY = 0.5  # seconds
_REMEMBERED = 8  # requests whose time tells how long the next one takes
_TRIES = 5  # at a file in a folder that another process may just be removing


@dataclass(frozen=True, slots=True)
class _Files:
    """That others surely see, all made at a time."""

    slots: frozenset[str] = frozenset()
    names: tuple[str, ...] = ()
    until: float = 0.0  # time of day


class Overtime:
    """`Announcements` by files, which a thread of its own writes and lists; it begins when it is needed."""

    def __init__(self, output: Callable[[], OutputFolder]) -> None:
        """`output` is called in that thread."""
        self._new_output = output
        self._id = uuid.uuid4().hex[:12]
        self._number = 0
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._wanted: frozenset[str] = frozenset()
        self._files = _Files()
        self._look_since = 0.0  # a list that was begun then or later is wanted
        self._looked_at = 0.0
        self._others: frozenset[str] = frozenset()
        self._took: deque[float] = deque(maxlen=_REMEMBERED)  # seconds of the last requests
        self._shrinks_at = 0.0

    @property
    def lead(self) -> float:
        return min(MOST_LEAD, LEAST_LEAD + 2 * max(self._took, default=0.0))

    def of_others(self, since: float) -> frozenset[str] | None:
        with self._change:
            if self._looked_at >= since:
                return self._others
            if since > self._look_since:
                self._look_since = since
                self._tell()
            return None

    def announce(self, slots: frozenset[str]) -> None:
        if slots != self._wanted:
            with self._change:
                self._wanted = slots
                self._tell()

    def announced(self, now: float) -> frozenset[str]:
        files = self._files
        return files.slots if now < files.until else frozenset()

    def close(self) -> None:
        """Nothing of it is in flight any more. Waits for the store, but not for long."""
        with self._change:
            self._is_closing = True
            self._change.notify()
        if self._thread is not None:
            self._thread.join(_RETRY)

    def _tell(self) -> None:
        if self._thread is None and not self._is_closing:
            self._thread = threading.Thread(target=self._run, name="any2ds-overtime", daemon=True)
            self._thread.start()
        self._change.notify()

    def _run(self) -> None:
        folder: _Folder | None = None
        warned = False
        while True:
            with self._change:
                self._change.wait_for(self._has_work, self._pause())
                wanted, is_closing = self._wanted, self._is_closing
            try:
                if folder is None:
                    folder = _Folder(self._new_output(), self._id)
                if is_closing:
                    folder.leave(self._files.names)
                    return
                self._publish(folder, wanted)
                if self._looked_at < self._look_since:
                    self._look(folder)
                warned = False
            except Exception as error:  # every file system has exceptions of its own
                message = "the turns of other processes at hosts are not known: %s"
                log.log(logging.DEBUG if warned else logging.WARNING, message, error_text(error))
                warned = True
                if is_closing:
                    return
                time.sleep(_RETRY)

    def _has_work(self) -> bool:
        return self._is_closing or self._looked_at < self._look_since or self._is_to_publish(self._wanted, time.time())

    def _pause(self) -> float | None:
        """Seconds until there may be something to publish."""
        if not (self._files.names or self._wanted):
            return None
        return max(0.01, min(self._files.until - _RENEWED * _LIFE, self._shrinks_at) - time.time(), 0.0)

    def _is_to_publish(self, wanted: frozenset[str], now: float) -> bool:
        files = self._files
        if not wanted <= files.slots or (wanted and now > files.until - _RENEWED * _LIFE):
            return True
        return wanted != files.slots and (not wanted or now >= self._shrinks_at)

    def _publish(self, folder: _Folder, wanted: frozenset[str]) -> None:
        began = time.time()
        if not self._is_to_publish(wanted, began):
            return
        previous, names, until = self._files, [], began + _LIFE
        slots = sorted(wanted)
        for start in range(0, len(slots), _SLOTS):
            self._number += 1
            content = "".join(slots[start : start + _SLOTS])
            names.append(f"{round(until * 1000):013d}.{self._id}.{self._number}.{content}")
        folder.add(names)
        self._files = _Files(wanted, tuple(names), until)
        self._shrinks_at = time.time() + _SHRINKS
        if names:
            self._took.append(time.time() - began)
        folder.remove(previous.names)

    def _look(self, folder: _Folder) -> None:
        began = time.time()
        others: set[str] = set()
        expired = []
        for name in folder.names():
            until, _, rest = name.partition(".")
            author, _, rest = rest.partition(".")
            if author == self._id or not until.isdigit():
                continue
            if int(until) / 1000 + 2 * CLOCKS < began:
                expired.append(name)
                continue
            content = rest.partition(".")[2]
            others.update(content[at : at + _SLOT] for at in range(0, len(content), _SLOT))
        self._took.append(time.time() - began)
        with self._change:
            self._others, self._looked_at = frozenset(others), began
        folder.remove(expired)


class _Folder:
    """`layout.OVERTIME_FOLDER` of an output folder: nothing in it has to outlive a power failure."""

    def __init__(self, output: OutputFolder, id: str) -> None:
        self._output = output
        self._path = Path(output.path) / layout.OVERTIME_FOLDER if output.is_local else None
        self._id = id

    def names(self) -> Sequence[str]:
        if self._path is None:
            return self._output.names(layout.OVERTIME_FOLDER)
        # Network disks keep lists for a while, but not those of folders that this machine has changed meanwhile.
        self.add([f"look.{self._id}"])
        names = os.listdir(self._path)
        self.remove([f"look.{self._id}"])
        return names

    def add(self, names: Iterable[str]) -> None:
        for name in names:
            if self._path is None:
                self._output.put(f"{layout.OVERTIME_FOLDER}/{name}", b"any2ds")
                continue
            for left in reversed(range(_TRIES)):
                try:
                    self._path.mkdir(parents=True, exist_ok=True)
                    (self._path / name).touch()
                    break
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
