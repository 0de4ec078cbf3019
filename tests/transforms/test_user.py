"""A step of the user's own is given samples, and whatever it returns or raises is the row's outcome, in words."""

import base64
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import any2ds
from any2ds import Sample
from any2ds.core.errors import BrokenStep, DiskFull, NotDecodable, OptionError
from any2ds.testing.server import Server, serve
from tests.support.recordings import film, tone

ROWS = 12
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63606060000000040001f61738550000"
    "000049454e44ae426082"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("media")
    for number in range(ROWS):
        (folder / f"{number}.bin").write_bytes(bytes([number]) * (100 + number))
    with serve(folder) as server:
        yield server


Through = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def through(server: Server, tmp_path: Path) -> Through:
    """The metadata of rows whose files went through steps, in this process unless options say otherwise."""

    def run(*steps: Any, rows: int = 1, urls: Sequence[str] = (), **options: Any) -> list[dict[str, Any]]:
        output = tmp_path / "out"
        urls = urls or [server.url(f"{number}.bin") for number in range(rows)]
        defaults = {"output_format": "parquet", "distributor": "inline", "quiet": True}
        any2ds.download(list(urls), output_folder=output, transform=list(steps), **{**defaults, **options})
        found: list[dict[str, Any]] = pq.read_table(output / "00000.parquet").to_pylist()
        return found

    return run


def number_of(sample: Sample) -> int:
    return sample.data[0]


def test_a_sample_shows_the_file_and_what_is_known_of_it(through: Through) -> None:
    seen: list[Any] = []

    def look(sample: Sample) -> Sample:
        seen.append((sample.data, sample.size, sample.key, sample.url, sample.ext, sample.fields["http_status"]))
        return sample

    (row,) = through(look)
    assert seen == [(b"\0" * 100, 100, "000000000", row["url"], "flat", 200)]
    assert (row["status"], row["data"], row["stored_bytes"]) == ("success", b"\0" * 100, None)


def test_what_is_not_wanted_is_filtered_with_the_reason_and_is_no_failure(through: Through, tmp_path: Path) -> None:
    def choose(sample: Sample) -> Any:
        return [None, sample.filtered("too dull"), []][number_of(sample)] if number_of(sample) < 3 else sample

    rows = through(choose, rows=4)
    assert [row["status"] for row in rows] == ["filtered"] * 3 + ["success"]
    assert rows[0]["error_message"].startswith("by ")
    assert rows[0]["error_message"].endswith("choose")
    assert rows[1]["error_message"] == "too dull"
    assert [row["error_code"] for row in rows] == [None] * 4
    assert [row["data"] is None for row in rows] == [True, True, True, False]
    assert rows[0]["bytes"] == 100


def test_another_file_has_its_own_type_and_size_and_the_hash_of_what_came(through: Through) -> None:
    def picture(sample: Sample) -> Sample:
        return [
            sample.with_data(PNG),
            sample.with_data(bytearray(b"numbers"), ext="npy"),
            sample.with_data(b"<svg/>", ext="svg", mime_type="image/svg+xml"),
            sample.with_data(b"words", ext="txt"),
        ][number_of(sample)]

    rows = through(picture, rows=4)
    assert [(row["ext"], row["mime_type"], row["stored_bytes"]) for row in rows] == [
        ("png", "image/png", len(PNG)),
        ("npy", "application/octet-stream", 7),
        ("svg", "image/svg+xml", 6),
        ("txt", "text/plain", 5),
    ]
    assert [row["bytes"] for row in rows] == [100, 101, 102, 103]
    assert rows[0]["md5"] == "6d0bb00954ceb7fbee436bb55a8397a9"  # of 100 zeros


@pytest.mark.parametrize(
    ("served", "body", "changes", "expected"),
    [
        ("image/png", PNG, {}, ("flat", "application/octet-stream")),
        ("image/png", PNG, {"ext": "npy"}, ("npy", "application/octet-stream")),
        ("image/png", PNG, {"ext": "csv"}, ("csv", "text/csv")),
        ("image/png", PNG, {"mime_type": "text/css"}, ("css", "text/css")),
        ("text/html", b"<p>words", {}, ("html", "text/html")),
        ("text/html", b"<p>words", {"ext": "npy"}, ("npy", "application/octet-stream")),
    ],
)
def test_bytes_of_another_kind_do_not_keep_the_type_of_the_file_before(
    served: str, body: bytes, changes: dict[str, str], expected: tuple[str, str], through: Through
) -> None:
    url = f"data:{served};base64,{base64.b64encode(body).decode()}"
    (row,) = through(lambda sample: sample.with_data(b"numbers", **changes), urls=[url], disable_all_reencoding=True)
    assert (row["ext"], row["mime_type"]) == expected


