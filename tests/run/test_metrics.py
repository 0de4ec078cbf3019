"""What a process measures of itself, and counts that nobody can have made."""

import os
from pathlib import Path

import orjson
import pytest

from any2ds.core.histogram import Histogram
from any2ds.core.processes import child_process, resources
from any2ds.core.stats import Stats
from any2ds.distributors import _process
from any2ds.worker import worker_metrics


@pytest.mark.parametrize(("reported", "least", "most"), [("150000 100000", 0.5, 1.5), ("50000 100000", 0.5, 0.5)])
def test_a_container_has_the_cores_that_it_is_bounded_to(
    reported: str, least: float, most: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = resources.share()
    (tmp_path / "cpu.max").write_text(reported)
    monkeypatch.setattr(resources, "CPU_MAX", tmp_path / "cpu.max")
    monkeypatch.setattr(resources, "share", resources.share.__wrapped__)
    assert least <= resources.share() == min(given, most)
    assert resources.cores() == -(-resources.share() // 1)
    (tmp_path / "cpu.max").write_text("max 100000")
    assert resources.share() == given


def test_the_footprint_of_a_process_has_that_of_its_children() -> None:
    memory, cpu = resources.memory(), resources.cpu()
    assert memory > 1 << 20
    assert resources.name().endswith(f":{os.getpid()}")
    sum(range(1_000_000))
    assert resources.cpu() > cpu
    child = child_process.start(_process.__name__)
    assert child.pid in child_process.running()
    child.kill()
    child.communicate()
    assert child.pid not in child_process.running()


def test_waits_add_up_whatever_was_measured() -> None:
    assert worker_metrics.adding_up({"hosts": 1.0, "dns": 0.0}, 4.0) == {"hosts": 1.0, "cpu": 3.0}
    assert worker_metrics.adding_up({"hosts": 3.0, "disk": 3.0}, 4.0) == {"hosts": 2.0, "disk": 2.0}
    assert worker_metrics.adding_up({}, 1.0) == {"cpu": 1.0}


@pytest.mark.parametrize("found", [{"1000000000": 1}, {"-1000000000": 1}, {"3": -1}, {"x": 1}])
def test_counts_that_nobody_can_have_made_are_refused(found: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"not a histogram|invalid literal|no count"):
        Histogram.from_json(found)
    figures = {"count": 1, "successes": 1, "failed_to_download": 0, "failed_to_subsample": 0, "latencies": found}
    with pytest.raises(ValueError, match=r"not a histogram|invalid literal|no count"):
        Stats.parse(orjson.dumps(figures))
