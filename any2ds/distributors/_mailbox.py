"""Messages between a run and its workers on machines that it has no connection to, as files in the output folder.

Each attempt at a task leaves its events in files that are numbered, and the run takes them away. They are pickled, and
signed with a key that only the run and its tasks have: others may write in the folder, too.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import pickle
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from any2ds.core import layout
from any2ds.core.errors import LockLost, error_text
from any2ds.storage.folders import OutputFolder

log = logging.getLogger(__name__)

Kind = Literal["began", "event", "stderr", "broken", "fatal", "ended"]
"""Messages of a task: it has begun; an event; a line of its standard error; why its worker cannot go on; an error that
ends the run; it has ended."""

_NAME = re.compile(r"(\d+)-([0-9a-f]{32})-(\d+)\.post")
_STOP = "stop"
_SIGNATURE = hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True)
class Mailbox:
    """Where the messages of the tasks of one run lie, and the key that they are signed with."""

    run: str
    key: bytes
    interval: float = 1.0  # seconds between two looks, and between two deliveries of a task

    @property
    def folder(self) -> str:
        return f"{layout.WORK_FOLDER}/{self.run}"

    @property
    def deliveries(self) -> str:
        """A folder of their own: it is looked at all the time, and what else tasks leave stays until the end."""
        return f"{self.folder}/post"

    def lock_file(self, task: int) -> str:
        """The lock file that each attempt at a task has to hold."""
        return f"{self.folder}/{task:06d}.lock"

    def task_file(self, task: int) -> str:
        """Where a task lies that is too large for what brings it to its machine."""
        return f"{self.folder}/{task:06d}.task"

    def mark(self, task: int) -> str:
        """The file that says that a task is over."""
        return f"{self.folder}/{task:06d}.over"

    def name(self, task: int, attempt: str, number: int) -> str:
        return f"{self.deliveries}/{task:06d}-{attempt}-{number:06d}.post"

    def open(self, output: OutputFolder) -> None:
        output.create_folder(self.deliveries)
        output.write(f"{self.folder}/{_OPEN}", self.signed("open"))

    def is_visible(self, output: OutputFolder) -> bool:
        """Whether `output` is the folder of the run: a machine may have another one of the same name."""
        content = output.read(f"{self.folder}/{_OPEN}")
        return content is not None and self.verified(content) == "open"

    def give_up(self, output: OutputFolder, task: int) -> None:
        """No attempt at it begins any more, and the one that may be at it publishes nothing: it holds no lock file."""
        output.write(self.mark(task), b"")
        output.remove_many([name for name in (self.lock_file(task),) if output.exists(name)])

    def order_stop(self, output: OutputFolder, grace: float) -> None:
        """Have all tasks stop; open shards may take so many seconds."""
        output.write(f"{self.folder}/{_STOP}", self.signed(grace))

    def grace(self, output: OutputFolder) -> float | None:
        """Seconds that open shards may take; None while nobody has to stop."""
        content = output.read(f"{self.folder}/{_STOP}")
        return None if content is None else self.verified(content)

    def signed(self, content: Any) -> bytes:
        data = pickle.dumps(content, pickle.HIGHEST_PROTOCOL)
        return hmac.digest(self.key, data, "sha256") + data

    def verified(self, content: bytes) -> Any:
        """None if it was not signed with this key."""
        signature, data = content[:_SIGNATURE], content[_SIGNATURE:]
        return pickle.loads(data) if hmac.compare_digest(signature, hmac.digest(self.key, data, "sha256")) else None

    def close(self, output: OutputFolder) -> None:
        """Nobody looks here any more."""
        output.remove_tree(self.folder)
        output.remove_folder_if_empty(layout.WORK_FOLDER)


_OPEN = "open"
_MOST_STDERR_LINES = 1000  # lines of standard error in a delivery
_SILENCE = 5.0  # seconds after which an attempt without messages leaves an empty delivery: it lives


class Outbox:
    """Messages of one attempt at a task; a thread delivers them at intervals, and the rest at the end."""

    def __init__(
        self, mailbox: Mailbox, output: OutputFolder, task: int, attempt: str, stop: Callable[[float], None]
    ) -> None:
        """`stop` is called in a thread of its own, with the seconds that open shards may take."""
        self._mailbox, self._output, self._task, self._attempt = mailbox, output, task, attempt
        self._stop = stop
        self._is_stopping = False
        self._lock = threading.Lock()
        self._unsent: list[tuple[Kind, Any]] = []
        self._stderr_lines = 0  # among these
        self._signed: bytes | None = None  # a delivery that may have arrived or not, and is sent again as it is
        self._number = 0
        self._sent = time.monotonic()
        self.lost: LockLost | None = None  # somebody else is at the task
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="any2ds-outbox", daemon=True)

    def __enter__(self) -> Outbox:
        self.send("began")
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._closing.set()
        self._thread.join()
        while self.lost is None and (self._signed or self._unsent):
            self._deliver()

    def send(self, kind: Kind, content: Any = None) -> None:
        with self._lock:
            self._unsent.append((kind, content))

    def send_stderr(self, line: bytes) -> bool:
        """Send a line of standard error, unless too many wait already."""
        with self._lock:
            self._stderr_lines += 1
            if self._stderr_lines <= _MOST_STDERR_LINES:
                self._unsent.append(("stderr", line))
            return self._stderr_lines <= _MOST_STDERR_LINES

    def _run(self) -> None:
        warned = False
        while True:
            try:
                self._deliver()
                self._look()
                warned = False
            except LockLost as error:
                self.lost = error
                self._stop(0.0)
                return
            except Exception as error:  # every file system has exceptions of its own; the next delivery has it all
                log.log(
                    logging.DEBUG if warned else logging.WARNING, "the run cannot be reached: %s", error_text(error)
                )
                warned = True
            if self._closing.wait(self._mailbox.interval):
                return

    def _look(self) -> None:
        if not self._is_stopping and (grace := self._mailbox.grace(self._output)) is not None:
            self._is_stopping = True
            self._stop(grace)

    def _deliver(self) -> None:
        if self._signed is None:
            with self._lock:
                unsent, self._unsent, self._stderr_lines = self._unsent, [], 0
            if not unsent and time.monotonic() - self._sent < _SILENCE:
                return
            self._signed = self._mailbox.signed(unsent)
        self._output.write(self._mailbox.name(self._task, self._attempt, self._number), self._signed)
        self._number += 1
        self._signed, self._sent = None, time.monotonic()


@dataclass(frozen=True, slots=True)
class Delivery:
    """Messages of an attempt at a task."""

    task: int
    attempt: str
    messages: Sequence[tuple[Kind, Any]]


class Inbox:
    """The deliveries of all tasks, for the run."""

    def __init__(self, mailbox: Mailbox, output: OutputFolder) -> None:
        self._mailbox, self._output = mailbox, output
        self._next: dict[tuple[int, str], int] = {}  # number of the next delivery

    def deliveries(self) -> Iterator[Delivery]:
        """Those that have come since the last call, of each attempt in order; they are gone then.

        Raises OutputError if the folder cannot be looked at.
        """
        matches = (_NAME.fullmatch(name) for name in self._output.names(self._mailbox.deliveries))
        found = [(int(match[1]), match[2], int(match[3])) for match in matches if match]
        names, coming = {}, dict(self._next)
        for task, attempt, number in sorted(found):
            if number == coming.get((task, attempt), 0):
                coming[task, attempt] = number + 1
                names[self._mailbox.name(task, attempt, number)] = task, attempt, number
        for name, content in self._output.read_many(list(names)):
            task, attempt, number = names[name]
            if content is None or number != self._next.get((task, attempt), 0):
                continue  # it is listed, and will be there the next time, and those behind it then
            self._next[task, attempt] = number + 1
            messages = self._mailbox.verified(content)
            if messages is not None:
                yield Delivery(task, attempt, messages)
        read = [(task, attempt, n) for task, attempt, n in found if n < self._next.get((task, attempt), 0)]
        self._output.remove_many([self._mailbox.name(*delivery) for delivery in read])
