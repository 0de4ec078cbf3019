"""Work in child processes, with functions of the standard library that do what may happen to one."""

import math
import operator
import os
import signal
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from any2ds.core.errors import RunError
from any2ds.dataset.verify.pool import map_in_processes
from any2ds.testing.processes import wait_until_gone


def reported(item: Any, why: str) -> str:
    return f"{item}: {why}"


def test_what_kills_a_process_or_raises_in_it_costs_its_own_item_alone() -> None:
    found = list(map_in_processes(signal.raise_signal, [signal.SIGKILL, signal.SIGCONT, signal.SIGTERM], 1, reported))
    assert len(found) == 3
    assert None in found
    lost = [words for words in found if words]
    assert all("was killed by signal" in words for words in lost)
    raised = list(map_in_processes(math.sqrt, [4.0, -1.0, 9.0], 1, reported))
    assert [found for found in raised if not isinstance(found, str)] == [2.0, 3.0]
    assert "exit code 1" in next(found for found in raised if isinstance(found, str))


def test_processes_that_cannot_be_started_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RunError, match="exit code 1"):
        list(map_in_processes(operator.neg, [1, 2], 2, reported))


def test_processes_end_when_the_parent_is_killed() -> None:
    script = textwrap.dedent(
        """
        import logging, os
        from any2ds.dataset.verify.pool import map_in_processes

        logging.getLogger("any2ds").setLevel(logging.DEBUG)  # programs are heard
        for found in map_in_processes(os.system, ["echo $PPID $$ >&2; exec sleep 1000"], 1, lambda item, why: why):
            pass
        """
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
    assert parent.stderr is not None
    with parent.stderr as said:
        worker, sleeping = map(int, said.readline().split())
        parent.kill()
        parent.wait()
    try:
        wait_until_gone([worker])
    finally:
        os.kill(sleeping, signal.SIGKILL)
