"""Runs that make a dataset together, each a share of its shards: real processes on one folder, real signals."""

import json
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import s3fs

import any2ds
from any2ds.core import layout
from any2ds.core.errors import OutputError
from any2ds.testing.processes import wait_until
from any2ds.testing.server import Script, Server, serve
from tests.support.folder import names_in
from tests.support.forked import Run, commands
from tests.support.params import sampled

SIZE = 8  # ranks
SHARDS = 24
ROWS = 2 * SHARDS - 1  # the last shard is short
OF_TIME = {"given", "start_time", "end_time", "duration", "latencies", "process"}
OF_TIME |= {"robots_files", "robots_bytes", "robots_seconds"}
Start = Callable[..., Run]


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("media")
    for n in range(2 * ROWS):
        (folder / str(n)).write_bytes(b"file %d" % n)
    return folder


@pytest.fixture(scope="module")
def server(media: Path) -> Iterator[Server]:
    with serve(media) as server:
        yield server


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Begins any2ds on `urls.txt`, as a rank if it is given one."""
    with commands(tmp_path) as begin:

        def start(rank: int | None = None, *more: str, size: int = SIZE, **rest: Any) -> Run:
            arguments = ["--output_folder=out", "--output_format=webdataset", "--number_sample_per_shard=2"]
            arguments += ["--distributor=inline", "--report=false", "--timeout=0"]
            arguments += [] if rank is None else [f"--rank={rank}", f"--world_size={size}"]
            if not any(argument.startswith("--url_list=") for argument in more):
                arguments.append("--url_list=urls.txt")
            return begin(*arguments, *more, **rest)

        start.command = begin  # type: ignore[attr-defined]
        yield start


def write_list(folder: Path, server: Server, rows: int = ROWS, name: str = "urls.txt") -> None:
    (folder / name).write_text("".join(f"{server.url(str(n))}\n" for n in range(rows)))


@contextmanager
def holding(media: Path, folder: Path, *held: str, rows: int = ROWS) -> Iterator[Server]:
    """A server that answers for some files when it is told to."""
    script: Script = {name: ["hold"] for name in held}
    with serve(media, script) as server:
        write_list(folder, server, rows)
        yield server


def names(out: Path) -> set[str]:
    return names_in(out)


def finished(out: Path) -> frozenset[int]:
    return layout.finished_shards(names(out))


def content(path: Path) -> Any:
    """Of a file, without what depends on when it was made."""
    if path.is_dir():
        return {each.name: each.read_bytes() for each in path.iterdir()}
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    if path.suffix != ".json" and path.name not in ("run", "shards"):
        return path.read_bytes() if path.name != layout.REPORT_FILE else None
    found = json.loads(path.read_bytes())
    for segment in found.get("lists", ()):
        del segment["short"]  # shards that are looked at again: some more where a rank found the last one finished
    return {name: value for name, value in found.items() if name not in OF_TIME}


def contents(out: Path) -> dict[str, Any]:
    return {name: content(out / name) for name in names_in(out)}


def alone(start: Start, tmp_path: Path, *more: str) -> dict[str, Any]:
    """What one run makes of the same list."""
    run = start(None, "--output_folder=alone/out", *more)
    assert run.ended() == 0, run.said
    return contents(tmp_path / "alone" / "out")


def expect_sound(out: Path) -> None:
    report = any2ds.verify(str(out), processes_count=1)
    assert report.ok, report.problems


def all_end(runs: list[Run], code: int = 0) -> None:
    for run in runs:
        assert run.ended() == code, run.said


def lock_of(rank: int, size: int = SIZE) -> str:
    return layout.member_lock(f"rank-{rank}-of-{size}")


def has_joined(out: Path, rank: int, size: int = SIZE) -> bool:
    return {lock_of(rank, size), layout.RUN_FILE} <= names(out)


# --- the dataset ---


@pytest.mark.parametrize(
    "options",
    [
        ("--report=true",),
        ("--output_format=tfrecord",),
        ("--output_format=files",),
        ("--output_format=parquet", "--dedupe=run", "--url_list=twice.txt"),
        ("--output_format=webdataset", "--url_list=-"),
    ],
    ids=["webdataset", "tfrecord", "files", "dedupe", "standard input"],
)
def test_ranks_make_what_one_run_makes(options: tuple[str, ...], server: Server, start: Start, tmp_path: Path) -> None:
    write_list(tmp_path, server)
    rows = [f"{server.url(str(n % 9))}\n" for n in range(ROWS)]
    (tmp_path / "twice.txt").write_text("".join(rows))
    of_all = {"stdin": tmp_path / "urls.txt"}
    runs = [start(rank, *options, size=3, **of_all) for rank in range(3)]
    all_end(runs)
    assert [f"any2ds, rank {rank} of 3, writes to out/" in run.said for rank, run in enumerate(runs)] == [True] * 3
    assert any("all shards of the list are there" in run.said for run in runs)
    one = start(None, "--output_folder=alone/out", *options, **of_all)
    assert one.ended() == 0, one.said
    assert contents(tmp_path / "out") == contents(tmp_path / "alone" / "out")
    expect_sound(tmp_path / "out")


@pytest.mark.slow
def test_a_list_that_has_grown_and_another_one_behind(server: Server, start: Start, tmp_path: Path) -> None:
    for rows in (5, 11):
        write_list(tmp_path, server, rows)
        all_end([start(rank, size=3) for rank in range(3)])
        assert contents(tmp_path / "out") == alone(start, tmp_path)
        (tmp_path / "more.txt").write_text("".join(f"{server.url(str(n))}\n" for n in range(60, 67)))
    more = ("--url_list=more.txt", "--incremental_mode=extend")
    all_end([start(rank, *more, size=3) for rank in range(3)])
    assert contents(tmp_path / "out") == alone(start, tmp_path, *more)
    expect_sound(tmp_path / "out")


# --- killed and started again ---


@pytest.fixture(scope="module")
def shared(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A list, and beside it what one run makes of it."""
    folder = tmp_path_factory.mktemp("shared")
    write_list(folder, server)
    options = ["--output_format=webdataset", "--number_sample_per_shard=2", "--distributor=inline", "--report=false"]
    with commands(folder) as begin:
        run = begin("--url_list=urls.txt", "--output_folder=alone/out", *options)
        assert run.ended() == 0, run.said
    return folder


