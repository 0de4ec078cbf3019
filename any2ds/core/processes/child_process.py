"""Child processes: how one is started or forked, ends with its parent, and answers one question after the other.

Plain child processes and two pipes, rather than the `multiprocessing` module, whose children import the user's main
module again: a script or notebook that calls `download()` at top level would start itself over and over.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from queue import Empty, SimpleQueue
from typing import IO, Any, Generic, NoReturn, TypeVar

from any2ds.core.processes import quieting, signals

Question = TypeVar("Question")
Answer = TypeVar("Answer")

_PR_SET_PDEATHSIG = 1  # of linux/prctl.h
_QUIET, _LOUD = "quiet", "loud"
_CLOSE_TIMEOUT = 10.0  # seconds that a child has to end, once its pipes are closed
_FOR_THE_PARENT = [  # signals: it says how its children end
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
# Processes that have ended are forgotten when another one begins.
_started: list[subprocess.Popen[bytes] | ForkedProcess] = []

# The code that a child runs first, so that it finds the modules that the parent has found; argv is the parent's pid,
# the module
# with `main`, and whether libraries are to be quiet. Ctrl-C is for the parent, and so are SIGTERM and SIGHUP, which
# Slurm and systemd send to every process: it says how we end.
_BOOTSTRAP = """
import sys
sys.path[:] = filter(None, sys.path)  # a pickle.py in the folder at hand is none of ours
import os, pickle, signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
inlet = os.fdopen(os.dup(0), "rb")
nothing = os.open(os.devnull, os.O_RDONLY)
os.dup2(nothing, 0)  # a step's input(), or the ffmpeg that it runs, must not read what is for us
os.close(nothing)
try:
    sys.path[:] = pickle.load(inlet)
except EOFError:
    os._exit(1)
