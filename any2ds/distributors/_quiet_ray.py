"""Ray as a guest in our process: quiet on the terminal, without the signals' handlers, and sending nothing home.

`ray` is to be imported from here.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_OURS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Of nodes and actors that are lost: written to standard output whatever is asked for, and reported by us.
    "RAY_DEDUP_LOGS_SKIP_REGEX": r"^(A worker died or was killed|The node with node id)",
}


@contextmanager
def environment() -> Iterator[None]:
    """Around what Ray does when it reads the environment; what somebody else has set there stays."""
    added = {name: value for name, value in _OURS.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


@contextmanager
def signals() -> Iterator[None]:
    """Around what sets its handlers: SIGTERM would end the process at once, where a run ends in good order.

    It would not even do that where Ray's own handler is called in a place that takes no exceptions.
    """
    before = signal.getsignal(signal.SIGTERM)
    utils: Any = sys.modules.get("ray._private.utils")
    set_handler = getattr(utils, "set_sigterm_handler", None)
    if set_handler is not None:
        utils.set_sigterm_handler = lambda handler: None
    try:
        yield
    finally:
        if set_handler is not None:
            utils.set_sigterm_handler = set_handler
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


with environment(), signals():
    import ray as _ray

ray: Any = _ray  # what its types leave out is what we use