@pytest.mark.parametrize("seed", sampled(range(20), always=2))
def test_three_of_eight_are_killed_and_started_again(seed: int, shared: Path, start: Start, tmp_path: Path) -> None:
    rng, out = random.Random(seed), tmp_path / "out"
    options = (f"--url_list={shared}/urls.txt", "--quiet")
    runs = [start(rank, *options) for rank in range(SIZE)]
    victims = rng.sample(range(SIZE), 3)
    for rank in victims:
        kind, shards = rng.choice(["begun", "joined", "shards", "shards"]), rng.randrange(SHARDS)

        def is_due(rank: int = rank, kind: str = kind, shards: int = shards) -> bool:
            if runs[rank].process.exitcode is not None or (lock_of(rank) in names(out) and kind == "begun"):
                return True
            return has_joined(out, rank) if kind == "joined" else kind == "shards" and len(finished(out)) >= shards

        wait_until(is_due)
        runs[rank].kill()
        if rng.random() < 0.5:
            runs[rank] = start(rank, *options)
    for rank in victims:
        if runs[rank].process.exitcode == -signal.SIGKILL:
            runs[rank] = start(rank, *options)
    all_end(runs)
    assert contents(out) == contents(shared / "alone" / "out")
    if seed % 5 == 0:
        expect_sound(out)


