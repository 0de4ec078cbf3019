"""What wandb's library wrote offline, read back by its own program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = str(Path(__file__).parents[2])


def environment(folder: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    home = folder.parent / f"home-{folder.name}"
    home.mkdir(exist_ok=True)
    isolated = {"HOME": str(home), "USERPROFILE": str(home), "XDG_CONFIG_HOME": str(home), "XDG_CACHE_HOME": str(home)}
    return {**kept, **isolated, "PYTHONPATH": ROOT, "COLUMNS": "200", "WANDB_ERROR_REPORTING": "false", **more}


def recorded(folder: Path) -> list[list[dict[str, Any]]]:
    """What each of the runs has written down, in the order in which they ran."""
    files = sorted((folder / "wandb").glob("offline-run-*/*.wandb"), key=lambda path: path.parent.name)
    read = [sys.executable, "-m", "wandb", "leet", "inspect", "--json"]
    done = [
        subprocess.run([*read, str(file)], capture_output=True, text=True, timeout=60, check=True) for file in files
    ]
    return [[json.loads(line) for line in each.stdout.splitlines()] for each in done]


def of_kind(records: list[dict[str, Any]], kind: str) -> list[Any]:
    return [record[kind] for record in records if record["type"] == kind]


def history(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [found["item"] for found in of_kind(records, "history")]


def newest(records: list[dict[str, Any]]) -> dict[str, Any]:
    """The last value of each figure."""
    return {name: value for item in history(records) for name, value in item.items()}


def table(folder: Path, name: str) -> dict[str, Any]:
    files = list((folder / "wandb").glob(f"*run-*/files/media/table/{name}_*.json"))
    found = json.loads(max(files, key=lambda path: path.stat().st_mtime).read_text())
    assert isinstance(found, dict)
    return found
