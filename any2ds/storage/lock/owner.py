"""The process that owns a file, identified so that other machines and containers can tell it from theirs."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
import uuid
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

State = Literal["alive", "gone", "unknown"]


@dataclass(frozen=True, slots=True)
class Owner:
    """A process. Containers may share a host name, and process ids mean something in their own pid namespace only."""

    host: str
    pid: int
    kernel: str = ""  # of this boot of this machine, containers included; "" if unknown
    pids: str = ""  # the namespace that `pid` is from
    born: str = ""  # when it was started, in the kernel's terms: ids are used again

    @classmethod
    def here(cls) -> Owner:
        return _process(os.getpid())

    @classmethod
    def parse(cls, folder_name: str) -> Owner | None:
        """From the name of a staging folder; None for any other name."""
        match = re.fullmatch(r"([A-Za-z0-9._]+)-(\d+)-[0-9a-f]{8}", folder_name)
        return cls(match[1], int(match[2])) if match else None

    @property
    def name(self) -> str:
        return f"{self.host}-{self.pid}"

    def shares_kernel(self) -> bool:
        """Whether it surely runs, or ran, under the kernel of this process: locks on files are shared then."""
        return bool(self.kernel) and self.kernel == _kernel()

    def state(self) -> State:
        """Whether it lives, as far as this process can know; by host and id where nothing else is known of it."""
        is_comparable = self.shares_kernel() and self.pids == _namespace()
        if not self.kernel:
            is_comparable = self.host == Owner.here().host
        if not is_comparable or sys.platform == "win32":  # kill(0) kills there
            return "unknown"
        born = _birth(self.pid)
        if self.born and born is not None:
            return "alive" if born == self.born else "gone"
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return "gone"
        except OSError:
            pass
        return "unknown"  # there is a process with this id, which may be another one


@cache
def _process(pid: int) -> Owner:
    host = re.sub(r"[^A-Za-z0-9.]", "_", socket.gethostname())
    return Owner(host, pid, _kernel(), _namespace(), _birth(pid) or "")


@cache
def _kernel() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{socket.gethostname()}-{uuid.getnode():012x}"


@cache
def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _birth(pid: int) -> str | None:
    """When the process was started, in ticks since the machine was; None if that is unknown, "" if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()  # the name before may hold anything
    return "" if state in "ZX" else fields[18]  # a zombie holds nothing any more; proc(5): starttime is field 22
