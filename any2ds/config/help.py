"""The options of a command as argparse has them, and the pages of help and the completion that come of that."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from any2ds.config import presets
from any2ds.config.commands import COMMANDS, SHORT_NAMES, Command
from any2ds.config.declare import Option, declared
from any2ds.config.options import makes_datasets
from any2ds.core.errors import OptionError
from any2ds.core.failures import FAILURE_CODES, NO_FAILURES, failure_code
from any2ds.core.version import DOCUMENTATION, __version__

SHELLS = ("bash", "fish", "zsh")

_COLUMN = 29  # where the text of an option begins
_WIDEST = 110  # columns beyond which lines are hard to read
_OTHER_COMMANDS = {
    "completion": "print the completion script for bash, zsh or fish",
    "help": "explain a command, an option or a failure code",
}
_COMPLETION = """\
any2ds completion: print the completion script for a shell

usage: any2ds completion bash|zsh|fish

Once, for all terminals to come:
  bash, in ~/.bashrc       eval "$(any2ds completion bash)"
  zsh, in ~/.zshrc         eval "$(any2ds completion zsh)"   # below compinit
  fish, in config.fish     any2ds completion fish | source
"""


# Lines of shtab for commands -> lines for where a list may stand in place of a command.
_OR_A_LIST = {
    "complete -c any2ds -f\n": "",
    "complete -o bashdefault": "complete -o bashdefault -o default",
    "  _describe 'any2ds commands' _commands\n": "  _describe 'any2ds commands' _commands\n  _files\n",
    "      esac\n  esac\n": """\
        *) _arguments "${(@)_shtab_any2ds_options:#[:*]*}" '*:file:_files' ;;
      esac
  esac
