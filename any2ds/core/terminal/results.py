"""Writes the result of a command to standard output or into a file that the command names: whole, or with an error."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from any2ds.core.errors import OutputError


@contextmanager
def standard_output() -> Iterator[TextIO]:
    """To write a result to. A reader that is gone has seen enough. Raises OutputError if it cannot be written."""
    if sys.stdout is None:  # a program without a console
        yield io.StringIO()
        return
    try:
        yield sys.stdout
        sys.stdout.flush()
    except BrokenPipeError:
        with contextlib.suppress(OSError, ValueError):  # what is left in the buffer leads nowhere from now on
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError) as error:
        raise OutputError(f"standard output: {getattr(error, 'strerror', None) or error}") from error


def write_file(path: Path, content: bytes) -> None:
    """Write a file of the user's, which is replaced only once it is written whole. Raises OSError."""
    if path.exists() and not path.is_file():  # /dev/stdout, or a pipe
        path.write_bytes(content)
        return
    target = path.resolve()  # a link stays one
    number, name = tempfile.mkstemp(prefix=f".{target.name[:100]}-", dir=target.parent)
    temporary = Path(name)
    try:
        with open(number, "wb") as file:
            file.write(content)
        temporary.chmod(target.stat().st_mode if target.exists() else 0o666 & ~_umask())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