def test_several_samples_of_one_row_have_keys_of_their_own(through: Through) -> None:
    def halves(sample: Sample) -> list[Sample]:
        return [sample, sample.with_data(sample.data[:50])]

    def not_the_first(sample: Sample) -> Any:
        return None if sample.size == 100 else sample

    rows = through(halves, not_the_first, rows=2)
    assert [(row["key"], row["status"], row["stored_bytes"]) for row in rows] == [
        ("000000000_0000", "filtered", None),
        ("000000000_0001", "success", 50),
        ("000000001_0000", "success", None),
        ("000000001_0001", "success", 50),
    ]


@any2ds.transform(
    columns={
        "name": str,
        "count": int,
        "score": float,
        "good": bool,
        "raw": bytes,
        "vector": list[float],
        "small": "int16",
    }
)
def describe(sample: Sample) -> Sample:
    return sample.with_fields(
        name="a",
        count=numpy.int32(3),
        score=numpy.float32(0.5),
        good=numpy.bool_(True),
        raw=b"\1",
        vector=numpy.array([1.0, 2.0]),
        small=7,
    )


@pytest.mark.parametrize("output_format", ["parquet", "webdataset", "tfrecord"])
def test_declared_columns_have_their_types_whatever_library_the_values_come_from(
    output_format: str, through: Through, tmp_path: Path
) -> None:
    (row,) = through(describe, output_format=output_format)
    assert [row[name] for name in ("name", "count", "score", "good", "raw", "vector", "small")] == [
        "a", 3, 0.5, True, b"\1", [1.0, 2.0], 7
    ]  # fmt: skip
    schema = pq.read_schema(tmp_path / "out" / "00000.parquet")
    assert schema.field("small").type == pa.int16()
    assert schema.field("vector").type == pa.list_(pa.float64())


@any2ds.transform(members=("txt", "wav"))
def extra_files(sample: Sample) -> Sample:
    return sample.with_member("txt", b"words").with_member("wav", b"\0\1")


def test_further_files_lie_beside_the_sample_and_are_columns_in_record_formats(
    through: Through, tmp_path: Path
) -> None:
    (row,) = through(extra_files)
    assert (row["txt"], row["wav"]) == ("words", b"\0\1")
    through(extra_files, output_format="files", incremental_mode="overwrite")
    names = {path.name: path.read_bytes() for path in (tmp_path / "out" / "00000").iterdir()}
    assert names["000000000.txt"] == b"words"
    assert names["000000000.wav"] == b"\0\1"


@any2ds.transform(members=("NPY",))
def doubled(sample: Sample) -> Sample:
    return sample.with_member("NPY", b"beside").with_data(b"numbers", ext="npy" if number_of(sample) == 0 else "dat")


@pytest.mark.parametrize("output_format", ["webdataset", "files"])
def test_a_further_file_that_is_called_as_that_of_the_sample_is_the_failure_of_its_row(
    output_format: str, through: Through
) -> None:
    rows = through(doubled, rows=2, output_format=output_format)
    assert [(row["error_code"], row["ext"], row["stored_bytes"]) for row in rows] == [
        ("transform_error", None, None),
        (None, "dat", 7),
    ]
    assert "adds a file .npy, which is the extension of the sample's own file" in rows[0]["error_message"]
    forced = through(doubled, rows=2, output_format=output_format, file_ext="npy", incremental_mode="overwrite")
    assert [row["error_code"] for row in forced] == ["transform_error"] * 2


def test_in_record_formats_a_further_file_has_a_column_of_its_own(through: Through) -> None:
    (row,) = through(doubled)
    assert (row["ext"], row["data"], row["NPY"]) == ("npy", b"numbers", b"beside")


WRONG: list[tuple[Callable[[Sample], Any], str]] = [
    (
        lambda sample: {"score": 1},
        "returned a dict: expected a Sample, a list of samples or None",
    ),
    (lambda sample: b"bytes", "returned a bytes: expected a Sample"),
    (lambda sample: True, "returned a bool (True): expected a Sample"),
    (lambda sample: (one for one in [sample]), "returned a generator: expected a Sample"),
    (lambda sample: [sample, None], "a list with None in it: expected samples alone"),
    (lambda sample: [0, sample], "a list with an int (0) in it"),
    (lambda sample: sample.with_fields(phash="x"), "put @any2ds.transform(columns={'phash': str}) before it"),
    (lambda sample: sample.with_fields(n=numpy.zeros(2)), "columns={'n': list[float]}"),
    (lambda sample: sample.with_fields(md5="x"), "the column 'md5', which any2ds writes itself"),
    (lambda sample: sample.with_member("wav", b"x"), "put @any2ds.transform(members=('wav',)) before it"),
    (lambda sample: sample.with_data("text"), "with_data takes bytes, not str"),
    (lambda sample: sample.with_data(b""), "an empty file: None filters it"),
    (lambda sample: sample.with_data(b"x", ext="../../x"), "invalid extension '../../x'"),
    (lambda sample: sample.with_data(PNG, mime_type=5), "whose mime_type is an int (5): expected a text"),
    (lambda sample: sample.with_data(b"x", "npy", "a\udcff"), r"whose mime_type is a str ('a\udcff')"),
    (lambda sample: sample.failed("dull"), "unknown failure code 'dull'"),
    (lambda sample: sample.data[1000], "IndexError: index out of range"),
    (lambda sample: sys.exit(3), "SystemExit: 3"),
    (lambda sample: os.kill, "returned a builtin_function_or_method"),
]


