"""Records of `tf.train.Example`: what each column becomes, as protobuf's library reads it, and parsing what is odd."""

import contextlib
import datetime
import decimal
import math
import struct
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

from any2ds.config.options import OutputOptions
from any2ds.core.bodies.stored import StoredBody
from any2ds.core.layout import Layout
from any2ds.core.metadata import MetadataTable
from any2ds.core.rows import Row, ShardJob
from any2ds.core.samples import Sample
from any2ds.worker.job_rows import JobRows
from any2ds.writers.formats._example import (
    Encoder,
    FeatureKind,
    feature_kind,
    file_head,
    parse,
    varint,
    with_file,
)
from any2ds.writers.formats.tfrecord import TfrecordWriter
from tests.support.records import examples

DAY, TIME = datetime.date(2026, 1, 2), datetime.datetime(2026, 1, 2, 3, 4, 5, 600)
HUGE = "ü" * 3_000_000
BYTES, INT, FLOAT = FeatureKind("bytes"), FeatureKind("int64"), FeatureKind("float")
MANY_BYTES, INTS, FLOATS = FeatureKind("bytes", True), FeatureKind("int64", True), FeatureKind("float", True)
# type, values, and what a record has for them
COLUMNS: dict[str, tuple[pa.DataType, list[Any], FeatureKind, list[list[Any]]]] = {
    "text": (pa.string(), ["größe", "", None], BYTES, [["größe".encode()], [b""], [b""]]),
    "large": (pa.large_string(), [HUGE, "x" * 16384, None], BYTES, [[HUGE.encode()], [b"x" * 16384], [b""]]),
    "binary": (pa.binary(), [b"\x00\xff", b"", None], BYTES, [[b"\x00\xff"], [b""], [b""]]),
    "fixed": (pa.binary(2), [b"\x00\xff", b"ab", None], BYTES, [[b"\x00\xff"], [b"ab"], [b""]]),
    "of_few": (pa.dictionary(pa.int8(), pa.string()), ["a", "b", None], BYTES, [[b"a"], [b"b"], [b""]]),
    "nothing": (pa.null(), [None] * 3, BYTES, [[b""]] * 3),
    "bool": (pa.bool_(), [True, False, None], INT, [[1], [0], [0]]),
    "int8": (pa.int8(), [-128, 127, None], INT, [[-128], [127], [0]]),
    "int64": (pa.int64(), [-(2**63), 2**63 - 1, 128], INT, [[-(2**63)], [2**63 - 1], [128]]),
    "uint32": (pa.uint32(), [2**32 - 1, 0, None], INT, [[2**32 - 1], [0], [0]]),
    "uint64": (pa.uint64(), [2**64 - 1, 0, None], BYTES, [[b"18446744073709551615"], [b"0"], [b""]]),
    "float16": (pa.float16(), [1.5, -2.0, None], FLOAT, [[1.5], [-2.0], [math.nan]]),
    "float32": (pa.float32(), [math.nan, math.inf, None], FLOAT, [[math.nan], [math.inf], [math.nan]]),
    "float64": (pa.float64(), [1e300, -1e300, 0.5], FLOAT, [[math.inf], [-math.inf], [0.5]]),
    "date": (pa.date32(), [DAY, None, DAY], BYTES, [[b"2026-01-02"], [b""], [b"2026-01-02"]]),
    "time": (pa.time64("us"), [datetime.time(1, 2, 3), None, None], BYTES, [[b"01:02:03"], [b""], [b""]]),
    "stamp": (pa.timestamp("us"), [TIME, None, None], BYTES, [[b"2026-01-02T03:04:05.000600"], [b""], [b""]]),
    "span": (pa.duration("s"), [datetime.timedelta(1, 2), None, None], BYTES, [[b"1 day, 0:00:02"], [b""], [b""]]),
    "decimal": (pa.decimal128(9, 2), [decimal.Decimal("-1.50"), None, None], BYTES, [[b"-1.50"], [b""], [b""]]),
    "texts": (pa.list_(pa.string()), [["a", None, "ü"], [], None], MANY_BYTES, [[b"a", b"", "ü".encode()], [], []]),
    "raws": (pa.large_list(pa.binary()), [[b"\xff"], [b""], None], MANY_BYTES, [[b"\xff"], [b""], []]),
    "ints": (pa.list_(pa.int16()), [[1, -1, None], [], None], INTS, [[1, -1, 0], [], []]),
    "bools": (pa.list_(pa.bool_()), [[True, False], [], None], INTS, [[1, 0], [], []]),
    "box": (pa.list_(pa.float32(), 2), [[0.5, 1.0], [0.0, 2.0], None], FLOATS, [[0.5, 1.0], [0.0, 2.0], []]),
    "huge": (pa.list_(pa.float64()), [[1e300, None], [], None], FLOATS, [[math.inf, math.nan], [], []]),
    "days": (pa.list_(pa.date32()), [[DAY], [], None], BYTES, [[b'["2026-01-02"]'], [b"[]"], [b""]]),
    "struct": (
        pa.struct({"a": pa.int8(), "b": pa.string()}),
        [{"a": 1, "b": '"'}, None, {"a": None, "b": None}],
        BYTES,
        [[b'{"a":1,"b":"\\""}'], [b""], [b'{"a":null,"b":null}']],
    ),
    "map": (pa.map_(pa.string(), pa.int8()), [[("x", 1)], [], None], BYTES, [[b'[["x",1]]'], [b"[]"], [b""]]),
}
FILES = [b"", b"\xff" * 50_000, b"a file"]


