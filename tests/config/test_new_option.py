"""An option is declared in one place: a copy of the package gets one more, and has it everywhere."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from any2ds.testing.processes import LONG

ROOT = Path(__file__).parents[2]
PLACE = "    number_sample_per_shard: int = option("
DECLARED = '    probe: int = option("tries something", integer(0), 7, task="The dataset", hints="sonde")\n'


def test_a_new_option_is_in_flags_keywords_stub_help_completion_resume_and_card(tmp_path: Path) -> None:
    for name in ("any2ds", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    options = tmp_path / "any2ds" / "config" / "options.py"
    text = options.read_text(encoding="utf-8")
    assert text.count(PLACE) == 1
    options.write_text(text.replace(PLACE, DECLARED + PLACE), encoding="utf-8")
    (tmp_path / "urls.txt").write_text("data:text/plain,a\ndata:text/plain,b\n")

    def run(*words: str, code: int = 0) -> str:
        command = [sys.executable, *words]
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "100"}
        ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LONG)
        assert ran.returncode == code, ran.stderr
        return ran.stdout + ran.stderr

    def any2ds(*words: str, code: int = 0) -> str:
        return run("-m", "any2ds", *words, code=code)

    for words in (["--help"], ["--help=all"], ["help", "probe"]):
        assert "tries something [7]" in any2ds(*words)
    assert "did you mean probe?" in any2ds("urls.txt", "--sonde=3", code=2)
    assert "--probe" in any2ds("completion", "bash")
    keyword = "import any2ds, inspect; print(inspect.signature(any2ds.download).parameters['probe'])"
    assert run("-c", keyword).strip() == "probe=7"
    run("tools/stubs.py")
    assert "    probe: int = 7," in (tmp_path / "any2ds" / "__init__.pyi").read_text(encoding="utf-8")
    command = ("urls.txt", "dataset", "--distributor=inline", "--quiet")
    any2ds(*command, "--probe=8")
    assert "probe was 8, now 7" in any2ds(*command, code=2)
    assert "--probe=8" in any2ds("card", "dataset", "--output=-")