@pytest.mark.parametrize(("step", "words"), WRONG, ids=[words for _, words in WRONG])
def test_what_no_step_may_return_or_raise_is_the_failure_of_its_row_in_words(
    step: Callable[[Sample], Any], words: str, through: Through
) -> None:
    def only_one(sample: Sample) -> Any:
        return step(sample) if number_of(sample) == 1 else sample

    rows = through(only_one, rows=3)
    assert [row["status"] for row in rows] == ["success", "failed_to_subsample", "success"]
    assert rows[1]["error_code"] == "transform_error"
    assert words in rows[1]["error_message"]
    assert "\n" not in rows[1]["error_message"]


def test_an_interrupt_or_a_broken_file_in_a_step_concerns_one_row(through: Through) -> None:
    def bad(sample: Sample) -> Sample:
        if number_of(sample) == 0:
            raise KeyboardInterrupt
        if number_of(sample) == 1:
            raise ValueError("one\n  two \udcff")  # a character that no table can have
        if number_of(sample) == 2:
            raise NotDecodable("bad \udcff file")
        return sample.filtered("no \udcff") if number_of(sample) == 3 else sample.failed("too_small", "a \udcff")

    rows = through(bad, rows=5)
    assert [(row["error_code"], row["error_message"]) for row in rows] == [
        ("transform_error", "KeyboardInterrupt"),
        ("transform_error", "ValueError: one two ?"),
        ("not_decodable", "bad ? file"),
        (None, "no ?"),
        ("too_small", "a ?"),
    ]


@any2ds.transform(columns={"score": float})
def misfit(sample: Sample) -> Sample:
    return sample.with_fields(score="high")


def test_a_value_that_is_not_of_the_declared_type_is_the_failure_of_its_row(through: Through) -> None:
    (row,) = through(misfit)
    assert "declares 'score' as double, and fills it with a str ('high')" in row["error_message"]


def test_the_log_of_worker_processes_is_that_of_the_run(server: Server, tmp_path: Path) -> None:
    (tmp_path / "step.py").write_text("def deep(sample):\n    raise ValueError('deep down')\n")
    (tmp_path / "urls.txt").write_text(server.url("0.bin"))
    done = command(tmp_path, "--url_list=urls.txt", "--transform=step.py:deep", "--log_level=debug")
    assert done.returncode == 4, done.stderr  # the only row failed
    assert "in deep" in done.stderr


def test_a_step_may_write_into_a_sample_and_keep_it(through: Through) -> None:
    kept: list[Sample] = []

    def greedy(sample: Sample) -> Any:
        kept.append(sample)
        sample.fields["mime_type"] = sample.fields["md5"] = "mine"  # type: ignore[index]
        sample.members["txt"] = b"mine"  # type: ignore[index]
        if number_of(sample) == 2:
            return sample
        raise ValueError if number_of(sample) else any2ds.core.errors.NotDecodable

    rows = through(greedy, rows=3)
    assert [row["error_code"] for row in rows] == ["not_decodable", "transform_error", "transform_error"]
    assert "mine" not in {row[name] for row in rows for name in ("md5", "mime_type")}
    assert "'md5', which any2ds writes itself" in rows[2]["error_message"]
    assert [sample.data for sample in sorted(kept, key=number_of)] == [bytes([n]) * (100 + n) for n in range(3)]


def test_a_sample_of_another_row_is_refused(through: Through) -> None:
    kept: list[Sample] = []

    def stale(sample: Sample) -> Sample:
        kept.append(sample)
        return kept[0]

    rows = through(stale, rows=2, transform_threads=1)
    assert sorted(row["status"] for row in rows) == ["failed_to_subsample", "success"]
    (failed,) = (row for row in rows if row["status"] != "success")
    assert f"was given the sample {failed['key']}, and returned " in failed["error_message"]


# --- batches ---


