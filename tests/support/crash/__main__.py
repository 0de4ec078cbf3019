"""The command line of the crash test: plays stories, several at a time, and sums up what was survived."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed
from pathlib import Path

from any2ds.core.processes.resources import cores
from tests.support import crash
from tests.support.crash.check import FORMATS
from tests.support.crash.places import may_mount
from tests.support.crash.plan import Told
from tests.support.crash.story import Seen, play_or_exit

_FORMATS = ("webdataset", "parquet", "files")  # those that are made differently; records are files like tars
_PLACES = {"folder": 10, "disk": 40, "s3": 6}  # and the shards of the first list: one takes S3 some 50 requests


def main() -> int:
    """0 if every story ended well, 1 if one did not, 2 if it cannot be done here."""
    arguments = _arguments()
    if not Path("/proc/self/environ").exists():
        _say("The crash test needs Linux: it looks for processes in /proc.")
        return 2
    # A shell that runs this in the background has SIGINT ignored, and so would all that is started from here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    started = time.monotonic()
    kept = Path(tempfile.mkdtemp(prefix="any2ds-crash-", dir=arguments.scratch))
    try:
        if "disk" in arguments.on and not may_mount(kept):
            _start_over_in_a_namespace()
            _say("A disk that fills needs root or `unshare -Urm`, to mount a small one.")
            return 2
        seeds = range(arguments.start, arguments.start + arguments.seeds)
        stories = [
            Told(form, seed, on, arguments.shards or _PLACES[on], arguments.kills, arguments.two)
            for seed in seeds
            for on in arguments.on
            for form in arguments.formats
        ]
        seen = _play(stories, kept, arguments.parallel)
        _sum_up(seen, time.monotonic() - started)
        if arguments.json:
            arguments.json.write_text(json.dumps([_to_json(one) for one in seen], indent=1) + "\n", encoding="utf-8")
        return int(any(one.problems for one in seen))
    finally:
        if not any(kept.iterdir()):
            kept.rmdir()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.crash",
        description=crash.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    def some_of(known: Collection[str]) -> Callable[[str], list[str]]:
        def parse(value: str) -> list[str]:
            words = value.split(",")
            if unknown := set(words) - set(known):
                raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: there are {', '.join(known)}")
            return words

        return parse

    parser.add_argument("--seeds", type=int, default=10, help="stories for each format (default: 10)")
    parser.add_argument("--start", type=int, default=0, help="the first seed; --seeds=1 --start=N plays N again")
    parser.add_argument(
        "--formats",
        type=some_of(FORMATS),
        default=list(_FORMATS),
        help=f"of {','.join(FORMATS)} (default: {','.join(_FORMATS)})",
    )
    parser.add_argument("--on", type=some_of(_PLACES), default=["folder"], help=f"of {','.join(_PLACES)}")
    parser.add_argument("--shards", type=int, help="of the first list of each story (default: 10, on S3 6)")
    parser.add_argument(
        "--kills", type=int, default=9, help="planned for each story, or pairs of commands (default: 9)"
    )
    parser.add_argument("--two", action="store_true", help="two commands at a time on one folder, instead of kills")
    parser.add_argument("--parallel", type=int, default=0, help="stories at a time (default: three for two cores)")
    parser.add_argument("--scratch", type=Path, help="where they work, and where those are kept that went wrong")
    parser.add_argument("--json", type=Path, help="where what was seen is written")
    return parser.parse_args()


def _start_over_in_a_namespace() -> None:
    """Where everybody may mount. Returns if there is none to be had."""
    unshare = shutil.which("unshare")
    if unshare is not None and not os.environ.get("ANY2DS_CRASH_NAMESPACE"):
        os.environ["ANY2DS_CRASH_NAMESPACE"] = "1"
        os.execv(unshare, [unshare, "-Urm", sys.executable, "-m", "tests.support.crash", *sys.argv[1:]])


def _play(stories: list[Told], scratch: Path, parallel: int) -> list[Seen]:
    seen: list[Seen] = []
    # Not forked: each has a server in a thread.
    context = multiprocessing.get_context("spawn")
    workers = min(len(stories), parallel or -(-3 * cores() // 2))
    with ProcessPoolExecutor(workers, context) as pool:
        try:
            tasks = [
                pool.submit(play_or_exit, reported, scratch / reported.name.replace(" ", "-")) for reported in stories
            ]
            for task in as_completed(tasks):
                one = task.result()
                seen.append(one)
                if one.problems:
                    _say(f"{one.reported.name}: FAILED, kept in {scratch / one.reported.name.replace(' ', '-')}")
                    for problem in one.problems:
                        _say(f"  {problem}")
                _say(f"{len(seen)} of {len(stories)} stories, {_kills(seen).total()} kills survived")
        except (KeyboardInterrupt, BrokenExecutor):
            _say("interrupted")
            pool.shutdown(cancel_futures=True)  # those under way come to their end
    return sorted(seen, key=lambda one: (one.reported.on, one.reported.output_format, one.reported.seed))


def _kills(seen: Iterable[Seen]) -> Counter[tuple[str, str]]:
    return sum((one.kills for one in seen if not one.problems), Counter())


def _sum_up(seen: Sequence[Seen], seconds: float) -> None:
    kills = _kills(seen)
    if not seen:
        return
    commands = sum((one.commands for one in seen), Counter[str]())
    _say("")
    for column, heading in enumerate(("kind", "moment")):
        by: Counter[str] = Counter()
        for names, count in kills.items():
            by[names[column]] += count
        _say(f"kills survived, by {heading}:")
        for name, count in by.most_common():
            _say(f"  {count:6}  {name}")
    if pairs := sum((one.pairs for one in seen), Counter[str]()):
        _say("pairs of commands, by what became of them:")
        for how, count in pairs.most_common():
            _say(f"  {count:6}  {how}")
    if requests := sum(one.failed_requests for one in seen):
        _say(f"requests of the object store that failed: {requests}")
    _say(
        f"{len(seen)} stories in {seconds / 60:.1f} minutes: {kills.total()} kills survived, "
        f"{sum(one.starts for one in seen)} starts, longest orphan {max(one.longest_orphan for one in seen):.1f} s, "
        f"commands that came to their end: {', '.join(f'{count} {name}' for name, count in commands.most_common())}"
    )
    failed = [one.reported.name for one in seen if one.problems]
    _say(f"FAILED: {', '.join(failed)}" if failed else "all ended well: each row once, nothing left over")


def _to_json(seen: Seen) -> dict[str, object]:
    return {
        "story": seen.reported.name,
        "kills": [[*names, count] for names, count in sorted(seen.kills.items())],
        "starts": seen.starts,
        "commands": dict(seen.commands),
        "pairs": dict(seen.pairs),
        "failed_requests": seen.failed_requests,
        "longest_orphan": seen.longest_orphan,
        "seconds": seen.seconds,
        "problems": seen.problems,
    }


def _say(words: str) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
