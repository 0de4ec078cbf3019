"""The command line: flags in, exit code out.

0 done, 1 not everything could be done, 2 it cannot be done, 3 `verify`: incomplete, 4 rows were tried and none could be
stored, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import re
import sys
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

if TYPE_CHECKING:
    from any2ds.config.commands import Command
    from any2ds.config.options import ParsedOptions
    from any2ds.core.reports import RunReport


_INCOMPLETE = 3  # of a dataset that the same download command completes: nothing is damaged


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    from any2ds.core.processes.signals import own_process
    from any2ds.core.terminal.unread import drop_unread

    _open_closed_streams()
    drop_unread()
    own_process()
    gc.set_threshold(200_000, 20, 20)  # what is loaded is no garbage: looking for it takes a tenth of a short run
    code = 130
    with contextlib.suppress(KeyboardInterrupt):  # before there is anything to clean up
        code = run(list(sys.argv[1:] if arguments is None else arguments))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # closed, or nobody reads
            stream.flush()
    # Not sys.exit: threads that hang in the system's resolver would keep the process for seconds.
    os._exit(code)


def _open_closed_streams() -> None:
    """Have standard streams that are closed (`2>&-`, some daemons) lead nowhere: a file or pipe would get their number,
    and what is written to the stream would go there."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # has the lowest number that is free
            os.set_inheritable(opened, True)
            setattr(sys, name, open(opened, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115


def _download(options: ParsedOptions) -> int:
    from any2ds.run.start import started_ahead

    with started_ahead(options):
        from any2ds.config.options import ShareOptions
        from any2ds.run.download import download
        from any2ds.run.ranks import from_environment, rank_of

        share = options.group(ShareOptions)
        numbers, message = from_environment(share, os.environ)
        if message:
            logging.getLogger("any2ds").warning(message)
        options = options.with_group(replace(share, **numbers))
        report = download.run(options)
    if rank_of(options.group(ShareOptions)) is None:  # other ranks may have stored something
        _check_stored(report)
    return 0


def _check_stored(report: RunReport) -> None:
    """Raises NothingStored if a run has tried rows and stored none."""
    from any2ds.core.errors import NothingStored

    if message := report.nothing_stored:
        raise NothingStored(message)


def _finish(options: ParsedOptions) -> int:
    from any2ds.run.finish import finish

    completion = finish.run(options)
    _print(_fitting(str(completion), sys.stdout))
    return 0 if completion.is_whole else 1


def _retry(options: ParsedOptions) -> int:
    from any2ds.run.start import started_ahead

    with started_ahead(options):
        from any2ds.run.retry import retry

        retry.run(options)
    return 0


def _verify(options: ParsedOptions) -> int:
    from any2ds.core.errors import printable
    from any2ds.dataset.verify.report import lines
    from any2ds.dataset.verify.verify import verify

    (wanted,) = options.groups
    report = verify.run(options)
    if wanted.json:
        _write_json(report.to_json(), wanted.json)
    if wanted.json != "-":
        _print("\n".join(_fitting(printable(line), sys.stdout) for line in lines(report)))
    return 0 if report.ok else _INCOMPLETE if report.is_incomplete else 1


def _inspect(options: ParsedOptions) -> int:
    from any2ds.core.terminal.results import standard_output
    from any2ds.describe.inspect import inspect
    from any2ds.describe.screen import show

    (wanted,) = options.groups
    with contextlib.suppress(AttributeError):
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # captions are in any script
    summary = inspect.run(options)
    if wanted.json:
        _write_json(summary.to_json(), wanted.json)
    if wanted.json != "-":
        with standard_output() as stream:
            show(summary, stream)
    return 0


def _card(options: ParsedOptions) -> int:
    from any2ds.describe.card.card import card

    _print_utf8()
    made = card.run(options)
    _print(made.text if made.path is None else f"written to {made.path}")
    return 0


def _report(options: ParsedOptions) -> int:
    from any2ds.core.errors import printable
    from any2ds.core.layout import REPORT_FILE
    from any2ds.describe.report.report import report

    (wanted,) = options.groups
    _print_utf8()
    made = report.run(options)
    page = f"{made.output_folder.rstrip('/')}/{REPORT_FILE}" if wanted.format == "html" else "-"
    if (path := wanted.output or page) != "-":
        _print(f"written to {printable(path)}")
    return 0


def _build(options: ParsedOptions) -> int:
    from any2ds.recipes.build import build

    _check_stored(build.run(options))
    return 0


def _new(options: ParsedOptions) -> int:
    from any2ds.recipes.new import new, next_steps

    (wanted,) = options.groups
    folder, made = new(wanted)
    steps = [_fitting(step, sys.stdout) for step in next_steps(wanted, folder)]
    _print("\n".join([*(f"{folder}/{name}" for name in made), "next:", *steps]))
    return 0


def _recipes(options: ParsedOptions) -> int:
    from any2ds.recipes.listing import lines

    (wanted,) = options.groups
    _print("\n".join(lines(wanted)))
    return 0


def _estimate(options: ParsedOptions) -> int:
    from any2ds.config.options import EstimateOptions
    from any2ds.run.start import started_ahead

    wanted = options.group(EstimateOptions)
    _print_utf8()
    with started_ahead(options) if wanted.from_dataset is None else contextlib.nullcontext():
        from any2ds.core.terminal.results import standard_output
        from any2ds.forecast.estimate import estimate
        from any2ds.forecast.screen import show

        found = estimate.run(options)
    if wanted.format == "json":
        _write_json(found.to_json(), "-")
    elif wanted.format == "md":
        _print(found.to_markdown())
    else:
        with standard_output() as stream:
            show(found, stream)
    return 0


def _print_utf8() -> None:
    """Write text in any script, which most often goes into a file."""
    with contextlib.suppress(AttributeError):
        sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]


def _write_json(content: Any, path: str) -> None:
    """Raises OutputError if the file cannot be written."""
    import json
    from pathlib import Path

    from any2ds.core.errors import OutputError
    from any2ds.core.terminal.results import write_file
    from any2ds.storage.report_file import refuse_others_file

    text = json.dumps(content, indent=2, ensure_ascii=True) + "\n"
    if path == "-":
        _print(text)
        return
    try:
        file = Path(path).expanduser()
        refuse_others_file(file, "json", "--json")
        write_file(file, text.encode())
    except OSError as error:
        raise OutputError(f"--json={path}: {error.strerror}") from error


_RUNS: Mapping[str, Callable[[ParsedOptions], int]] = {
    "download": _download,
    "retry": _retry,
    "verify": _verify,
    "inspect": _inspect,
    "report": _report,
    "card": _card,
    "finish": _finish,
    "build": _build,
    "new": _new,
    "recipes": _recipes,
    "estimate": _estimate,
}
"""Command -> what runs it, and returns its exit code."""


def run(given: Sequence[str]) -> int:
    """Run the command line; the exit code."""
    from any2ds.config.commands import COMMANDS
    from any2ds.config.options import RunOptions, WatchOptions, parse_options
    from any2ds.core.errors import Any2dsError
    from any2ds.core.processes.signals import Terminated

    name, arguments = (given[0], given[1:]) if given and given[0] in COMMANDS else ("download", given)
    command = COMMANDS[name]
    options = None
    try:
        if given[:1] != ["--"] and (page := _page(_before_dashes(given))) is not None:
            _print(page)
            return 0
        options = parse_options(_completed(name, parse(arguments, command)), command.groups)
        _log_to_terminal(WatchOptions in command.groups and options.group(WatchOptions).log_format == "json")
        return _RUNS[name](options)
    except Any2dsError as error:
        code, message, trace = error.exit_code, str(error), traceback.format_exc()
        if name != "download":
            message = message.replace("any2ds --help", f"any2ds {name} --help")
    except KeyboardInterrupt:
        code, message, trace = 130, "; ".join(filter(None, ("interrupted", command.if_stopped))), ""
    except Terminated:
        code, message, trace = 143, "; ".join(filter(None, ("terminated", command.if_stopped))), ""
    except SystemExit as error:  # of a recipe, a step or a library: the command is not done
        message = f"sys.exit({error.code!r}) was called at {_place_of(error)}"
        code, trace = 1, traceback.format_exc()
    except Exception as error:
        is_ours = RunOptions in command.groups and name != "build"  # errors of a build are mostly its recipe's
        where = "--log_level=debug shows where" if is_ours else _place_of(error)
        # What the system refuses, such as a name that is too long, is no fault of ours.
        what = "" if isinstance(error, OSError) else f"unexpected {type(error).__name__}: "
        code, message, trace = 1, f"{what}{error} ({where})", traceback.format_exc()
    is_debug = _option_of(given, options, "log_level") == "debug"
    if _option_of(given, options, "log_format") == "json":
        from any2ds.run.reporters import jsonl

        extra = {"traceback": trace} if is_debug and trace else {}
        jsonl.write("error", exit_code=code, message=message, **extra)
        return code
    if is_debug and trace:
        _print_error(trace)
    # A list or a server may have put control characters into the message.
    _print_error(_fitting("any2ds: " + "".join(c if c.isprintable() else " " for c in message), sys.stderr))
    return code


def _place_of(error: BaseException) -> str:
    """File and line that have raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.filename}:{last.lineno}"


def _option_of(given: Sequence[str], options: ParsedOptions | None, name: str) -> Any:
    """The value of an option; where the options could not be parsed, as the words or their config file have it."""
    from any2ds.config.options import config_content, flat
    from any2ds.core.errors import Any2dsError

    if options is not None:
        return flat(options.groups).get(name)
    value = _last_given(given, name)
    if value is None and (file := _last_given(given, "config")) is not None:
        with contextlib.suppress(Any2dsError, AttributeError):  # that it cannot be read is said already
            value = config_content(file).get(name)
    return value


def _last_given(given: Sequence[str], name: str) -> str | None:
    """The last value among the words of `--name=value` or `--name value`, whatever else is wrong with them."""
    words = _before_dashes(given)
    values = [
        value if equals else following
        for word, following in zip_longest(words, words[1:], fillvalue="")
        for option, equals, value in [word.partition("=")]
        if option.startswith("--") and option[2:].replace("-", "_") == name
    ]
    return values[-1] if values else None


def _before_dashes(given: Sequence[str]) -> Sequence[str]:
    """The words before a `--`, after which there are no options."""
    return given[: given.index("--")] if "--" in given else given


def _page(given: Sequence[str]) -> str | None:
    """What is printed instead of running a command, if that is asked for: help, version or a completion script.

    Raises OptionError for a command or shell that there is not.
    """
    from any2ds.config.commands import FIRST_WORDS
    from any2ds.core.errors import OptionError

    if not given or given == ["help"]:
        from any2ds.config.help import short_help

        return short_help()
    asked = [argument for argument in given if argument in ("-h", "--help") or argument.startswith("--help=")]
    first, *others = given
    if first == "help" or asked:
        words = [word.lstrip("-") for word in given[1:]] if first == "help" else [w for w in given if w[:1] != "-"]
        topics = [argument.partition("=")[2] for argument in asked if "=" in argument]
        topics += words if first == "help" else [word for word in words[:1] if word in FIRST_WORDS]
        return _help(topics, _last_given(given, "preset"))
    if {"-V", "--version"} & {*given}:
        from any2ds.core.version import __version__

        return f"any2ds {__version__}"
    if first == "completion":
        from any2ds.config import completion

        if len(others) != 1 or others[0] not in completion.SHELLS:
            raise OptionError(f"any2ds completion takes one of {', '.join(completion.SHELLS)}")
        return completion.script(others[0])
    return None


def _help(topics: Sequence[str], preset: str | None) -> str:
    """The help on the first topic: a command, an option, `codes` or a code; `all` is for all options of a command.

    Raises OptionError for a topic that there is not.
    """
    from any2ds.config.commands import FIRST_WORDS
    from any2ds.config.help import codes_help, completion_help, help_text, option_help
    from any2ds.core.errors import OptionError

    pages = [topic for topic in topics if topic not in ("all", "help")]
    for topic in pages:
        if topic == "codes":
            return codes_help()
        with contextlib.suppress(KeyError):
            return codes_help(topic)
        if topic not in FIRST_WORDS:
            with contextlib.suppress(KeyError):
                return option_help(topic.lstrip("-").replace("-", "_"))
            hint = _of_another_tool(topic) or _nearest_topic(topic)
            hint = hint or "any2ds help codes lists the failure codes, any2ds --help=all the options"
            raise OptionError(f"no command, option or failure code {topic!r}: {hint}")
    name = next(iter(pages), "download")
    return completion_help() if name == "completion" else help_text(name, "all" in topics, preset)


def _of_another_tool(topic: str) -> str | None:
    """What to say of an option that only the tool of a preset has."""
    from any2ds.config.presets import foreign_options

    preset = foreign_options().get(topic.lstrip("-").replace("-", "_"))
    return f"an option of {preset}: any2ds --preset={preset} --help=all shows it" if preset else None


def _nearest_topic(topic: str) -> str:
    """The nearest command, option or failure code; empty if there is none."""
    from any2ds.config.commands import COMMANDS
    from any2ds.config.options import declared
    from any2ds.core import suggestions
    from any2ds.core.failures import FAILURE_CODES

    if match := re.fullmatch(r"h?t*p?s?[_ -]?([1-5]\d\d)", topic.lower()):
        return f"did you mean http_{match[1]}?"
    options = {info.name for command in COMMANDS.values() for info in declared(command.groups)}
    return _nearest_word(topic) or suggestions.for_name(topic, FAILURE_CODES) or suggestions.for_option(topic, options)


def _nearest_word(word: str) -> str:
    """The nearest command, or the code of an HTTP status; empty if there is none."""
    from any2ds.config.commands import FIRST_WORDS
    from any2ds.core import suggestions

    if re.fullmatch(r"[1-5]\d\d", word):
        return f"did you mean http_{word}?"
    return suggestions.for_command(word, FIRST_WORDS)


def _completed(name: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options of a command, with those that it finds elsewhere."""
    if name == "estimate" and given.get("from_dataset"):
        from any2ds.forecast.earlier import with_recorded

        return with_recorded(given)
    return given


def parse(given: Sequence[str], command: Command) -> dict[str, str]:
    """The options among the arguments, as text for their parsers. Raises OptionError for anything else."""
    return dict(_Arguments(command).named(given))


class _Arguments:
    """The arguments that a command takes."""

    def __init__(self, command: Command) -> None:
        from any2ds.config.options import declared, makes_datasets

        self._command = command
        infos = list(declared(command.groups))
        self._own = {info.name for info in infos} | {"config"}
        self._flags = {info.name for info in infos if info.is_flag}
        self._has_presets = makes_datasets(command.groups)

    def named(self, given: Sequence[str]) -> list[tuple[str, str]]:
        """Each option, by its name, and its value. Raises OptionError for arguments that are no options."""
        from any2ds.core.errors import OptionError

        found: list[tuple[str, str]] = []
        by_position: list[str] = []
        arguments = deque(given)
        are_names = False  # after `--`
        while arguments:
            argument = arguments.popleft()
            if argument == "--" and not are_names:
                are_names = True
            elif argument.startswith("--") and not are_names:
                found.append(self._option(argument, arguments))
            elif re.match(r"-[A-Za-z]", argument) and not are_names:
                found.append(self._letter(argument, arguments))
            else:
                found.append((self._positional(argument, dict(found)), argument))
                by_position.append(found[-1][0])
        names = [name for name, _ in found]
        if (twice := next((name for name in by_position if names.count(name) > 1), None)) is not None:
            raise OptionError(
                f"{twice} is given twice: {' and '.join(value for name, value in found if name == twice)}"
            )
        return found

    def _option(self, argument: str, rest: deque[str]) -> tuple[str, str]:
        from any2ds.config.options import check_names
        from any2ds.core.errors import OptionError

        name, equals, value = argument[2:].partition("=")
        name = name.replace("-", "_")
        name = self._command.aliases.get(name, name)
        if name not in self._own and self._has_presets:  # whichever is chosen: a config file may do that
            self._add_foreign()
        if not equals and name.startswith("no") and name[2:].lstrip("_") in self._flags:
            return name[2:].lstrip("_"), "False"
        if name not in self._own:
            check_names([name], self._command.groups)
        if equals:
            return name, value
        if name in self._flags:  # what follows may be the list
            return name, rest.popleft() if rest and rest[0].lower() in ("true", "false") else "True"
        if not rest or rest[0].startswith("--"):
            raise OptionError(f"--{name} needs a value: --{name}=...")
        return name, rest.popleft()

    def _add_foreign(self) -> None:
        """Take the options of other tools as well."""
        from any2ds.config import presets

        self._own |= presets.foreign_options().keys()
        self._flags |= presets.foreign_flags()

    def _letter(self, argument: str, rest: deque[str]) -> tuple[str, str]:
        """`-o value`, `-ovalue` or `-o=value`."""
        from any2ds.config.commands import SHORT_NAMES
        from any2ds.config.options import declared
        from any2ds.core import suggestions
        from any2ds.core.errors import OptionError

        letter, value = argument[1], argument[2:].removeprefix("=")
        known = [info.name for info in declared(self._command.groups)]
        if (name := SHORT_NAMES.get(letter)) not in known:
            is_word = re.match(r"[A-Za-z]", value)  # -timeout=5, or wget's -nc
            hint = suggestions.for_option(argument[1:].partition("=")[0] if is_word else letter, known)
            if argument in ("-help", "-version"):
                hint = f"did you mean -{argument}?"
            hint = hint or "options are given as --name=value"
            raise OptionError(f"unknown option '-{letter}': {hint}")
        if not value and not rest:
            raise OptionError(f"-{letter} needs a value: -{letter} ...")
        return str(name), value or rest.popleft()

    def _positional(self, argument: str, given: Mapping[str, str]) -> str:
        """The option that is given without its name. Raises OptionError if there is none, or this is a mistake."""
        from any2ds.config.commands import FIRST_WORDS
        from any2ds.config.parsers import split_format
        from any2ds.core.errors import OptionError
        from any2ds.core.plugins import exists

        free = [name for name in self._command.positional if name not in given]
        place = next(iter(free), None)
        hint = "options are given as --name=value"
        if place is None and len(self._command.positional) == 1:
            hint = "this command takes the folder of the dataset, and options as --name=value"
        if place == "url_list":
            if not (_is_no_path(argument) and (hint := _nearest_word(argument))):
                return place
            if argument in FIRST_WORDS:
                hint = f"a command comes first: any2ds {argument} ..."
        elif place == "output_folder" and "url_list" in self._command.positional:
            suffix = os.path.basename(argument).partition(".")[2]
            if not os.path.isfile(argument) and not exists("readers", split_format(suffix)[0]):
                return place
            first = given["url_list"]
            if _is_no_path(first):
                raise OptionError(f"{first!r} is no command, and there is no such file: any2ds lists the commands")
            hint = f"the second argument is the output folder; for several lists quote a glob, or give '[{first},...]'"
        elif place is not None:
            return place
        raise OptionError(f"unexpected {argument!r}: {hint}")


def _is_no_path(argument: str) -> bool:
    """Whether it is a word, such as a command, and names no file or folder."""
    return re.fullmatch(r"[a-z]+", argument) is not None and not os.path.exists(argument)


def _print(text: str) -> None:
    """Print a result without credentials. Raises OutputError."""
    from any2ds.core.errors import redacted
    from any2ds.core.terminal.results import standard_output

    with standard_output() as stream:
        print(redacted(text.rstrip("\n")), file=stream)


def _print_error(text: str) -> None:
    """Print to standard error, without credentials; where that is closed or full, nobody can be told."""
    from any2ds.core.errors import redacted

    with contextlib.suppress(AttributeError, OSError, ValueError):
        print(redacted(text.rstrip("\n")), file=sys.stderr)


def _fitting(text: str, stream: TextIO) -> str:
    """The text on one line, on a terminal wrapped at its words."""
    import shutil

    from any2ds.core.terminal.stderr import is_terminal, wrapped

    return wrapped(text, shutil.get_terminal_size().columns) if is_terminal(stream) else text


def _log_to_terminal(is_json: bool) -> None:
    logging.raiseExceptions = False  # the terminal may be gone
    logging.getLogger("any2ds").addHandler(_json_handler() if is_json else _TextHandler())


def _json_handler() -> logging.Handler:
    from any2ds.run.reporters import jsonl

    jsonl.log_as_json()
    return jsonl.JsonHandler()


class _TextHandler(logging.Handler):
    """Writes with rich, which is loaded for the first message, after the first worker process has begun."""

    _rich: logging.Handler | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if self._rich is None:
            self._rich = _rich_handler()
        if record.name.startswith("any2ds.recipes.") and record.levelno == logging.WARNING:
            _print_note(record.getMessage())  # of a recipe's author, who wants no log
        else:
            self._rich.emit(record)


def _print_note(message: str) -> None:
    """Show it as `estimate` and `verify` show theirs."""
    from any2ds.core.errors import harmless
    from any2ds.core.terminal.stderr import stderr_console

    stderr_console().print_message(f"note: {harmless(message)}", style="yellow")


def _rich_handler() -> logging.Handler:
    from rich.logging import RichHandler

    from any2ds.core.errors import harmless
    from any2ds.core.terminal.stderr import stderr_console

    class Harmless(logging.Formatter):
        """Leaves out credentials and control characters."""

        def format(self, record: logging.LogRecord) -> str:
            return harmless(super().format(record))

    handler = RichHandler(console=stderr_console(), show_path=False)
    handler.setFormatter(Harmless("%(message)s"))
    return handler