class Model:
    made = 0
    sizes: list[int] = []  # noqa: RUF012
    at_once = 0

    def __init__(self) -> None:
        type(self).made += 1

    def __call__(self, samples: list[Sample]) -> list[Any]:
        kind = type(self)
        kind.at_once += 1
        assert kind.at_once == 1
        kind.sizes.append(len(samples))
        try:
            return self.run(samples)
        finally:
            kind.at_once -= 1

    def run(self, samples: list[Sample]) -> list[Any]:
        return [sample.with_fields(score=float(number_of(sample))) for sample in samples]


@any2ds.transform(columns={"score": float}, batch_size=5)
class Scores(Model):
    made, sizes, at_once = 0, [], 0


def test_a_batch_is_called_with_lists_by_one_thread_at_a_time_on_one_instance(through: Through) -> None:
    rows = through(Scores, rows=ROWS, transform_threads=4)
    assert [row["score"] for row in rows] == [float(number) for number in range(ROWS)]
    assert (Scores.made, sorted(Scores.sizes, reverse=True)) == (1, [5, 5, 2])


@any2ds.transform(columns={"score": float}, batch_size=8)
class Choosy(Model):
    made, sizes, at_once = 0, [], 0

    def run(self, samples: list[Sample]) -> list[Any]:
        if any(number_of(sample) == 3 for sample in samples):
            raise ValueError("three!")
        return [
            None if number_of(sample) == 4 else [sample, sample] if number_of(sample) == 5 else sample
            for sample in samples
        ]


def test_one_bad_file_in_a_batch_is_one_failure(through: Through) -> None:
    rows = through(Choosy, rows=8, transform_threads=2)
    assert [(row["key"][8:], row["status"], row["error_message"]) for row in rows] == [
        ("0", "success", None),
        ("1", "success", None),
        ("2", "success", None),
        ("3", "failed_to_subsample", "ValueError: three!"),
        ("4", "filtered", rows[4]["error_message"]),
        ("5_0000", "success", None),
        ("5_0001", "success", None),
        ("6", "success", None),
        ("7", "success", None),
    ]


def test_a_batch_that_returns_too_few_is_told_so(through: Through) -> None:
    @any2ds.transform(batch_size=4)
    def lossy(samples: list[Sample]) -> list[Sample]:
        return samples[1:]

    rows = through(lossy, rows=4)
    assert {row["error_code"] for row in rows} == {"transform_error"}
    assert len(rows) == 4
    for row in rows:  # of each what was returned for all of them
        assert "was given a list of 4, and returned one of 3: None stands for a filtered sample" in row["error_message"]


def test_batches_and_single_steps_take_turns(through: Through) -> None:
    @any2ds.transform(batch_size=3)
    def twice(samples: list[Sample]) -> list[list[Sample]]:
        return [[sample, sample.with_data(sample.data + b"!")] for sample in samples]

    def longer(sample: Sample) -> Any:
        return sample.with_data(sample.data + b"?") if sample.part else None

    @any2ds.transform(columns={"length": int}, batch_size=2)
    def measure(samples: list[Sample]) -> list[Sample]:
        return [sample.with_fields(length=sample.size) for sample in samples]

    rows = through(twice, longer, measure, rows=4)
    assert [(row["key"], row["status"], row["length"]) for row in rows] == [
        (f"00000000{number}_000{part}", ["filtered", "success"][part], [None, 102 + number][part])
        for number in range(4)
        for part in range(2)
    ]


@any2ds.transform(batch_size=2)
class Broken:
    def __init__(self) -> None:
        raise OSError("no such model")

    def __call__(self, samples: list[Sample]) -> list[Sample]:
        return samples