def test_ranks_do_not_wait_for_a_shard_that_another_list_lacks(
    server: Server, here: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    write_list(tmp_path, server, 8)
    any2ds.download(**here)
    for path in out.glob("00001*"):
        path.unlink()
    (tmp_path / "more.txt").write_text("".join(f"{server.url(str(n))}\n" for n in range(60, 67)))
    more = {**here, "url_list": "more.txt", "incremental_mode": "extend", "world_size": 2}
    any2ds.download(**more, rank=0)
    assert '"open":true' in (out / layout.SHARDS_FILE).read_text().partition("\n")[0].replace(" ", "")
    any2ds.download(**more, rank=1)
    assert '"open":false' in (out / layout.SHARDS_FILE).read_text().partition("\n")[0].replace(" ", "")
    assert any2ds.verify("out", quiet=True).missing == (1,)


# --- what is refused, and who ends how ---


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Options of a run in this process that is like those of `start`."""
    monkeypatch.chdir(tmp_path)
    options = {"url_list": "urls.txt", "output_folder": "out", "output_format": "webdataset", "quiet": True}
    return {**options, "number_sample_per_shard": 2, "distributor": "inline"}


def test_while_a_rank_is_at_work_others_that_do_not_fit_are_refused(
    media: Path, server: Server, start: Start, here: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    write_list(tmp_path, server, 5, "other.txt")
    with holding(media, tmp_path, "2", rows=8) as held:
        first = start(1, size=2)
        held.wait_for("2")
        assert not finished(out)
        before = (out / ".any2ds/run").read_bytes()
        rank_0 = {**here, "rank": 0, "world_size": 2}
        for options, words in (
            ({**here, "rank": 1, "world_size": 2}, r"in use by another run \(.*rank 1 of 2, process"),
            (here, r"in use by another run \(rank 1 of 2, process"),
            ({**here, "rank": 0, "world_size": 3}, r"in use by another run \(rank 1 of 2, process"),
            ({**rank_0, "oom_shard_count": 7}, r"is made with other options \(oom_shard_count"),
            ({**rank_0, "url_list": "other.txt"}, "is made from another url list"),
        ):
            with pytest.raises(OutputError, match=words):
                any2ds.download(**options)
        with pytest.raises(OutputError, match=r"in use by another run \(rank 1 of 2"):
            any2ds.retry("out")
        assert (out / ".any2ds/run").read_bytes() == before
        assert not any2ds.verify("out", processes_count=1).ok  # it is not whole; and nothing of it is broken
        held.release()
        assert first.ended() == 0, first.said
        any2ds.download(**rank_0)
        assert contents(out) == alone(start, tmp_path)


@pytest.mark.slow
def test_a_killed_rank_on_an_object_store_is_started_again(
    media: Path, start: Start, tmp_path: Path, s3_server: None
) -> None:
    fs = s3fs.S3FileSystem()
    fs.mkdir("ranks")
    with holding(media, tmp_path, "0", rows=8) as held:
        options = ("--output_folder=s3://ranks/out",)
        runs = [start(rank, *options, size=2) for rank in range(2)]
        held.wait_for("0")
        runs[0].kill()
        assert runs[1].ended() == 0, runs[1].said
        held.release()
        all_end([start(0, *options, size=2)])
        fs.get("s3://ranks/out/", str(tmp_path / "copy"), recursive=True)
        assert contents(tmp_path / "copy") == alone(start, tmp_path)


@pytest.mark.slow
def test_each_rank_has_records_of_its_own(server: Server, start: Start, tmp_path: Path) -> None:
    write_list(tmp_path, server, 8)
    out, more = tmp_path / "out", ("--reporters=jsonl,wandb", "--log_interval=0.1")
    offline = {"WANDB_MODE": "offline", "HOME": str(tmp_path), "WANDB_ERROR_REPORTING": "false"}
    all_end([start(rank, *more, size=2, env=offline) for rank in range(2)])
    for who in ("rank-0-of-2", "rank-1-of-2"):
        (progress,) = out.glob(f".any2ds/progress/*-{who}.log")
        assert json.loads(progress.read_text().splitlines()[0])["member"] == who
        assert (out / f".any2ds/wandb-{who}").exists()
    kept = [json.loads(path.read_bytes())["id"] for path in out.glob(".any2ds/wandb-*")]
    assert len(set(kept)) == 2
    all_end([start(None, "--incremental_mode=overwrite")])
    assert contents(out) == alone(start, tmp_path)
