"""Runs that take shards from one folder by claims, from outside: real processes, killed, suspended and late."""

import contextlib
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tarfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import s3fs

from any2ds import download, verify
from any2ds.cli import run
from any2ds.core.errors import OptionError, OutputError, OutputInUse
from any2ds.run.claims import Claim, Ledger, Maker
from any2ds.storage.folders import OutputFolder
from any2ds.storage.lock.run_lock import locked
from any2ds.testing.folder import names_in
from any2ds.testing.ftp import Ftp
from any2ds.testing.processes import LONG, children, is_running, wait_until, wait_until_gone
from any2ds.testing.s3 import Wsgi, served
from any2ds.testing.server import Server, serve
from any2ds.testing.smalldisk import small_disk

ROWS, PER_SHARD = 24, 2
QUICK = {"look": 0.05, "settle": 0.3}
SHORT = {**QUICK, "beat": 0.1, "stale": 2.0}  # for those that wait for one that is silent

# Forks one process after the other that has everything imported: to start a new one takes a second of a busy core.
NURSERY = """
import json, os, sys
import any2ds.run.api, any2ds.cli, any2ds.distributors.inline, any2ds.fetch.engines.curl
import any2ds.storage.lock.run_lock, any2ds.readers.formats.txt
import any2ds.config.presets.img2dataset, any2ds.transforms.steps.audio, any2ds.transforms.steps.archive
import any2ds.transforms.steps.text, any2ds.transforms.image.work, any2ds.transforms.steps._video
import any2ds.writers.formats.webdataset, fire, pyarrow, s3fs
pyarrow.array([])  # imports pandas
sys.stdout.write("ready\\n"); sys.stdout.flush()
for line in sys.stdin:
    order = json.loads(line)
    if "wait" in order:
        answer = os.waitstatus_to_exitcode(os.waitpid(order["wait"], 0)[1])
    else:
        answer = os.fork()
        if not answer:
            os.setsid()
            os.close(0), os.open(order["stdin"], os.O_RDONLY)
            os.dup2(os.open(order["said"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
            os.dup2(2, 1)
            os.environ.update(order["environment"])
            for name, seconds in order["intervals"].items():
                object.__setattr__(any2ds.storage.lock.run_lock.DEFAULT_INTERVALS, name, seconds)
            any2ds.cli.main(order["arguments"])
    sys.stdout.write(f"{answer}\\n"); sys.stdout.flush()
"""