def test_a_class_that_cannot_be_made_while_the_run_is_on_ends_it_and_fails_no_row(
    through: Through, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(
        "class Once:\n    def __init__(self):\n"
        f"        with open({str(tmp_path / 'made')!r}, 'x'): pass\n"
        "    def __call__(self, sample): return sample\n"
    )
    with pytest.raises(BrokenStep, match="Once failed to start: FileExistsError"):
        through(f"{tmp_path}/mine.py:Once", rows=4, distributor="multiprocessing", processes_count=1)
    assert not list((tmp_path / "out").glob("*_stats.json"))


@pytest.mark.parametrize("distributor", ["inline", "multiprocessing"])
def test_a_class_that_cannot_be_made_is_refused_and_no_folder_is_made(
    server: Server, tmp_path: Path, distributor: str
) -> None:
    (tmp_path / "my_step.py").write_text(
        "class Broken:\n    def __init__(self): raise OSError('no such model')\n    def __call__(self, sample): ...\n"
    )
    (tmp_path / "urls.txt").write_text(server.url("0.bin") + "\n" + server.url("1.bin"))
    options = [f"--distributor={distributor}", "--processes_count=1", "--transform=my_step.py:Broken"]
    done = command(tmp_path, "--url_list=urls.txt", "--output_folder=out", *options)
    assert done.returncode == 2
    assert "transform=my_step.py:Broken failed to start: OSError: no such model" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_class_that_crashes_or_hangs_while_it_is_made_is_refused(server: Server, tmp_path: Path) -> None:
    (tmp_path / "my_step.py").write_text(
        "import os, threading\n"
        "class Crashes:\n    def __init__(self): os._exit(7)\n    def __call__(self, sample): ...\n"
        "class Hangs:\n    def __init__(self): threading.Event().wait()\n    def __call__(self, sample): ...\n"
    )
    for name, words in {
        "Crashes": "Crashes crashed: ended with exit code 7",
        "Hangs": r"Hangs was not ready within 0.5 s \(--transform_timeout\)",
    }.items():
        with pytest.raises(OptionError, match=words):
            any2ds.download(
                [server.url("0.bin")],
                output_folder=tmp_path / "out",
                transform=f"{tmp_path}/my_step.py:{name}",
                transform_timeout=0.5,
            )
        assert not (tmp_path / "out").exists()


def test_a_disk_that_a_step_has_filled_ends_the_run_and_fails_no_row(through: Through, tmp_path: Path) -> None:
    def writes(sample: Sample) -> Sample:
        raise OSError(28, os.strerror(28), str(tmp_path / "cache" / "x"))

    with pytest.raises(DiskFull, match="cache"):
        through(writes, rows=4)
    assert not list((tmp_path / "out").glob("*_stats.json"))


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class MuteAboutFile(NotDecodable, Mute):
    __str__ = Mute.__str__


def test_what_a_step_only_says_of_disks_or_cannot_say_concerns_one_row(through: Through) -> None:
    def quotes(sample: Sample) -> Sample:
        if number_of(sample) == 0:
            raise ValueError(f"no page: 'How to fix: {os.strerror(28)}'")
        raise [Mute, MuteAboutFile][number_of(sample) - 1]

    rows = through(quotes, rows=3)
    assert [row["error_code"] for row in rows] == ["transform_error", "transform_error", "not_decodable"]
    assert os.strerror(28) in rows[0]["error_message"]
    assert "Mute" in rows[1]["error_message"]


# --- declarations, and names that are taken ---


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"columns": {"md5": str}}, "any2ds writes a column 'md5' itself"),
        ({"columns": {"url": str}}, "any2ds writes a column 'url' itself"),
        ({"columns": {"stored_bytes": int}}, "any2ds writes a column 'stored_bytes' itself"),
        ({"columns": {"a": dict}}, "invalid type <class 'dict'> of column 'a': expected str"),
        ({"columns": {"a": "no type"}}, "invalid type 'no type' of column 'a'"),
        ({"columns": {"": str}}, "invalid column name ''"),
        ({"members": ("json",)}, "the extension 'json'"),
        ({"members": ("a/b",)}, "the extension 'a/b'"),
        ({"members": ("JSON",)}, "the extension 'JSON'"),
        ({"members": ("npy", "NPY")}, "the same extension but for its case"),
        ({"members": ("data",)}, "any2ds writes a column 'data'"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused_at_the_start(
    declared: dict[str, Any], words: str, through: Through, tmp_path: Path
) -> None:
    with pytest.raises(OptionError) as caught:
        through(any2ds.transform(**declared)(lambda sample: sample))
    assert words in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_decorator_is_told_at_once_what_it_cannot_take() -> None:
    with pytest.raises(TypeError, match=r"members=\('txt',\)"):
        any2ds.transform(members="txt")
    for size in (0, "8", True):
        with pytest.raises(ValueError, match="batch_size"):
            any2ds.transform(batch_size=size)  # type: ignore[arg-type]


def test_a_column_of_the_list_and_one_of_a_step_may_not_have_the_same_name(
    server: Server, fetched: Callable[..., Any], tmp_path: Path
) -> None:
    rows = [{"url": server.url("0.bin"), "score": 1.0}]
    with pytest.raises(OptionError, match="fills a column 'score', which the list has as well"):
        fetched(rows, save_additional_columns=["score"], transform=misfit)
    fetched(rows, transform=lambda sample: sample, save_additional_columns=["score"])
    with pytest.raises(OptionError, match="fills a column 'txt', which the list has as well"):
        fetched([{"url": "a", "txt": "b"}], save_additional_columns=["txt"], transform=extra_files)


@pytest.mark.parametrize("name", ["width", "score", "wav", "status", "sha256"])
def test_the_column_of_the_files_cannot_be_one_that_is_filled_otherwise(
    name: str, through: Through, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match="data_column") as caught:
        through(misfit, extra_files, data_column=name, decode_check=True)
    assert not (tmp_path / "out").exists()
    if name in ("score", "wav"):
        assert f"{name!r} is a column that the step for transform=" in str(caught.value)


def test_two_steps_may_fill_a_column_of_one_type_alone(through: Through) -> None:
    other = any2ds.transform(columns={"score": "float32"})(lambda sample: sample)
    with pytest.raises(OptionError, match=r"fills the column 'score' with float, and transform=.*misfit with double"):
        through(misfit, other)


# --- where steps are found ---

STEP = """
import any2ds
from neighbour import WORDS

@any2ds.transform(columns={"words": str})
def speak(sample):
    print("a step that talks", flush=True)
    return sample.with_fields(words=WORDS)

class Inner:
    @staticmethod
    def drop(sample):
        return None
"""


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).parent.parent.parent)
    # As a console script, whose folder is first on the path instead of the one at hand.
    program = f"import sys; sys.path[0] = {root!r}; from any2ds.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ("Traceback" in done.stderr) == ("--log_level=debug" in arguments)
    return done


