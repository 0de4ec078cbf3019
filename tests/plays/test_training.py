"""What training asks of `any2ds.load`: damaged samples are left out, nulls filled, batches made; other tools' tars."""

import gzip
import io
import logging
import pickle
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pyarrow as pa
import pytest
import webdataset
from PIL import Image

import any2ds
from tests.support.play import Play

FORMATS = ("files", "webdataset", "parquet", "tfrecord", "arrayrecord")


def image(level: int, size: tuple[int, int] = (6, 4)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, (level, 0, 0)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def tars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ten samples of webdataset's own writer in shards of four; the picture of the sixth is damaged."""
    monkeypatch.setenv("ANY2DS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "tars").mkdir()
    with webdataset.ShardWriter(str(tmp_path / "tars" / "%03d.tar"), maxcount=4, verbose=0) as sink:
        for n in range(10):
            described = {"width": 10 * n, "score": n / 2 if n % 2 else None, "tags": [n, n + 1]}
            picture = image(n, (6, 4 + n % 2)) if n != 5 else b"damaged"
            sink.write({"__key__": f"{n:04d}", "png": picture, "txt": f"about {n}", "cls": n % 3, "json": described})
    return tmp_path / "tars"


class TestTarsOfOtherTools:
    def test_keys_of_the_json_caption_and_class_are_columns(self, tars: Path) -> None:
        ds = any2ds.load(tars)
        assert {*ds.features} == {"data", "key", "ext", "width", "score", "tags", "caption", "cls"}
        table = pa.table(ds).to_pydict()
        assert table["width"] == [10 * n for n in range(10)]
        assert table["score"] == [n / 2 if n % 2 else None for n in range(10)]
        assert table["tags"][3] == [3, 4]
        assert table["caption"] == [f"about {n}" for n in range(10)]
        assert table["cls"] == [n % 3 for n in range(10)] == [sample["cls"] for sample in ds]

    @pytest.mark.parametrize(
        ("where", "numbers"),
        [
            ("width > 60 and caption is not null", [7, 8, 9]),
            ("ext = 'png' and score >= 3", [7, 9]),
            ("cls = 2 or key = '0000'", [0, 2, 5, 8]),
            ("caption in ('about 4', 'nothing')", [4]),
        ],
    )
    def test_where(self, where: str, numbers: list[int], tars: Path) -> None:
        for columns in (None, ["png", "cls"]):
            ds = any2ds.load(tars, where=where, columns=columns)
            assert ds.keys == [f"{n:04d}" for n in numbers]
            assert len(ds) == len(numbers)

    def test_files_are_named_by_their_extension(self, tars: Path) -> None:
        ds = any2ds.load(tars, split="train[:4]", columns=["png", "cls"], decode=True)
        assert [(sample["png"].shape, sample["cls"]) for sample in ds] == [((4 + n % 2, 6, 3), n % 3) for n in range(4)]
        with pytest.raises(any2ds.UsageError, match="'jpg'"):
            any2ds.load(tars, columns=["jpg"])

    @pytest.mark.parametrize(
        ("content", "message"),
        [(b"Z" * 5000, r"001\.tar"), (gzip.compress(bytes(5000), mtime=0), r"gunzip < 001\.tar")],
        ids=["noise", "gzip"],
    )
    def test_a_tar_that_cannot_be_read_is_left_out(
        self, content: bytes, message: str, tars: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tars / "001.tar").write_bytes(content)
        with pytest.raises(any2ds.RunError, match=message):
            any2ds.load(tars)
        with caplog.at_level(logging.WARNING):
            ds = any2ds.load(tars, on_error="skip")
        assert [sample["caption"] for sample in ds] == [f"about {n}" for n in (0, 1, 2, 3, 8, 9)]
        assert "001.tar" in caplog.text


class TestErrors:
    def test_a_damaged_sample_is_left_out_and_counted(self, tars: Path, caplog: pytest.LogCaptureFixture) -> None:
        ds = any2ds.load(tars, decode=True, on_error="skip")
        wanted = [f"{n:04d}" for n in range(10) if n != 5]
        with caplog.at_level(logging.WARNING):
            assert [sample["key"] for sample in ds] == wanted
        assert "1 of the samples left out" in caplog.text
        assert "'0005'" in caplog.text
        assert ds.left_out == 1
        assert sorted(sample["key"] for sample in ds.stream(shuffle=True)) == wanted
        assert [sample["key"] for sample in ds[4:7]] == ["0004", "0006"]
        assert [sample["key"] for sample in pickle.loads(pickle.dumps(ds))[[5, 1]]] == ["0001"]
        with pytest.raises(any2ds.RunError, match="0005"):
            ds[5]

    def test_a_function_gives_another_sample(self, tars: Path) -> None:
        seen: list[Exception] = []

        def instead(error: Exception) -> dict[str, Any] | None:
            seen.append(error)
            return {"key": "instead"} if len(seen) > 1 else None

        ds = any2ds.load(tars, decode=True, on_error=instead)
        assert len(list(ds)) == 9
        assert [sample["key"] for sample in ds][5] == "instead"
        assert all(isinstance(error, any2ds.RunError) and "0005" in str(error) for error in seen)

    def test_an_error_comes_when_it_is_its_turn(self, tars: Path) -> None:
        seen = []
        with pytest.raises(any2ds.RunError, match="0005"):
            seen += [seen.append(sample["key"]) for sample in any2ds.load(tars, decode=True).stream()]
        assert seen == [f"{n:04d}" for n in range(5)]

    @pytest.mark.parametrize("output_format", FORMATS)
    def test_a_shard_that_is_missing(self, output_format: str) -> None:
        play = Play({f"{n}.jpg": "ok" for n in range(6)}, output_format=output_format, number_sample_per_shard=2)
        assert play.run().exit_code == 0
        shard = Path(play.path, "00001")
        extension = {"webdataset": ".tar"}.get(output_format, f".{output_format}")
        for file in shard.glob("*.jpg") if output_format == "files" else [shard.with_suffix(extension)]:
            file.unlink()
        found = [sample["key"] for sample in any2ds.load(play.path, on_error="skip")]
        assert found == ["000000", "000001", "000020", "000021"]

    def test_what_cannot_be(self, tars: Path) -> None:
        with pytest.raises(any2ds.UsageError, match="on_error='ignore'"):
            any2ds.load(tars, on_error="ignore")
        with pytest.raises(any2ds.UsageError, match="'captoin'"):
            any2ds.load(tars, fill={"captoin": ""})


def halved(sample: dict[str, Any]) -> float:
    return float(sample["width"]) / 2


class TestTransform:
    def test_it_is_the_last_step_of_every_way_to_read(self, tars: Path) -> None:
        ds = any2ds.load(tars, columns=["width", "score"], fill={"score": -1.0}, transform=halved)
        wanted = [5.0 * n for n in range(10)]
        assert list(ds) == ds[:] == list(ds.stream()) == [ds[n] for n in range(10)] == wanted
        assert pickle.loads(pickle.dumps(ds))[3] == 15.0
        for name in ("to_arrow", "to_tf", "to_hf", "to_webdataset"):
            with pytest.raises(any2ds.UsageError, match=f"{name} has the columns of the dataset"):
                getattr(ds, name)()

    def test_its_errors_are_those_of_the_sample(self, tars: Path) -> None:
        def fails(sample: dict[str, Any]) -> Any:
            return 1 / sample["width"]

        with pytest.raises(ZeroDivisionError):
            any2ds.load(tars, transform=fails)[0]
        assert len(list(any2ds.load(tars, transform=fails, on_error="skip"))) == 9

    def test_nulls_are_filled(self, tars: Path) -> None:
        ds = any2ds.load(tars, fill={"score": -1.0})
        assert [sample["score"] for sample in ds[:3]] == [-1.0, 0.5, -1.0]
        assert pa.table(ds)["score"].to_pylist()[:3] == [-1.0, 0.5, -1.0]


class TestCollate:
    SAMPLES: tuple[dict[str, Any], ...] = (
        {"image": numpy.zeros((2, 3), numpy.uint8), "label": 1, "text": "a", "few": [1, 2], "more": [1.5]},
        {"image": numpy.ones((4, 2), numpy.uint8), "label": None, "text": None, "few": [3, 4], "more": [2.5, 3.5]},
    )

    def test_what_can_be_stacked_is(self) -> None:
        batch = any2ds.collate(self.SAMPLES)
        assert numpy.asarray(batch["few"]).tolist() == [[1, 2], [3, 4]]
        assert numpy.asarray(batch["label"]).tolist() == [1, 0]
        assert numpy.asarray(batch["label_mask"]).tolist() == [True, False]
        assert (batch["text"], batch["more"]) == (["a", None], [[1.5], [2.5, 3.5]])
        assert [each.shape for each in batch["image"]] == [(2, 3), (4, 2)]

    def test_padding(self) -> None:
        batch = any2ds.collate(self.SAMPLES, pad=7)
        assert numpy.asarray(batch["image"]).tolist() == [
            [[0, 0, 0], [0, 0, 0], [7, 7, 7], [7, 7, 7]],
            [[1, 1, 7], [1, 1, 7], [1, 1, 7], [1, 1, 7]],
        ]
        assert numpy.asarray(batch["image_shape"]).tolist() == [[2, 3], [4, 2]]
        assert numpy.asarray(batch["more"]).tolist() == [[1.5, 7], [2.5, 3.5]]

    def test_samples_with_nulls_are_left_out(self) -> None:
        assert any2ds.collate(self.SAMPLES, none="drop")["text"] == ["a"]
        assert any2ds.collate([], none="drop") == {}
        with pytest.raises(any2ds.UsageError, match="none='zero'"):
            any2ds.collate(self.SAMPLES, none="zero")

    def test_it_is_for_loaders_in_processes(self) -> None:
        assert pickle.loads(pickle.dumps(partial(any2ds.collate, pad=0)))(self.SAMPLES)["label"].shape == (2,)


def test_a_stream_takes_other_samples_for_its_last_ones_in_each_epoch(tars: Path) -> None:
    last: Counter[str] = Counter()
    ds = any2ds.load(tars, columns=["key"])
    stream = ds.stream(shuffle=True, window=1)
    for epoch in range(20):
        stream.set_epoch(epoch)
        last[[sample["key"] for sample in stream][-1]] += 1
    assert len(last) > 3


def test_values_of_pictures_with_16_bits(tmp_path: Path) -> None:
    import cv2

    levels = numpy.linspace(0, 65535, 24).astype(numpy.uint16).reshape(4, 6)
    coloured = numpy.stack([levels, levels[::-1], levels // 2], axis=2)
    (tmp_path / "tars").mkdir()
    with webdataset.TarWriter(str(tmp_path / "tars" / "0.tar")) as sink:
        for n, pixels in enumerate((levels, coloured[:, :, ::-1])):
            sink.write({"__key__": str(n), "png": cv2.imencode(".png", pixels)[1].tobytes()})
    grey, colour = any2ds.load(tmp_path / "tars", decode=True, cache_dir=tmp_path / "cache")
    assert grey["data"].dtype == colour["data"].dtype == numpy.uint16
    assert numpy.array_equal(grey["data"], numpy.repeat(levels[:, :, None], 3, axis=2))
    assert numpy.array_equal(colour["data"], coloured)
