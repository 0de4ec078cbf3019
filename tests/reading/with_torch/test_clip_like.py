"""examples/clip_like.py, as it stands: it learns, and goes on in the middle of an epoch as if nothing had happened."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from any2ds.testing.processes import LONG

EXAMPLES = Path(__file__).parents[3] / "examples"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
STEP = re.compile(r"epoch (\d+), step (\d+): loss ([\d.]+)")
Losses = dict[tuple[int, int], float]


def command(folder: Path, *options: str) -> list[str]:
    return [str(EXAMPLES / "clip_like.py"), f"--folder={folder}", "--save_every=2", "--epochs=6", *options]


def losses(shown: str) -> Losses:
    """Of each step, by epoch and number."""
    return {(int(epoch), int(step)): float(loss) for epoch, step, loss in STEP.findall(shown)}


def trained(*started: str) -> str:
    done = subprocess.run(
        [sys.executable, *started],
        env=ENVIRONMENT,
        capture_output=True,
        encoding="utf-8",
        timeout=3 * LONG,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def without_a_break(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run in one process, and what it printed."""
    folder = tmp_path_factory.mktemp("clip")
    return folder, trained(*command(folder))


def copied(without_a_break: tuple[Path, str], folder: Path) -> Path:
    """Its dataset, without its checkpoint."""
    shutil.copytree(without_a_break[0] / "images", folder / "images")
    return folder


def test_images_find_their_captions(without_a_break: tuple[Path, str]) -> None:
    shown = losses(without_a_break[1])
    assert len(shown) == 6 * 3
    assert shown[5, 3] < shown[0, 1] / 2
    ((right, of),) = re.findall(r"(\d+) of (\d+) images find their caption", without_a_break[1])
    assert 100 < int(of) < 156  # the list has dead rows, and images that are too small
    assert int(right) > 12  # one by chance


def killed_after(folder: Path, epoch: int, step: int) -> Losses:
    """The losses that a run has printed until it is killed with all its workers."""
    with subprocess.Popen(
        [sys.executable, *command(folder)],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,
    ) as running:
        assert running.stdout is not None
        shown = ""
        for line in running.stdout:
            shown += line
            if (epoch, step) in losses(line):
                break
        os.killpg(running.pid, signal.SIGKILL)
    return losses(shown)


def test_a_run_that_is_killed_goes_on_at_its_checkpoint(without_a_break: tuple[Path, str], tmp_path: Path) -> None:
    """To the same model."""
    folder, wanted = copied(without_a_break, tmp_path), losses(without_a_break[1])
    before = killed_after(folder, 2, 3)
    last = trained(*command(folder))
    assert min(losses(last)) == (2, 3)
    assert {**before, **losses(last)} == wanted
    assert last.splitlines()[-1] == without_a_break[1].splitlines()[-1]


def test_a_run_that_is_killed_goes_on_in_two_processes(without_a_break: tuple[Path, str], tmp_path: Path) -> None:
    """Each step has the samples that it would have had, so that its loss is the same but for rounding."""
    folder, wanted = copied(without_a_break, tmp_path), losses(without_a_break[1])
    killed_after(folder, 1, 3)
    parallel = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    found = losses(trained(*parallel, *command(folder, "--workers=1", "--epochs=4")))
    assert min(found) == (1, 3)
    assert max(found) == (3, 3)
    assert {at: pytest.approx(loss, rel=0.02) for at, loss in found.items()} == {at: wanted[at] for at in found}
