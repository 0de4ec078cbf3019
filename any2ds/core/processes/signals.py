"""Handles SIGINT, SIGTERM and SIGHUP while a run goes on: stop in good order, and at once when they come again."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Any, NoReturn

_PATIENCE = 0.5  # seconds that an orderly end may be late
_LAST_RESORT = 1.5  # seconds that cleaning up may take, in a process that is ours
_CLEANING_UP = 3.0  # seconds for that where no run was at work yet: the lock lies on a store that may not answer


# SIGHUP says that the terminal is gone, and asks for what SIGTERM does; `nohup` has it ignored, and so it stays.
_TERMINATING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class Terminated(SystemExit):
    """SIGTERM or SIGHUP, as an exception: Python's own clean-up is run on its way, and the process ends with 143."""

    def __init__(self, code: int = 128 + signal.SIGTERM) -> None:
        super().__init__(code)


_raised: int | None = None  # the last signal that an exception was raised for


def raise_for(number: int, frame: Any = None) -> NoReturn:
    """A signal handler: the exception that stands for signal `number`."""
    global _raised
    _raised = number
    raise KeyboardInterrupt if number == signal.SIGINT else Terminated


@contextmanager
def interrupt_kept() -> Iterator[None]:
    """Raise the exception of a signal again where another error took its place.

    Python makes `TypeError: expected a message argument` of an interrupt in the middle of an import, and libraries
    answer one in their callbacks with errors of their own.
    """
    try:
        yield
    except Exception:
        if _raised is not None:
            raise_for(_raised)
        raise


def _end(number: int, frame: Any = None) -> NoReturn:
    """The handler of a process that is ours, outside of a run: what cleans up on the way of the exception may ask a
    store that gives no answer, again and again, and must not keep the process."""
    if _process_is_ours and hasattr(signal, "setitimer"):
        is_again = signal.getitimer(signal.ITIMER_REAL)[0] > 0
        signal.signal(signal.SIGALRM, lambda *_: _exit(number))
        signal.setitimer(signal.ITIMER_REAL, _LAST_RESORT if is_again else _CLEANING_UP)
    raise_for(number)


_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler, raise_for, _end)


def _is_default(handler: Any) -> bool:
    """Whether nobody has put it there on purpose: a Spark session brings one that cancels all of its jobs."""
    return handler in _DEFAULTS or getattr(handler, "__module__", "").startswith("pyspark.")


class Stop:
    """Whether the run was asked to stop, and by which signal."""

    def __init__(self, tell: Callable[[float], None], grace: float, own_process: bool) -> None:
        self.asked: int | None = None  # the first signal
        self.grace = grace  # seconds
        self._tell = tell
        self._own_process = own_process
        self._alarms = _Alarms()

    def check(self) -> None:
        """Raise KeyboardInterrupt or Terminated if it was asked for."""
        if self.asked is not None:
            raise_for(self.asked)

    def handle(self, number: int, frame: Any) -> None:
        """A signal handler. It runs in the middle of whatever the main thread is at, locks held and all."""
        if self.asked is None and self.grace:
            self.asked = number
            self._tell(self.grace)
            self._alarms.set(self.grace + _PATIENCE, _again, number)
            self._bound(number, self.grace + _PATIENCE + _LAST_RESORT)
            return
        self.asked = self.asked or number
        self._bound(number, _LAST_RESORT)
        raise_for(number)

    def _bound(self, number: int, seconds: float) -> None:
        """End the process after so many seconds: a disk that is gone, for instance, must not keep it."""
        if self._own_process:
            self._alarms.set(seconds, _exit, number)

    def start(self) -> None:
        self._alarms.start()

    def close(self) -> None:
        """The run is over; what comes after it stays bounded."""
        self._alarms.cancel(_again)


class _Alarms:
    """Does things later, in a thread that is there before: a signal's handler may not start one."""

    def __init__(self) -> None:
        self._orders: SimpleQueue[tuple[float, Callable[[int], None], int] | None] = SimpleQueue()
        self._cancelled: Callable[[int], None] | None = None

    def start(self) -> None:
        threading.Thread(target=self._run, name="any2ds-alarms", daemon=True).start()

    def set(self, seconds: float, function: Callable[[int], None], number: int) -> None:
        self._orders.put((time.monotonic() + seconds, function, number))

    def cancel(self, function: Callable[[int], None]) -> None:
        """Whatever was or is going to be set with it."""
        self._cancelled = function
        self._orders.put(None)

    def _run(self) -> None:
        due: list[tuple[float, Callable[[int], None], int]] = []
        while due or self._cancelled is None:
            first = min((at for at, _, _ in due), default=None)
            try:
                order = self._orders.get(timeout=None if first is None else max(0.0, first - time.monotonic()))
            except Empty:
                order = None
            if order is not None:
                due.append(order)
            due = [alarm for alarm in due if alarm[1] is not self._cancelled]
            now = time.monotonic()
            for _, function, number in [alarm for alarm in due if alarm[0] <= now]:
                function(number)
            due = [alarm for alarm in due if alarm[0] > now]


@contextmanager
def stoppable(tell: Callable[[float], None], grace: float) -> Iterator[Stop]:
    """Around a run. At the first signal `tell` is called with `grace`, which may only set a flag; when it comes again,
    or `grace` is over and the run is not, KeyboardInterrupt or Terminated is raised wherever the main thread is.

    Handlers are put in the place of Python's own alone, in the main thread, and are gone afterwards.
    """
    stop = Stop(tell, grace, _process_is_ours)
    replaced: dict[signal.Signals, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, *_TERMINATING):
                if _is_default(present := signal.getsignal(number)):
                    replaced[number] = present
                    signal.signal(number, stop.handle)
        if replaced:
            stop.start()
        yield stop
    finally:
        stop.close()
        for number, handler in replaced.items():
            signal.signal(number, handler)


_process_is_ours = False


def own_process() -> None:
    """This process is there for any2ds alone, as on the command line: if cleaning up hangs, it is ended."""
    global _process_is_ours
    _process_is_ours = True
    for number in (signal.SIGINT, *_TERMINATING):
        if number == signal.SIGTERM or signal.getsignal(number) in _DEFAULTS:
            signal.signal(number, _end)


def is_own_process() -> bool:
    return _process_is_ours


def not_own_process() -> None:
    """In a copy of such a process."""
    global _process_is_ours
    _process_is_ours = False


def _again(number: int) -> None:
    """Let the main thread have the signal again; one that waits in the system is interrupted by a real one."""
    if sys.platform == "win32":
        _thread.interrupt_main(number)
    else:
        signal.pthread_kill(threading.main_thread().ident or 0, number)


def _exit(number: int) -> None:
    os._exit(128 + (number if number == signal.SIGINT else signal.SIGTERM))
