"""Every command and every piece of Python of the README, the guide and the help runs as it is printed.

What they name is on this machine: lists whose files a loopback server has, and a bucket in moto's S3. Of clusters
`inline` takes the place (tests/cluster has those), and of libraries that the tests do not have tests/reading: the
snippets in docs/loading.md. The commands of dataset_examples/ have a test of their own.
"""

import csv
import gzip
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from any2ds.config.commands import COMMANDS
from any2ds.testing.processes import LONG
from any2ds.testing.server import Server, serve
from tests.support.s3 import CREDENTIALS, served

ROOT = Path(__file__).parents[2]
DATA = ROOT / "examples" / "data"
GUIDE = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
READ_ELSEWHERE = (
    "README.md",
    "docs/loading.md",
    "docs/checking.md",
    "docs/grain.md",
    "docs/pytorch.md",
    "docs/tensorflow.md",
)
EXAMPLE = "https://example.org/"  # where the archives of the recipe are, which a reader puts on a server of her own
SHARDS = 42  # of the dataset that the pages load: dataset/{00000..00041}.tar

# The command in the pages: makes its output folder anew unless it goes on with what the same command, or the same with
# --limit, has made; puts the cluster, the port and the folder of others where there is one here; and the server of
# this test into a recipe whose URLs are examples.
_ANY2DS = f"""#!{sys.executable}
import os, shutil, sys
from pathlib import Path
import fsspec

given = [a for a in sys.argv[1:] if not a.startswith("--ray_address=")]
given = ["--distributor=inline" if a in ("--distributor=pyspark", "--distributor=ray") else a for a in given]
given = ["--metrics_port=0" if a.startswith("--metrics_port=") else a.replace("/shared/", "shared/") for a in given]
commands = {{*{[*COMMANDS]!r}, "help"}} - {{"download"}}
if given and given[0] not in commands and not {{"--help", "--help=all", "--version"}} & {{*given}}:
    last, these = Path(".last"), repr([a for a in given if not a.startswith("--limit=")])
    if not last.exists() or last.read_text() != these:
        for folder in ("dataset", "files", "images", "photos", "sample", "shared", "trial", "s3://bucket/dataset"):
            system, path = fsspec.url_to_fs(folder)
            if system.exists(path):
                system.rm(path, recursive=True)
    last.write_text(these)
    given += [] if any(a.startswith("--distributor=") for a in given) else ["--distributor=inline"]
if given[:1] == ["new"]:
    shutil.rmtree(given[1], ignore_errors=True)
if given[:1] == ["build"]:
    data_dir = next((a.partition("=")[2] for a in given if a.startswith("--data_dir=")), os.environ["ANY2DS_DATA_DIR"])
    system, path = fsspec.url_to_fs(data_dir)
    if system.exists(path):
        system.rm(path, recursive=True)
    for code in Path().glob("*/*.py"):
        code.write_text(code.read_text().replace("{EXAMPLE}", os.environ["EXAMPLE"]))
from any2ds.cli import main
main(given)
"""


