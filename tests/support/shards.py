"""Single shards as the writer of a format writes them, without a run, and what its reader finds in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from any2ds.config.options import OutputOptions
from any2ds.core import plugins
from any2ds.core.bodies.stored import StoredBody
from any2ds.core.metadata import MetadataTable
from any2ds.core.rows import Row
from any2ds.core.samples import Sample
from any2ds.testing import writing
from any2ds.testing.writing import Found
from any2ds.writers.contract import ShardWriter


def writer_of(output_format: str) -> type[ShardWriter]:
    found: type[ShardWriter] = plugins.load("writers", output_format)
    return found


def formats() -> Sequence[str]:
    return plugins.names("writers")


def stored_body(content: bytes) -> StoredBody:
    return StoredBody.of(content)


def body_of(size: int, piece: bytes) -> StoredBody:
    """A body of so many bytes that is never in memory as a whole, and repeats the beginning of `piece`."""
    return StoredBody(size, lambda offset, wanted: piece[:wanted])


def write(
    output_format: str,
    path: Path,
    bodies: Sequence[bytes | StoredBody | None],
    columns: Mapping[str, pa.Array] | None = None,
    key: str = "{:05d}",
    ext: str = "bin",
    flush_every: int = 0,
    **options: object,
) -> int:
    """Write a shard of rows with these bodies and columns of a list; None is a row that failed.

    With `flush_every` the writer lets go of what it holds after so many samples. Returns the most bytes that it held.
    """
    urls = pa.array([f"http://127.0.0.1/{n}" for n in range(len(bodies))], pa.string())
    metadata = MetadataTable(pa.table({"url": urls, **(columns or {})}), ())
    writer = writer_of(output_format)(path, metadata, OutputOptions(**options))  # type: ignore[arg-type]
    held = 0
    for n, body in enumerate(bodies):
        row = Row(0, n, key.format(n), f"http://127.0.0.1/{n}")
        if body is None:
            metadata.add(Sample(row, None, "", {"status": "failed_to_download"}))
            continue
        stored = stored_body(body) if isinstance(body, bytes) else body
        sample = Sample(row, stored, ext, {"status": "success", "ext": ext, "bytes": stored.size})
        metadata.add(sample)
        writer.write(sample)
        held = max(held, writer.held)
        if flush_every and n % flush_every == 0:
            writer.flush()
            assert writer.held == 0
    writer.close()
    return held


def read(output_format: str, path: Path) -> Found:
    """Key, extension and file of each sample of a shard. Raises DamagedShard."""
    return writing.read(writer_of(output_format), path)


def indexes(output_format: str, path: Path) -> Mapping[str, bytes]:
    """The expected content of the files beside a shard, by the end of their name."""
    return writing.indexes(writer_of(output_format), path)
