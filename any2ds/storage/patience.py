"""Retries of what may work later: how often, how long, and for which errors."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from any2ds.core.errors import RunError, UsageError, error_text, is_full

log = logging.getLogger(__name__)

T = TypeVar("T")

# Answers that are no failures: there is no such file, or no library for it, or another run has the folder.
_ANSWERS = (FileNotFoundError, FileExistsError, NotADirectoryError, ImportError, UsageError, RunError)
# Errors of the request, not of the state of the store. Most stores translate their errors to these.
_OF_THE_REQUEST = (
    *(PermissionError, IsADirectoryError, NotImplementedError),
    *(AttributeError, IndexError, TypeError, ValueError),
)
_NO_CREDENTIALS = {
    *("NoCredentialsError", "PartialCredentialsError"),  # botocore
    *("DefaultCredentialsError", "RefreshError"),  # google.auth
    *("AuthenticationException", "BadHostKeyException"),  # paramiko
}
_PASSING_STATUS = {408, 409, 423, 425, 429}  # of HTTP, among those of the client


@dataclass(frozen=True, slots=True)
class Patience:
    """How often something is tried, and how long it rests in between: twice as long each time, and a bit at random."""

    attempts: int
    first: float  # seconds
    longest: float  # seconds
    within: float | None = None  # seconds after which nothing is tried again; None: for as long as there are attempts

    @classmethod
    def of_seconds(cls, within: float) -> Patience:
        """Tries again for so long, whatever an attempt takes."""
        return cls(2 + int(within), PATIENT.first, PATIENT.longest, within)

    def pauses(self, chance: Callable[[], float] = random.random) -> Iterator[float]:
        """Seconds after each attempt but the last; up to a half is taken off by `chance`, which is below 1."""
        for number in range(self.attempts - 1):
            yield min(self.longest, self.first * 2 ** min(number, 60)) * (1 - chance() / 2)


# About two minutes in all: a store that was restarted, or asks everybody to slow down, is back by then. Libraries that
# try again by themselves are told not to, where they can be (`stores.py`).
PATIENT = Patience(12, 1.0, 20.0, within=120.0)
BRIEF = Patience(3, 0.3, 1.0)  # credentials may just be renewed


def is_permanent(error: BaseException) -> bool:
    """Whether the same request would most likely fail again: no such bucket, access denied, no credentials."""
    if isinstance(error, (*_ANSWERS, *_OF_THE_REQUEST)) or is_full(error):
        return True
    if any(kind.__name__ in _NO_CREDENTIALS for kind in type(error).__mro__):
        return True
    if type(error) is OSError and str(error).startswith("Forbidden"):  # gcsfs' word for a 403
        return True
    status = next((getattr(error, name, None) for name in ("status_code", "status", "code") if hasattr(error, name)), 0)
    try:
        number = int(status or 0)
    except (TypeError, ValueError):
        return False
    return 400 <= number < 500 and number not in _PASSING_STATUS


def persist(
    what: str, attempt: Callable[[], T], stop: threading.Event | None = None, patience: Patience = PATIENT
) -> T:
    """The result of `attempt`, which is tried again while it fails, for a short time only if the error is permanent.

    `what` is for the log. Raises the last error; at once what is an answer, or any if `stop` is set.
    """
    pauses, brief_pauses, began = patience.pauses(), BRIEF.pauses(), time.monotonic()
    while True:
        try:
            return attempt()
        except _ANSWERS:
            raise
        except Exception as error:  # every file system has exceptions of its own
            pause = next(pauses, None)
            if pause is not None and is_permanent(error):
                pause = next(brief_pauses, None)
            is_late = patience.within is not None and time.monotonic() - began + (pause or 0) > patience.within
            if pause is None or is_late:
                raise
            level = logging.WARNING if pause > 5 else logging.INFO
            log.log(level, "%s: %s; tried again in %.1f s", what, error_text(error), pause)
            if (stop or _NEVER).wait(pause):
                raise


_NEVER = threading.Event()
