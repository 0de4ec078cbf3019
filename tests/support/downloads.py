"""What the downloads of a recipe do, tried from within a recipe that is built."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import any2ds
from tests.support.flowers import build


class Downloads:
    """Each call builds a recipe of one sample, in whose `splits` it happens."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def extract(self, archive: Path) -> Path:
        found: Path = self.within(lambda dl: dl.extract(archive))
        return found

    def iter_archive(self, archive: Path) -> list[tuple[str, bytes]]:
        """Name and content of each file."""
        found: list[tuple[str, bytes]] = self.within(
            lambda dl: [(name, file.read()) for name, file in dl.iter_archive(archive)]
        )
        return found

    def within(self, action: Callable[[Any], Any]) -> Any:
        """What the action makes of the downloads that `splits` is given."""
        found = []

        class Trial(any2ds.Recipe):
            """One sample."""

            def info(self) -> any2ds.Info:
                return any2ds.Info({"text": any2ds.Text()})

            def splits(self, dl: Any) -> Any:
                found.append(action(dl))
                return iter([("a", {"text": "a"})])

        build(Trial(), self._folder, download_dir=str(self._folder), overwrite=True)
        return found[0]
