"""A first run, from a list of URLs to a dataset in demo_output/; what `make demo` shows."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tarfile
from itertools import groupby, islice
from pathlib import Path

import pyarrow.parquet as pq
from demo_server import demo_urls

OUTPUT = Path("demo_output")


def main() -> int:
    if OUTPUT.exists():
        shutil.rmtree(OUTPUT)
    with demo_urls() as url_list:
        options = [
            f"--url_list={url_list}",
            "--caption_col=caption",
            "--save_additional_columns=topic,licence",
            "--output_format=webdataset",
            f"--output_folder={OUTPUT}",
            "--number_sample_per_shard=60",
            "--timeout=2",
            "--retries=1",
        ]
        say("Some 200 small files wait on a server on this machine, and some of the URLs are dead on purpose.")
        say("This is the command that makes a dataset of them:\n")
        say("    any2ds " + " \\\n        ".join(map(shlex.quote, options)) + "\n")
        exit_code = subprocess.run([sys.executable, "-m", "any2ds", *options], check=False).returncode
    if exit_code == 0:
        show_files()
        show_samples(OUTPUT / "00000.tar")
        show_failures()
        say("\ndocs/loading.md shows how to read it with webdataset, PyTorch, pandas, DuckDB and others.")
        say(f"\nIts report, with charts and samples: {(OUTPUT / 'report.html').resolve()}")
        if shutil.which("any2ds") is None and (activate := Path(sys.executable).with_name("activate")).exists():
            say(f"any2ds is installed in an environment of its own: . {shlex.quote(os.path.relpath(activate))}")
    return exit_code


def show_files() -> None:
    say(f"\nWhat lies in {OUTPUT}/:\n")
    for file in sorted(path for path in OUTPUT.iterdir() if path.is_file()):
        say(f"    {file.name:<20} {file.stat().st_size:>9,} bytes")


def show_samples(shard: Path) -> None:
    say(f"\nThe first samples in {shard}, each a file, its caption and its metadata:\n")
    with tarfile.open(shard) as tar:
        for key, members in islice(groupby(tar, key=lambda member: member.name.partition(".")[0]), 3):
            for member in members:
                file = tar.extractfile(member)
                caption = file.read().decode("utf-8") if file and member.name == f"{key}.txt" else ""
                say(f"    {member.name:<16} {member.size:>9,} bytes  {caption}")


def show_failures() -> None:
    columns = ["key", "error_code", "caption", "url"]
    rows = [row for file in sorted(OUTPUT.glob("*.parquet")) for row in pq.read_table(file).to_pylist()]
    failed = [row for row in rows if row["status"] != "success"]
    say(f"\n{len(failed)} of {len(rows)} rows failed; the metadata says why. One of each kind:\n")
    for row in {row["error_code"]: row for row in reversed(failed)}.values():
        key, code, caption, url = (row[name] or "" for name in columns)
        say(f"    {key}  {code:<20} {caption:<52} {url}")


def say(text: str) -> None:
    print(text.rstrip(), flush=True)


if __name__ == "__main__":
    sys.exit(main())
