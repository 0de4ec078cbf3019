"""Takes cases through the real pipeline, in child processes that may die, and says what became of each."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue

from any2ds.config.media import TransformLimits
from any2ds.config.options import OutputOptions
from any2ds.core.bodies.buffer import Buffer
from any2ds.core.failures import FAILURE_CODES, FILTERED, SUCCESS
from any2ds.core.processes.child_process import Answering, ChildEnded
from any2ds.core.rows import Row
from any2ds.core.samples import Fetched, Payload, Samples, code_of, release
from any2ds.transforms.chain import Pipeline
from any2ds.transforms.isolation import Isolation
from any2ds.transforms.pipeline import PipelineRunner
from any2ds.worker.describe import Describe
from tests.support.fuzz.cases import SETTINGS, case

MOST_MEMORY = 192 << 20  # bytes that one case may take, beside what its process has
_LOADED = 96 << 20  # that a child has when it has loaded its library
_BUDGET = 64 << 20  # of decoded bytes, for `--max_decoded_bytes`
_NET = 3 << 30  # bytes for a whole process: so much this machine is going to bear
_LATE = 60.0  # seconds, for `--transform_timeout`
_LIMITS = TransformLimits(1, _LATE, _BUDGET)
_PATIENCE = 4 * _LATE  # seconds until a process that says nothing is killed


@dataclass(frozen=True, slots=True)
class Played:
    """What became of one case."""

    number: int
    name: str
    codes: tuple[str, ...]  # of its samples, each once
    seconds: float
    memory: int  # bytes at the most, beside what its process had, or a child; 0 where the system does not tell
    words: str = ""  # of its first failure

    @property
    def code(self) -> str:
        """That stands for it."""
        return SUCCESS if SUCCESS in self.codes else self.codes[0] if self.codes else "none"

    @property
    def problem(self) -> str:
        """What is wrong with that; "" if nothing is."""
        if "died" in self.codes:
            return f"its process {self.words}"
        if not self.codes:
            return "it has no outcome"
        if "transform_timeout" in self.codes:
            return "it hangs"
        if unknown := set(self.codes) - {*FAILURE_CODES, SUCCESS, FILTERED}:
            return f"an unknown code: {', '.join(unknown)}"
        return f"it took {self.memory >> 20} MB" if self.memory > MOST_MEMORY else ""


def play(seed: int, numbers: Iterable[int], processes: int, transform: str | None = None) -> Iterator[Played]:
    """All of these, in any order; `transform` names a step that they go through in the end, as `--transform` does."""
    waiting, lock = iter(numbers), threading.Lock()
    done: SimpleQueue[Played | BaseException | None] = SimpleQueue()

    def take() -> int | None:
        with lock:
            return next(waiting, None)

    def run() -> None:
        child: Answering[int, Played] | None = None
        try:
            while (number := take()) is not None:
                if child is None:
                    child = Answering(_NewPlayer(seed, transform))
                    child.begin()
                began = time.monotonic()
                try:
                    done.put(child.ask(number, _PATIENCE))
                except ChildEnded as error:
                    child = None
                    done.put(
                        Played(number, case(seed, number).name, ("died",), time.monotonic() - began, 0, str(error))
                    )
        except BaseException as error:
            done.put(error)
        finally:
            if child is not None:
                child.end()
            done.put(None)

    for _ in range(processes):
        threading.Thread(target=run, daemon=True).start()
    while processes:
        said = done.get()
        if isinstance(said, BaseException):
            raise said
        if said is None:
            processes -= 1
        else:
            yield said


@dataclass(frozen=True, slots=True)
class _NewPlayer:
    """Makes what plays in the child."""

    seed: int
    transform: str | None

    def __call__(self) -> _Player:
        with contextlib.suppress(ImportError):
            import resource

            resource.setrlimit(resource.RLIMIT_AS, (_NET, resource.getrlimit(resource.RLIMIT_AS)[1]))
        player = _Player(self.seed, (self.transform,) if self.transform else None)
        player(0)  # whatever is loaded late is loaded now
        return player


class _Player:
    def __init__(self, seed: int, transform: tuple[str, ...] | None) -> None:
        self._seed = seed
        self._describe = Describe(OutputOptions())
        self._settings = {
            name: replace(media, files=replace(media.files, transform=transform)) for name, media in SETTINGS.items()
        }
        self._pipelines = {name: Pipeline(media) for name, media in self._settings.items()}

    def __call__(self, number: int) -> Played:
        played = case(self._seed, number)
        before = _peaks(anew=True)
        began = time.monotonic()
        media = self._settings[played.setting]
        with (
            closing(Buffer(_BUDGET, 1)) as buffer,
            closing(Isolation(media, _LATE)) as isolated,
            closing(PipelineRunner(self._pipelines[played.setting], _LIMITS, True, isolated=isolated)) as steps,
        ):
            body = buffer.hold(played.file.data)
            payload = Payload(body, played.file.media_type, 200, None, 0.0)
            sample = self._describe(Fetched(Row(0, number, f"{number:07d}", "https://example.com"), payload))
            found: list[Samples] = []
            if steps.wants(sample):
                steps.submit(sample, buffer)
                while steps.pending:
                    found += steps.turn(is_ending=True, seconds=1.0)
            else:
                found.append((sample,))
            samples = [sample for samples in found for sample in samples]
            codes = tuple(dict.fromkeys(code_of(sample) for sample in samples))
            words = next((sample.failure.detail for sample in samples if sample.failure is not None), "")
            release(samples)
            taken = _taken(before)
        return Played(number, played.name, codes, time.monotonic() - began, taken, words)


def _taken(before: Mapping[str, int]) -> int:
    """Bytes that the process which took the most has taken beside what it had: a child that is new, what another one
    had, since loading a library does not count."""
    loaded = min((peak for pid, peak in before.items() if pid != "self"), default=_LOADED)
    return max([0, *(peak - before.get(pid, loaded) for pid, peak in _peaks().items())])


def _peaks(anew: bool = False) -> dict[str, int]:
    """Bytes that this process and its children had at the most, `anew` from now on; none where that is not known."""
    if sys.platform != "linux":
        return {}
    found = {}
    for pid in ("self", *_children()):
        with contextlib.suppress(OSError):  # it has ended
            if anew:
                Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")
            for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines():
                if line.startswith("VmHWM:"):
                    found[pid] = int(line.split()[1]) << 10
    return found


def _children() -> list[str]:
    with contextlib.suppress(OSError):
        return [
            pid
            for thread in Path("/proc/self/task").iterdir()
            for pid in (thread / "children").read_text(encoding="ascii").split()
        ]
    return []
