"""What a store costs: the rate to S3 against that to a disk, items from S3 against http, resuming 100 000 shards.

python benchmarks/stores.py rate items resume [--rows=2000] [--shards=100000]
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import orjson
from bucket import Bucket, served

from any2ds.config.options import Config, OutputOptions
from any2ds.dataset.shard_list import entry_of, to_json
from tests.support.crash import source

_PAIRS = 3
_BYTES = 100_000  # of a file on its way to the store
_ITEM = 20_000  # of one in it
_DELAY = 500  # milliseconds that the server takes for one, so that nothing else is the limit
_KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


def timed(bucket: Bucket, *options: str) -> tuple[float, float]:
    """Seconds that a run took, its start included, and seconds of CPU, which tell more on a busy machine."""
    environment = {**os.environ, **_KEYS, "AWS_ENDPOINT_URL": bucket.url}
    began = time.monotonic()
    command = [sys.executable, "-m", "any2ds", "--processes_count=1", "--quiet=True", *options]
    before = sum(os.times()[2:4])
    subprocess.run(command, env=environment, check=True)
    return time.monotonic() - began, sum(os.times()[2:4]) - before


def write_list(path: Path, urls: Sequence[str]) -> str:
    path.write_text("\n".join(urls) + "\n")
    return f"--url_list={path}"


def rate(bucket: Bucket, scratch: Path, rows: int) -> None:
    """The same list to a folder and to the bucket, in turns."""
    with source.served() as files:
        urls = write_list(scratch / "rate.txt", [f"{files.base}/ok/{_DELAY}/{_BYTES}/{n}" for n in range(rows)])
        given = [urls, "--output_format=webdataset", "--number_sample_per_shard=200", "--thread_count=64"]
        found = []
        for pair in range(_PAIRS):
            places = [f"{scratch}/out-{pair}", f"s3://bucket/out-{pair}"]
            seconds = {
                place: timed(bucket, *given, f"--output_folder={place}")[0]
                for place in places[:: 1 if pair % 2 else -1]
            }
            local, remote = (seconds[place] for place in places)
            print(f"rate: disk {rows / local:.0f}/s, S3 {rows / remote:.0f}/s, ratio {local / remote:.3f}", flush=True)
            found.append(local / remote)
    print(f"rate to S3 : rate to disk, median of {_PAIRS} pairs: {statistics.median(found):.3f} (wanted 0.85)")


def items(bucket: Bucket, scratch: Path, rows: int) -> None:
    """Objects of one bucket by their s3:// and by their http:// URLs, from the same server."""
    bucket.objects.update({f"items/{n}": os.urandom(_ITEM) for n in range(rows)})
    for name, base in (("s3", "s3://bucket"), ("http", f"{bucket.url}/bucket")):
        urls = write_list(scratch / f"{name}.txt", [f"{base}/items/{n}" for n in range(rows)])
        before = bucket.requests
        seconds, cpu = timed(
            bucket,
            urls,
            "--output_format=webdataset",
            "--allow_schemes=s3",
            f"--output_folder={scratch}/items-{name}",
        )
        asked, each = (bucket.requests - before) / rows, cpu / rows * 1000
        print(
            f"items by {name}: {rows / seconds:.0f}/s, {asked:.1f} requests and {each:.2f} ms of CPU each", flush=True
        )


def resume(bucket: Bucket, scratch: Path, shards: int) -> None:
    """One shard is missing of so many; what is asked for, and how long it takes until it is made."""
    for name in ("disk", "S3"):
        urls = write_list(scratch / f"resume-{name}.txt", [f"data:,{n}" for n in range(shards)])
        place = f"{scratch}/resume" if name == "disk" else "s3://bucket/resume"
        given = [urls, "--output_format=webdataset", "--number_sample_per_shard=1", f"--output_folder={place}"]
        begun = subprocess.Popen(
            [sys.executable, "-m", "any2ds", "--processes_count=1", "--quiet=True", "--grace=0", *given],
            env={**os.environ, **_KEYS, "AWS_ENDPOINT_URL": bucket.url},
            stderr=subprocess.DEVNULL,
        )
        folder = scratch / "resume"
        stats = folder / "00000_stats.json"
        while not (stats.exists() if name == "disk" else "resume/00000_stats.json" in bucket.objects):
            time.sleep(0.05)
        begun.terminate()
        begun.wait()
        _pretend(bucket, folder if name == "disk" else None, shards, Config.from_options(_parsed(given)).output)
        before = bucket.requests
        seconds, cpu = timed(bucket, *given)
        asked = bucket.requests - before
        print(f"resume on {name}: {shards} shards, {seconds:.1f} s, {cpu:.1f} s of CPU, {asked} requests", flush=True)


def _parsed(given: Sequence[str]) -> dict[str, object]:
    options: dict[str, object] = dict(option[2:].split("=", 1) for option in given)
    return {**options, "number_sample_per_shard": 1}


def _pretend(bucket: Bucket, folder: Path | None, shards: int, options: OutputOptions) -> None:
    """All shards but the last one look finished, by a run that came to its end."""
    first = bucket.objects["resume/00000_stats.json"] if folder is None else (folder / "00000_stats.json").read_bytes()
    assert isinstance(first, bytes)
    known = {**json.loads(first), "shard_id": 0}
    entries = []
    for shard in range(shards):
        stats = orjson.dumps({**known, "shard_id": shard})
        if shard < shards - 1:
            entries.append(entry_of(shard, stats))
        for end, content in ((".tar", b""), (".tar.idx", b""), (".parquet", b""), ("_stats.json", stats)):
            name = f"{shard:05d}{end}"
            if folder is None and shard < shards - 1:
                bucket.objects[f"resume/{name}"] = content
            elif folder is None:
                bucket.objects.pop(f"resume/{name}", None)
            elif shard < shards - 1:
                (folder / name).write_bytes(content)
            else:
                (folder / name).unlink(missing_ok=True)
    listed = to_json(entries, options, is_open=False)
    if folder is None:
        bucket.objects["resume/.any2ds/shards"] = listed
    else:
        (folder / ".any2ds/shards").write_bytes(listed)


def main() -> None:
    wanted = [argument for argument in sys.argv[1:] if not argument.startswith("--")] or ["rate", "items", "resume"]
    numbers = dict(argument[2:].split("=") for argument in sys.argv[1:] if argument.startswith("--"))
    rows, shards = int(numbers.get("rows", 2000)), int(numbers.get("shards", 100_000))
    with tempfile.TemporaryDirectory() as scratch, served() as bucket:
        for name in wanted:
            what = {"rate": rate, "items": items, "resume": resume}[name]
            what(bucket, Path(scratch), shards if name == "resume" else rows)


if __name__ == "__main__":
    main()