def test_steps_are_found_in_files_and_modules_of_the_folder_at_hand(server: Server, tmp_path: Path) -> None:
    (tmp_path / "my_step.py").write_text(STEP)
    (tmp_path / "neighbour.py").write_text("WORDS = 'hello'")
    (tmp_path / "random.py").write_text("raise SystemExit('this is not the random that was meant')")
    (tmp_path / "urls.txt").write_text(server.url("0.bin") + "\n" + server.url("1.bin"))
    for number, step in enumerate(["my_step.py:speak", "my_step:speak"]):
        done = command(
            tmp_path,
            "--url_list=urls.txt",
            f"--transform={step}",
            f"--output_folder=out{number}",
            "--output_format=parquet",
        )
        assert done.returncode == 0, done.stderr
        rows = pq.read_table(tmp_path / f"out{number}" / "00000.parquet").to_pylist()
        assert [row["words"] for row in rows] == ["hello", "hello"]
        assert "a step that talks" not in done.stdout  # which belongs to nobody but the command


def test_a_step_that_is_not_there_is_refused_with_words_that_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    (tmp_path / "my_step.py").write_text("import nothing_of_the_kind")
    (tmp_path / "plain.py").write_text(
        "x = 3\nasync def later(sample): ...\nclass Bare: ...\nclass Two:\n"
        "    def __init__(self, model): ...\n    def __call__(self, sample): ...\n"
        "def nothing(): ...\ndef pair(sample, other): ...\ndef by_name(*, sample): ...\n"
        "class Alone:\n    def __call__(self): ...\n"
        "class Pair:\n    def __call__(self, sample, other): ...\n"
    )
    (tmp_path / "ends.py").write_text("import sys; sys.exit('bye')")
    (tmp_path / "urls.txt").write_text("http://127.0.0.1:9/")
    for step, words in {
        "clean": "expected module:function, or a file and a name in it, my_step.py:clean",
        "plain.py:Alone:run": "invalid transform=plain.py:Alone:run: expected module:function",
        "absent.py:clean": "there is no file",
        "absent:clean": f"no module 'absent' is installed, nor in {str(tmp_path)!r}",
        "my_step.py:clean": "ModuleNotFoundError: No module named 'nothing_of_the_kind'",
        "plain.py:clean": "there is no 'clean' in 'plain.py'",
        "plain.py:x": "expected a function or class, not int",
        "plain.py:later": "a plain function, not `async def`",
        "plain.py:Bare": "the class has no __call__",
        "plain.py:Two": "the class must be callable without arguments",
        "plain.py:nothing": "invalid transform=plain.py:nothing: a step must take one argument",
        "plain.py:pair": "missing a required argument: 'other'",
        "plain.py:by_name": "a step must take one argument",
        "plain.py:Alone": "a step must take one argument",
        "plain.py:Pair": "missing a required argument: 'other'",
        "ends:f": "SystemExit: bye",
    }.items():
        with pytest.raises(OptionError) as caught:
            any2ds.download("urls.txt", output_folder="out", transform=step)
        assert words in str(caught.value)
        assert not (tmp_path / "out").exists()


