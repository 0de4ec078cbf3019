"""Completion in real shells, which are asked what they would offer."""

import os
import subprocess
from pathlib import Path

import pytest

from any2ds.config.commands import COMMANDS
from any2ds.config.declare import declared
from any2ds.config.help import SHELLS
from any2ds.config.help import completion_script as script
from any2ds.config.options import GROUPS
from any2ds.testing.processes import LONG
from tests.support.programs import program

# Each program reads the script and the line from its arguments, and prints the completions, one a line.
_BASH = """
source "$1"; COMP_LINE=$2; COMP_POINT=${#2}; COMPREPLY=()
read -ra COMP_WORDS <<< "$2"; [[ $2 == *" " ]] && COMP_WORDS+=(""); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _shtab_any2ds
printf '%s\\n' "${COMPREPLY[@]}"
"""
_FISH = "source $argv[1]; complete -C $argv[2]"
# zsh completes on a terminal only: its module for those has another zsh complete the line, where `compadd`, to which
# all completions go, prints them.
_ZSH = r"""
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PROMPT=; source $1.setup; print -r -- BEG''IN"
zpty -r -m shell all '*BEGIN*'
zpty -w -n shell "$2"$'\t'
zpty -r -m shell found '*END*'
print -r -- "$found"
"""
_ZSH_SETUP = r"""
autoload -Uz compinit; compinit -u -D; eval "$(< SCRIPT)"
compadd() {
  if [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\ * ]]; then builtin compadd "$@"; return; fi
  local -a found; builtin compadd -A found "$@"; (( $#found )) && print -rl -- "" "  "${^found}
}
finish() { print -r -- END; exit }
comppostfuncs=(finish)
bindkey '^I' complete-word
"""


def shell_path(shell: str) -> str:
    return "bash" if shell == "bash" else program(shell)


def offered(shell: str, line: str, folder: Path) -> set[str]:
    """What the shell would offer for the last word of `line`."""
    code = {"bash": _BASH, "fish": _FISH, "zsh": _ZSH}[shell]
    path = folder / "script"
    path.write_text(script(shell), encoding="utf-8")
    (folder / "script.setup").write_text(_ZSH_SETUP.replace("SCRIPT", str(path)), encoding="utf-8")
    options = ["-c", code, *([] if shell == "fish" else ["-"]), str(path), line]
    environment = {**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "TERM": "xterm"}
    command = [shell_path(shell), *options]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LONG, env=environment, check=True)
    if shell == "zsh":
        return {part.strip().rstrip("=") for part in ran.stdout.splitlines() if part.startswith("  ")}
    return {line.split("\t")[0].removesuffix("=") for line in ran.stdout.splitlines()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "urls.parquet").touch()
    return tmp_path


@pytest.mark.parametrize("shell", SHELLS)
def test_commands_options_and_values_are_offered(shell: str, folder: Path) -> None:
    assert {*COMMANDS} <= offered(shell, "any2ds ", folder)
    assert offered(shell, "any2ds ver", folder) >= {"verify"}
    names = {f"--{info.name}" for info in declared(GROUPS)}
    assert names <= offered(shell, "any2ds --", folder)
    assert names <= offered(shell, "any2ds urls.parquet --", folder)
    values = {value.rpartition("=")[2] for value in offered(shell, "any2ds --output_format ", folder)}
    assert {"webdataset", "parquet", "files"} <= values
    assert {"webdataset"} <= offered(shell, "any2ds urls.parquet --output_format web", folder)
    of_retry = offered(shell, "any2ds retry dataset --", folder)
    assert "--codes" in of_retry
    assert "--url_list" not in of_retry
    assert {"bash", "fish", "zsh"} <= offered(shell, "any2ds completion ", folder)
