"""What type checkers, editors and the REPL know of the public names."""

import inspect
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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
total: int | None = any2ds.inspect("out").rows
any2ds.report("out", format="json", output="-")
any2ds.card("out", license="mit")
dataset = any2ds.load(Path("out"), split="train[:80%]", where="bytes >= 100", columns=["data"], decode=True)
length: int = len(dataset)
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
    'any2ds.load("out", splt="train")',
    'any2ds.load("out", decode="yes")',
]


def mypy(path: Path) -> set[int]:
    command = [sys.executable, "-m", "mypy", "--strict", f"--config-file={ROOT / 'pyproject.toml'}", str(path)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONG).stdout
    return {int(line.split(":")[1]) for line in found.splitlines() if ": error:" in line}


def pyright(path: Path) -> set[int]:
    settings = {"typeCheckingMode": "standard", "extraPaths": [str(ROOT)]}
    (path.parent / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", f"--pythonpath={sys.executable}", "--outputjson", str(path)]
    found = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, timeout=LONG).stdout
    problems = [each for each in json.loads(found)["generalDiagnostics"] if each["severity"] == "error"]
    return {each["range"]["start"]["line"] + 1 for each in problems}


@pytest.mark.parametrize("checker", [mypy, pyright])
@pytest.mark.slow
def test_type_checkers_know_each_option_and_its_type(checker: Callable[[Path], set[int]], tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(RIGHT + "\n".join(WRONG) + "\n")
    start = RIGHT.count("\n") + 1
    assert sorted(checker(path)) == list(range(start, start + len(WRONG)))


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


IN_IPYTHON = """
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
shell.run_cell("import any2ds")
for line in ("any2ds.dow", "any2ds.conf", "any2ds.download(output_fo"):
    with provisionalcompleter():
        print(*(each.text for each in shell.Completer.completions(line, len(line))))
"""


def test_ipython_completes_names_and_options(tmp_path: Path) -> None:
    environment = {**os.environ, "IPYTHONDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-c", IN_IPYTHON]
    shown = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LONG)
    names, none, options = shown.stdout.splitlines()
    assert (names, none) == ("download", "")
    assert {"output_folder=", "output_format="} <= {*options.split()}


@pytest.fixture
def complete(tmp_path: Path) -> Iterator[Callable[[str], set[str]]]:
    """`complete(line)` returns what editors offer at its end, by the language server of pyright."""
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(ROOT)]}))
    program = str(Path(sys.executable).with_name("basedpyright-langserver"))
    with subprocess.Popen([program, "--stdio"], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdin
        assert running.stdout
        sent, received = running.stdin, running.stdout

        def send(**message: Any) -> None:
            content = json.dumps({"jsonrpc": "2.0", **message}).encode()
            sent.write(b"Content-Length: %d\r\n\r\n%s" % (len(content), content))
            sent.flush()

        def ask(method: str, params: dict[str, Any]) -> Any:
            send(id=method, method=method, params=params)
            while True:
                length = 0
                while line := received.readline().strip():
                    if line.startswith(b"Content-Length:"):
                        length = int(line.split(b":")[1])
                message = json.loads(received.read(length))
                if "method" not in message and message["id"] == method:
                    return message["result"]
                if "method" in message and "id" in message:  # a request of the server
                    send(id=message["id"], result=None)

        def labels(line: str) -> set[str]:
            document = {"uri": (tmp_path / f"{next(numbers)}.py").as_uri()}
            text = f"import any2ds\n{line}"
            send(
                method="textDocument/didOpen",
                params={"textDocument": {**document, "languageId": "python", "version": 1, "text": text}},
            )
            position = {"line": 1, "character": len(line)}
            shown = ask("textDocument/completion", {"textDocument": document, "position": position})
            return {each["label"] for each in shown["items"]}

        numbers = itertools.count()
        folder = {"uri": tmp_path.as_uri(), "name": "folder"}
        ask("initialize", {"processId": None, "rootUri": None, "capabilities": {}, "workspaceFolders": [folder]})
        send(method="initialized", params={})
        yield labels
        running.kill()


def test_editors_complete_names_options_and_values(complete: Callable[[str], set[str]]) -> None:
    assert "download" in complete("any2ds.dow")
    assert complete("any2ds.download(output_fo") >= {"output_folder=", "output_format="}
    assert "split=" in complete("any2ds.load('dataset', spl")
    assert complete("any2ds.download('urls.txt', output_format='") >= {"'webdataset'", "'parquet'", "'files'"}


def test_the_plain_repl_completes_names() -> None:
    program = (
        "import any2ds, rlcompleter; complete = rlcompleter.Completer({'any2ds': any2ds}).complete;"
        "print(complete('any2ds.dow', 0), complete('any2ds.conf', 0))"
    )
    shown = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=LONG)
    assert shown.stdout.split() == ["any2ds.download(", "None"]


@pytest.mark.parametrize("name", [name for name in COMMANDS if name in any2ds.__all__])
def test_a_function_documents_each_of_its_options(name: str) -> None:
    function = getattr(any2ds, name)
    doc = inspect.getdoc(function) or ""
    for parameter in inspect.signature(function).parameters:
        assert f" {parameter}: " in doc
