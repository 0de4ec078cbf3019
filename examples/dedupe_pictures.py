"""Pictures that look the same, whatever their size and format: a step hashes them while they are downloaded, and
afterwards the first of those that are alike is kept.  python examples/dedupe_pictures.py

Needs imagehash: pip install imagehash
"""

import io
import tempfile
from pathlib import Path

import imagehash
import pyarrow as pa
import pyarrow.parquet as pq
from demo_server import DATA
from PIL import Image

import any2ds
from any2ds.testing.server import serve

ALIKE = 4  # bits of 64 that may differ
OUTPUT, KEPT = Path("dedupe_output"), Path("dedupe_kept.txt")


@any2ds.transform(columns={"phash": str})
def hashed(sample: any2ds.Sample) -> any2ds.Sample:
    """A step sees one file, in one of many processes, and the files come in any order: which one is the first of its
    kind is for later."""
    with Image.open(io.BytesIO(sample.data)) as picture:
        return sample.with_fields(phash=str(imagehash.phash(picture.convert("RGB"))))


def first_of_each(rows: list[dict[str, str]]) -> dict[str, str]:
    """Key -> the key of the first picture that looks like it, which may be itself.

    Each is compared with all that were kept. For millions of them cut the hash into 5 parts: of two that differ in 4
    bits one part is the same.
    """
    kept: dict[str, int] = {}
    found = {}
    for row in rows:
        bits = int(row["phash"], 16)
        like = next((key for key, other in kept.items() if (bits ^ other).bit_count() <= ALIKE), row["key"])
        kept.setdefault(like, bits)
        found[row["key"]] = like
    return found


def make_pictures(folder: Path) -> list[str]:
    """Some of the demo's pictures, and of each a smaller one in another format."""
    names = []
    for path in sorted((DATA / "images").glob("t*-0*.jpg")):
        with Image.open(path) as picture:
            picture.save(folder / path.name)
            smaller = picture.convert("RGB").resize((picture.width * 2 // 3, picture.height * 2 // 3))
            smaller.save(folder / f"{path.stem}-small.webp", quality=60)
        names += [path.name, f"{path.stem}-small.webp"]
    return names


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        names = make_pictures(Path(folder))
        with serve(Path(folder)) as server:
            any2ds.download(
                [server.url(name) for name in names],
                output_folder=OUTPUT,
                output_format="webdataset",
                transform=f"{__file__}:hashed",
                incremental_mode="overwrite",
            )
    table = pa.concat_tables(
        [pq.read_table(file, columns=["key", "url", "phash"]) for file in sorted(OUTPUT.glob("*.parquet"))]
    )
    rows = [row for row in table.to_pylist() if row["phash"]]
    first = first_of_each(rows)
    for row in rows:
        like = "" if first[row["key"]] == row["key"] else f"  looks like {first[row['key']]}"
        print(f"{row['key']}  {row['phash']}  {Path(row['url']).name:<22}{like}")
    kept = [key for key, like in first.items() if key == like]
    KEPT.write_text("\n".join(kept) + "\n")
    print(f"{len(kept)} of {len(rows)} are kept; their keys are in {KEPT}")
