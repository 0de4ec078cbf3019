"""How parquet shards are laid out: row groups, pages, statistics, and what they say of themselves."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from any2ds import download
from any2ds.config.options import OutputOptions
from any2ds.core.errors import OptionError, OutputError
from any2ds.testing.pixel import jpg
from any2ds.testing.server import serve
from any2ds.testing.writing import WriterContract
from tests.support import shards

STORED_AS_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


class TestParquetOfImages(WriterContract):
    writer = shards.writer_of("parquet")
    options = OutputOptions(parquet_data="image")


def written(path: Path, sizes: list[int | None], **options: Any) -> pq.ParquetFile:
    """A shard of files of these sizes in bytes; None is a row that failed."""
    bodies = [None if size is None else bytes([n % 256]) * size for n, size in enumerate(sizes)]
    assert shards.write("parquet", path, bodies, ext="png", **options) < OutputOptions(**options).row_group_bytes
    return pq.ParquetFile(path)


def groups(file: pq.ParquetFile) -> list[list[int | None]]:
    """The sizes of the files in each row group."""
    found = (file.read_row_group(n, columns=["data"])["data"] for n in range(file.num_row_groups))
    return [[None if value is None else len(value) for value in column.to_pylist()] for column in found]


def test_a_row_group_ends_before_its_files_are_more_than_was_asked_for(tmp_path: Path) -> None:
    sizes = [400, 400, None, 300, 100, None, 999, 5000, 1, None]
    file = written(tmp_path / "a.parquet", sizes, row_group_bytes=1000)
    assert groups(file) == [[400, 400, None], [300, 100, None], [999], [5000], [1, None]]


@pytest.mark.parametrize("sizes", [[7], [None, None], [0, 0, 0], [None, 5]])
def test_the_smallest_shards_are_one_row_group(sizes: list[int | None], tmp_path: Path) -> None:
    assert groups(written(tmp_path / "a.parquet", sizes)) == [sizes]


def test_each_file_has_a_page_of_its_own_unless_it_is_small(tmp_path: Path) -> None:
    size = 100_000
    column = written(tmp_path / "a.parquet", [size] * 20).metadata.row_group(0).column(11 + 2)
    assert column.path_in_schema == "data"
    # The header of a page has some ten bytes; one page would have one of them.
    assert column.total_compressed_size - 20 * (size + 4) > 20 * 10


@pytest.mark.parametrize("parquet_data", ["binary", "image"])
def test_metadata_can_be_searched_and_files_are_stored_as_they_are(parquet_data: str, tmp_path: Path) -> None:
    file = written(tmp_path / "a.parquet", [10, 20, None], parquet_data=parquet_data, row_group_bytes=25)
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        assert [(order.column_index, order.descending) for order in group.sorting_columns] == [(0, False)]
        for column in (group.column(n) for n in range(group.num_columns)):
            is_data = column.path_in_schema.partition(".")[0] == "data"
            assert column.is_stats_set == (not is_data), column.path_in_schema
            assert column.compression == ("UNCOMPRESSED" if is_data else "SNAPPY")
            assert column.has_offset_index
            assert column.has_column_index == (not is_data)
    keys = [file.metadata.row_group(number).column(0).statistics for number in range(2)]
    assert [(key.min, key.max) for key in keys] == [("00000", "00000"), ("00001", "00002")]


@pytest.mark.parametrize(("kind", "feature"), [("image", "Image"), ("audio", "Audio")])
def test_files_are_said_to_be_what_the_dataset_is_whatever_is_in_the_shard(
    kind: str, feature: str, tmp_path: Path
) -> None:
    for n, sizes in enumerate([[3, None], [None, None]]):
        schema = written(tmp_path / f"{n}.parquet", sizes, parquet_data=kind).schema_arrow
        assert json.loads(schema.metadata[b"huggingface"]) == {"info": {"features": {"data": {"_type": feature}}}}
        assert schema.field("data").type == STORED_AS_IMAGE
    (first, failed) = pq.read_table(tmp_path / "0.parquet", columns=["data"])["data"].to_pylist()
    assert (first, failed) == ({"bytes": bytes(3), "path": "00000.png"}, None)


def test_plain_bytes_are_said_to_be_nothing_else(tmp_path: Path) -> None:
    schema = written(tmp_path / "a.parquet", [3]).schema_arrow
    assert (schema.field("data").type, schema.metadata) == (pa.binary(), None)


def test_a_dataset_has_one_type_of_data_but_row_groups_of_any_size(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(jpg())
    with serve(tmp_path) as server:
        options: dict[str, Any] = {"output_folder": tmp_path / "out", "output_format": "parquet", "quiet": True}
        options |= {"number_sample_per_shard": 1, "distributor": "inline"}
        download([server.url("a.jpg")], parquet_data="image", **options)
        both = [server.url("a.jpg"), server.url("b.jpg")]
        with pytest.raises(OutputError, match="parquet_data was 'image', now 'binary'"):
            download(both, **options)
        assert download(both, parquet_data="image", row_group_bytes="1MB", **options).shards == 1
    tables = [pq.read_schema(tmp_path / "out" / f"{n:05d}.parquet") for n in range(2)]
    assert tables[0].equals(tables[1], check_metadata=True)


def test_what_cannot_be_is_said_in_words(tmp_path: Path) -> None:
    for options in ({"row_group_bytes": "2GiB"}, {"row_group_bytes": 0}, {"parquet_data": "video"}):
        (name,) = options
        with pytest.raises(OptionError, match=name):
            download(["http://127.0.0.1/"], output_folder=tmp_path / "out", **options)
