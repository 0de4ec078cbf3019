"""The notebooks of examples/. Those with PyTorch and Spark are run by tests/reading/with_torch and tests/cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.support.notebooks import ROOT, run_in_kernel

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


@pytest.mark.slow
def test_the_first_dataset(tmp_path: Path) -> None:
    run_in_kernel("first_dataset.ipynb", tmp_path)
    notebook = run_in_kernel("first_dataset.ipynb", tmp_path)  # again in the same folder
    shown: list[dict[str, Any]] = [
        output["data"] for cell in notebook.cells for output in cell.get("outputs", ()) if "data" in output
    ]
    pages = [data["text/html"] for data in shown if "text/html" in data]
    assert any("no problems" in page for page in pages)
    assert any("color: " in page and "stored" in page for page in pages)  # the run, in colours
    assert any("<RunReport" in data.get("text/plain", "") for data in shown)
    assert (tmp_path / "first_dataset" / "00004.tar").exists()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_they_are_kept_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert all(not cell.get("outputs") and not cell.get("execution_count") for cell in notebook.cells)
    assert notebook.cells[0].cell_type == "markdown"
