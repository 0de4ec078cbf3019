"""What writing a sample costs, without the network, against the libraries of tar, tfrecord and arrayrecord."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.case import Bench, Side

SIZE = 50_000  # bytes of a file
DIFFERENT = 100  # files; more would only measure how they are made
_CAPTION = "a photograph of a brown dog that runs over a wet beach in the evening, its reflection in the sand"
_PATH = Path("/dev/shm" if os.access("/dev/shm", os.W_OK) else "/var/tmp", f"any2ds-benchmark-{os.getpid()}")


class Records:
    """Files with the metadata that a run would give them."""

    def file(self, number: int) -> bytes:
        return random.Random(number % DIFFERENT).randbytes(SIZE)

    def url(self, number: int) -> str:
        return f"https://images.example.com/{number}/full/image.jpg"

    def fields(self, number: int) -> dict[str, Any]:
        empty = dict.fromkeys(("error_code", "error_message", "final_url", "etag", "last_modified"))
        known = {"status": "success", "http_status": 200, "mime_type": "image/jpeg", "ext": "jpg"}
        return {**empty, **known, "bytes": SIZE, "attempts": 1, "md5": f"{number:032x}"}

    def described(self, number: int) -> dict[str, Any]:
        key = {"key": f"{number:09d}", "url": self.url(number), "caption": f"{_CAPTION} {number}"}
        return {**key, **self.fields(number)}


def timed(write: Callable[[], None], count: int) -> dict[str, float]:
    began = time.process_time()
    write()
    took = time.process_time() - began
    _PATH.unlink(missing_ok=True)
    return {"writing": took / count, "per_second": count / took}


def by_any2ds(output_format: str, count: int) -> dict[str, float]:
    """As a shard is written: each outcome into the metadata table, then into the data, which is closed."""
    import pyarrow as pa

    from any2ds.config.options import OutputOptions
    from any2ds.core import plugins
    from any2ds.core.bodies.stored import StoredBody
    from any2ds.core.metadata import MetadataTable
    from any2ds.core.rows import Row
    from any2ds.core.samples import Sample

    records, numbers = Records(), range(count)
    bodies = [StoredBody.of(records.file(number)) for number in range(min(count, DIFFERENT))]
    captions = [f"{_CAPTION} {number}" for number in numbers]
    metadata = MetadataTable(
        pa.table({"url": [records.url(number) for number in numbers], "caption": captions}), ("md5",)
    )
    samples = [
        Sample(
            Row(0, number, f"{number:09d}", records.url(number), captions[number]),
            bodies[number % DIFFERENT],
            "jpg",
            records.fields(number),
        )
        for number in numbers
    ]

    def write() -> None:
        writer = plugins.load("writers", output_format)(_PATH, metadata, OutputOptions())
        for sample in samples:
            metadata.add(sample)
            writer.write(sample)
        writer.close()

    return timed(write, count)


def by_webdataset(count: int, is_bytes: bool) -> dict[str, float]:
    """As its users do: the caption as text, the metadata as a dict; or, with `is_bytes`, both encoded by orjson."""
    import orjson
    import webdataset

    records = Records()
    files = [records.file(number) for number in range(DIFFERENT)]
    described = [records.described(number) for number in range(count)]

    def write() -> None:
        with webdataset.TarWriter(str(_PATH), encoder=not is_bytes) as writer:
            for number, fields in enumerate(described):
                texts: dict[str, Any] = {"txt": fields["caption"], "json": fields}
                if is_bytes:
                    texts = {"txt": fields["caption"].encode(), "json": orjson.dumps(fields)}
                writer.write({"__key__": fields["key"], "jpg": files[number % DIFFERENT], **texts})

    return timed(write, count)


def example(train: Any, records: Records, number: int) -> bytes:
    """A tf.train.Example, made as TensorFlow's tutorials do it."""
    features = {}
    for name, value in {**records.described(number), "data": records.file(number)}.items():
        if isinstance(value, int):
            features[name] = train.Feature(int64_list=train.Int64List(value=[value]))
        else:
            content = value if isinstance(value, bytes) else (value or "").encode()
            features[name] = train.Feature(bytes_list=train.BytesList(value=[content]))
    return bytes(train.Example(features=train.Features(feature=features)).SerializeToString())


def by_tensorflow(count: int, is_ready: bool) -> dict[str, float]:
    import tensorflow as tf

    records = Records()
    ready = [example(tf.train, records, number) for number in range(min(count, DIFFERENT))]

    def write() -> None:
        with tf.io.TFRecordWriter(str(_PATH)) as writer:
            for number in range(count):
                writer.write(ready[number % DIFFERENT] if is_ready else example(tf.train, records, number))

    return timed(write, count)


def by_array_record(count: int, options: str, is_ready: bool) -> dict[str, float]:
    from array_record.python.array_record_module import ArrayRecordWriter

    from tests.support.records import messages

    records, train = Records(), messages()
    ready = [example(train, records, number) for number in range(min(count, DIFFERENT))]

    def write() -> None:
        writer = ArrayRecordWriter(str(_PATH), options)
        for number in range(count):
            writer.write(ready[number % DIFFERENT] if is_ready else example(train, records, number))
        writer.close()

    return timed(write, count)


def tar(bench: Bench) -> list[Side]:
    count = bench["records"]
    return [
        bench.call("any2ds", by_any2ds, output_format="webdataset", count=count),
        bench.call("webdataset.TarWriter, json from a dict", by_webdataset, count=count, is_bytes=False),
        bench.call("webdataset.TarWriter, bytes, json by orjson", by_webdataset, count=count, is_bytes=True),
    ]


def records(bench: Bench) -> list[Side]:
    count, tensorflow = bench["records"], "tensorflow"
    return [
        bench.call("any2ds, tfrecord", by_any2ds, output_format="tfrecord", count=count),
        bench.call("TensorFlow, Example made and written", by_tensorflow, tensorflow, count=count, is_ready=False),
        bench.call("TensorFlow, ready records", by_tensorflow, tensorflow, count=count, is_ready=True),
        bench.call("any2ds, arrayrecord", by_any2ds, output_format="arrayrecord", count=count),
        *(
            bench.call(name, by_array_record, count=count, options=options, is_ready=is_ready)
            for name, options, is_ready in (
                ("ArrayRecord, its options, ready records", "group_size:1", True),
                ("ArrayRecord, uncompressed, ready records", "group_size:1,uncompressed", True),
                ("ArrayRecord, uncompressed, Example made by protobuf", "group_size:1,uncompressed", False),
            )
        ),
    ]