def blocks(text: str) -> list[tuple[str, str]]:
    """Language and content of each block of commands or Python."""
    return re.findall(r"^```(bash|python)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def _generated() -> str:
    """What docs/conf.py writes on the pages that it makes."""
    source = (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")
    found = re.findall(r"""yield (['"])(```(?:bash|python)\\n.*?```)\1""", source)
    return "\n".join(text.replace("\\n", "\n") for _, text in found)


PAGES: Mapping[str, list[tuple[str, str]]] = {
    **{page.relative_to(ROOT).as_posix(): blocks(page.read_text(encoding="utf-8")) for page in GUIDE},
    "docs/conf.py": blocks(_generated()),
    "any2ds --help": [("bash", example) for command in COMMANDS.values() for example in command.examples],
}


def _imported(code: str) -> set[str]:
    found = set(re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE)) - {"flowers"}  # which is in the place
    return found | {"tensorflow"} if ".to_tf(" in code else found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("served")
    for name in ("images", "sounds", "videos", "texts"):
        shutil.copytree(DATA / name, folder / name)
    with zipfile.ZipFile(folder / "some.zip", "w") as archive:
        archive.write(DATA / "texts" / "bread.txt", "bread.txt")
    pictures = iter(sorted((DATA / "images").glob("*.jpg")))
    for split, label in (*2 * [("train", "rose")], *2 * [("train", "tulip")], ("test", "rose"), ("test", "tulip")):
        (folder / split / label).mkdir(parents=True, exist_ok=True)
        picture = folder / split / label / next(pictures).name
        shutil.copy(folder / "images" / picture.name, picture)
        picture.with_suffix(".txt").write_text(f"a {label}")
        shutil.copy(folder / "images" / "bars-02.png", picture.with_suffix(".png"))
    for split in ("train", "test"):
        shutil.make_archive(str(folder / split), "zip", folder / split)
        shutil.make_archive(str(folder / split), "gztar", folder / split)
    with serve(folder) as running:
        yield running


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Iterator[Path]:
    """A folder with the lists that the pages name, a dataset, and programs; `environment.json` is to be set."""
    folder = tmp_path_factory.mktemp("place")
    _write_lists(folder, server)
    programs = folder / "programs"
    programs.mkdir()
    make = "#!/bin/sh\nmkdir -p .venv/bin && touch .venv/bin/activate\n"
    for name, content in {
        "any2ds": _ANY2DS,
        "make": make,
        "srun": '#!/bin/sh\nshift\nexec "$@"\n',  # one rank, without Slurm
        **dict.fromkeys(("pip", "img2dataset"), "#!/bin/sh\n"),
    }.items():
        (programs / name).write_text(content)
        (programs / name).chmod(0o755)
    with ExitStack() as stack:
        (url,) = stack.enter_context(served(lambda app: app))
        environment = {
            **CREDENTIALS,
            "AWS_ENDPOINT_URL": url,
            "ANY2DS_DATA_DIR": "built",
            "BROWSER": "true",
            "EXAMPLE": server.url(""),
            "WANDB_MODE": "offline",
            "WANDB_SILENT": "true",
            "PATH": f"{programs}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}{os.pathsep}{os.curdir}",
            "PYTHONWARNINGS": "ignore",
        }
        (folder / "environment.json").write_text(json.dumps(environment))
        made = "any2ds urls.parquet dataset --caption_col=caption --output_format=webdataset"
        _run(["bash", "-ec", f"{made} --number_sample_per_shard=1"], folder)
        (folder / ".last").unlink()
        for options in ("--register_checksums", "--data_dir=datasets"):
            _run(["bash", "-ec", f"any2ds build ./flowers {options}"], folder)
        shutil.copytree(folder / "dataset", folder / "trial")
        yield folder


_FILL_BUCKET = """
import os, fsspec
system = fsspec.filesystem("s3")
if system.exists("bucket"):
    system.rm("bucket", recursive=True)
system.mkdir("bucket")
system.put("urls.parquet", "bucket/urls.parquet")
if os.path.exists("dataset"):
    system.put("dataset", "bucket/dataset", recursive=True)
"""


def _write_lists(folder: Path, server: Server) -> None:
    images = sorted((DATA / "images").glob("*.jpg"))[:SHARDS]
    assert len(images) == SHARDS
    urls = [server.url(f"images/{path.name}") for path in images]
    texts = [f"picture {number}" for number in range(SHARDS)]
    columns = {
        **dict.fromkeys(("url", "link"), urls),
        **dict.fromkeys(("text", "caption"), texts),
        "sha256": [hashlib.sha256(path.read_bytes()).hexdigest() for path in images],
        "faces": [[[0.25, 0.25, 0.5, 0.5]]] * SHARDS,
        "id": list(range(SHARDS)),
        "uid": [f"{number:032x}" for number in range(SHARDS)],
        "licence": ["CC0"] * SHARDS,
    }
    for name in ("urls.parquet", "list.parquet", "metadata.parquet"):
        pq.write_table(pa.table(columns), folder / name)
    pq.write_table(pa.table({"image_url": urls[:3], "mask_url": urls[3:6]}), folder / "pairs.parquet")
    (folder / "begun").mkdir()  # by img2dataset
    pq.write_table(pa.table({"url": urls[:3], "status": ["success"] * 3}), folder / "begun" / "00000.parquet")
    for name in ("00000.tar", "00000_stats.json"):
        (folder / "begun" / name).touch()
    lines = "".join(f"{url}\n" for url in urls[:3])
    (folder / "urls.txt").write_text(lines)
    (folder / "urls.txt.gz").write_bytes(gzip.compress(lines.encode()))
    (folder / "lists").mkdir()
    with gzip.open(folder / "lists" / "a.csv.gz", "wt", encoding="utf-8") as file:
        csv.writer(file).writerows([("link", "id", "licence"), *((url, 1, "CC0") for url in urls[:3])])
    (folder / "cc3m.tsv").write_text("caption\turl\n" + "".join(f"text\t{url}\n" for url in urls[:3]))
    (folder / "sounds.csv").write_text(f'url,cuts\n{server.url("sounds/c-major.wav")},"[[0, 0.5]]"\n')
    (folder / "videos.csv").write_text(f"url\n{server.url('videos/zoom.mp4')}\n")
    (folder / "scores.csv").write_text("url,score\n" + "".join(f"{url},{n}\n" for n, url in enumerate(urls)))
    (folder / "scores.jsonl").write_text("".join(json.dumps({"link": url, "rank": 1}) + "\n" for url in urls))
    pq.write_table(pa.table({"key": ["000000"], "label": ["rose"]}), folder / "labels.parquet")
    (folder / "pages.txt").write_text(server.url("texts/bread.html") + "\n")
    (folder / "archives.txt").write_text(server.url("some.zip") + "\n")
    (folder / "run.yaml").write_text("url_list: urls.txt\ntimeout: 5\n")
    (step,) = [code for _, code in PAGES["docs/steps.md"] if "def clean(" in code]
    (folder / "my_step.py").write_text(step)
    _write_recipe(folder / "flowers", server)


def _write_recipe(folder: Path, server: Server) -> None:
    """The recipe of docs/recipes.md, with dummy data for the test that is printed there."""
    (code,) = [code for _, code in PAGES["docs/recipes.md"] if "def splits(" in code]
    folder.mkdir()
    (folder / "flowers.py").write_text(code.replace(EXAMPLE, server.url("")))
    shutil.copy(folder / "flowers.py", folder.parent / "my_recipes.py")
    for name in ("train", "test"):
        shutil.unpack_archive(server.folder / f"{name}.zip", folder / "dummy_data" / name)


def _run(command: list[str], folder: Path) -> str:
    environment = json.loads((folder / "environment.json").read_text())
    ran = subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, timeout=LONG
    )
    assert ran.returncode == 0, f"{command[-1]}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout + ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_it_runs_as_it_is_printed(page: str, place: Path, server: Server, tmp_path: Path) -> None:
    assert PAGES[page]
    for language, code in PAGES[page]:
        work = tmp_path / "work"
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(place, work)
        if language == "python" and "download(" in code:
            shutil.rmtree(work / "dataset")
        if "s3://" in code:
            _run([sys.executable, "-c", _FILL_BUCKET], work)
        if language == "bash":
            # A benchmark takes an hour: only whether there is one of that name, with these options.
            listed = rf"PYTHONPATH={ROOT} python -m benchmarks \1 --list"
            code = re.sub(r"^python -m benchmarks ([^#\n]*).*$", listed, code, flags=re.MULTILINE)
            shown = _run(["bash", "-o", "pipefail", "-ec", code], work)
            for rows, stored in re.findall(r"^([\d,]+) rows?, ([\d,]+) stored", shown, re.MULTILINE):
                assert rows == stored, shown
        elif missing := {name for name in _imported(code) if importlib.util.find_spec(name) is None}:
            assert page in READ_ELSEWHERE, missing
        elif page != "docs/loading.md" or "{00000..00041}" in code:
            code = code.replace('distributor="pyspark"', 'distributor="inline"').replace(EXAMPLE, server.url(""))
            if "from flowers import" in code:  # a test, which lies beside what it tests
                (work / "flowers" / "flowers_test.py").write_text(code)
                _run([sys.executable, "flowers/flowers_test.py"], work)
            else:
                _run([sys.executable, "-c", code], work)
