"""A dataset of a stranger with absurd numbers in its files: commands say what is wrong, in bounded time and memory."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import any2ds
from any2ds.core.errors import Any2dsError
from any2ds.core.layout import RUN_FILE
from any2ds.core.stats import Stats

SEGMENT = ".any2ds/segments/0000"
NO_COUNTS = [-1, 1.5, 10**19, 10**400, 1e300, "x", "9" * 400, [], {}, True]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dataset")
    (folder / "urls.txt").write_text("".join(f"data:,{n}\n" for n in range(5)) + "http://\n")
    any2ds.download(
        folder / "urls.txt", folder / "out", number_sample_per_shard=2, distributor="inline", quiet=True, report=False
    )
    return folder / "out"


@pytest.fixture
def dataset(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "out"))


def write_segment(dataset: Path, **changes: Any) -> None:
    for path in (dataset / SEGMENT, dataset / f"{SEGMENT}.end"):
        content = json.loads(path.read_text())
        path.write_text(json.dumps(content | {name: changes[name] for name in content.keys() & changes.keys()}))


def commands(dataset: Path) -> dict[str, Any]:
    """What each command says of a dataset: its result, or its error."""
    found: dict[str, Any] = {}
    calls: dict[str, Any] = {
        "inspect": lambda: any2ds.inspect(dataset),
        "verify": lambda: any2ds.verify(dataset, quiet=True, processes_count=1),
        "report": lambda: any2ds.report(dataset, format="json"),
        "card": lambda: any2ds.card(dataset),
        "load": lambda: any2ds.load(dataset),
        "retry": lambda: any2ds.retry(dataset, codes="all", quiet=True, distributor="inline", report=False),
    }
    for name, call in calls.items():
        try:
            found[name] = call()
        except Any2dsError as error:
            found[name] = error
    return found


@pytest.mark.parametrize("change", [{"shards": 10**12}, {"first_shard": 10**12}, {"rows": 10**12, "shards": 10**9}])
def test_more_shards_than_a_disk_can_hold(change: dict[str, int], dataset: Path) -> None:
    write_segment(dataset, **change)
    found = commands(dataset)
    assert not found["inspect"].problems
    assert 0 < len(found["inspect"].missing) < 1_000_000


@pytest.mark.parametrize("change", [{"shards": 10**12}, {"rows": 10**12, "shards": 10**12}])
def test_a_retry_of_more_shards_than_a_disk_can_hold(change: dict[str, int], dataset: Path) -> None:
    assert any2ds.retry(dataset, codes="all", quiet=True, distributor="inline", report=False).count == 1
    path = dataset / ".any2ds/segments/0001"
    segment = json.loads(path.read_text())
    path.write_text(json.dumps(segment | {"ending": segment["ending"] | change}))
    found = commands(dataset)
    assert 0 < len(found["inspect"].missing) < 1_000_000
    assert str(found["retry"]).startswith(".any2ds/segments/0001.rows, the list of a retry, cannot be read")


@pytest.mark.parametrize("digits", [9, 18, 200])
def test_a_shard_whose_name_is_all_nines(digits: int, dataset: Path) -> None:
    shutil.copy(dataset / "00001_stats.json", dataset / f"{'9' * digits}_stats.json")
    found = commands(dataset)
    assert found["inspect"].shards in (3, 4)


@pytest.mark.parametrize("name", ["rows", "shards", "first_shard", "limit"])
def test_a_value_of_a_run_file_that_is_no_count_is_named(name: str, dataset: Path) -> None:
    for value in NO_COUNTS:
        write_segment(dataset, **{name: value})
        (problem,) = [found for found in any2ds.inspect(dataset).problems if RUN_FILE in found]
        assert "no count" in problem or "infinity" in problem
        assert len(problem) < 300


@pytest.mark.parametrize("options", [{"oom_shard_count": 10**9}, {"number_sample_per_shard": 10**30}])
def test_a_run_file_with_absurd_options_is_named(options: dict[str, int], dataset: Path) -> None:
    run = json.loads((dataset / RUN_FILE).read_text())
    run["options"] |= options
    (dataset / RUN_FILE).write_text(json.dumps(run))
    assert any(RUN_FILE in problem for problem in any2ds.inspect(dataset).problems)


@pytest.mark.parametrize("name", ["count", "successes", "samples", "bytes", "failed_to_download"])
def test_a_value_of_statistics_that_is_no_count_is_named(name: str, dataset: Path) -> None:
    stats = dataset / "00001_stats.json"
    content = json.loads(stats.read_text())
    for value in NO_COUNTS:
        with pytest.raises(ValueError, match=r"no count|infinity"):
            Stats.parse(json.dumps(content | {name: value}).encode())
    stats.write_text(json.dumps(content | {name: -1}))
    report = any2ds.verify(dataset, quiet=True, processes_count=1)
    assert any("which is no count" in finding.message for finding in report.findings)
