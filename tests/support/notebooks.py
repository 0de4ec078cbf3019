"""Runs a notebook of examples/ as a reader would, in a folder of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def run_in_kernel(name: str, folder: Path) -> Any:
    """The notebook with its outputs, run by a Jupyter kernel. Raises CellExecutionError."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(_copied(name, folder), as_version=4)
    os.environ.setdefault("PYTHONPATH", str(ROOT))
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


def run_as_script(name: str, folder: Path) -> str:
    """What its cells print, run one after the other without Jupyter, where that is not installed."""
    cells = json.loads(_copied(name, folder).read_text(encoding="utf-8"))["cells"]
    code = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    script = folder / "notebook.py"
    script.write_text(code, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=folder, env=environment, capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _copied(name: str, folder: Path) -> Path:
    shutil.copytree(ROOT / "examples" / "data", folder / "data", dirs_exist_ok=True)
    shutil.copy(ROOT / "examples" / "demo_server.py", folder)
    return Path(shutil.copy(ROOT / "examples" / name, folder))
