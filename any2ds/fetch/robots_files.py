"""Shares the robots.txt of public hosts among the processes of this user on this machine, by small files.

A file is written by the process that has asked, and replaced as a whole. There are a fixed number of places, so what
many hosts answer does not fill the disk; where two origins share one, the last is kept.
"""

from __future__ import annotations

import os
import tempfile
import time
import zlib
from contextlib import suppress
from pathlib import Path

from any2ds.storage.disk.staging import is_private, named_for_user

_PLACES = 4096
_LONGEST = 32 << 10  # bytes; a longer robots.txt is asked for by each process: 128 MiB of files at most
_KEPT_FOR = 3600.0  # seconds; what a site changes is noticed after them


class RobotsFiles:
    """Contents by name, in the files of a folder, by default one of this user among the temporary ones."""

    def __init__(self, folder: Path | None = None) -> None:
        self._is_usable = False
        with suppress(OSError):
            self._folder = folder or named_for_user(Path(tempfile.gettempdir()), "any2ds-robots")
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._is_usable = is_private(self._folder)

    def read(self, name: str) -> bytes | None:
        """The content written under this name within the last hour; None if there is none."""
        if not self._is_usable:
            return None
        try:
            with self._place(name).open("rb") as file:
                age = time.time() - os.fstat(file.fileno()).st_mtime
                content = file.read(2 * _LONGEST)
        except OSError:
            return None
        written_as, _, content = content.partition(b"\n")
        return content if written_as == name.encode() and 0 <= age < _KEPT_FOR else None

    def write(self, name: str, content: bytes) -> None:
        """Keep the content for all processes, if it is short and there is room."""
        if not self._is_usable or len(name) + len(content) > _LONGEST:
            return
        place = self._place(name)
        written = place.with_name(f"{place.name}-{os.getpid()}")
        with suppress(OSError):
            try:
                written.write_bytes(name.encode() + b"\n" + content)
                written.replace(place)
            finally:
                written.unlink(missing_ok=True)

    def _place(self, name: str) -> Path:
        return self._folder / f"{zlib.crc32(name.encode()) % _PLACES:04}"
