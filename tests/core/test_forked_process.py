"""A process that is a copy of its parent."""

import contextlib
import os
import select
import subprocess
import sys

CODE = """
import logging, os, pickle, signal, subprocess, sys
from any2ds.core.processes import child_process, signals
from any2ds.core.processes.child_process import ForkedProcess

def main(inlet):
    outlet = child_process.answer_parent()
    while True:
        question = pickle.load(inlet)
        print("to nobody")
        answers = {
            "state": (
                os.getsid(0) == os.getpid(), sys.stdin.read(), sys.argv[4:], signals.is_own_process(),
                logging.getLogger("any2ds").handlers, [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)],
                signal.pthread_sigmask(signal.SIG_BLOCK, []),
            ),
        }
        pickle.dump(answers[question], outlet)
        outlet.flush()

signals.own_process()
logging.getLogger("any2ds").addHandler(logging.NullHandler())
print("printed once", end="")  # waits in a buffer
child = ForkedProcess(main, ["more"])
"""


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", CODE + code], capture_output=True, text=True, timeout=60, check=True
    ).stdout


if sys.platform == "linux":

    def test_it_begins_as_a_process_that_was_started() -> None:
        output = run(
            "pickle.dump('state', child.stdin); child.stdin.flush()\n"
            "state = pickle.load(child.stdout)\n"
            "assert state == (True, '', ['more'], False, [], [signal.SIG_IGN] * 2, set()), state\n"
            "assert child_process.running() == [child.pid]\n"
            "child.stdin.close()\n"
            "assert child.wait(30) == 1\n"
            "child.kill()\n"  # nobody
            "assert child_process.running() == []\n"
        )
        assert output == "printed once"

    def test_its_end_is_that_of_a_process() -> None:
        assert run(
            "try:\n"
            "    child.wait(0)\n"
            "except subprocess.TimeoutExpired:\n"
            "    print(', waited')\n"
            "child.kill()\n"
            "print(child.wait(30), child.wait(30))\n"
        ).splitlines() == ["printed once, waited", "-9 -9"]

    def test_its_end_is_noticed_where_sigchld_is_ignored() -> None:
        """As a launcher may leave it: then the system tells nobody how a child has ended."""
        assert run(
            "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
            "os.kill(child.pid, signal.SIGKILL)\n"
            "print('', child.wait(30) is not None)\n"
            "child.kill()\n"
        ).splitlines() == ["printed once True"]

    def test_it_ends_with_its_parent() -> None:
        parent = "print('', child.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
        ran = subprocess.run([sys.executable, "-c", CODE + parent], capture_output=True, text=True, timeout=60)
        with contextlib.suppress(ProcessLookupError):  # it is gone already
            process = os.pidfd_open(int(ran.stdout.split()[-1]))
            assert select.select([process], [], [], 30)[0]
            os.close(process)
