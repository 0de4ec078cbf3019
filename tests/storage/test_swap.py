"""New versions of shards that somebody was about to put in place when a run ended."""

import threading
from pathlib import Path

import orjson
import pytest

from any2ds.core.errors import LockLost
from any2ds.storage.folders import OutputFolder
from any2ds.storage.swap import finish_swaps, no_swap_left, swap


def begin(folder: Path, shard: str, committed: bool) -> None:
    """As a worker leaves it that is killed."""
    (folder / ".any2ds/swap" / shard).mkdir(parents=True)
    (folder / ".any2ds/swap" / shard / f"{shard}.tar").write_bytes(b"new")
    if committed:
        (folder / ".any2ds/swap" / shard / "_commit").write_bytes(orjson.dumps([f"{shard}.tar"]))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for shard in ("00000", "00001"):
        (tmp_path / f"{shard}.tar").write_bytes(b"former")
    return tmp_path


def versions(folder: Path) -> list[bytes]:
    return [(folder / f"{shard}.tar").read_bytes() for shard in ("00000", "00001")]


@pytest.mark.parametrize("when", ["before", "meanwhile"])
@pytest.mark.parametrize("end", [None, KeyboardInterrupt])
def test_no_run_leaves_half_a_swap(when: str, end: type[BaseException] | None, folder: Path) -> None:
    def run() -> None:
        if when == "before":
            begin(folder, "00000", committed=True)
            begin(folder, "00001", committed=False)
        with no_swap_left(OutputFolder(str(folder))):
            if when == "meanwhile":
                begin(folder, "00000", committed=True)
                begin(folder, "00001", committed=False)
            if end is not None:
                raise end

    if end is None:
        run()
    else:
        with pytest.raises(end):
            run()
    assert versions(folder) == [b"new", b"former"]
    assert not (folder / ".any2ds/swap").exists()


def test_what_is_others_by_now_stays(folder: Path) -> None:
    output = OutputFolder(str(folder))

    def lost() -> None:
        raise LockLost("it was taken over")

    with no_swap_left(output):
        begin(folder, "00001", committed=False)
        output.guard = lost
    assert (folder / ".any2ds/swap" / "00001" / "00001.tar").exists()


def test_a_swap_that_outlives_its_run_is_not_cut_in_two(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    staged = tmp_path_factory.mktemp("staged") / "00001.tar"
    staged.write_bytes(b"new")
    slow, begun, write_pending = OutputFolder(str(folder)), threading.Event(), threading.Event()

    def wait() -> None:
        if (folder / ".any2ds/swap" / "00001" / "00001.tar").exists():
            begun.set()
            assert write_pending.wait(100)

    slow.guard = wait
    thread = threading.Thread(target=swap, args=(slow, "00001", {"00001.tar": staged}))
    with no_swap_left(OutputFolder(str(folder))):
        thread.start()
        assert begun.wait(100)
    assert (folder / ".any2ds/swap" / "00001" / "00001.tar").exists()
    write_pending.set()
    thread.join(100)
    assert versions(folder) == [b"former", b"new"]
    assert not (folder / ".any2ds/swap").exists()


FILES = ("00012.tar", "00012.parquet", "00012_stats.json")


def lay(folder: Path, content: str, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(content)


def files(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("moved", range(4))
def test_what_was_committed_is_finished_wherever_it_was_killed(moved: int, tmp_path: Path) -> None:
    lay(tmp_path, "new", *FILES[:moved])
    lay(tmp_path, "former", *FILES[moved:])
    lay(tmp_path / ".any2ds/swap" / "00012", "new", *FILES[moved:])
    (tmp_path / ".any2ds/swap" / "00012" / "_commit").write_text('["00012.tar", "00012.parquet", "00012_stats.json"]')
    finish_swaps(OutputFolder(str(tmp_path)))
    assert files(tmp_path) == dict.fromkeys(FILES, "new")
    assert not (tmp_path / ".any2ds/swap").exists()


def test_what_was_not_committed_goes_and_what_is_of_somebody_else_stays(tmp_path: Path) -> None:
    lay(tmp_path, "former", *FILES)
    lay(tmp_path / ".any2ds/swap" / "00012", "new", *FILES[:2])
    lay(tmp_path / ".any2ds/swap" / "2024", "of a person", "diary.txt")
    finish_swaps(OutputFolder(str(tmp_path)))
    assert files(tmp_path) == {**dict.fromkeys(FILES, "former"), ".any2ds/swap/2024/diary.txt": "of a person"}
