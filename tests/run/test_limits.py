"""Real runs over loopback that are made slow in one way each say what it is that makes them slow."""

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.support.dns import serve_dns
from tests.support.play import Outcome, Play, Row

BODY = b"some text, and more of it\n" * 400
TOLD: dict[str, Any] = {"log_format": "json", "log_interval": 0.1}


def limit_of(outcome: Outcome) -> tuple[str, str]:
    """What was said most often to limit a run, and the words for a person, in the middle of it."""
    said = [(line["limit"], line["limit_words"]) for line in outcome.log if line.get("limit")]
    ((limit, _),) = Counter(limit for limit, _ in said).most_common(1)
    words = [words for each, words in said if each == limit]
    return limit, words[len(words) // 2]


@pytest.mark.parametrize(
    ("rows", "options", "limit", "words"),
    [
        (dict.fromkeys(range(60), "slow:0.2"), {"thread_count": 4}, "nothing", "--thread_count"),
        (dict.fromkeys(range(32), "flow:0.3"), {"thread_count": 4}, "bodies", "B/s in all"),
        (dict.fromkeys(range(120), "ok"), {"host_delay": 0.05}, "hosts", "127.0.0.1"),
    ],
    ids=["slow answers", "slow bodies", "a host that may be asked now and then only"],
)
def test_what_servers_do_slowly_is_named(rows: Any, options: Any, limit: str, words: str) -> None:
    outcome = Play({f"{n}.txt": Row(answer, BODY) for n, answer in rows.items()}, **TOLD, **options).run()
    assert outcome.codes == {"success": len(rows)}
    found, message = limit_of(outcome)
    assert (found, words in message) == (limit, True), message


def test_name_servers_that_take_long() -> None:
    names = [f"h{number}.test" for number in range(36)]
    play = Play({"a.txt": Row(body=BODY)})
    (play.folder / "l.txt").write_text("".join(f"http://{name}:{play.web.port}/a.txt\n" for name in names))
    with serve_dns({name: ["delay:0.3 a:127.0.0.1"] for name in names}) as dns:
        outcome = play.run("download", "l.txt", thread_count=4, nameservers=dns.address, dedupe="none", **TOLD)
    limit, words = limit_of(outcome)
    assert (limit, "--nameservers" in words) == ("dns", True)


@pytest.mark.slow
def test_a_store_that_takes_long() -> None:
    play = Play({f"{n}.txt": Row(body=BODY) for n in range(45)}, store="s3", number_sample_per_shard=5, **TOLD)
    with play.bucket.slow("PUT", 0.08):
        assert limit_of(play.run())[0] == "store"


@pytest.mark.slow
def test_a_list_that_takes_long() -> None:
    play = Play({"a.txt": Row(body=BODY)}, number_sample_per_shard=10, dedupe="none", **TOLD)
    schema = pa.schema([("url", pa.string())])

    def batches() -> Iterator[pa.RecordBatch]:
        for _ in range(120):  # long enough for several verdicts before its end
            time.sleep(0.05)
            yield pa.record_batch([[play.web.url("a.txt")]], schema=schema)

    outcome = play.run("download", pa.RecordBatchReader.from_batches(schema, batches()), way="python")
    limit, words = limit_of(outcome)
    assert (limit, "The url list" in words) == ("rows", True)


@pytest.mark.slow
def test_a_process_that_is_always_busy() -> None:
    rows = {f"{n}.bin": Row(body=bytes([n]) * (1 << 23)) for n in range(30)}
    options = {"compute_hash": "sha512", "output_format": "dummy", "distributor": "multiprocessing", **TOLD}
    limit, words = limit_of(Play(rows, processes_count=1, **options).run())
    assert (limit, "CPU" in words) == ("cpu", True)
