"""Who may write to the terminal: what is said in Python may, what C libraries write by themselves may not.

libjpeg, libtiff and OpenCV complain of damaged files on file descriptor 2, a line or more for each, in the middle of
whatever stands on the screen.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import sys
import warnings
from typing import IO, TextIO, cast

log = logging.getLogger("any2ds")

_TALKATIVE = ("PIL", "trafilatura", "htmldate", "courlan", "justext", "charset_normalizer", "libav")  # loggers of files

_stderr: int | None = None  # where standard error was before it was made quiet


def is_wanted() -> bool:
    """Whether libraries are to be quiet in this process, and in those that it starts: unless everything is logged."""
    return not log.isEnabledFor(logging.DEBUG)


def stderr() -> int | None:
    """The file descriptor that a child process is to have as its standard error; None: that of this process."""
    return _stderr


def be_quiet() -> None:
    """From now on file descriptor 2 leads nowhere, and `sys.stderr` to where it led before.

    So print, logging, tracebacks and faulthandler are heard, and programs that a step runs are not, unless it gives
    them `stderr=sys.stderr`. Python's warnings are ignored, if nobody has asked for them (PYTHONWARNINGS), and so is
    what the libraries that read files log about them.
    """
    global _stderr
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    for name in _TALKATIVE:
        if logging.getLogger(name).level == logging.NOTSET:
            logging.getLogger(name).setLevel(logging.CRITICAL)
    if _stderr is not None:
        return
    with contextlib.suppress(OSError):  # it was closed: there is nobody to be disturbed
        kept = os.dup(2)
        _flush(sys.stderr)
        sys.stderr = _text(kept, sys.stderr)
        if faulthandler.is_enabled():
            faulthandler.enable(sys.stderr)
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 2)
        os.close(nothing)
        _stderr = kept


def answers_alone() -> IO[bytes]:
    """A stream to the former standard output, for answers to a parent that reads them there.

    Whatever else is written to standard output goes to standard error from now on, or nowhere, as `be_quiet` has it:
    it must not get between the answers.
    """
    answers = os.fdopen(os.dup(1), "wb")
    _flush(sys.stdout)
    os.dup2(2, 1)
    if _stderr is not None:
        sys.stdout = _text(os.dup(_stderr), sys.stdout)
    return answers


def _flush(stream: TextIO | None) -> None:
    with contextlib.suppress(AttributeError, OSError, ValueError):
        cast(TextIO, stream).flush()


def _text(file: int, like: TextIO | None) -> TextIO:
    """Each line is written at once: processes share it."""
    encoding = getattr(like, "encoding", None) or "utf-8"
    return os.fdopen(file, "w", buffering=1, encoding=encoding, errors="backslashreplace")
