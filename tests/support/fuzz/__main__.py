"""The command line of the fuzz corpus: plays cases, several at a time, and sums up what became of them."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from any2ds.core.processes.resources import cores
from tests.support import fuzz
from tests.support.fuzz.cases import case
from tests.support.fuzz.play import Played, play


def main() -> int:
    """0 if every case ended well, 1 if one did not."""
    arguments = _arguments()
    numbers = (
        [arguments.only] if arguments.only is not None else range(arguments.start, arguments.start + arguments.cases)
    )
    began = time.monotonic()
    played: list[Played] = []
    for one in play(arguments.seed, numbers, arguments.parallel, arguments.transform):
        played.append(one)
        if one.problem:
            _say(f"{one.name}: {one.problem} ({', '.join(one.codes)}; {one.seconds:.1f} s)")
        if arguments.keep and (one.problem or arguments.only is not None):
            _keep(arguments.keep, arguments.seed, one.number)
        if len(played) % 1000 == 0:
            _say(f"{len(played)} cases, {time.monotonic() - began:.0f} s")
    _sum_up(played, time.monotonic() - began)
    return int(any(one.problem for one in played))


def _sum_up(played: list[Played], seconds: float) -> None:
    kinds: dict[str, Counter[str]] = {}
    for one in played:
        kinds.setdefault(one.name.split()[1].partition("-")[0], Counter())[one.code] += 1
    for kind, codes in sorted(kinds.items()):
        _say(f"{kind}: " + ", ".join(f"{count} {code}" for code, count in codes.most_common()))
    for one in sorted(played, key=lambda one: -one.seconds)[:5]:
        _say(f"slow: {one.seconds:.2f} s, {one.name}: {', '.join(one.codes)}")
    for one in sorted(played, key=lambda one: -one.memory)[:5]:
        _say(f"memory: {one.memory >> 20} MB, {one.name}: {', '.join(one.codes)}")
    words = Counter(f"{one.words[:100]} ({one.number})" for one in played if one.code == "transform_error")
    for word, count in words.most_common(10):
        _say(f"transform_error: {count} x {word}")
    problems = sum(bool(one.problem) for one in played)
    _say(f"{len(played)} cases in {seconds:.0f} s; {problems} went wrong")


def _keep(folder: Path, seed: int, number: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    file = case(seed, number).file
    (folder / f"{seed}-{number}-{file.name}").write_bytes(file.data)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.fuzz",
        description=fuzz.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cases", type=int, default=1000, help="how many (default: 1000)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed makes the same cases (default: 0)")
    parser.add_argument("--start", type=int, default=0, help="number of the first one")
    parser.add_argument("--only", type=int, help="number of a single one")
    parser.add_argument("--parallel", type=int, default=cores(), help="processes (default: cores)")
    parser.add_argument("--transform", help="a step of your own to go through as well: my_step.py:clean")
    parser.add_argument("--keep", type=Path, help="folder for the files of cases that went wrong")
    return parser.parse_args()


def _say(words: str) -> None:
    sys.stdout.write(words + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
