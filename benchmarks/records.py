"""What a record costs in tfrecord and arrayrecord shards, against TensorFlow's writer and ArrayRecord's own loop.

    python benchmarks/records.py [tfrecord|arrayrecord ...] [--pairs=9] [--records=4000]

Files of 50 KB with the usual metadata (URL, caption, outcome, md5), into a RAM disk if there is one. Each side runs in
a process of its own, and they take turns; a figure is the median of the ratios of CPU time (all threads) in each pair.
It needs google-crc32c, array_record and, for tfrecord, TensorFlow.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))  # any2ds, where it is not installed

SIZE = 50_000  # bytes of a file
CHUNK = 16_384  # bytes that libcurl hands over at once
DIFFERENT = 200  # files; more would only measure how they are made

# What is measured -> what it is held against -> at least so many times its records per CPU second; None: a look.
PAIRS: dict[str, dict[str, float | None]] = {
    "tfrecord": {"tensorflow, Example made and written": 0.9, "tensorflow, ready records": None},
    "arrayrecord": {
        "array_record group_size:1, ready records": 0.9,
        "array_record group_size:1,uncompressed, ready records": None,
        "array_record group_size:1,uncompressed, Example made by protobuf": None,
    },
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(PAIRS)}; both by default")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--records", type=int, default=4000)
    parser.add_argument("--side", help=argparse.SUPPRESS)  # one side, in a process of its own
    arguments = parser.parse_args()
    if arguments.side:
        print(json.dumps(SIDES[arguments.side](arguments.records)))
        return 0
    if unknown := set(arguments.names) - set(PAIRS):
        parser.error(f"no such format: {', '.join(sorted(unknown))}")
    for name in arguments.names or PAIRS:
        for other, wanted in PAIRS[name].items():
            ours, theirs = _in_turns(name, other, arguments.pairs, arguments.records)
            ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
            found = statistics.median(ratios)
            verdict = "" if wanted is None else f", wanted {wanted}: {'yes' if found >= wanted else 'no'}"
            print(
                f"{name} against {other}: {found:.2f} x its records per CPU second "
                f"({min(ratios):.2f} to {max(ratios):.2f}; {statistics.median(ours) * 1e6:.0f} and "
                f"{statistics.median(theirs) * 1e6:.0f} µs each){verdict}",
                flush=True,
            )
    return 0


def _in_turns(name: str, other: str, pairs: int, records: int) -> tuple[list[float], list[float]]:
    """CPU seconds per record of both sides, in each pair."""
    seconds: dict[str, list[float]] = {name: [], other: []}
    for pair in range(pairs):
        for side in (name, other) if pair % 2 else (other, name):
            command = [sys.executable, __file__, f"--side={side}", f"--records={records}"]
            ended = subprocess.run(command, capture_output=True, text=True, check=True)
            seconds[side].append(json.loads(ended.stdout.splitlines()[-1]))
    return seconds[name], seconds[other]


# --- the sides: CPU seconds per record ---


def any2ds_writer(name: str, records: int) -> float:
    """As a shard is written: each outcome into the metadata table, then into the data, which is closed."""
    import pyarrow as pa

    from any2ds.config.options import OutputOptions
    from any2ds.core import plugins
    from any2ds.core.bodies.buffer import Buffer
    from any2ds.core.metadata import MetadataTable
    from any2ds.core.rows import Row
    from any2ds.core.samples import Sample

    writer_class = plugins.load("writers", name)
    rows = [(n, *_row(n)) for n in range(records)]
    table = pa.table({"url": [url for _, url, _, _ in rows], "caption": [caption for _, _, caption, _ in rows]})
    buffer = Buffer(1 << 40, 1)
    samples = []
    files = [[data[start : start + CHUNK] for start in range(0, SIZE, CHUNK)] for data in _files(DIFFERENT)]
    for n, url, caption, fields in rows:
        receiving = buffer.receive()
        for chunk in files[n % DIFFERENT]:
            receiving.write(chunk)
        samples.append(Sample(Row(0, n, f"{n:09d}", url, caption), receiving.finish(), "jpg", fields))

    def write(path: Path) -> None:
        metadata = MetadataTable(table, ("md5",))
        writer = writer_class(path, metadata, OutputOptions())
        for sample in samples:
            metadata.add(sample)
            writer.write(sample)
            sample.body.release()
        writer.close()

    return _timed(write, records)


def tensorflow(makes_examples: bool, records: int) -> float:
    import tensorflow as tf

    examples = [_example(tf.train, n, data) for n, data in enumerate(_files(DIFFERENT))]
    ready = [example.SerializeToString() for example in examples]
    files = list(_files(DIFFERENT))

    def write(path: Path) -> None:
        with tf.io.TFRecordWriter(str(path)) as writer:
            for n in range(records):
                if makes_examples:
                    writer.write(_example(tf.train, n, files[n % DIFFERENT]).SerializeToString())
                else:
                    writer.write(ready[n % DIFFERENT])

    return _timed(write, records)


def array_record(options: str, makes_examples: bool, records: int) -> float:
    from array_record.python.array_record_module import ArrayRecordWriter

    from tests.support.records import messages

    train = messages()
    files = list(_files(DIFFERENT))
    ready = [_example(train, n, data).SerializeToString() for n, data in enumerate(files)]

    def write(path: Path) -> None:
        writer = ArrayRecordWriter(str(path), options)
        for n in range(records):
            if makes_examples:
                writer.write(_example(train, n, files[n % DIFFERENT]).SerializeToString())
            else:
                writer.write(ready[n % DIFFERENT])
        writer.close()

    return _timed(write, records)


SIDES: dict[str, Callable[[int], float]] = {
    "tfrecord": lambda records: any2ds_writer("tfrecord", records),
    "arrayrecord": lambda records: any2ds_writer("arrayrecord", records),
    "tensorflow, Example made and written": lambda records: tensorflow(True, records),
    "tensorflow, ready records": lambda records: tensorflow(False, records),
    "array_record group_size:1, ready records": lambda records: array_record("group_size:1", False, records),
    "array_record group_size:1,uncompressed, ready records": lambda records: array_record(
        "group_size:1,uncompressed", False, records
    ),
    "array_record group_size:1,uncompressed, Example made by protobuf": lambda records: array_record(
        "group_size:1,uncompressed", True, records
    ),
}


def _timed(write: Callable[[Path], None], records: int) -> float:
    ram = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="any2ds-bench-", dir=ram) as folder:
        before = time.process_time()
        write(Path(folder) / "00000.record")
        return (time.process_time() - before) / records


def _files(count: int) -> Iterator[bytes]:
    chance = random.Random(0)
    different = [b"\xff\xd8\xff\xe0\0\x10JFIF\0" + chance.randbytes(SIZE - 11) for _ in range(DIFFERENT)]
    return (different[n % DIFFERENT] for n in range(count))


def _row(n: int) -> tuple[str, str, dict[str, Any]]:
    """URL, caption and outcome of a row."""
    fields = {
        "status": "success",
        "http_status": 200,
        "mime_type": "image/jpeg",
        "ext": "jpg",
        "bytes": SIZE,
        "etag": f'"{n:x}-5f"',
        "last_modified": "Wed, 21 Oct 2026 07:28:00 GMT",
        "attempts": 1,
        "md5": f"{n:032x}",
    }
    return f"https://www.example.org/pictures/{n:08d}.jpg", f"A picture of the number {n}, in colours", fields


def _example(train: Any, n: int, data: bytes) -> Any:
    """The same record as any2ds makes, in the way of TensorFlow's tutorials."""

    def text(value: str) -> Any:
        return train.Feature(bytes_list=train.BytesList(value=[value.encode()]))

    def number(value: int) -> Any:
        return train.Feature(int64_list=train.Int64List(value=[value]))

    url, caption, fields = _row(n)
    feature = {
        "key": text(f"{n:09d}"),
        "url": text(url),
        "caption": text(caption),
        "status": text(fields["status"]),
        "error_code": text(""),
        "error_message": text(""),
        "http_status": number(fields["http_status"]),
        "mime_type": text(fields["mime_type"]),
        "ext": text(fields["ext"]),
        "bytes": number(fields["bytes"]),
        "final_url": text(""),
        "etag": text(fields["etag"]),
        "last_modified": text(fields["last_modified"]),
        "attempts": number(fields["attempts"]),
        "md5": text(fields["md5"]),
        "data": train.Feature(bytes_list=train.BytesList(value=[data])),
    }
    return train.Example(features=train.Features(feature=feature))


if __name__ == "__main__":
    sys.exit(main())
