"""What type checkers, editors and the REPL know of the public names."""

import inspect
import subprocess
import sys
from pathlib import Path

import jedi
import pytest

import any2ds
from any2ds.config.commands import COMMANDS
from any2ds.testing.processes import LONG

ROOT = Path(__file__).parents[1]

RIGHT = """
from pathlib import Path
import any2ds

report = any2ds.download("urls.txt", Path("out"), output_format="webdataset", max_file_bytes="1GiB", timeout=3)
rows: int = report.count
any2ds.download(url_list=["http://127.0.0.1/a"], transform=[str, "module:function"], reporters=["wandb"], hosts={})
any2ds.download("urls.txt", preset="img2dataset", image_size=256, metadata_format="parquet,csv", headers={"A": "b"})
any2ds.retry("out", codes=["http_404"], retries=2)
fine: bool = any2ds.verify("out", sample=0.01).ok
total: int = any2ds.inspect("out").rows
any2ds.report("out", format="json", output="-")
any2ds.card("out", license="mit")
"""
WRONG = [
    'any2ds.download("urls.txt", output_fromat="webdataset")',
    'any2ds.download("urls.txt", output_format="tar")',
    'any2ds.download("urls.txt", thread_count="many")',
    'any2ds.download("urls.txt", quiet="yes")',
    "any2ds.download()",
    'any2ds.retry("out", url_list="urls.txt")',
    'any2ds.verify("out", repair=3)',
    'any2ds.inspect("out", samples="few")',
    'any2ds.report("out", format="pdf")',
    'any2ds.card("out", force=None)',
    "any2ds.downlaod",
]


def mypy(path: Path) -> str:
    command = [sys.executable, "-m", "mypy", "--strict", f"--config-file={ROOT / 'pyproject.toml'}", str(path)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONG).stdout


def test_mypy_knows_each_option_and_its_type(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(RIGHT + "\n".join(WRONG) + "\n")
    start = RIGHT.count("\n") + 1
    wrong = [int(line.split(":")[1]) for line in mypy(path).splitlines() if ": error:" in line]
    assert sorted(set(wrong)) == list(range(start, start + len(WRONG)))


@pytest.mark.parametrize("tool", ["stubs", "failure_codes"])
def test_what_tools_make_from_the_code_is_current(tool: str) -> None:
    command = [sys.executable, f"tools/{tool}.py", "--check"]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONG)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_dir_shows_the_public_names_and_no_others() -> None:
    program = "import any2ds; print(*dir(any2ds)); any2ds.download; print(*dir(any2ds))"
    shown = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=LONG)
    assert shown.stdout.splitlines() == [" ".join(sorted(any2ds.__all__))] * 2


@pytest.mark.parametrize("line", ["any2ds.dow", "any2ds.download(output_fo"])
def test_jedi_completes_names_and_options(line: str) -> None:
    found = jedi.Script(f"import any2ds\n{line}", project=jedi.Project(ROOT)).complete()
    assert {"download", "output_folder=", "output_format="} & {each.name for each in found}


def test_the_plain_repl_completes_names() -> None:
    program = (
        "import any2ds, rlcompleter; complete = rlcompleter.Completer({'any2ds': any2ds}).complete;"
        "print(complete('any2ds.dow', 0), complete('any2ds.co', 0))"
    )
    shown = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=LONG)
    assert shown.stdout.split() == ["any2ds.download(", "None"]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_function_documents_each_of_its_options(name: str) -> None:
    function = getattr(any2ds, name)
    doc = inspect.getdoc(function) or ""
    for parameter in inspect.signature(function).parameters:
        assert f" {parameter}: " in doc