def table() -> pa.Table:
    return pa.table({name: pa.array(values, kind) for name, (kind, values, _, _) in COLUMNS.items()})


def test_what_each_type_becomes() -> None:
    for name, (kind, _, wanted, _) in COLUMNS.items():
        assert feature_kind(kind) == wanted, name


def test_every_type_as_protobuf_reads_it_from_a_shard(tmp_path: Path) -> None:
    rows = pa.table({"url": [f"http://127.0.0.1/{n}" for n in range(3)]})
    for name, column in zip(COLUMNS, table().columns, strict=True):
        rows = rows.append_column(name, column)
    metadata = MetadataTable(rows, ())
    writer = TfrecordWriter(tmp_path / "0.tfrecord", metadata, OutputOptions())
    for n, data in enumerate(FILES):
        row = Row(0, n, f"{n}", None)  # without what the list says, as rows that are kept by a retry
        sample = Sample(row, StoredBody.of(data), "bin", {"status": "success", "ext": "bin", "bytes": len(data)})
        metadata.add(sample)
        writer.write(sample)
    writer.close()
    found = examples(tmp_path / "0.tfrecord")
    for n, example in enumerate(found):
        assert set(example) == {*metadata.schema.names, "data"}
        for name, (_, _, _, wanted) in COLUMNS.items():
            assert repr(example[name]) == repr(wanted[n]), name
        assert (example["key"], example["data"]) == ([b"%d" % n], [FILES[n]])
        assert (example["bytes"], example["error_code"], example["http_status"]) == ([len(FILES[n])], [b""], [0])


def test_what_is_written_is_parsed_again_in_the_order_of_the_columns() -> None:
    for n, (features, data) in enumerate(zip(Encoder(table().schema).encode(table()), FILES, strict=True)):
        found = parse(with_file(features, file_head("data", len(data)), len(data)) + data)
        assert list(found) == [*COLUMNS, "data"]
        assert repr(found) == repr({**{name: column[3][n] for name, column in COLUMNS.items()}, "data": [data]})


@pytest.mark.parametrize("name", ["date", "time", "stamp", "span", "decimal", "uint64", "struct", "map", "days"])
def test_texts_are_those_of_the_json_beside_a_file(name: str) -> None:
    rows = pa.table({"url": ["http://127.0.0.1/"] * 3, name: table()[name]})
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, rows.schema) as sink:
        sink.write_table(rows)
    job = ShardJob(0, stream.getvalue().to_pybytes(), 3)
    metadata = MetadataTable(rows, ())
    (row, *_) = JobRows(job, Layout(10, 1))
    described = orjson.loads(metadata.to_json(Sample(row, None, "", {})))[name]
    (text,) = parse(records(rows)[0])[name]
    assert text.decode() == described if isinstance(described, str) else orjson.loads(text) == described


def test_times_that_python_has_no_value_for_are_text_in_whatever_rows_they_come() -> None:
    values = pa.array([253402300800, 0, None], pa.int64()).cast(pa.timestamp("s"))  # the year 10000
    column = pa.table({"when": values})
    together = [parse(record)["when"] for record in records(column)]
    alone = [parse(records(column.slice(n, 1))[0])["when"] for n in range(3)]
    assert together == alone
    assert together[1:] == [[b"1970-01-01T00:00:00"], [b""]]


def test_numbers_that_are_not_packed_and_fields_that_nobody_knows_are_read() -> None:
    def field(number: int, value: bytes) -> bytes:
        return varint(number << 3 | 2) + varint(len(value)) + value

    unpacked = field(3, b"\x08" + varint(300) + b"\x08" + varint(2**64 - 1))
    floats = field(2, b"\x0d" + struct.pack("<f", 0.5) + field(1, struct.pack("<2f", 1.5, 2.5)))
    entries = [field(1, field(1, name) + field(2, value)) for name, value in ((b"n", unpacked), (b"f", floats))]
    empty = field(1, field(1, b"e"))
    unknown = b"\x78\x01" + field(9, b"?") + b"\x75" + bytes(4) + b"\x71" + bytes(8)
    record = field(1, b"".join([*entries, empty, unknown])) + unknown
    assert parse(record) == {"n": [300, -1], "f": [0.5, 1.5, 2.5], "e": []}


def test_only_the_columns_that_are_asked_for(tmp_path: Path) -> None:
    (record,) = records(pa.table({"a": [1], "b": ["text"], "c": [[1.5, 2.5]]}))
    assert parse(record, {"c", "a", "none"}) == {"a": [1], "c": [1.5, 2.5]}
    assert parse(record, ()) == {}


def records(table: pa.Table) -> list[bytes]:
    """Records without a file."""
    return [with_file(features, b"", 0) for features in Encoder(table.schema).encode(table)]


def test_what_is_no_record_is_a_value_error_and_never_worse() -> None:
    some = table().select(["int64", "box", "texts"])
    (whole, *_) = records(some)
    for place in range(len(whole)):
        for byte in (0, 0x7F, 0x80, 0xFF, whole[place] ^ 1):
            garbled = whole[:place] + bytes([byte]) + whole[place + 1 :]
            for content in (garbled, garbled[:place]):
                with contextlib.suppress(ValueError):
                    parse(content)
    for record in (b"\x0a" + b"\xff" * 20, b"\x0a\x7f", b"\x0b"):
        with pytest.raises(ValueError, match=r"no tf\.train\.Example"):
            parse(record)
