"""The statistics of a shard as JSON: what is written is read back, and nonsense is refused."""

import json

import pytest

from any2ds.core.reports import RunReport, ShardReport
from any2ds.core.stats import Stats

RETRIED = ShardReport(
    shard_id=7, count=3, successes=2, status_dict={"success": 2, "http_404": 1}, replaces={"http_503": 2, "dns": 1}
)


def test_replaced_failures_survive_the_json_of_a_shard():
    written = json.dumps(RETRIED.to_json())
    assert ShardReport.from_json(json.loads(written)) == RETRIED
    assert Stats.parse(written.encode()).replaces == {"http_503": 2, "dns": 1}


def test_a_shard_that_replaces_nothing_does_not_say_so():
    written = ShardReport(shard_id=7).to_json()
    assert "replaces" not in written
    assert ShardReport.from_json(written).replaces == {}
    assert Stats.parse(json.dumps(written).encode()).replaces == {}


def test_a_run_adds_up_what_its_shards_replace():
    assert (RunReport() + RETRIED + RETRIED).replaces == {"http_503": 4, "dns": 2}


@pytest.mark.parametrize("replaces", [{"dns": -1}, {"dns": 1.5}, {"dns": "1"}, {"dns": True}, ["dns"], 3])
def test_replaced_failures_are_counts(replaces):
    written = {**RETRIED.to_json(), "replaces": replaces}
    with pytest.raises(ValueError, match="replaces"):
        ShardReport.from_json(written)
    with pytest.raises(ValueError, match="replaces"):
        Stats.parse(json.dumps(written).encode())
