"""Training as CLIP is trained, from a list of URLs with captions to a model that finds the caption of an image:

    python examples/clip_like.py                                          # images from a server on this machine
    torchrun --standalone --nproc-per-node=2 examples/clip_like.py        # in two processes
    python examples/clip_like.py --url_list=laion.parquet --folder=laion --epochs=1

A list has the columns url and caption. Files that are in the folder already are not downloaded again. If it is killed,
the same command goes on at the last checkpoint, in the middle of an epoch; also with another number of processes, as
long as --batch_size stays what it is. Needs: pip install 'any2ds[image]' torch
"""

from __future__ import annotations

import argparse
import contextlib
import os
import zlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.csv
import torch
import torch.distributed as dist
from demo_server import demo_urls
from torch import nn
from torch.distributed.nn.functional import all_gather
from torch.nn.functional import cross_entropy, normalize
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import any2ds
from any2ds.core.errors import OutputError

SIDE = 64  # pixels
WORDS, LONGEST = 2048, 16  # how many words the text tower tells apart, and how many of a caption it reads
WIDTH = 64  # numbers that stand for an image or a caption


def main() -> None:
    options = parsed()
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if options.batch_size % ranks:
        raise SystemExit(f"--batch_size={options.batch_size} cannot be shared out among {ranks} processes")
    if rank == 0:
        download(options)
    if ranks > 1:
        dist.init_process_group("gloo")  # the others wait here until rank 0 has the dataset
    train(options, rank, ranks)
    if rank == 0:
        evaluate(options)
    if ranks > 1:
        dist.destroy_process_group()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url_list", help="parquet, csv … with the columns url and caption")
    parser.add_argument("--folder", type=Path, default=Path("clip_output"))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch_size", type=int, default=32, help="of all processes together")
    parser.add_argument("--workers", type=int, default=2, help="processes that read, for each that trains")
    parser.add_argument("--save_every", type=int, default=5, help="steps")
    return parser.parse_args()


def download(options: argparse.Namespace) -> None:
    """Images of one size, so that they can be put into batches."""
    if not options.url_list:  # its server has another address each time, so that it is not the same list
        with contextlib.suppress(OutputError):
            any2ds.load(options.folder / "images")
            return
    with image_list(options.url_list) as rows:
        any2ds.download(
            rows,
            str(options.folder / "images"),
            caption_col="caption",
            output_format="webdataset",
            file_size=SIDE,
            resize_mode="center_crop",
            resize_only_if_bigger=False,
            encode_format="jpg",
            timeout=10,
            incremental_mode="incremental" if options.url_list else "overwrite",
            quiet=True,
        )


@contextlib.contextmanager
def image_list(url_list: str | None) -> Iterator[Any]:
    """As it is, or of what lies in examples/data the rows that are images."""
    if url_list:
        yield url_list
        return
    with demo_urls() as demo:
        rows = pyarrow.csv.read_csv(demo)
        yield rows.filter(pc.match_substring(rows["url"], "/images/"))


def open_dataset(folder: Path) -> Any:
    """What is good enough to learn from; only the metadata are read to find it."""
    good = "original_width >= 200 and original_height >= 100 and caption is not null"
    return any2ds.load(folder / "images", where=good, columns=["data", "caption"], decode=True)


class Clip(nn.Module):
    """An image and a caption become numbers, close to each other if one is that of the other."""

    def __init__(self) -> None:
        super().__init__()
        channels = (3, 16, 32, 64)
        layers: list[nn.Module] = []
        for before, after in pairwise(channels):
            layers += [nn.Conv2d(before, after, 5, stride=3, padding=2), nn.ReLU()]
        self.images = nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(WIDTH))
        self.texts = nn.Sequential(nn.EmbeddingBag(WORDS, WIDTH, padding_idx=0), nn.Linear(WIDTH, WIDTH))
        self.scale = nn.Parameter(torch.tensor(2.5))

    def forward(self, images: torch.Tensor, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        found = self.images(images.permute(0, 3, 1, 2).float() / 255)
        return normalize(found), normalize(self.texts(words)), self.scale.exp()


def words_of(captions: Sequence[str]) -> torch.Tensor:
    """Each caption as the numbers of its words, with zeros behind."""
    found = torch.zeros(len(captions), LONGEST, dtype=torch.int64)
    for row, caption in enumerate(captions):
        numbers = [1 + zlib.crc32(word.encode()) % (WORDS - 1) for word in caption.lower().split()[:LONGEST]]
        found[row, : len(numbers)] = torch.tensor(numbers, dtype=torch.int64)
    return found


def loss_of(images: torch.Tensor, texts: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Of the batch of all processes: each image has to find its caption, and each caption its image."""
    if dist.is_initialized():
        images, texts = torch.cat(all_gather(images)), torch.cat(all_gather(texts))
    similar, own = scale * images @ texts.T, torch.arange(len(images))
    return (cross_entropy(similar, own) + cross_entropy(similar.T, own)) / 2


def train(options: argparse.Namespace, rank: int, ranks: int) -> None:
    torch.manual_seed(0)
    model = Clip()
    model(torch.zeros(1, SIDE, SIDE, 3), words_of(["a"]))  # now its layers have their sizes
    trained = DistributedDataParallel(model) if ranks > 1 else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    first_epoch, first_step = load_checkpoint(options.folder / "checkpoint.pt", model, optimizer)

    share = options.batch_size // ranks
    stream = open_dataset(options.folder).stream(shuffle=True, seed=1, batch_size=share, even="drop")
    loader = DataLoader(stream, share, num_workers=options.workers, persistent_workers=options.workers > 0)
    for epoch in range(first_epoch, options.epochs):
        stream.set_epoch(epoch, position=first_step * options.batch_size)
        for step, batch in enumerate(loader, first_step + 1):
            loss = loss_of(*trained(batch["data"], words_of(batch["caption"])))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % options.save_every == 0 and rank == 0:
                save_checkpoint(options.folder / "checkpoint.pt", model, optimizer, epoch, step)
            if rank == 0:
                print(f"epoch {epoch}, step {step}: loss {loss.item():.4f}", flush=True)
        first_step = 0
    if rank == 0:
        save_checkpoint(options.folder / "checkpoint.pt", model, optimizer, options.epochs, 0)


def save_checkpoint(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int, step: int) -> None:
    """Whole or not at all, whenever it is killed."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch, "step": step}
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def load_checkpoint(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[int, int]:
    """The epoch to go on with, and how many of its steps are done."""
    if not path.exists():
        return 0, 0
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"], state["step"]


@torch.no_grad()
def evaluate(options: argparse.Namespace) -> None:
    """How many images find their own caption among all of the dataset."""
    model = Clip()
    model(torch.zeros(1, SIDE, SIDE, 3), words_of(["a"]))
    model.load_state_dict(torch.load(options.folder / "checkpoint.pt")["model"])
    dataset = open_dataset(options.folder)
    found = [model(batch["data"], words_of(batch["caption"])) for batch in DataLoader(dataset, options.batch_size)]
    images, texts = torch.cat([each[0] for each in found]), torch.cat([each[1] for each in found])
    right = (images @ texts.T).argmax(1).eq(torch.arange(len(images))).sum().item()
    print(f"{right} of {len(images)} images find their caption")


if __name__ == "__main__":
    main()
