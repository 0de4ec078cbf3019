"""Runs workers on a Ray cluster: one actor for each, which relays a process on its node."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any
from urllib.parse import urlsplit

from any2ds.config.options import RunOptions
from any2ds.core.errors import OptionError, RunError, error_text
from any2ds.core.processes import child_process
from any2ds.core.processes.resources import cores
from any2ds.core.version import __version__
from any2ds.distributors._quiet_ray import environment, ray, signals
from any2ds.distributors._relay import Heard, Hello, Relay
from any2ds.distributors._team import Place, TeamDistributor

log = logging.getLogger(__name__)

_HERE = ("", "local")  # addresses for which a Ray is started on this machine
_ANSWERS_WITHIN = 10.0  # seconds that the port of a cluster has to take a connection
_CONNECTS_WITHIN = 60.0  # and Ray to connect to it: something else may listen there
_CLIENT_PORT = 10001  # of ray://host
_PATIENCE = 30.0  # seconds that one call may wait on the node for a message
_CLOSE_TIMEOUT = 1.0  # seconds for calls to come back whose actors have been killed
_NOTHING_STARTS = 20.0  # seconds after which a log says that the cluster gives us no room
_LONGEST_FOLDER = 36  # characters of the temporary folder, where the path of a socket may have 107 with Ray's 70
# A Ray that is ours keeps little in its object store: jobs on their way.
_OBJECT_STORE_BYTES = 128 << 20
# Threads of an actor, for `send`, `hear`, `kill` and one to spare. Ray keeps no order among them; we call the next
# `send` when the one before has returned, and so with `hear`. (Its groups of threads, which do, are not for ray://.)
_THREADS = 4


class RayDistributor(TeamDistributor):
    def __init__(self, options: RunOptions) -> None:
        """Raises OptionError if there is no cluster at `ray_address`."""
        super().__init__(options)
        self._wanted = options.processes_count
        self._address = options.ray_address or os.environ.get("RAY_ADDRESS") or ""
        self._is_ours = False  # the connection to the cluster, and on this machine the cluster itself
        if not (self._address in _HERE or ray.is_initialized()):
            _check(self._address)
            _connect(self._address)
            self._is_ours = True

    @contextmanager
    def _place(self) -> Iterator[Place]:
        if not ray.is_initialized():
            self._is_ours = True
            _start(self._wanted)
        actors = _Actors()
        slots = self._wanted or int(ray.cluster_resources().get("CPU", 0)) or 1
        try:
            yield Place(slots, lambda: _RayLink(actors))
        finally:
            actors.close()

    def close(self) -> None:
        if self._is_ours:
            ray.shutdown()


def _check(address: str) -> None:
    """Whether somebody listens there: Ray itself takes two minutes to find out that nobody does, and exits."""
    if address == "auto":
        return
    parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        host, port = parts.hostname, parts.port or (_CLIENT_PORT if parts.scheme == "ray" else None)
    except ValueError:
        host = port = None
    if host is None or port is None:
        raise OptionError(f"invalid ray_address={address!r}: expected auto, host:port or ray://host:port")
    try:
        socket.create_connection((host, port), _ANSWERS_WITHIN).close()
    except OSError as error:
        raise _unreachable(address, error_text(error)) from error


def _unreachable(address: str, message: str) -> OptionError:
    return OptionError(
        f"ray_address={address!r}: no Ray cluster can be reached there ({message}). `ray status`, on a machine of the"
        " cluster, tells its address (port 6379; from outside ray://host:10001). If it asks for a token, set"
        " RAY_AUTH_MODE=token and RAY_AUTH_TOKEN here as well; without ray_address a Ray is started on this machine"
    )


def _missing(where: str) -> str:
    wanted = f"any2ds=={__version__}"
    return (
        f"any2ds, of the version that this machine has ({__version__}), is not installed on {where}: install it there,"
        f" or have Ray do it, by ray.init(runtime_env={{'pip': ['{wanted}']}}) before download(), or by"
        f' ray job submit --runtime-env-json=\'{{"pip": ["{wanted}"]}}\' -- any2ds ...'
    )


def _connect(address: str) -> None:
    """Raises OptionError if there is no cluster at `address`; Ray itself would wait for it for ever."""
    problems: list[str] = []

    def connect() -> None:
        try:
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
        except (Exception, SystemExit) as error:
            problems.append(error_text(error))

    with signals(), environment():
        logging.getLogger("ray").setLevel(logging.ERROR)  # it complains about threads
        thread = threading.Thread(target=connect, name="any2ds-ray-connect", daemon=True)
        thread.start()
        thread.join(_CONNECTS_WITHIN)
    if thread.is_alive():
        problems.append(f"what listens there does not answer as Ray does for {_CONNECTS_WITHIN:.0f} s")
    if problems:
        raise _unreachable(address, problems[0])


def _start(wanted: int | None) -> None:
    """Have a Ray on this machine. Raises OptionError if it does not start."""
    how: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    how |= {"num_cpus": wanted or cores(), "include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
    if sys.platform == "linux":  # it takes 127.0.0.1 for another name of an address that others can reach
        how["_node_ip_address"] = "127.0.0.2"
        if "RAY_TMPDIR" not in os.environ and len(tempfile.gettempdir()) > _LONGEST_FOLDER:
            how["_temp_dir"] = "/tmp/ray"
    with signals(), environment():
        try:
            ray.init("local", **how)  # in this thread, with which the processes that it starts end
        except (OSError, RuntimeError, ValueError, SystemExit, ray.exceptions.RayError) as error:
            raise OptionError(f"no Ray can be started on this machine ({error_text(error)})") from error


class _Actors:
    """The actors of one run, and the calls to them that are under way: none may be when Ray is shut down."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls = 0
        self._is_closed = False
        self._are_any_up = threading.Event()
        self._all: set[Any] = set()
        threading.Thread(target=self._look, name="any2ds-ray-look", daemon=True).start()

    def start(self) -> Any:
        """An actor, which begins when the cluster has room for it. It is one CPU, wherever in the cluster."""
        remote = ray.remote(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD", max_concurrency=_THREADS)
        level = logging.getLogger("any2ds").getEffectiveLevel()
        try:
            actor = remote(Relay).remote(sys.path, os.getcwd(), level)
        except ModuleNotFoundError as error:  # with ray:// it is looked for before there is an actor
            raise RunError(_missing("the head of the cluster")) from error
        self._all.add(actor)
        return actor

    def call(self, actor: Any, method: str, *given: Any) -> Any:
        """What it returns. Raises ray.exceptions.RayError as Ray does, and BrokenPipeError when the run is over."""
        with self._calling():
            return ray.get(getattr(actor, method).remote(*given))

    def tell(self, actor: Any, method: str) -> None:
        """The same without waiting for what comes of it."""
        with contextlib.suppress(ray.exceptions.RayError, BrokenPipeError), self._calling():
            getattr(actor, method).remote()

    def end(self, actor: Any) -> None:
        """Whether it has begun or not; its process goes with it."""
        with contextlib.suppress(ray.exceptions.RayError, BrokenPipeError), self._calling():
            ray.kill(actor)
        self._all.discard(actor)

    def is_up(self) -> None:
        self._are_any_up.set()

    def close(self) -> None:
        for actor in list(self._all):
            self.end(actor)
        self._are_any_up.set()
        with self._changed:
            self._is_closed = True
            self._changed.wait_for(lambda: not self._calls, _CLOSE_TIMEOUT)

    @contextmanager
    def _calling(self) -> Iterator[None]:
        with self._changed:
            if self._is_closed:  # Ray would start anew
                raise BrokenPipeError
            self._calls += 1
        try:
            yield
        finally:
            with self._changed:
                self._calls -= 1
                self._changed.notify_all()

    def _look(self) -> None:
        if not self._are_any_up.wait(_NOTHING_STARTS):
            log.warning("no worker has begun yet: each needs one free CPU of the Ray cluster (`ray status` shows them)")


class _RayLink:
    """A process on a node of the cluster, and the actor that relays it."""

    def __init__(self, actors: _Actors) -> None:
        self._actors = actors
        self._actor = actors.start()
        self._hello: Hello | None = None
        self._end_task = threading.Event()  # it is gone, or its actor is
        self._was_asked_to_end = False
        self._node = ""
        self.returncode: int | None = None
        self.lost = self.fault = ""
        self.answers: IO[bytes] = io.BufferedReader(_Answers(self._hear))

    @property
    def name(self) -> str:
        return f"worker process {self.pid} on {self._node}" if self._hello else "worker process that is to be started"

    @property
    def pid(self) -> int:
        return self._hello.pid if self._hello else 0

    @property
    def is_up(self) -> bool:
        return self._hello is not None

    def send(self, data: bytes) -> None:
        try:
            self._actors.call(self._actor, "send", data)
        except ray.exceptions.RayError as error:  # whoever listens gets the reason
            raise BrokenPipeError from error

    def close_input(self) -> None:
        """Its standard input ends with the actor."""

    def kill(self) -> None:
        if self.is_up and not (self._was_asked_to_end or self._end_task.is_set()):
            self._was_asked_to_end = True
            self._actors.tell(self._actor, "kill")
        else:
            self._actors.end(self._actor)

    def wait(self, seconds: float) -> None:
        if not self._end_task.wait(seconds) and self._was_asked_to_end:
            self._actors.end(self._actor)

    def _hear(self) -> bytes:
        """What it says next; nothing if it has ended."""
        try:
            if self._hello is None:
                self._meet()
            while not self._end_task.is_set():
                heard: Heard = self._actors.call(self._actor, "hear", _PATIENCE)
                if heard.complaints:
                    self._pass_on(heard.complaints)
                if heard.code is not None:
                    self.returncode = heard.code
                    self._end_task.set()
                if heard.answers:
                    return heard.answers
        except BrokenPipeError:
            self._end_task.set()
        except ray.exceptions.RayError as error:
            self._explain(error)
            self._end_task.set()
        return b""

    def _meet(self) -> None:
        """Wait until it has begun, which is when the cluster has room for it."""
        hello: Hello = self._actors.call(self._actor, "hello")
        self._node, self._hello = hello.node, hello
        self._actors.is_up()
        if hello.version != __version__:
            self.fault = f"{_missing(hello.node)}; there is {hello.version}"
            self._end_task.set()

    def _explain(self, error: Exception) -> None:
        message = str(error)
        if "No module named 'any2ds" in message:
            where = re.search(r"\bip=([^,)\s]+)", message)
            self.fault = _missing(where[1] if where else "a node of the cluster")
        elif isinstance(error, ray.exceptions.RayTaskError) or "in its creation task" in message:
            self.fault = error_text(Exception(message.strip().splitlines()[-1]))
        elif isinstance(error, ray.exceptions.RuntimeEnvSetupError):
            self.fault = error_text(error)
        else:
            dead = re.search(r"^The actor is dead because ([^.\n]+)", message, re.MULTILINE)
            self.lost = dead[1] if dead else error_text(error)

    def _pass_on(self, complaints: bytes) -> None:
        """To where processes of this machine would have written it."""
        where = self._node.encode()
        child_process.complain(b"".join(where + b": " + line for line in complaints.splitlines(keepends=True)))


class _Answers(io.RawIOBase):
    """What `hear` returns, as a stream; nothing is its end."""

    def __init__(self, hear: Callable[[], bytes]) -> None:
        self._hear = hear
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._rest = memoryview(self._hear())
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


PART = RayDistributor
