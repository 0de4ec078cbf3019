"""A release as a user gets it: wheel and sdist are built, looked into, installed into clean environments and tried,
and pip has to find versions of the stores' extras that agree with what people use beside them.

`make smoke` runs it. It needs the network only where pip does. The lists and files come from a server on loopback.
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_MEGABYTES, MOST_PACKAGES = 230, 20  # of the core install with any2ds, without pip; megabytes as `du -m` counts
FILES = 20
INSIDE = ("any2ds/py.typed", "any2ds/__init__.pyi", "any2ds/describe/templates/report.html")
NEIGHBOURS = ("boto3", "google-cloud-storage", "azure-identity", "azure-storage-blob", "datasets")
# Extra -> its library, and what people install in the same command.
BESIDE = {
    "s3": ("s3fs", ("boto3",)),
    "gcs": ("gcsfs", ("google-cloud-storage",)),
    "azure": ("adlfs", ("azure-identity", "azure-storage-blob")),
    "hf": ("huggingface-hub", ("datasets",)),
    "all": ("s3fs", NEIGHBOURS),
}
MOST_SECONDS = 600  # that pip may look for versions; seconds where few have to be tried, hours where it goes back years
PIP = ("-m", "pip", "--disable-pip-version-check", "install", "--quiet")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="any2ds-smoke-", ignore_cleanup_errors=True) as folder:
        work = Path(folder)
        tools = environment(work / "tools")
        run([tools, *PIP, "--upgrade", "pip", "build", "twine"])
        run([tools, "-m", "build", "--outdir", work / "dist", ROOT])
        (wheel,) = (work / "dist").glob("*.whl")
        (sdist,) = (work / "dist").glob("*.tar.gz")
        run([tools, "-m", "twine", "check", "--strict", wheel, sdist])
        look_into(wheel, sdist)
        for number, release in enumerate((wheel, sdist)):
            print(f"installing {release.name}", flush=True)
            python = environment(work / f"clean{number}")
            before = set(packages(python))
            size = megabytes(python)
            run([python, *PIP, release])
            measure(len(set(packages(python)) - before), megabytes(python) - size)
            (work / f"try{number}").mkdir()
            try_out(python, work / f"try{number}")
        for extra, (library, others) in BESIDE.items():
            print(f"choosing versions for {' '.join(others)} 'any2ds[{extra}]'", flush=True)
            resolve(tools, f"{wheel}[{extra}]", library, others)
    print("wheel and sdist: fine")
    return 0


def environment(folder: Path) -> Path:
    venv.create(folder, with_pip=True)
    return folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def run(command: list[object], cwd: Path | None = None, timeout: float | None = None) -> str:
    """What the command prints. Ends the program if it fails. Nothing of this checkout is on its path.

    Raises subprocess.TimeoutExpired after `timeout` seconds."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**clean, "PYTHONUTF8": "1"},
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=timeout,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\nended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def look_into(wheel: Path, sdist: Path) -> None:
    """Ends the program if anything is missing, or is there that should not be."""
    with zipfile.ZipFile(wheel) as archive:
        of_wheel = archive.namelist()
        (metadata,) = (archive.read(name).decode() for name in of_wheel if name.endswith(".dist-info/METADATA"))
    with tarfile.open(sdist) as tar:
        of_sdist = [name.partition("/")[2] for name in tar.getnames()]
    missing = [name for name in INSIDE if name not in of_wheel or name not in of_sdist]
    missing += [name for name in ("requirements.txt", "LICENSE", "README.md") if name not in of_sdist]
    foreign = [name for name in of_wheel if not name.startswith(("any2ds/", "any2ds-"))]
    foreign += [name for name in of_sdist if name.partition("/")[0] in ("tests", "benchmarks", ".venv", ".ci")]
    if broken := re.findall(r"\]\((?!https?:)[^)]*\)", metadata):
        raise SystemExit(f"links that lead nowhere on PyPI: {broken}")
    if missing or foreign:
        raise SystemExit(f"missing: {missing}; should not be there: {foreign}")


def packages(python: Path) -> list[str]:
    listed = run([python, "-m", "pip", "--disable-pip-version-check", "list", "--format=json"])
    return [package["name"] for package in json.loads(listed)]


def megabytes(python: Path) -> float:
    folder = Path(run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip())
    found = (path.stat() for path in folder.rglob("*"))
    return sum(getattr(file, "st_blocks", file.st_size / 512) * 512 for file in found) / 2**20


def measure(count: int, size: float) -> None:
    print(f"    {count} packages, {size:.0f} MB", flush=True)
    if count > MOST_PACKAGES or (size > MOST_MEGABYTES and sys.platform == "linux"):
        raise SystemExit(f"the core install is to have at most {MOST_PACKAGES} packages and {MOST_MEGABYTES} MB")


def resolve(python: Path, wanted: str, library: str, others: tuple[str, ...]) -> None:
    """Print which versions of the library and the others pip would install into a new environment."""
    started = time.monotonic()
    command = [python, *PIP, "--dry-run", "--ignore-installed", "--report=-", *others, wanted]
    report = json.loads(run(command, timeout=MOST_SECONDS))
    found = [each["metadata"] for each in report["install"]]
    versions = {each["name"].lower().replace("_", "-"): each["version"] for each in found}
    shown = ", ".join(f"{name} {versions[name]}" for name in (*others, library))
    print(f"    {shown} ({time.monotonic() - started:.0f} s)", flush=True)


def try_out(python: Path, work: Path) -> None:
    """A first run, in the words of the command line."""
    any2ds = python.with_name("any2ds.exe" if sys.platform == "win32" else "any2ds")
    site = work / "site"
    site.mkdir()
    for number in range(FILES):
        (site / f"{number}.txt").write_bytes(f"file {number}\n".encode() * 50)
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_port}"
        urls = [f"{base}/{number}.txt" for number in range(FILES)] + [f"{base}/missing.txt"]
        (work / "urls.txt").write_text("\n".join(urls) + "\n", encoding="utf-8")
        print("   ", run([any2ds, "--version"]).strip(), flush=True)
        run([any2ds, "urls.txt", "dataset", "--output_format=webdataset", "--number_sample_per_shard=10"], work)
        server.shutdown()
    run([any2ds, "verify", "dataset"], work)
    if str(FILES) not in run([any2ds, "inspect", "dataset"], work):
        raise SystemExit(f"any2ds inspect does not tell of {FILES} files")
    (work / "dataset" / "report.html").unlink()
    run([any2ds, "report", "dataset"], work)
    if "<svg" not in (work / "dataset" / "report.html").read_text(encoding="utf-8"):
        raise SystemExit("the report has no charts")
    with tarfile.open(work / "dataset" / "00000.tar") as shard:
        if not [name for name in shard.getnames() if name.endswith(".txt")]:
            raise SystemExit("the first shard holds no files")


if __name__ == "__main__":
    raise SystemExit(main())
