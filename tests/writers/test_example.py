"""Records of `tf.train.Example`: what each column becomes, as protobuf's library reads it, and parsing what is odd."""

import datetime
import decimal
import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import any2ds
from tests.support.records import examples
from tests.support.shards import write

DAY, TIME = datetime.date(2026, 1, 2), datetime.datetime(2026, 1, 2, 3, 4, 5, 600)
HUGE = "ü" * 3_000_000
# type, values, and what a record has for them
COLUMNS: dict[str, tuple[pa.DataType, list[Any], list[list[Any]]]] = {
    "text": (pa.string(), ["größe", "", None], [["größe".encode()], [b""], [b""]]),
    "large": (pa.large_string(), [HUGE, "x" * 16384, None], [[HUGE.encode()], [b"x" * 16384], [b""]]),
    "binary": (pa.binary(), [b"\x00\xff", b"", None], [[b"\x00\xff"], [b""], [b""]]),
    "fixed": (pa.binary(2), [b"\x00\xff", b"ab", None], [[b"\x00\xff"], [b"ab"], [b""]]),
    "of_few": (pa.dictionary(pa.int8(), pa.string()), ["a", "b", None], [[b"a"], [b"b"], [b""]]),
    "nothing": (pa.null(), [None] * 3, [[b""]] * 3),
    "bool": (pa.bool_(), [True, False, None], [[1], [0], [0]]),
    "int8": (pa.int8(), [-128, 127, None], [[-128], [127], [0]]),
    "int64": (pa.int64(), [-(2**63), 2**63 - 1, 128], [[-(2**63)], [2**63 - 1], [128]]),
    "uint32": (pa.uint32(), [2**32 - 1, 0, None], [[2**32 - 1], [0], [0]]),
    "uint64": (pa.uint64(), [2**64 - 1, 0, None], [[b"18446744073709551615"], [b"0"], [b""]]),
    "float16": (pa.float16(), [1.5, -2.0, None], [[1.5], [-2.0], [math.nan]]),
    "float32": (pa.float32(), [math.nan, math.inf, None], [[math.nan], [math.inf], [math.nan]]),
    "float64": (pa.float64(), [1e300, -1e300, 0.5], [[math.inf], [-math.inf], [0.5]]),
    "date": (pa.date32(), [DAY, None, DAY], [[b"2026-01-02"], [b""], [b"2026-01-02"]]),
    "time": (pa.time64("us"), [datetime.time(1, 2, 3), None, None], [[b"01:02:03"], [b""], [b""]]),
    "stamp": (pa.timestamp("us"), [TIME, None, None], [[b"2026-01-02T03:04:05.000600"], [b""], [b""]]),
    "span": (pa.duration("s"), [datetime.timedelta(1, 2), None, None], [[b"1 day, 0:00:02"], [b""], [b""]]),
    "decimal": (pa.decimal128(9, 2), [decimal.Decimal("-1.50"), None, None], [[b"-1.50"], [b""], [b""]]),
    "texts": (pa.list_(pa.string()), [["a", None, "ü"], [], None], [[b"a", b"", "ü".encode()], [], []]),
    "raws": (pa.large_list(pa.binary()), [[b"\xff"], [b""], None], [[b"\xff"], [b""], []]),
    "ints": (pa.list_(pa.int16()), [[1, -1, None], [], None], [[1, -1, 0], [], []]),
    "bools": (pa.list_(pa.bool_()), [[True, False], [], None], [[1, 0], [], []]),
    "box": (pa.list_(pa.float32(), 2), [[0.5, 1.0], [0.0, 2.0], None], [[0.5, 1.0], [0.0, 2.0], []]),
    "huge": (pa.list_(pa.float64()), [[1e300, None], [], None], [[math.inf, math.nan], [], []]),
    "days": (pa.list_(pa.date32()), [[DAY], [], None], [[b'["2026-01-02"]'], [b"[]"], [b""]]),
    "struct": (
        pa.struct({"a": pa.int8(), "b": pa.string()}),
        [{"a": 1, "b": '"'}, None, {"a": None, "b": None}],
        [[b'{"a":1,"b":"\\""}'], [b""], [b'{"a":null,"b":null}']],
    ),
    "map": (pa.map_(pa.string(), pa.int8()), [[("x", 1)], [], None], [[b'[["x",1]]'], [b"[]"], [b""]]),
}
FILES = [b"", b"\xff" * 50_000, b"a file"]


def arrays() -> dict[str, pa.Array]:
    return {name: pa.array(values, kind) for name, (kind, values, _) in COLUMNS.items()}


def test_every_type_as_protobuf_and_we_read_it_from_a_shard(tmp_path: Path) -> None:
    write("tfrecord", tmp_path / "0.tfrecord", FILES, arrays())
    for n, example in enumerate(examples(tmp_path / "0.tfrecord")):
        assert {*COLUMNS, "key", "url", "data"} <= example.keys()
        for name, (_, _, wanted) in COLUMNS.items():
            assert repr(example[name]) == repr(wanted[n]), name
        assert (example["key"], example["data"]) == ([b"%05d" % n], [FILES[n]])
        assert (example["bytes"], example["error_code"], example["http_status"]) == ([len(FILES[n])], [b""], [0])
    content = (tmp_path / "0.tfrecord").read_bytes()
    record = content[12 : 12 + int.from_bytes(content[:8], "little")]
    parsed = any2ds.parse_example(record)
    assert {name: repr(values) for name, values in parsed.items()} == {
        name: repr(values) for name, values in examples(tmp_path / "0.tfrecord")[0].items()
    }
    with pytest.raises(ValueError, match=r"no tf\.train\.Example"):
        any2ds.parse_example(record[:-1])


def test_texts_are_those_of_the_json_beside_a_file(tmp_path: Path) -> None:
    names = ["date", "time", "stamp", "span", "decimal", "uint64", "struct", "map", "days"]
    rows = pa.table({"url": [f"data:,{n}" for n in range(3)], **{name: arrays()[name] for name in names}})
    for output_format in ("tfrecord", "files"):
        how: dict[str, Any] = {"output_format": output_format, "distributor": "inline", "quiet": True}
        any2ds.download(rows, tmp_path / output_format, save_additional_columns=names, **how)
    example = examples(tmp_path / "tfrecord" / "00000.tfrecord")[0]
    described = json.loads(next((tmp_path / "files" / "00000").glob("*0.json")).read_text())
    for name in names:
        (text,) = example[name]
        written = described[name]
        assert text.decode() == written if isinstance(written, str) else json.loads(text) == written, name


def test_times_that_python_has_no_value_for_are_text_in_whatever_rows_they_come(tmp_path: Path) -> None:
    values = pa.array([253402300800, 0, None], pa.int64()).cast(pa.timestamp("s"))  # the year 10000
    parts = [values, *(values.slice(n, 1) for n in range(3))]
    for n, part in enumerate(parts):
        write("tfrecord", tmp_path / f"{n}.tfrecord", [b"a"] * len(part), {"when": part})
    together, *alone = ([one["when"] for one in examples(tmp_path / f"{n}.tfrecord")] for n in range(len(parts)))
    assert together == [when for (when,) in alone]
    assert together[1:] == [[b"1970-01-01T00:00:00"], [b""]]