""",
}


class OptionParser(argparse.ArgumentParser):
    """Takes the options of a command, as text for their parsers."""

    def __init__(self, usage: str = "", description: str = "", epilog: str = "") -> None:
        super().__init__(
            "any2ds", usage, description, epilog, formatter_class=_Formatter, argument_default=argparse.SUPPRESS,
            add_help=False, allow_abbrev=False,
        )  # fmt: skip

    def error(self, message: str) -> NoReturn:
        name = message.removeprefix("argument ").partition(":")[0].rpartition("/")[2]
        raise OptionError(f"{name} needs a value: {name}=...")


def _width() -> int:
    """Columns of a page. A pipe has no width: 80, as less and editors show them."""
    return min(shutil.get_terminal_size((80, 24)).columns, _WIDEST)


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=_COLUMN, width=_width())

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        return ", ".join(action.option_strings) or super()._format_action_invocation(action)


def option_parser(
    command: Command,
    everything: bool = True,
    preset: str | None = None,
    made: argparse.ArgumentParser | None = None,
    with_presets: bool = True,
) -> argparse.ArgumentParser:
    """The options of a command, all or its common ones, with the defaults of a `preset`; added to those of `made`.
    Those of presets are left out without `with_presets`."""
    chosen = presets.find(preset)
    infos = list(declared(command.groups))
    is_short = not everything and any(info.task for info in infos)
    if made is None:
        made = OptionParser(command.usage.replace("%", "%%"), command.summary, _below(command))
    titled: dict[str, list[Option]] = {}
    for info in infos:
        titled.setdefault(info.task if is_short else info.group, []).append(info)
    for title in filter(None, titled):
        group = made.add_argument_group(title)
        for info in titled[title]:
            _add(group, info, chosen.defaults.get(info.name) if chosen else None)
    if with_presets and makes_datasets(command.groups) and (chosen or not is_short):
        for other, part in presets.all_presets().items():
            group = made.add_argument_group(f"With --preset={other}")
            for foreign, option in part.options.items():
                group.add_argument(f"--{foreign}", help=f"{option.help} [{option.shown}]")
    also = made.add_argument_group("Also")
    also.add_argument("--config", help="YAML or JSON file of these; the command line wins")
    if is_short:
        also.add_argument("--help", help="--help=all: all options")
    return made


def _add(group: Any, info: Option, default: Any = None) -> None:
    """An option, what it does, and its default unless that is nothing."""
    shown = info.shown if default is None else default
    text = info.help if shown in ("", "None", "False") else f"{info.help} [{shown}]"
    names = [SHORT_NAMES[info.name]] if info.name in SHORT_NAMES else []
    group.add_argument(*names, f"--{info.name}", help=text.replace("%", "%%"))


def _below(command: Command) -> str:
    """The end of a page: examples and commands."""
    examples = [f"  {example}" for example in command.examples]
    lines = ["Examples:", *examples, ""] if examples else []
    return "\n".join([*lines, *(_commands() if command is COMMANDS["download"] else [])]).rstrip()


def _commands() -> list[str]:
    summaries = {name: command.summary for name, command in COMMANDS.items()} | _OTHER_COMMANDS
    return ["Commands:", *(f"  {name:<12}{summary}" for name, summary in summaries.items())]


def overview() -> str:
    """The page that `any2ds` without words prints."""
    return "\n".join(
        [
            f"any2ds {__version__}: download a list of URLs into a dataset for training",
            "",
            f"usage: {COMMANDS['download'].usage}",
            "       any2ds COMMAND ...",
            "",
            "  any2ds urls.txt dataset --output_format=webdataset",
            "",
            *_commands(),
            "",
            "Common options: any2ds --help; all: any2ds --help=all; those of a command: any2ds COMMAND --help",
            f"Documentation: {DOCUMENTATION}",
        ]
    )


def help_text(name: str = "download", everything: bool = False, preset: str | None = None) -> str:
    """The help for a command: its common options by task, or all of them by group; with the defaults of a `preset`."""
    return _COMPLETION if name == "completion" else option_parser(COMMANDS[name], everything, preset).format_help()


def option_help(name: str) -> str:
    """The help on an option, and which commands take it. Raises KeyError if there is no such option."""
    takers: dict[str, tuple[Option, list[str]]] = {}
    for command, each in COMMANDS.items():
        for info in declared(each.groups):
            if info.name == name:
                takers.setdefault(info.help, (info, []))[1].append(command)
    if not takers:
        preset = presets.foreign_options()[name]
        return f"--{name} is an option of {preset}: any2ds --preset={preset} --help shows it"
    pages = []
    for info, commands in takers.values():
        page = OptionParser(argparse.SUPPRESS)
        _add(page.add_argument_group(f"Taken by {', '.join(commands)}"), info)
        pages.append(page.format_help())
    return "\n".join(pages)


def codes_help(code: str | None = None) -> str:
    """The page on an outcome code, its meaning and what to do about it, or on all codes. Raises KeyError if there is no
    such code."""
    if code in NO_FAILURES:
        return _entries({str(code): NO_FAILURES[str(code)]})
    codes = {name: failure_code(name) for name in (FAILURE_CODES if code is None else [code])}
    texts = {name: f"{of.meaning}. {of.advice}{' [transient]' if of.transient else ''}" for name, of in codes.items()}
    if code is not None:
        return _entries(texts)
    texts["http_<status>"] = "the server answered with that status: any2ds help http_404"
    note = "any2ds retry takes those that are transient: another attempt can help.\n\nNo failures:\n"
    return f"{_entries(texts)}\n{note}{_entries(NO_FAILURES)}"


def _entries(texts: Mapping[str, str]) -> str:
    return "".join(
        f"  {name}\n{textwrap.fill(text, _width(), initial_indent=' ' * 6, subsequent_indent=' ' * 6)}\n"
        for name, text in texts.items()
    )


def completion_script(shell: str) -> str:
    """The completion script for one of `SHELLS`: of the options of `download`, and of those of each other command."""
    import shtab

    root = option_parser(COMMANDS["download"])
    commands = root.add_subparsers(prog="any2ds", parser_class=argparse.ArgumentParser)
    for name, command in COMMANDS.items():
        made = commands.add_parser(name, help=command.summary, add_help=False)
        option_parser(command, made=made)
        _complete(made, command, command.positional)
    for name, choices in (("completion", SHELLS), ("help", (*COMMANDS, "codes"))):
        commands.add_parser(name, help=_OTHER_COMMANDS[name]).add_argument("topic", choices=choices)
    _complete(root, COMMANDS["download"], ())
    script: str = shtab.complete(root, shell)
    for written, better in _OR_A_LIST.items():
        script = script.replace(written, better, 1)
    return script


def _complete(made: argparse.ArgumentParser, command: Command, positional: Iterable[str]) -> None:
    """Have the values of options and the words without a name completed."""
    import shtab

    infos = {info.name: info for info in declared(command.groups)}
    for action in made._actions:
        info = infos.get(action.dest)
        if action.dest == "config" or (info is not None and info.accepts == "Path"):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif info is not None:
            action.choices = info.choices or None
            action.nargs = 0 if info.is_flag else None
    for place in positional:
        made.add_argument(place, nargs="?").complete = shtab.FILE  # type: ignore[attr-defined]
