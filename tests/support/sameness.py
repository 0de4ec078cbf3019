"""What a run comes to, however it is distributed, as tests: the same dataset, with nothing lost and nothing twice.

Each test is a run of the command line, in processes of its own, against a real server.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pyarrow.parquet as pq

from any2ds import load, verify
from any2ds.testing.processes import LONG, wait_until
from any2ds.testing.server import Server, serve

_ROWS, _IN_SHARD = 30, 5
_SHARDS = _ROWS // _IN_SHARD
_TWO_URLS = "--url_col=image:url,mask:second"
_BAD = 3  # the shard that something is wrong with

# Has shard 3 fail to be published: a folder lies where its file is to be. The first time, or as often as it is made.
_STEPS = f"""
import os
import any2ds

PLACE, MARK = {{place!r}}, {{mark!r}}


def is_first(sample):
    return sample.key == "{_BAD:05d}0"


def once(sample):
    if is_first(sample) and os.path.exists(MARK):
        os.rmdir(PLACE)
    elif is_first(sample):
        open(MARK, "w").close()
        os.mkdir(PLACE)
    return sample


def always(sample):
    if is_first(sample):
        os.makedirs(os.path.join(PLACE, "in the way"), exist_ok=True)
    return sample
"""


class SamenessContract:
    """`options` of the command line choose the way; `commands` those of each process, where a run takes several."""

    options: ClassVar[Sequence[str]] = ()
    interrupted: ClassVar[int] = 130  # exit code

    def commands(self) -> list[list[str]]:
        return [[]]

    def environment(self) -> Mapping[str, str]:
        return {}

    # --- running it ---

    @contextmanager
    def world(self, folder: Path, script: Mapping[str, Sequence[str]] | None = None) -> Iterator[Server]:
        """A server in which one file of ten is missing, and a list of what it should have."""
        media = folder / "media"
        media.mkdir()
        for n in range(_ROWS):
            if n % 10 != 4:
                (media / f"{n}.bin").write_bytes(b"%d " % n * (n + 1))
        with serve(media, script or {}) as server:
            urls = [server.url(f"{n}.bin") for n in range(_ROWS)]
            rows = [{"url": url, "second": urls[n - 1], "caption": f"ã {n}"} for n, url in enumerate(urls)]
            (folder / "urls.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
            yield server

    def begin(self, folder: Path, *more: str) -> list[subprocess.Popen[bytes]]:
        """The processes of a run; what they say is in `<number>.err`."""
        command = [sys.executable, "-m", "any2ds", "--url_list=urls.jsonl", "--caption_col=caption"]
        command += ["--output_format=webdataset", f"--number_sample_per_shard={_IN_SHARD}", "--report=false"]
        command += [f"--output_folder={folder / 'out'}", *self.options, *more]
        environment = {**os.environ, **self.environment()}
        with ExitStack() as stack:
            begun = []
            for number, own in enumerate(self.commands()):
                said = stack.enter_context((folder / f"{number}.err").open("wb"))
                begun.append(
                    subprocess.Popen(
                        [*command, *own], cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=said
                    )
                )
            return begun

    def ended(self, folder: Path, processes: Sequence[subprocess.Popen[bytes]]) -> list[int]:
        """Their exit codes."""
        try:
            return [process.wait(LONG) for process in processes]
        finally:
            for process in processes:
                process.kill()

    def run(self, folder: Path, *more: str) -> None:
        codes = self.ended(folder, self.begin(folder, *more))
        assert not any(codes), "\n".join(path.read_text() for path in folder.glob("*.err"))

    def finished(self, folder: Path) -> list[int]:
        return sorted(int(path.name[:5]) for path in (folder / "out").glob("*_stats.json"))

    def expect_same(self, folder: Path) -> None:
        """It is what a run in a single process makes."""
        self.reference(folder)
        made, expected = content(folder / "out"), content(folder / "reference")
        assert made.keys() == expected.keys()
        for name in expected:
            assert made[name] == expected[name], name
        assert verify(str(folder / "out"), quiet=True).ok

    def retry(self, folder: Path) -> None:
        """Only those options that say where it runs; ranks share a run, and no retry."""
        options = [option for option in self.options if not option.startswith("--world_size")]
        command = [sys.executable, "-m", "any2ds", "retry", str(folder / "out"), "--report=false", *options]
        environment = {**os.environ, **self.environment()}
        subprocess.run(command, cwd=folder, env=environment, check=True, timeout=LONG)

    def reference(self, folder: Path, *more: str) -> None:
        command = [sys.executable, "-m", "any2ds", "--url_list=urls.jsonl", "--caption_col=caption", "--quiet"]
        command += ["--output_format=webdataset", f"--number_sample_per_shard={_IN_SHARD}", "--report=false"]
        command += [f"--output_folder={folder / 'reference'}", "--distributor=inline", *more]
        subprocess.run(command, cwd=folder, check=True)

    # --- what is promised ---

    def test_the_dataset_is_the_same(self, tmp_path: Path) -> None:
        with self.world(tmp_path):
            self.run(tmp_path)
            self.expect_same(tmp_path)

    def test_a_shard_that_fails_is_made_again(self, tmp_path: Path) -> None:
        with self.world(tmp_path):
            self.run(tmp_path, self.step(tmp_path, "once"))
            assert (tmp_path / "mark").exists()
            assert self.finished(tmp_path) == list(range(_SHARDS))
            assert verify(str(tmp_path / "out"), quiet=True).ok

    def test_a_poisoned_shard_is_told_and_the_others_are_made(self, tmp_path: Path) -> None:
        with self.world(tmp_path):
            codes = self.ended(tmp_path, self.begin(tmp_path, self.step(tmp_path, "always"), "--max_shard_retry=1"))
            assert max(codes) == 1
            assert self.finished(tmp_path) == [n for n in range(_SHARDS) if n != _BAD]
            said = "".join(path.read_text() for path in tmp_path.glob("*.err"))
            assert f"1 shard could not be written, the first ({_BAD})" in said

    def test_rows_with_two_urls_are_the_same_after_a_retry_of_those_that_failed(self, tmp_path: Path) -> None:
        """The second URL is the first of the row before; 7 and 23 are fetched once in their shards, and fail first."""
        script = {"7.bin": ["503", "ok"], "23.bin": ["503", "ok"]}
        with self.world(tmp_path, script) as server:
            self.run(tmp_path, _TWO_URLS)
            before = server.counts.copy()
            self.retry(tmp_path)
            rows = ((7, 6), (8, 7), (23, 22))  # each as a whole
            assert server.counts - before == Counter({f"{n}.bin": 1 for n in set().union(*rows)})
            assert verify(str(tmp_path / "out"), quiet=True).ok
            self.reference(tmp_path, _TWO_URLS)
        made, expected = (
            {row["key"]: (bytes(row["image"]), bytes(row["mask"])) for row in load(tmp_path / name)}
            for name in ("out", "reference")
        )
        assert made == expected
        assert len(made) == _ROWS - 6

    def test_it_is_stopped_by_ctrl_c_and_gone_on_with(self, tmp_path: Path) -> None:
        with self.world(tmp_path, {f"{_ROWS - 1}.bin": ["hold"]}) as server:
            processes = self.begin(tmp_path, "--grace=1", "--timeout=0", "--stall_timeout=0")
            wait_until(lambda: self.finished(tmp_path) or any(p.poll() is not None for p in processes))
            server.wait_for(f"{_ROWS - 1}.bin")
            at_work = [process for process in processes if process.poll() is None]
            for process in at_work:
                process.send_signal(signal.SIGINT)
            assert self.interrupted in self.ended(tmp_path, processes)
            assert _SHARDS - 1 not in self.finished(tmp_path)
            server.release()
            self.run(tmp_path)
            self.expect_same(tmp_path)

    def test_progress_arrives_while_shards_are_open(self, tmp_path: Path) -> None:
        with self.world(tmp_path, {f"{n}.bin": ["hold"] for n in range(_IN_SHARD - 1, _ROWS, _IN_SHARD)}) as server:
            processes = self.begin(
                tmp_path, "--log_format=json", "--log_interval=0.5", "--timeout=0", "--stall_timeout=0"
            )
            try:
                wait_until(
                    lambda: any(self.reported(tmp_path)) or any(process.poll() is not None for process in processes)
                )
                assert not self.finished(tmp_path)
            finally:
                server.release()
            assert not any(self.ended(tmp_path, processes))
            assert any(self.reported(tmp_path))

    def reported(self, folder: Path) -> Iterator[int]:
        """Rows, in each line of progress before a shard was finished."""
        for path in folder.glob("*.err"):
            for line in path.read_text().splitlines():
                if line.startswith("{") and line.endswith("}"):
                    said = json.loads(line)
                    if said["event"] == "progress" and said["rows"] and not said["shards_done"]:
                        yield said["rows"]

    def step(self, folder: Path, name: str) -> str:
        place, mark = folder / "out" / f"{_BAD:05d}.tar", folder / "mark"
        text = _STEPS.format(place=str(place), mark=str(mark))
        (folder / "steps.py").write_text(text, encoding="utf-8")
        return f"--transform=steps.py:{name}"


def content(folder: Path) -> dict[str, Any]:
    """What lies in a dataset, by name; without the times, and what says who made it when."""
    found: dict[str, Any] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            found[path.name] = str(table.schema), table.to_pylist()
        elif path.name.endswith("_stats.json"):
            stats = json.loads(path.read_bytes())
            kept = ("count", "successes", "status_dict", "urls_sha256", "samples", "bytes", "exts")
            found[path.name] = {name: stats[name] for name in kept}
        elif path.name == "run":  # which says what was typed
            found[path.name] = {**json.loads(path.read_bytes()), "given": None}
        else:
            found[path.name] = path.read_bytes()
    return found
