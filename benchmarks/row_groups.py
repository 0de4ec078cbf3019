"""What `row_group_bytes` costs and brings: a parquet shard of images in several ways, and what reading it takes.

python benchmarks/row_groups.py [FOLDER]      # on a disk of your choice; default: /dev/shm
"""

from __future__ import annotations

import json
import os
import platform
import random
import sys
import tempfile
import time
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from any2ds.config.options import OutputOptions
from any2ds.core.bodies.stored import StoredBody
from any2ds.core.metadata import MetadataTable
from any2ds.core.rows import Row
from any2ds.core.samples import Sample
from any2ds.writers.formats.parquet import ParquetWriter

_IMAGES, _SIZE = 8000, 50_000
_LOOK_UPS = 20
_TRIED = [256 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20, 64 << 20]


def write(path: Path, row_group_bytes: int) -> float:
    """Seconds of CPU for each image."""
    noise = os.urandom(_SIZE + _IMAGES)
    urls = [f"https://images.example.com/a/folder/of/files/{n:08d}-picture.jpg" for n in range(_IMAGES)]
    metadata = MetadataTable(pa.table({"url": urls, "caption": [f"some words about {n}" for n in range(_IMAGES)]}), ())
    writer = ParquetWriter(path, metadata, OutputOptions(row_group_bytes=row_group_bytes))
    began = time.process_time()
    for n, url in enumerate(urls):
        fields = {"status": "success", "http_status": 200, "mime_type": "image/jpeg", "ext": "jpg", "bytes": _SIZE}
        fields |= {"etag": f'"{n * 7919:x}"', "last_modified": "Mon, 01 Jan 2024 00:00:00 GMT", "attempts": 1}
        sample = Sample(Row(0, n, f"00000{n:04d}", url), StoredBody.of(noise[n : n + _SIZE]), "jpg", fields)
        metadata.add(sample)
        writer.write(sample)
    writer.close()
    return (time.process_time() - began) / _IMAGES


def taken(connection: duckdb.DuckDBPyConnection, queries: list[str]) -> str:
    """CPU and bytes, as DuckDB itself counts them, for one of the queries."""
    began, read = time.process_time(), 0
    for query in queries:
        ((_, reported),) = connection.execute(f"explain (analyze, format json) {query}").fetchall()
        read += json.loads(reported)["io"]["total_bytes_read"]
    cpu = time.process_time() - began
    return f"{cpu / len(queries) * 1e3:6.1f} ms {read / len(queries) / 1e6:6.2f} MB"


def main() -> None:
    print(f"{_IMAGES} images of {_SIZE} bytes, {platform.machine()}, DuckDB {duckdb.__version__}; ms and µs of CPU")
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if sys.argv[1:] else "/dev/shm") as folder:
        for row_group_bytes in _TRIED:
            path = Path(folder) / "00000.parquet"
            cpu = write(path, row_group_bytes)
            footer, more = pq.read_metadata(path).serialized_size, path.stat().st_size / (_IMAGES * _SIZE) - 1
            choose = random.Random(1)
            keys = [f"00000{choose.randrange(_IMAGES):04d}" for _ in range(_LOOK_UPS)]
            with duckdb.connect(config={"threads": 1, "enable_external_file_cache": False}) as connection:
                one = taken(
                    connection, [f"select octet_length(data) from '{path}' where key = '{key}'" for key in keys]
                )
                outcomes = taken(connection, [f"select status, count(*) from '{path}' group by all"])
            began, images = time.process_time(), 0
            for batch in pq.ParquetFile(path).iter_batches(64, columns=["key", "data"]):
                images += batch.num_rows
            scan = (time.process_time() - began) / images
            print(
                f"{row_group_bytes >> 10:6} KiB: write {cpu * 1e6:4.0f} µs, {more:5.2%} more than the images, "
                f"footer {footer >> 10:5} KiB | one image {one} | outcomes {outcomes} | all {scan * 1e6:3.0f} µs"
            )


if __name__ == "__main__":
    main()
