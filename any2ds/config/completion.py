"""Shell completion, made from the declared options."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping

from any2ds.config.commands import COMMANDS, FIRST_WORDS, SHORT_NAMES
from any2ds.config.options import OptionInfo, declared

_FILES = frozenset({"url_list", "output_folder", "output", "json", "cookies", "staging_dir", "config"})
_CONFIG = "YAML or JSON file with options"
_HELP = "show the help; --help=all: all options"
_LONGEST = 70  # characters of a description


def script(shell: str) -> str:
    """The completion script for a shell, one of `SHELLS`."""
    return SHELLS[shell]()


def _options(command: str) -> list[OptionInfo]:
    return list(declared(COMMANDS[command].groups))


def _summary(text: str) -> str:
    """One line without what shells take for syntax."""
    plain = "".join(char for char in text if char not in "'\"`$\\[]:")
    return plain if len(plain) <= _LONGEST else f"{plain[: _LONGEST - 1].rstrip()}…"


def _bash() -> str:
    names = [
        f"    {name}) options={shlex.quote(' '.join(_written(name)))} ;;" for name in COMMANDS
    ]  # fmt: skip
    values = [
        f"    --{info.name}) words={shlex.quote(' '.join(info.choices))} ;;"
        for info in _all_options().values()
        if info.choices
    ]
    return _BASH.format(commands=" ".join(FIRST_WORDS), names="\n".join(names), values="\n".join(values))


def _written(command: str) -> list[str]:
    """The options of a command, as far as their values."""
    flags = [f"--{info.name}{'' if info.is_flag else '='}" for info in _options(command)]
    return [*flags, "--config=", "--help", *(f"-{letter}" for letter in SHORT_NAMES)]


# bash breaks --name=value at the =, and completes what is behind it. It may be the 3.2 of macOS.
_BASH = """\
# bash completion for any2ds: eval "$(any2ds completion bash)"
_any2ds() {{
  local line="${{COMP_LINE:0:COMP_POINT}}" command=download options="" words="" name=""
  local -a given
  read -ra given <<< "$line"
  [[ $line == *[[:space:]] ]] && given+=("")
  local word="${{given[${{#given[@]}} - 1]}}" previous="${{given[${{#given[@]}} - 2]}}"
  [[ ${{#given[@]}} -gt 2 && " {commands} " == *" ${{given[1]}} "* ]] && command="${{given[1]}}"
  case $command in
    completion) words="bash fish zsh" ;;
    help) words="{commands} codes" ;;
{names}
  esac
  case $word in
    --*=*) name="${{word%%=*}}" word="${{word#*=}}" ;;
    -?*) words=$options ;;
    *) [[ $previous == --* && $previous != *=* ]] && name=$previous
       [[ ${{#given[@]}} -eq 2 ]] && words="{commands}" ;;
  esac
  case $name in
{values}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$word"))
  if [[ ${{#COMPREPLY[@]}} -eq 1 && ${{COMPREPLY[0]}} == *= ]]; then
    compopt -o nospace 2>/dev/null
  fi
}}
complete -o default -F _any2ds any2ds
"""


def _zsh() -> str:
    functions = []
    for name, command in COMMANDS.items():
        specs = [_zsh_option(info) for info in _options(name)]
        specs += [f"'--config=[{_CONFIG}]:file:_files'", f"'--help=-[{_summary(_HELP)}]::what:(all)'"]
        if any(info.name in SHORT_NAMES.values() for info in _options(name)):
            specs += [f"'-{letter}+[{ours}]:{ours}:_files'" for letter, ours in SHORT_NAMES.items()]
        specs += [f"'{number}:{ours}:_files'" for number, ours in enumerate(command.positional, 1)]
        functions.append(f"_any2ds_{name}() {{\n  _arguments \\\n    " + " \\\n    ".join(specs) + "\n}")
    described = " ".join(shlex.quote(f"{name}:{_summary(command.summary)}") for name, command in COMMANDS.items())
    return _ZSH.format(functions="\n".join(functions), described=described, names="|".join(COMMANDS))


def _zsh_option(info: OptionInfo) -> str:
    described = f"[{_summary(info.help)}]"
    if info.is_flag:
        return f"'--{info.name}{described}'"
    action = f"({' '.join(info.choices)})" if info.choices else "_files" if info.name in _FILES else " "
    return f"'--{info.name}={described}:{info.name}:{action}'"


_ZSH = """\
#compdef any2ds
# zsh completion for any2ds: eval "$(any2ds completion zsh)", or a file _any2ds in a folder of $fpath
{functions}
_any2ds() {{
  local -a commands
  commands=({described} 'completion:print a completion script' 'help:show the help of a command')
  case ${{words[2]}} in
    {names})
      if (( CURRENT > 2 )); then
        local command=${{words[2]}}
        words=(any2ds "${{(@)words[3,-1]}}")
        (( CURRENT-- ))
        _any2ds_$command
        return
      fi ;;
    completion) (( CURRENT > 2 )) && {{ compadd bash zsh fish; return }} ;;
    help) (( CURRENT > 2 )) && {{ _describe command commands; return }} ;;
  esac
  if (( CURRENT == 2 )) && [[ ${{words[2]}} != -* ]]; then
    _describe command commands
  fi
  _any2ds_download
}}
(( $+functions[compdef] )) && compdef _any2ds any2ds
[[ ${{funcstack[1]}} = _any2ds ]] && _any2ds "$@"
"""


def _fish() -> str:
    lines = ["# fish completion for any2ds: any2ds completion fish | source"]
    first = "__fish_is_first_token"
    for name, command in COMMANDS.items():
        lines.append(f"complete -c any2ds -n {first} -a {name} -d {shlex.quote(_summary(command.summary))}")
    lines.append(f"complete -c any2ds -n {first} -a completion -d 'print a completion script'")
    lines.append(f"complete -c any2ds -n {first} -a help -d 'show the help of a command'")
    lines.append("complete -c any2ds -f -n '__fish_seen_subcommand_from completion' -a 'bash zsh fish'")
    topics = shlex.quote(" ".join((*COMMANDS, "codes")))
    lines.append(f"complete -c any2ds -f -n '__fish_seen_subcommand_from help' -a {topics}")
    others = " ".join(name for name in FIRST_WORDS if name != "download")
    for name in COMMANDS:
        seen = (
            f"not __fish_seen_subcommand_from {others}" if name == "download" else f"__fish_seen_subcommand_from {name}"
        )
        lines += [_fish_option(seen, info) for info in _options(name)]
        lines.append(f"complete -c any2ds -n {shlex.quote(seen)} -l config -r -d {shlex.quote(_CONFIG)}")
        lines.append(f"complete -c any2ds -n {shlex.quote(seen)} -l help -d {shlex.quote(_summary(_HELP))}")
    return "\n".join(lines) + "\n"


def _fish_option(condition: str, info: OptionInfo) -> str:
    letter = next((f"-s {letter} " for letter, ours in SHORT_NAMES.items() if ours == info.name), "")
    files = "-r" if info.name in _FILES else "-x"
    value = f"-x -a {shlex.quote(' '.join(info.choices))} " if info.choices else "" if info.is_flag else f"{files} "
    described = shlex.quote(_summary(info.help))
    return f"complete -c any2ds -n {shlex.quote(condition)} {letter}-l {info.name} {value}-d {described}"


def _all_options() -> Mapping[str, OptionInfo]:
    return {info.name: info for name in COMMANDS for info in _options(name)}


SHELLS: Mapping[str, Callable[[], str]] = {"bash": _bash, "fish": _fish, "zsh": _zsh}
"""The shells that there is completion for."""