def test_a_step_neither_reads_the_jobs_nor_writes_between_the_events(server: Server, tmp_path: Path) -> None:
    (tmp_path / "eater.py").write_text(
        "import subprocess, sys\n"
        "def eat(sample):\n"
        "    got = subprocess.run([sys.executable, '-c', 'import sys; print(sys.stdin.read())'], capture_output=True)\n"
        "    print('x' * 100_000)\n"
        "    return sample.filtered(repr(got.stdout.strip()) + repr(sys.stdin.read()))\n"
    )
    (tmp_path / "urls.txt").write_text("\n".join(server.url(f"{number}.bin") for number in range(2)))
    done = command(
        tmp_path,
        "--url_list=urls.txt",
        "--transform=eater.py:eat",
        "--output_folder=out",
        "--processes_count=1",
    )
    assert done.returncode == 4, done.stderr  # the step leaves nothing to be stored
    rows = [row for path in sorted((tmp_path / "out").glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    assert [row["error_message"] for row in rows] == ["b''''"] * 2


def test_the_steps_of_the_documentation_do_what_it_says(
    fetched: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "steps.md").read_text(encoding="utf-8")
    blocks = [block.partition("```")[0] for block in page.split("```python\n")[1:]]
    assert len(blocks) == 2
    (tmp_path / "my_step.py").write_text("\n".join(blocks))
    files = {"a": "one  \ntwo", "b": "lorem ipsum", "c": "x" * 2000}
    folder = tmp_path / "served"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    with serve(folder) as server:
        fetched([server.url(name) for name in files], transform="my_step.py:clean,my_step.py:Score")
    rows = pq.read_table(tmp_path / "out" / "00000.parquet").to_pylist()
    assert [(row["status"], row["data"], row["lines"], row["score"]) for row in rows] == [
        ("success", b"one\ntwo", 2, 0.007),
        ("filtered", None, None, None),
        ("filtered", None, 1, None),
    ]
    assert rows[1]["error_message"] == "filler"


@pytest.mark.parametrize("distributor", ["inline", "multiprocessing"])
def test_functions_travel_by_their_names(
    distributor: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"own_steps_{distributor}.py").write_text(
        STEP.replace("from neighbour import WORDS", "WORDS = 'by name'")
    )
    monkeypatch.syspath_prepend(tmp_path)
    module = __import__(f"own_steps_{distributor}")
    any2ds.download(
        [server.url("0.bin"), server.url("1.bin")],
        output_folder=tmp_path / "out",
        transform=[module.speak, module.Inner.drop],
        distributor=distributor,
        quiet=True,
    )
    rows = pq.read_table(tmp_path / "out" / "00000.parquet").to_pylist()
    assert [(row["status"], row["words"]) for row in rows] == [("filtered", "by name")] * 2
    assert f'"own_steps_{distributor}:Inner.drop"' in (tmp_path / "out" / ".any2ds/run").read_text()


def test_functions_without_a_module_travel_by_their_code_and_what_cannot_is_refused(
    server: Server, tmp_path: Path
) -> None:
    words = "by code"

    @any2ds.transform(columns={"words": str}, batch_size=2)
    class Local:
        def __call__(self, samples: list[Sample]) -> list[Sample]:
            return [sample.with_fields(words=words) for sample in samples]

    options: dict[str, Any] = {"output_folder": tmp_path / "out", "output_format": "parquet", "quiet": True}
    steps = [lambda sample: sample.with_data(sample.data[:3]), Local]
    any2ds.download([server.url("0.bin")], transform=steps, processes_count=1, **options)
    (row,) = pq.read_table(tmp_path / "out" / "00000.parquet").to_pylist()
    assert (row["data"], row["words"]) == (b"\0\0\0", "by code")

    lock = threading.Lock()
    options["output_folder"] = tmp_path / "refused"
    with pytest.raises(OptionError, match=r"worker processes cannot be sent it: .*lock.*distributor='inline'"):
        any2ds.download([server.url("0.bin")], transform=lambda sample: lock and sample, **options)
    assert not (tmp_path / "refused").exists()


def test_a_program_whose_step_starts_it_again_is_told_so(server: Server, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import any2ds\ndef keep(sample): return sample\n"
        f"any2ds.download([{server.url('0.bin')!r}], output_folder='out', transform='program.py:keep', quiet=True)\n"
    )
    root = str(Path(__file__).parent.parent.parent)
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1
    assert 'put that under `if __name__ == "__main__":`' in done.stderr


def test_a_file_that_was_changed_is_read_again(server: Server, tmp_path: Path) -> None:
    found = []
    for number, words in enumerate(["first", "second time"]):
        (tmp_path / "step.py").write_text(f"def why(sample): return sample.filtered({words!r})")
        any2ds.download(
            [server.url("0.bin")],
            output_folder=tmp_path / f"out{number}",
            transform=f"{tmp_path / 'step.py'}:why",
            distributor="inline",
            quiet=True,
        )
        found += pq.read_table(tmp_path / f"out{number}" / "00000.parquet")["error_message"].to_pylist()
    assert found == ["first", "second time"]


def test_going_on_wants_the_steps_by_the_same_names(server: Server, tmp_path: Path) -> None:
    (tmp_path / "step.py").write_text("def a(sample): return sample\ndef b(sample): return sample\n")
    urls = [server.url("0.bin")]
    options: dict[str, Any] = {"output_folder": tmp_path / "out", "distributor": "inline", "quiet": True}
    any2ds.download(urls, transform=f"{tmp_path}/step.py:a", **options)
    any2ds.download(urls, transform=f"{tmp_path}/./step.py:a", **options)
    with pytest.raises(any2ds.UsageError, match="transform"):
        any2ds.download(urls, transform=f"{tmp_path}/step.py:b", **options)
    with pytest.raises(any2ds.UsageError, match="transform"):
        any2ds.download(urls, **options)


def test_retry_leaves_filtered_rows_alone_and_says_where_a_step_is_missing(server: Server, tmp_path: Path) -> None:
    step = tmp_path / "step.py"
    step.write_text("def pick(sample):\n    if sample.data[0]: raise ValueError\n    return None\n")
    options: dict[str, Any] = {"output_folder": tmp_path / "out", "distributor": "inline", "quiet": True}
    any2ds.download([server.url("0.bin"), server.url("1.bin")], transform=f"{step}:pick", **options)
    step.write_text("def pick(sample): return sample.filtered('now')\n")
    report = any2ds.retry(codes=["all"], **options)
    assert (report.count, report.filtered) == (1, 1)
    report = any2ds.retry(codes=["all"], **options)
    assert report.count == 0
    step.unlink()
    with pytest.raises(OptionError, match=r"transform.* there is no file"):
        any2ds.retry(codes=["all"], **options)


def described(web: Path, out: Path, step: Any, names: list[str], columns: list[str], **options: Any) -> list[list[Any]]:
    """What the metadata of a dataset say in `columns` of files that went through `step`, a row for each sample."""
    given = {"output_format": "webdataset", "quiet": True, "distributor": "inline", **options}
    with serve(web) as server:
        any2ds.download([server.url(name) for name in names], output_folder=out, transform=step, **given)
    table = pq.read_table(out / "00000.parquet").to_pylist()
    assert any2ds.verify(out).ok
    return [[row[name] for name in columns] for row in table]


def png(width: int, height: int) -> bytes:
    return bytes(cv2.imencode(".png", numpy.zeros((height, width, 3), "u1"))[1])


def test_metadata_of_an_image_are_those_of_the_file_that_a_step_has_made(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(300, 200))
    columns = ["key", "width", "height", "original_width", "ext", "mime_type"]

    def several(sample: Sample) -> Any:
        text = sample.with_data(b"numbers", ext="npy")
        return [
            sample.with_data(png(32, 16)),
            sample,
            text,
            sample.with_data(png(8, 9)[:40]),
        ]

    assert described(tmp_path, tmp_path / "out", several, ["a.png"], columns, file_size=100) == [
        ["000000000_0000", 32, 16, 300, "png", "image/png"],
        ["000000000_0001", 150, 100, 300, "png", "image/png"],
        ["000000000_0002", None, None, 300, "npy", "application/octet-stream"],
        ["000000000_0003", None, None, 300, "png", "image/png"],
    ]


def test_metadata_of_sound_and_video_are_those_of_the_file_that_a_batch_has_made(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(tone(seconds=1.0, rate=8000))
    (tmp_path / "b.mp4").write_bytes(film(seconds=1.0))
    made = {
        "audio/x-wav": tone("flac", "flac", 0.25, 16_000, channels=2),
        "video/mp4": film("mp4", seconds=0.4, fps=10, size=(64, 48), sound=None),
    }

    @any2ds.transform(batch_size=2)
    def other(samples: list[Sample]) -> list[Sample]:
        return [sample.with_data(made[sample.mime_type]) for sample in samples]

    columns = ["duration", "sample_rate", "channels", "codec", "fps", "width", "video_codec", "ext", "original_width"]
    found = described(tmp_path, tmp_path / "out", other, ["a.wav", "b.mp4"], columns, decode_check=True)
    assert found == [
        [0.25, 16_000, 2, "flac", None, None, None, "flac", None],
        [pytest.approx(0.4), None, None, None, 10.0, 64, "h264", "mp4", 160],
    ]


def test_a_step_may_say_itself_how_large_its_file_is_and_a_sound_beside_a_video_is_still_described(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.png").write_bytes(png(300, 200))
    (tmp_path / "b.mp4").write_bytes(film(seconds=0.4))

    @any2ds.transform(columns={"width": "int32"})
    def named(sample: Sample) -> Sample:
        return sample.with_data(b"numbers", ext="npy").with_fields(width=7)

    assert described(tmp_path, tmp_path / "o", named, ["a.png"], ["width", "height"], file_size=64) == [[7, None]]

    def silent(sample: Sample) -> Sample:
        return sample.with_data(film(seconds=0.2, sound=None))

    split = {"video_audio": "split", "audio_rate": 16_000}
    columns = ["sample_rate", "codec", "duration"]
    found = described(tmp_path, tmp_path / "p", silent, ["b.mp4"], columns, **split)
    assert found == [[16_000, "pcm_s16le", pytest.approx(0.2)]]
