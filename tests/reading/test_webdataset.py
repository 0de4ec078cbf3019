"""webdataset takes `any2ds.load`, and reads tar files without it by the pattern in `.any2ds/shards`."""

import contextlib
import gzip
import io
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset

import any2ds
from any2ds import verify


def samples(**options: Any) -> Any:
    shards = json.loads(Path("dataset/.any2ds/shards").read_bytes())["pattern"]
    return webdataset.WebDataset(f"dataset/{shards}", **options)


@pytest.mark.parametrize("output_format", ["webdataset", "parquet", "tfrecord", "arrayrecord", "files"])
def test_samples_of_every_format(output_format: str, dataset: Callable[..., Any], readme: Callable[..., Any]) -> None:
    made = dataset(output_format)
    lines = readme("webdataset")["stdout"].splitlines()
    keys = [line.split()[0] for line in lines]
    assert sorted(keys) == list(made.files) != keys
    assert all(f"(32, 32) {made.captions[key]}" in line for key, line in zip(keys, lines, strict=True))


def test_what_any2ds_has_decoded_is_left_to_webdataset(dataset: Callable[..., Any]) -> None:
    made = dataset("webdataset")
    found = list(any2ds.load("dataset", decode=True).to_webdataset().decode("pil"))
    assert [sample["__key__"] for sample in found] == list(made.files)
    assert {sample[sample["json"]["ext"]].size for sample in found} == {(32, 32)}


def test_columns_that_are_left_out(dataset: Callable[..., Any]) -> None:
    made = dataset("webdataset")
    found = list(any2ds.load("dataset", columns=["data", "label"]).to_webdataset().decode())
    assert [(sample["__key__"], sample["json"]) for sample in found] == [
        (key, {"label": made.labels[key]}) for key in made.files
    ]
    found = list(any2ds.load("dataset", columns=["label"]).to_webdataset())
    assert [set(sample) for sample in found] == [{"__key__", "json"}] * len(made.files)


class Evil:
    """Unpickling it makes a file."""

    def __init__(self, made: Path) -> None:
        self._made = made

    def __reduce__(self) -> Any:
        return open, (str(self._made), "w")


def test_nothing_in_a_sample_is_executed(tmp_path: Path) -> None:
    evil = pickle.dumps(Evil(tmp_path / "executed"))
    exts = ["pkl", "pickle", "pyd", "pth", "note.pyd", "pyd.gz", "pt", "PKL"]
    array = io.BytesIO()
    np.save(array, np.arange(3))
    with webdataset.TarWriter(str(tmp_path / "0.tar"), encoder=False) as sink:
        files = {ext: gzip.compress(evil, mtime=0) if ext.endswith("gz") else evil for ext in exts}
        for n, (ext, content) in enumerate(files.items()):
            sink.write({"__key__": f"a{n}", "a.bin": content, ext: content, "npy": array.getvalue()})
        sink.write({"__key__": f"a{len(exts)}", "pyd": evil})  # its only file
    with contextlib.suppress(Exception):
        list(webdataset.WebDataset(str(tmp_path / "0.tar"), shardshuffle=False).decode())
    assert (tmp_path / "executed").exists()  # as it is without us
    (tmp_path / "executed").unlink()
    *found, last = any2ds.load(tmp_path).to_webdataset().decode()
    for (ext, content), sample in zip(files.items(), found, strict=True):
        assert sample[f"{ext.lower()}.bin"] == content
        assert sample["npy"].tolist() == [0, 1, 2]
    assert last["pyd.bin"] == evil
    assert not (tmp_path / "executed").exists()


class Masks(any2ds.Recipe):
    """Files with masks."""

    def info(self) -> any2ds.Info:
        return any2ds.Info({"file": any2ds.Bytes(), "seg_map": any2ds.Bytes(), "about": {"n": "int32"}})

    def splits(self, dl: Any) -> Any:
        return {"train": ((n, {"file": b"file", "seg_map": b"mask%d" % n, "about": {"n": n}}) for n in range(3))}


@pytest.mark.parametrize("output_format", ["webdataset", "parquet", "tfrecord"])
def test_all_files_of_a_recipe_s_sample_are_there(output_format: str, tmp_path: Path) -> None:
    any2ds.build(Masks(), data_dir=tmp_path, output_format=output_format, quiet=True, report=False)
    found = list(any2ds.load("masks", data_dir=tmp_path).to_webdataset().decode())
    name = "seg_map.bin" if output_format == "webdataset" else "seg_map"
    assert sorted((sample["bin"], sample[name]) for sample in found) == [(b"file", b"mask%d" % n) for n in range(3)]
    assert all(sample["json"]["about/n"] in range(3) and "seg_map" not in str(sample["json"]) for sample in found)


@pytest.mark.parametrize("kind", ["images", "mixed"])
def test_without_any2ds_samples_are_shuffled_and_decoded(
    kind: str, dataset: Callable[..., Any], readme: Callable[..., Any]
) -> None:
    made = dataset("webdataset", kind)
    found = readme("Without any2ds")
    assert found["shards"] == "{00000..00002}.tar"
    keys = [line.split()[0] for line in found["stdout"].splitlines()]
    assert sorted(keys) == list(made.files)


def test_bytes_captions_and_metadata_come_back_in_order(dataset: Callable[..., Any]) -> None:
    made = dataset("webdataset", "mixed")
    found = list(samples(shardshuffle=False).decode())
    assert [sample["__key__"] for sample in found] == list(made.files)
    for sample in found:
        key, metadata = sample["__key__"], sample["json"]
        assert (sample["txt"], metadata["caption"], metadata["label"]) == (
            made.captions[key],
            made.captions[key],
            made.labels[key],
        )
    raw = {sample["__key__"]: sample for sample in samples(shardshuffle=False)}
    assert {key: sample[sample_ext(sample)] for key, sample in raw.items()} == made.files


def sample_ext(sample: dict[str, Any]) -> str:
    return str(json.loads(sample["json"])["ext"])


def test_shuffling_is_a_permutation_and_epochs_differ(dataset: Callable[..., Any]) -> None:
    made = dataset("webdataset")
    orders = [[s["__key__"] for s in samples(shardshuffle=10, seed=seed).shuffle(100)] for seed in range(3)]
    assert all(sorted(keys) == list(made.files) for keys in orders)
    assert len({tuple(keys) for keys in orders}) > 1


def test_workers_and_nodes_share_the_shards(dataset: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    made = dataset("webdataset")

    def of(rank: int) -> Iterator[str]:
        def split(sources: Any, group: Any = None) -> Iterator[Any]:
            yield from list(sources)[rank::2]

        return (sample["__key__"] for sample in samples(shardshuffle=False, nodesplitter=split))

    first, second = list(of(0)), list(of(1))
    assert not set(first) & set(second)
    assert sorted(first + second) == list(made.files)


def test_gaps_and_shards_without_a_sample_are_in_nobodys_way(dataset: Callable[..., Any]) -> None:
    made = dataset("webdataset", number_sample_per_shard=1)  # shard 7 has the row that failed, and is empty
    for path in Path("dataset").glob("00003*"):
        path.unlink()
    Path("dataset/.any2ds/shards").unlink()
    verify("dataset", repair=True, quiet=True)
    said = json.loads(Path("dataset/.any2ds/shards").read_bytes())
    assert (said["pattern"], said["gaps"]) == ("{{00000..00002},{00004..00024}}.tar", [[3, 3]])
    found = [sample["__key__"] for sample in samples(shardshuffle=False)]
    assert len(found) == said["nsamples"] == len(made.files) - 1