import importlib
importlib.import_module(sys.argv[2]).main(inlet)
"""


def start(module: str, *arguments: str, **how: Any) -> subprocess.Popen[bytes]:
    """A process that is going to call `module.main(inlet)`, once it is sent `sys.path`; `how` as Popen has it.

    `inlet` is what it is sent after that; its standard input is empty, and `arguments` are in `sys.argv[4:]`.
    """
    voice = _QUIET if quieting.is_wanted() else _LOUD
    command = [sys.executable, "-c", _BOOTSTRAP, str(os.getpid()), module, voice, *arguments]
    how.setdefault("stderr", quieting.stderr() if _stderr is None else _stderr)
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **how)
    _remember(child)
    return child


class ForkedProcess:
    """A copy of this process that runs `main`, with what is used here of Popen.

    It begins with all modules that this process has loaded, so that none is loaded twice. Not for Windows and macOS,
    and for a process that has no other thread: a copy of a lock that another thread holds stays locked.
    """

    def __init__(self, main: Callable[[IO[bytes]], None], arguments: Sequence[str]) -> None:
        """As `start`, in a session of its own. Raises OSError."""
        parent, voice = os.getpid(), _QUIET if quieting.is_wanted() else _LOUD
        inlet, to_child = os.pipe()
        from_child, outlet = os.pipe()
        for stream in (sys.stdout, sys.stderr):  # what is in their buffers would be written twice
            with contextlib.suppress(AttributeError, OSError, ValueError):
                stream.flush()
        # A signal between the fork and it ignores them would run the handlers of the parent in the child.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_THE_PARENT)
        try:
            self.pid = os.fork()
            if not self.pid:
                os.close(to_child)
                os.close(from_child)
                sys.argv[:] = ["-c", str(parent), main.__module__, voice, *arguments]
                _run_in_fork(main, inlet, outlet, blocked)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            os.close(inlet)
            os.close(outlet)
        self.stdin, self.stdout = os.fdopen(to_child, "wb"), os.fdopen(from_child, "rb")
        self.returncode: int | None = None
        self._lock = threading.Lock()  # a process id may be another's once it has been waited for
        _remember(self)

    def kill(self) -> None:
        with self._lock:
            if self.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float) -> int:
        """Raises subprocess.TimeoutExpired."""
        until, pause = time.monotonic() + timeout, 0.0005
        while True:
            with self._lock:
                if self.returncode is None:
                    try:
                        ended, status = os.waitpid(self.pid, os.WNOHANG)
                    except ChildProcessError:  # SIGCHLD is ignored, so that nobody learns how it ended
                        ended, status = self.pid, 0
                    if ended:
                        self.returncode = os.waitstatus_to_exitcode(status)
            if self.returncode is not None:
                return self.returncode
            if time.monotonic() >= until:
                raise subprocess.TimeoutExpired("fork", timeout)
            time.sleep(pause)
            pause = min(2 * pause, 0.05)


def _run_in_fork(main: Callable[[IO[bytes]], None], inlet: int, outlet: int, mask: Iterable[int]) -> NoReturn:
    """Bring the copy into the state of a process that was started, and run it to its end."""
    try:
        os.setsid()
        for number in _FOR_THE_PARENT:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signals.not_own_process()
        _started.clear()
        logging.getLogger("any2ds").handlers.clear()
        logging.getLogger("any2ds").setLevel(logging.NOTSET)
        logging.captureWarnings(False)  # which `--log_format=json` does, like the next
        threading.excepthook = threading.__excepthook__
        stderr = quieting.stderr() if _stderr is None else _stderr
        if stderr is not None:
            os.dup2(stderr, 2)
        os.dup2(outlet, 1)
        os.close(outlet)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        main(os.fdopen(inlet, "rb"))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _remember(child: subprocess.Popen[bytes] | ForkedProcess) -> None:
    _started[:] = [*(other for other in _started if other.returncode is None), child]


def running() -> list[int]:
    """The process ids of those that were started here and have not been seen to end. From any thread."""
    return [child.pid for child in tuple(_started) if child.returncode is None]


_stderr: int | None = None  # file descriptor that is the standard error of children; None: what is ours


def let_children_write_to(stderr: int | None) -> None:
    """The standard error of children that are started from now on; None: the same as that of this process."""
    global _stderr
    _stderr = stderr


def answer_parent() -> IO[bytes]:
    """To be called first by a `main`: the way to the parent, with which this process ends."""
    _end_with(int(sys.argv[1]))
    if sys.argv[3] == _QUIET:
        quieting.be_quiet()
    else:  # and so it is with its own children
        logging.getLogger("any2ds").setLevel(logging.DEBUG)
    return quieting.answers_alone()


def _end_with(parent: int) -> None:
    """End when the parent does, whatever this process is at.

    Where the system does not see to that, it is the end of the pipe from it that tells us, and a library that keeps
    the interpreter's lock keeps us alive for as long. Linux means the thread that started us.
    """
    if sys.platform == "linux":
        with contextlib.suppress(Exception):
            import ctypes

            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it has ended before we could ask for that
            os._exit(1)


def how_it_ended(code: int) -> str:
    """The return code of a process in words that follow a subject."""
    if code >= 0:
        return f"ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by signal {-code} ({signal.Signals(-code).name})"
    return f"was killed by signal {-code}"


class ChildEnded(Exception):
    """The process has not answered, and is gone; the words say how it ended. `late`: it was killed for that."""

    def __init__(self, message: str, late: bool = False) -> None:
        super().__init__(message)
        self.late = late


class Answering(Generic[Question, Answer]):
    """A child process that answers questions, one at a time; of one thread at a time, but for `kill`."""

    def __init__(self, new_answer: Callable[[], Callable[[Question], Answer]]) -> None:
        """`new_answer` is called in the child and makes what answers there; it is pickled, as is all that is said.

        `begin` is to be called next. Linux ends the child with the thread that calls this. Raises OSError.
        """
        self._said = [pickle.dumps(part, pickle.HIGHEST_PROTOCOL) for part in (sys.path, new_answer)]
        self._process = start(__name__)
        self._lock = threading.Lock()
        self._asked = 0  # questions, and answers to them: odd while one is open
        self._waiting: SimpleQueue[tuple[int, float] | None] = SimpleQueue()  # see `_watch`
        self._is_late = self._has_ended = False
        self._is_ready = False  # it has answered whatever it was asked, and the answer was read
        # Begun here and not with each question: an exception that is thrown into a thread while it begins another one
        # reaches the other one, and the first waits for it for ever (seen with CPython 3.11).
        threading.Thread(target=self._watch, name="any2ds-patience", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_usable(self) -> bool:
        """Whether it is there to be asked."""
        return self._is_ready and not (self._is_late or self._has_ended)

    def begin(self, patience: float = 0.0) -> None:
        """Wait until it has made what answers; as `ask`."""
        self._ask(patience, *self._said)

    def ask(self, question: Question, patience: float = 0.0) -> Answer:
        """Raises ChildEnded if there is no answer, because it ended, or was killed after `patience` seconds (0: never).

        A question that cannot be pickled raises as pickle does; the child is there to be asked something else.
        """
        answer: Answer = self._ask(patience, pickle.dumps(question, pickle.HIGHEST_PROTOCOL))
        return answer

    def _ask(self, patience: float, *said: bytes) -> Any:
        self._is_ready = False
        with self._lock:
            self._asked += 1
        if patience:
            self._waiting.put((self._asked, patience))
        to, of = self._process.stdin, self._process.stdout
        assert to is not None
        assert of is not None
        try:
            for part in said:
                to.write(part)
            to.flush()
            answer = pickle.load(of)
        except Exception as error:  # it may have ended anywhere in its answer
            raise ChildEnded(self.end(), self._is_late) from error
        except BaseException:  # a thread that is given up: the answer would be read as that to the next question
            self.kill()
            self.end()
            raise
        finally:
            with self._lock:
                self._asked += 1
            self._waiting.put(None)
        self._is_ready = True
        return answer

    def _watch(self) -> None:
        """Take how long each question may take, and then whether that is over."""
        while not self._has_ended:
            waiting = self._waiting.get()
            if waiting is not None:
                asked, patience = waiting
                try:
                    self._waiting.get(timeout=patience)
                except Empty:
                    self._give_up(asked)

    def _give_up(self, asked: int) -> None:
        with self._lock:
            if self._asked == asked:
                self._is_late = True
                self._process.kill()

    def kill(self) -> None:
        """From any thread: whoever waits for an answer is told that there is none."""
        self._process.kill()

    def wait(self) -> None:
        """From any thread: until a child that was killed is gone."""
        self._process.wait()

    def end(self) -> str:
        """See to its end, and say how it ended. A child that is well ends when nobody is left to ask it anything."""
        self._has_ended = True
        self._waiting.put(None)
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
        try:
            code = self._process.wait(_CLOSE_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        return how_it_ended(code)


def main(inlet: IO[bytes]) -> None:
    """The child of `Answering`."""
    outlet = answer_parent()
    questions: SimpleQueue[Any] = SimpleQueue()

    def receive() -> None:
        try:
            while True:
                questions.put(pickle.load(inlet))
        finally:  # the pipe ended: there are no more, or the parent is gone and nobody wants our work
            os._exit(0)

    try:
        answer = pickle.load(inlet)()
        threading.Thread(target=receive, daemon=True).start()
        said: Any = None
        while True:
            pickle.dump(said, outlet, pickle.HIGHEST_PROTOCOL)
            outlet.flush()
            said = answer(questions.get())
    except BrokenPipeError:
        pass
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:  # not as Python ends, which cannot with a thread that reads its standard input
        os._exit(1)
