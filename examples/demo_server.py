"""Serves examples/data on loopback and makes a url list for it, so that the examples need no network."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from any2ds.testing.server import serve

DATA = Path(__file__).parent / "data"


@contextmanager
def demo_urls() -> Iterator[Path]:
    """A csv file with the columns url, caption, topic and licence; some of its rows fail on purpose."""
    faults = json.loads((DATA / "faults.json").read_text(encoding="utf-8"))
    with serve(DATA, faults) as server, tempfile.TemporaryDirectory(prefix="any2ds-demo-") as folder:
        url_list = Path(folder) / "urls.csv"
        template = (DATA / "urls.csv").read_text(encoding="utf-8")
        url_list.write_text(template.replace("{server}", server.base_url), encoding="utf-8")
        yield url_list