@dataclass
class Run:
    """A process that makes a part of the dataset."""

    pid: int
    said_in: Path
    nursery: "Nursery"

    @property
    def is_running(self) -> bool:
        return is_running(self.pid)

    def end(self) -> int:
        """Wait for it; how it ended."""
        wait_until(lambda: not self.is_running)
        return self.nursery.ask({"wait": self.pid})

    def signal(self, number: int) -> None:
        """To it and all its children."""
        for pid in [self.pid, *children(self.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    @property
    def said(self) -> str:
        """Empty as well if it was killed before it could say anything."""
        return self.said_in.read_text() if self.said_in.exists() else ""


class Nursery:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._count = 0
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

    def ask(self, order: Mapping[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def begin(
        self,
        folder: Path,
        *more: str,
        output: str = "out",
        intervals: Mapping[str, float] = QUICK,
        stdin: str | Path = os.devnull,
    ) -> Run:
        self._count += 1
        arguments = [f"--url_list={folder / 'urls.txt'}", f"--output_folder={folder / output}", "--quiet"]
        if "://" in output:
            arguments[1] = f"--output_folder={output}"
        arguments += ["--output_format=webdataset", f"--number_sample_per_shard={PER_SHARD}", "--processes_count=1"]
        arguments += ["--distributor=inline", "--report=false", "--timeout=0", "--claim=store", *more]
        said = folder / f"said-{self._count}"
        given = {name: os.environ[name] for name in os.environ if name.startswith(("AWS_", "TMPDIR"))}
        order = {
            "arguments": arguments,
            "said": str(said),
            "environment": given,
            "stdin": str(stdin),
            "intervals": dict(intervals),
        }
        return Run(self.ask(order), said, self)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", NURSERY], text=True, **pipes) as process:  # type: ignore[call-overload]
        yield Nursery(process)
        process.stdin.close()


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("media")
    for n in range(100):
        (folder / str(n)).write_bytes(b"file %d" % n)
    return folder


@contextlib.contextmanager
def serving(media: Path, folder: Path, script: Mapping[str, list[str]], rows: int = ROWS) -> Iterator[Server]:
    folder.mkdir(exist_ok=True)
    with serve(media, script) as server:
        (folder / "urls.txt").write_text("".join(f"{server.url(str(n))}\n" for n in range(rows)))
        yield server


@pytest.fixture
def bucket(s3_server: None) -> Iterator[str]:
    fs = s3fs.S3FileSystem()
    fs.mkdir("claims")
    yield "s3://claims"
    fs.rm("claims", recursive=True)


def content(folder: Path) -> dict[str, Any]:
    """What is in a dataset, but for times and the port of the server."""
    found: dict[str, Any] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix == ".parquet":
            rows = pq.read_table(path).to_pylist()
            found[path.name] = [{**row, "url": row["url"].rsplit("/", 1)[-1]} for row in rows]
        elif path.suffix == ".tar":
            with tarfile.open(path) as tar:
                members = [(member.name, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]
            found[path.name] = [
                (name, hashlib.md5(data).hexdigest()) for name, data in members if not name.endswith(".json")
            ]
        else:
            found[path.name] = None
    return found


@pytest.fixture(scope="module")
def expected(media: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a single run makes of the list."""
    folder = tmp_path_factory.mktemp("single")
    with serve(media) as server:
        urls = [server.url(str(n)) for n in range(ROWS)]
        download(
            urls,
            output_folder=folder / "out",
            output_format="webdataset",
            number_sample_per_shard=PER_SHARD,
            distributor="inline",
            report=False,
            quiet=True,
        )
    return content(folder / "out")


def local_copy(output: str, folder: Path) -> Path:
    s3fs.S3FileSystem().get(output, str(folder), recursive=True)
    return folder


def expect_whole(out: Path, expected: Mapping[str, Any]) -> None:
    assert content(out) == expected
    assert verify(out, quiet=True).findings == ()


def killed_at_random(
    seed: int, media: Path, folder: Path, nursery: Nursery, output: str, *more: str, **how: Any
) -> None:
    """Eight runs, three of which are killed: the others make what is left."""
    chance = random.Random(seed)
    moments = sorted(chance.sample(range(1, ROWS - 2), 3))
    held = chance.sample(range(ROWS), 2)  # by whom they may be asked for again, then they pass
    with serving(media, folder, {str(n): ["hold", "ok"] for n in held}) as server:
        runs = [nursery.begin(folder, *more, output=output, **how) for _ in range(8)]
        killed: list[Run] = []
        for moment in moments:
            wait_until(lambda moment=moment: len(server.requests) >= moment)  # type: ignore[misc]
            victim = chance.choice([run for run in runs if run not in killed])
            if seed % 20 == 19:  # its children are left to themselves
                os.kill(victim.pid, signal.SIGKILL)
            else:
                victim.signal(signal.SIGKILL)
            killed.append(victim)
        server.release()
        codes = {run.pid: run.end() for run in runs}
        said = "".join(run.said for run in runs)
        assert all(codes[run.pid] == 0 for run in runs if run not in killed), said
        assert {codes[run.pid] for run in killed} <= {0, -signal.SIGKILL}
        assert set(server.counts) == {str(n) for n in range(ROWS)}
        assert sum(server.counts.values()) <= ROWS + 3 * 6 * PER_SHARD
        assert "Traceback" not in said


@pytest.mark.parametrize("seed", range(20))
def test_eight_runs_of_which_three_are_killed_make_what_one_makes(
    seed: int, media: Path, tmp_path: Path, nursery: Nursery, expected: Mapping[str, Any]
) -> None:
    # In some of them the shards are made in child processes, which are killed with it or left to themselves.
    more = ["--distributor=multiprocessing"] if seed % 10 == 9 else []
    killed_at_random(seed, media, tmp_path / "a", nursery, "out", *more)
    expect_whole(tmp_path / "a" / "out", expected)


@pytest.mark.parametrize("seed", range(3))
def test_eight_runs_of_which_three_are_killed_make_the_same_on_an_object_store(
    seed: int, media: Path, tmp_path: Path, nursery: Nursery, expected: Mapping[str, Any], bucket: str
) -> None:
    killed_at_random(seed, media, tmp_path / "a", nursery, f"{bucket}/out")
    expect_whole(local_copy(f"{bucket}/out", tmp_path / "copy"), expected)


def test_each_url_is_asked_for_once_and_one_that_joins_late_has_a_share(
    media: Path, tmp_path: Path, nursery: Nursery, expected: Mapping[str, Any]
) -> None:
    with serving(media, tmp_path, {"0": ["hold"], "1": ["hold"], "2": ["hold"]}) as server:
        first = nursery.begin(tmp_path, "--user_agent=first")
        server.wait_for("2")  # it has two shards now, and is held up by both
        late = nursery.begin(tmp_path, "--user_agent=late")
        wait_until(lambda: len(list((tmp_path / "out").glob("*_stats.json"))) == ROWS // PER_SHARD - 2)
        assert first.is_running
        assert late.is_running
        server.release()
        assert [first.end(), late.end()] == [0, 0], first.said + late.said
    assert server.counts == Counter({str(n): 1 for n in range(ROWS)})
    makers = Counter(request.headers["User-Agent"] for request in server.requests)
    assert makers == {"first": 4, "late": ROWS - 4}
    expect_whole(tmp_path / "out", expected)


def test_a_slow_run_has_few_shards_and_does_not_keep_a_fast_one_from_the_others(
    media: Path, tmp_path: Path, nursery: Nursery
) -> None:
    rows = 80
    with serving(media, tmp_path, {str(n): ["hold"] for n in range(rows)}, rows) as server:
        # It may ask for the next row a second after the one before, and looks for other hosts meanwhile, in vain.
        slow = nursery.begin(tmp_path, "--user_agent=slow", "--host_delay=1")
        server.wait_for("0")
        fast = nursery.begin(tmp_path, "--user_agent=fast")
        wait_until(lambda: any(request.headers["User-Agent"] == "fast" for request in server.requests))
        server.release()
        assert [slow.end(), fast.end()] == [0, 0], slow.said + fast.said
    assert server.counts == Counter({str(n): 1 for n in range(rows)})
    makers = Counter(request.headers["User-Agent"] for request in server.requests)
    assert makers["slow"] >= 2 * PER_SHARD
    assert makers["fast"] > 2 * makers["slow"]


@pytest.mark.parametrize("remote", [False, True])
def test_one_that_is_suspended_and_wakes_up_when_others_have_its_shards_publishes_nothing(
    remote: bool, media: Path, tmp_path: Path, nursery: Nursery, expected: Mapping[str, Any], bucket: str
) -> None:
    output = f"{bucket}/out" if remote else "out"
    folder = OutputFolder(output if remote else str(tmp_path / "out"))

    def there() -> dict[str, bytes | None]:
        return dict(
            folder.read_many([n for n in names_in(folder) if not n.startswith((".any2ds/lock", ".any2ds/tmp"))])
        )

    with serving(media, tmp_path, {"0": ["hold", "ok"], "3": ["hold", "ok"]}) as server:
        asleep = nursery.begin(tmp_path, output=output, intervals=SHORT)
        server.wait_for("3")
        asleep.signal(signal.SIGSTOP)
        other = nursery.begin(tmp_path, output=output, intervals=SHORT)
        assert other.end() == 0, other.said
        before = there()
        server.release()
        asleep.signal(signal.SIGCONT)
        assert asleep.end() == 1
        assert "its .any2ds/lock-claim-" in asleep.said
        assert "was removed" in asleep.said
        assert there() == before
        assert (server.counts["0"], server.counts["3"]) == (2, 2)
    with locked(folder, "verify"):
        pass  # which removes what is left of its lock
    copy = local_copy(output, tmp_path / "copy") if remote else tmp_path / "out"
    expect_whole(copy, expected)


def test_a_shard_that_cannot_be_made_is_left_at_that_by_all_and_tried_again_by_a_later_start(
    media: Path, tmp_path: Path, nursery: Nursery, expected: Mapping[str, Any]
) -> None:
    out = tmp_path / "out"
    (out / "00005.tar" / "in the way").mkdir(parents=True)  # so that it cannot be published
    with serving(media, tmp_path, {}) as server:
        options = ["--max_shard_retry=1"]
        runs = [nursery.begin(tmp_path, *options) for _ in range(3)]
        assert sorted(run.end() for run in runs) == [0, 0, 1], "".join(run.said for run in runs)
        unlucky = next(run for run in runs if "could not be written" in run.said)
        assert "1 shard could not be written, the first (5)" in unlucky.said
        assert server.counts["10"] == 2  # by one, twice
        assert len(list(out.glob("*_stats.json"))) == ROWS // PER_SHARD - 1
        (out / "00005.tar" / "in the way").rmdir()
        (out / "00005.tar").rmdir()
        again = nursery.begin(tmp_path, *options)
        assert again.end() == 0, again.said
        assert server.counts["10"] == 3
    expect_whole(out, expected)


@pytest.mark.parametrize("distributor", ["inline", "multiprocessing"])
def test_one_that_waits_for_others_ends_at_once_when_it_is_interrupted(
    distributor: str, media: Path, tmp_path: Path, nursery: Nursery, expected: Mapping[str, Any]
) -> None:
    with serving(media, tmp_path, {"0": ["hold"]}) as server:
        first = nursery.begin(tmp_path)
        server.wait_for("0")
        waiting = nursery.begin(tmp_path, f"--distributor={distributor}", "--log_level=info")
        wait_until(lambda: len(list((tmp_path / "out").glob("*_stats.json"))) == ROWS // PER_SHARD - 1)
        os.kill(waiting.pid, signal.SIGINT)
        assert waiting.end() == 130, waiting.said
        assert first.is_running
        server.release()
        assert first.end() == 0, first.said
    assert server.counts == Counter({str(n): 1 for n in range(ROWS)})
    expect_whole(tmp_path / "out", expected)


def test_what_one_leaves_whose_disk_is_full_is_made_by_others(
    media: Path, tmp_path: Path, nursery: Nursery, expected: Mapping[str, Any]
) -> None:
    with serving(media, tmp_path, {"0": ["hold", "ok"]}) as server, small_disk(tmp_path / "disk", 4 << 20) as disk:
        options = [f"--staging_dir={disk.folder}", f"--min_free_bytes={disk.min_free_bytes or 1 << 20}"]
        poor = nursery.begin(tmp_path, *options)
        server.wait_for("0")
        (disk.folder / "somebody else's").write_bytes(b"x" * (3 << 20))
        other = nursery.begin(tmp_path)
        server.release()
        assert other.end() == 0, other.said
        assert poor.end() in (1, 2)
        assert "disk" in poor.said or "room" in poor.said
    expect_whole(tmp_path / "out", expected)


def test_claims_ranks_and_runs_that_want_the_folder_alone_keep_each_other_out(
    media: Path, tmp_path: Path, nursery: Nursery, expected: Mapping[str, Any]
) -> None:
    with serving(media, tmp_path, {"0": ["hold"]}) as server:
        urls = str(tmp_path / "urls.txt")
        options: dict[str, Any] = {"output_format": "webdataset", "number_sample_per_shard": PER_SHARD, "quiet": True}
        first = nursery.begin(tmp_path)
        server.wait_for("0")
        for more in ({}, {"rank": 0, "world_size": 2}):
            with pytest.raises(OutputInUse, match=r"in use by another run \(claim [0-9a-f]{8}, process"):
                download(urls, output_folder=tmp_path / "out", **options, **more)
        with locked(OutputFolder(str(tmp_path / "alone")), "retry"), pytest.raises(OutputInUse, match="retry"):
            download(urls, output_folder=tmp_path / "alone", claim="store", **options)
        server.release()
        assert first.end() == 0, first.said
    expect_whole(tmp_path / "out", expected)


def test_a_list_that_is_read_once_ends_its_run_without_waiting_for_others(
    media: Path, tmp_path: Path, nursery: Nursery, expected: Mapping[str, Any]
) -> None:
    with serving(media, tmp_path, {"0": ["hold"]}) as server:
        from_stdin = ("--url_list=-", "--input_format=txt")
        first = nursery.begin(tmp_path, *from_stdin, stdin=tmp_path / "urls.txt")
        server.wait_for("0")
        second = nursery.begin(tmp_path, *from_stdin, stdin=tmp_path / "urls.txt")
        assert second.end() == 0, second.said
        assert re.search("(is|are) made by others", second.said), second.said
        assert first.is_running
        server.release()
        assert first.end() == 0, first.said
    assert server.counts == Counter({str(n): 1 for n in range(ROWS)})
    expect_whole(tmp_path / "out", expected)


def test_a_shard_that_was_short_is_completed_by_one_of_those_who_go_on_with_a_longer_list(
    media: Path, tmp_path: Path, nursery: Nursery, expected: Mapping[str, Any]
) -> None:
    with serving(media, tmp_path, {}) as server:
        whole = (tmp_path / "urls.txt").read_text()
        (tmp_path / "urls.txt").write_text("".join(whole.splitlines(keepends=True)[:5]))
        assert nursery.begin(tmp_path).end() == 0
        (tmp_path / "urls.txt").write_text(whole)
        runs = [nursery.begin(tmp_path) for _ in range(3)]
        assert [run.end() for run in runs] == [0, 0, 0], "".join(run.said for run in runs)
    assert server.counts == Counter({str(n): 1 for n in range(ROWS)})
    expect_whole(tmp_path / "out", expected)


def test_in_a_step_of_slurm_claims_take_the_place_of_its_ranks(
    media: Path, tmp_path: Path, expected: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}.items():
        monkeypatch.setenv(name, value)
    with serving(media, tmp_path, {}):
        options = [f"--url_list={tmp_path / 'urls.txt'}", f"--output_folder={tmp_path / 'out'}", "--quiet"]
        options += ["--output_format=webdataset", f"--number_sample_per_shard={PER_SHARD}", "--distributor=inline"]
        assert run([*options, "--claim=store"]) == 0
    expect_whole(tmp_path / "out", expected)


def test_what_cannot_be_claimed_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="leave out rank"):
        download(["http://127.0.0.1:9/a"], output_folder=tmp_path / "out", claim="store", rank=0, world_size=2)
    with pytest.raises(OptionError, match="invalid claim='folder'"):
        download(["http://127.0.0.1:9/a"], output_folder=tmp_path / "out", claim="folder")
    (tmp_path / "ftp").mkdir()
    with contextlib.closing(Ftp(tmp_path / "ftp")) as ftp:
        for url in ("memory://claims", f"ftp://127.0.0.1:{ftp.port}/out"):
            with pytest.raises(OutputError, match="cannot be created atomically there"):
                download(["http://127.0.0.1:9/a"], output_folder=url, claim="store", distributor="inline")
    assert [path.name for path in tmp_path.iterdir()] == ["ftp"]
    assert not list((tmp_path / "ftp").iterdir())


def test_a_store_that_writes_over_what_is_to_be_new_is_refused(s3_server: None) -> None:
    def forgetful(s3: Wsgi) -> Wsgi:
        def app(environ: Mapping[str, Any], start_response: Any) -> Any:
            return s3({name: environ[name] for name in environ if name != "HTTP_IF_NONE_MATCH"}, start_response)

        return app

    with served(forgetful) as (url,):
        options = {"s3": {"key": "a-key", "secret": "what-nothing-is-called", "endpoint_url": url}}
        s3fs.S3FileSystem(**options["s3"]).mkdir("old")
        with pytest.raises(OutputError, match=r"If-None-Match\)\. Share them out by --rank and --world_size"):
            download(["http://127.0.0.1:9/a"], output_folder="s3://old/out", claim="store", storage_options=options)
        assert s3fs.S3FileSystem(**options["s3"]).find("old") == []


@pytest.mark.parametrize("remote", [False, True])
def test_of_many_that_claim_a_shard_at_the_same_moment_one_has_it(remote: bool, tmp_path: Path, bucket: str) -> None:
    output = OutputFolder(f"{bucket}/many" if remote else str(tmp_path))
    count, shards = 8, 20
    won: list[tuple[int, str]] = []
    at_once = threading.Barrier(count)

    def take(name: str) -> None:
        ledger = Ledger(output)
        for shard_id in range(shards):
            at_once.wait()
            if ledger.create(Claim(shard_id, 3), Maker(name, name)):
                won.append((shard_id, name))

    threads = [threading.Thread(target=take, args=(f"claim-{n}",)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert sorted(shard_id for shard_id, _ in won) == list(range(shards))
    found = Ledger(output).makers([Claim(shard_id, 3) for shard_id in range(shards)])
    assert {claim.shard_id: maker and maker.member for claim, maker in found.items()} == dict(won)
    assert Ledger(output).standing([5])[5] == (Claim(5, 3), False)


def test_a_run_that_has_the_folder_alone_removes_the_claims_of_dead_ones(
    media: Path, tmp_path: Path, nursery: Nursery, expected: Mapping[str, Any]
) -> None:
    with serving(media, tmp_path, {"5": ["hold", "ok"]}) as server:
        dead = nursery.begin(tmp_path, "--distributor=multiprocessing")
        server.wait_for("5")
        processes = [dead.pid, *children(dead.pid)]
        os.kill(dead.pid, signal.SIGKILL)
        dead.end()
        wait_until_gone(processes)
        assert list((tmp_path / "out" / ".any2ds/claims").iterdir())
        download(
            str(tmp_path / "urls.txt"),
            output_folder=tmp_path / "out",
            output_format="webdataset",
            number_sample_per_shard=PER_SHARD,
            distributor="inline",
            report=False,
            quiet=True,
        )
    expect_whole(tmp_path / "out", expected)
