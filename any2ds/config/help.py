"""The help of the command line, wrapped to the width of the terminal."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator
from typing import Any

from any2ds.config import presets
from any2ds.config.commands import COMMANDS, SHORT_NAMES, Command
from any2ds.config.options import OptionInfo, declared
from any2ds.core.failures import FAILURE_CODES, NO_FAILURES, failure_code
from any2ds.core.version import DOCUMENTATION, __version__

_FIRST = {
    "output_folder": "folder for the dataset, local or remote",
    "output_format": "files, webdataset, parquet, tfrecord, ...",
    "url_col": "column that holds the URLs",
    "caption_col": "column that holds the captions",
    "limit": "the first N rows of the list only, as a trial",
    "file_size": "size of images in pixels",
    "number_sample_per_shard": "rows in a shard",
    "processes_count": "worker processes",
    "thread_count": "transfers in flight per process",
    "timeout": "seconds that a server may be silent",
    "retries": "further attempts after a transient failure",
}
"""The options that `any2ds` alone shows, each on one line of 80 columns."""

_COMPLETIONS = {
    "bash, in ~/.bashrc": 'eval "$(any2ds completion bash)"',
    "zsh, in ~/.zshrc": 'eval "$(any2ds completion zsh)"   # below compinit',
    "fish, in config.fish": "any2ds completion fish | source",
}
"""Where a line goes -> the line."""

_COLUMN = 29  # where the text of an option begins
_LONGEST_DEFAULT = 27  # characters; a longer one stands in the full help
_NARROW = 72  # columns below which that text stands on lines of its own
_WIDEST = 110  # beyond it, lines are hard to read


def short_help(width: int | None = None) -> str:
    """What `any2ds` alone prints."""
    page = _Page(width)
    infos = {info.name: info for info in declared()}
    page.text(f"any2ds {__version__}: download a list of URLs into a dataset for training")
    page.usage("any2ds URL_LIST [OUTPUT_FOLDER] [--option=value ...]", "any2ds COMMAND ...")
    page.title("Example")
    page.lines += page.shell("any2ds urls.txt dataset --output_format=webdataset")
    page.title("Common options (more: any2ds --help; all: any2ds --help=all)")
    for name, text in _FIRST.items():
        page.option(infos[name], text, "" if len(infos[name].shown) > _LONGEST_DEFAULT else None)
    page.commands()
    page.lines += ["", *page.wrapped(f"Documentation: {DOCUMENTATION}")]
    return page.joined()


def help_text(
    name: str = "download", everything: bool = False, preset: str | None = None, width: int | None = None
) -> str:
    """The help for a command: its common options by task, or all of them by group; with the defaults of a `preset`, and
    the options that it adds."""
    command, chosen = COMMANDS[name], presets.find(preset)
    defaults = chosen.defaults if chosen else {}
    page = _Page(width)
    page.text(f"any2ds {name}: {command.summary}")
    page.usage(command.usage)
    for title, infos in _sections(command, everything):
        page.title(title)
        for info in infos:
            page.option(info, info.help, defaults.get(info.name))
    if chosen:
        page.title(f"With --preset={preset}, whose defaults are shown above, also")
        for other, option in chosen.options.items():
            page.entry(f"--{other}", f"{option.help} [{option.shown}]")
    page.title("Also")
    page.entry("--config=FILE", "YAML or JSON file with any of these; the command line wins")
    if command.common and not everything:
        page.entry("--help=all", "all options")
    if name == "download":
        page.entry("-h, --help, -V, --version", "this help; the version")
        page.commands()
    if command.examples:
        page.title("Examples")
        page.lines += [part for example in command.examples for part in page.shell(example)]
    return page.joined()


def option_help(name: str, width: int | None = None) -> str:
    """The help on an option, and which commands take it. Raises KeyError if there is no such option."""
    takers = {
        command: info for command, each in COMMANDS.items() for info in declared(each.groups) if info.name == name
    }
    if not takers:
        raise KeyError(name)
    page = _Page(width)
    texts: dict[str, list[str]] = {}
    for command, info in takers.items():
        texts.setdefault(info.help, []).append(command)
    for text, commands in texts.items():
        page.option(takers[commands[0]], text)
        page.lines += page.wrapped(f"taken by: {', '.join(commands)}", 2)
    return page.joined()


def completion_help() -> str:
    """The help of `any2ds completion`."""
    page = _Page(None)
    page.text("any2ds completion: print the completion script for a shell")
    page.usage("any2ds completion bash|zsh|fish")
    page.title("Once, for all terminals to come")
    for start, script in _COMPLETIONS.items():
        page.entry(start, script)
    return page.joined()


def codes_help(code: str | None = None, width: int | None = None) -> str:
    """What an outcome code means and what to do about it, or all of them. Raises KeyError if there is no such code."""
    page = _Page(width)
    if code is not None and code in NO_FAILURES:
        page.entry(code, NO_FAILURES[code])
        return page.joined()
    for name in FAILURE_CODES if code is None else [code]:
        known = failure_code(name)
        page.entry(name, f"{known.meaning}. {known.advice}" + (" [transient]" if known.transient else ""))
    if code is None:
        page.entry("http_<status>", "the server answered with that status: any2ds help http_404")
        page.lines += ["", *page.wrapped("any2ds retry takes those that are transient: another attempt can help.")]
        page.title("No failures")
        for name, meaning in NO_FAILURES.items():
            page.entry(name, meaning)
    return page.joined()


def _sections(command: Command, everything: bool) -> Iterator[tuple[str, list[OptionInfo]]]:
    infos = list(declared(command.groups))
    if command.common and not everything:
        by_name = {info.name: info for info in infos}
        for title, names in command.common.items():
            yield title, [by_name[name] for name in names]
        return
    for group in dict.fromkeys(info.group for info in infos):
        yield group, [info for info in infos if info.group == group]


class _Page:
    """Lines of help."""

    def __init__(self, width: int | None) -> None:
        self.lines: list[str] = []
        # A pipe has no width: 80 columns, as less and editors show them.
        self._width = min(width or shutil.get_terminal_size((80, 24)).columns, _WIDEST)

    def text(self, text: str) -> None:
        self.lines += self.wrapped(text, 0)

    def title(self, text: str) -> None:
        self.lines += ["", *self.wrapped(f"{text}:", 0)]

    def usage(self, *usages: str) -> None:
        self.lines.append("")
        for number, usage in enumerate(usages):
            start = "usage: " if not number else " " * 7
            self.lines += [line if part else start + line.lstrip() for part, line in enumerate(self.wrapped(usage, 7))]

    def option(self, info: OptionInfo, text: str, default: Any = None) -> None:
        """An option, what it does, and its default unless that is nothing."""
        letters = "".join(f"-{letter}, " for letter, name in SHORT_NAMES.items() if name == info.name)
        shown = info.shown if default is None else default
        self.entry(f"{letters}--{info.name}", text if shown in ("", "None", "False") else f"{text} [{shown}]")

    def commands(self) -> None:
        self.title("Commands")
        for name, command in COMMANDS.items():
            self.entry(name, command.summary + (" (the default)" if name == "download" else ""))
        self.entry("completion SHELL", "print the completion script for bash, zsh or fish")
        self.entry("help NAME", "explain a command, an option or a failure code")

    def entry(self, name: str, text: str) -> None:
        """A name, and what it means beside it, or below it where there is no room."""
        start = f"  {name}"
        if self._width < _NARROW:
            self.lines += [start, *self.wrapped(text, 6)]
            return
        lines = self.wrapped(text, _COLUMN)
        if len(start) + 2 <= _COLUMN:
            lines[0] = f"{start:<{_COLUMN}}{lines[0].lstrip()}"
        else:
            lines.insert(0, start)
        self.lines += lines

    def shell(self, command: str) -> list[str]:
        """A command, broken between its words, as a shell takes it."""
        wrapped = textwrap.wrap(
            command, self._width - 2, initial_indent="  ", subsequent_indent=" " * 6,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
        return [f"{line} \\" for line in wrapped[:-1]] + wrapped[-1:]

    def joined(self) -> str:
        return "\n".join([*self.lines, ""])

    def wrapped(self, text: str, indent: int = 0) -> list[str]:
        indentation = " " * indent
        return textwrap.wrap(
            text, self._width, initial_indent=indentation, subsequent_indent=indentation,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
