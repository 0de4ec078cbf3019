"""webdataset reads tar files: shuffled, decoded, and by the pattern in `.any2ds/shards`."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import webdataset

from any2ds import verify


def samples(**options: Any) -> Any:
    shards = json.loads(Path("dataset/.any2ds/shards").read_bytes())["pattern"]
    return webdataset.WebDataset(f"dataset/{shards}", **options)


@pytest.mark.parametrize("kind", ["images", "mixed"])
def test_images_are_decoded_and_shuffled_as_the_readme_says(
    kind: str, dataset: Callable[..., Any], readme: Callable[..., Any]
) -> None:
    made = dataset("webdataset", kind)
    found = readme("webdataset")
    assert found["shards"] == "{00000..00002}.tar"
    lines = found["stdout"].splitlines()
    keys = [line.split()[0] for line in lines]
    images = [key for key, content in made.files.items() if content[:2] in (b"\xff\xd8", b"\x89P")]
    assert sorted(keys) == images
    assert all(f"(32, 32) {made.captions[key]}" in line for key, line in zip(keys, lines, strict=True))


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
