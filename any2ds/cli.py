"""The command line: flags in, exit code out.

0 done, 1 not everything could be done, 2 it cannot be done, 3 `verify`: incomplete, 4 rows were tried and none could be
stored, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import re
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

if TYPE_CHECKING:
    from any2ds.config.commands import Command
    from any2ds.config.options import ParsedOptions
    from any2ds.core.reports import RunReport


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


def _execute(name: str, options: ParsedOptions) -> int:
    """Run a command and show its result; the exit code."""
    from any2ds.config.commands import COMMANDS

    wanted = options.groups[-1 if name == "estimate" else 0]
    if name in _SHOWS:
        goes_into_files = name in ("card", "estimate", "report")
        how = {"encoding": "utf-8"} if goes_into_files else {"errors": "replace"}  # captions are in any script
        with contextlib.suppress(AttributeError):
            sys.stdout.reconfigure(**how)  # type: ignore[union-attr]
    with _started_ahead(name, options):
        if name == "download":
            options = _with_rank(options)
        module, _, function = COMMANDS[name].function.partition(":")
        function = getattr(importlib.import_module(f"any2ds.{module}"), function)
        result: Any = function.run(options) if hasattr(function, "run") else function(wanted)
    if name in ("download", "build"):
        _check_stored(options, result)
    if path := getattr(wanted, "json", None):
        _write_json(result.to_json(), path)
    if path != "-" and name in _SHOWS:
        _SHOWS[name](result, wanted)
    return getattr(result, "exit_code", 0)


def _with_rank(options: ParsedOptions) -> ParsedOptions:
    """The options with rank and world size as Slurm, torchrun or Kubernetes say, unless they are given."""
    from any2ds.config.options import ShareOptions
    from any2ds.run.ranks import from_environment

    share = options.group(ShareOptions)
    numbers, message = from_environment(share, os.environ)
    if message:
        logging.getLogger("any2ds").warning(message)
    return options.with_group(replace(share, **numbers))


def _started_ahead(name: str, options: ParsedOptions) -> AbstractContextManager[Any]:
    """The first worker process, begun before what this one needs is loaded, where there is going to be one."""
    if name in ("download", "retry") or (name == "estimate" and options.groups[-1].from_dataset is None):
        from any2ds.run.start import started_ahead

        return started_ahead(options)
    return contextlib.nullcontext()


def _check_stored(options: ParsedOptions, report: RunReport) -> None:
    """Raises NothingStored if a run has tried rows and stored none; of several ranks others may have stored some."""
    from any2ds.config.options import ShareOptions
    from any2ds.core.errors import NothingStored

    is_alone = all(group.rank is None for group in options.groups if isinstance(group, ShareOptions))
    if is_alone and report.nothing_stored:
        raise NothingStored(report.nothing_stored)


def _show_verified(report: Any, _: Any) -> None:
    from any2ds.core.errors import printable
    from any2ds.dataset.verify.report import lines

    _print("\n".join(_fitting(printable(line), sys.stdout) for line in lines(report)))


def _on_screen(module: str) -> Callable[[Any, Any], None]:
    def show(result: Any, _: Any) -> None:
        from any2ds.core.terminal.results import standard_output

        with standard_output() as stream:
            importlib.import_module(module).show(result, stream)

    return show


def _show_report(summary: Any, wanted: Any) -> None:
    from any2ds.core.errors import printable
    from any2ds.core.layout import REPORT_FILE

    page = f"{summary.output_folder.rstrip('/')}/{REPORT_FILE}" if wanted.format == "html" else "-"
    if (path := wanted.output or page) != "-":
        _print(f"written to {printable(path)}")


def _show_new(made: tuple[Path, list[str]], wanted: Any) -> None:
    from any2ds.recipes.new import next_steps

    folder, names = made
    steps = [_fitting(step, sys.stdout) for step in next_steps(wanted, folder)]
    _print("\n".join([*(f"{folder}/{name}" for name in names), "next:", *steps]))


# Command -> what shows its result on standard output; the others have shown all while they ran.
_SHOWS: Mapping[str, Callable[[Any, Any], None]] = {
    "verify": _show_verified,
    "inspect": _on_screen("any2ds.describe.screen"),
    "estimate": _on_screen("any2ds.estimate.screen"),
    "report": _show_report,
    "card": lambda made, _: _print(made.text if made.path is None else f"written to {made.path}"),
    "add-columns": lambda added, _: _print(added.text),
    "new": _show_new,
    "recipes": lambda lines, _: _print("\n".join(lines)),
}


def _write_json(content: Any, path: str) -> None:
    """Raises OutputError if the file cannot be written."""
    import json

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


def run(given: Sequence[str]) -> int:
    """Run the command line; the exit code."""
    from any2ds.config.commands import COMMANDS
    from any2ds.config.options import RunOptions, WatchOptions, flat, parse_options
    from any2ds.core.errors import Any2dsError
    from any2ds.core.processes.signals import Terminated, interrupt_kept

    name, arguments = (given[0], given[1:]) if given and given[0] in COMMANDS else ("download", given)
    command = COMMANDS[name]
    options = None
    try:
        if given[:1] != ["--"] and (page := _page(_before_dashes(given))) is not None:
            _print(page)
            return 0
        with interrupt_kept():
            options = parse_options(_completed(name, parse(arguments, command)), command.groups)
            _log_to_terminal(WatchOptions in command.groups and options.group(WatchOptions).log_format == "json")
            return _execute(name, options)
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
        # A refusal by the system, such as of a name that is too long, is no fault of ours.
        what = "" if isinstance(error, OSError) else f"unexpected {type(error).__name__}: "
        code, message, trace = 1, f"{what}{error} ({where})", traceback.format_exc()
    shown = _as_given(arguments, command) if options is None else flat(options.groups)
    is_debug = shown.get("log_level") == "debug"
    if shown.get("log_format") == "json":
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


def _split(words: Sequence[str], command: Command, with_presets: bool) -> tuple[Any, list[str]]:
    """The options among the words, and the other words. Raises OptionError for an option behind one dash."""
    from any2ds.config.help import option_parser
    from any2ds.core.errors import OptionError

    normalized = list(_normalized(words, command, with_presets))
    for word in normalized:
        if _has_one_dash_too_few(word, command):  # argparse takes `-output_format=x` as `-o utput_format=x`
            raise OptionError(_unknown(word, command))
    return option_parser(command, with_presets=with_presets).parse_known_args(normalized)


def _as_given(words: Sequence[str], command: Command) -> Mapping[str, Any]:
    """The options among the words and in their config file, as text, as far as they can be read."""
    from any2ds.config.options import config_content, makes_datasets
    from any2ds.core.errors import Any2dsError

    given: dict[str, Any] = {}
    with contextlib.suppress(Any2dsError, TypeError):  # what is wrong with them is said elsewhere
        given = vars(_split(_before_dashes(words), command, makes_datasets(command.groups))[0])
        given = {**(config_content(given["config"]) if "config" in given else {}), **given}
    return given


def _before_dashes(given: Sequence[str]) -> Sequence[str]:
    """The words before a `--`, after which there are no options."""
    return given[: given.index("--")] if "--" in given else given


def _page(given: Sequence[str]) -> str | None:
    """The help, version or completion script that is printed instead of running a command; None if none is asked for.

    Raises OptionError for a topic or shell that there is not.
    """
    from any2ds.config.commands import COMMANDS, FIRST_WORDS
    from any2ds.core.errors import OptionError

    if not given or given == ["help"]:
        from any2ds.config.help import overview

        return overview()
    asked = [argument for argument in given if argument in ("-h", "--help") or argument.startswith("--help=")]
    first, *others = given
    if first == "help" or asked:
        topics = [argument.partition("=")[2] for argument in asked if "=" in argument]
        words = [word for word in given if word[:1] != "-"][:1]
        topics += others if first == "help" else [word for word in words if word in FIRST_WORDS]
        return _help(topics, _as_given(given, COMMANDS["download"]).get("preset"))
    if {"-V", "--version"} & {*given}:
        from any2ds.core.version import __version__

        return f"any2ds {__version__}"
    if first == "completion":
        from any2ds.config.help import SHELLS, completion_script

        if len(others) != 1 or others[0] not in SHELLS:
            raise OptionError(f"any2ds completion takes one of {', '.join(SHELLS)}")
        return completion_script(others[0])
    return None


def _help(topics: Sequence[str], preset: str | None) -> str:
    """The help on the first topic: a command, an option, `codes` or a code; `all` is for all options of a command.

    Raises OptionError for a topic that there is not.
    """
    from any2ds.config.commands import FIRST_WORDS
    from any2ds.config.help import codes_help, help_text, option_help
    from any2ds.core import suggestions
    from any2ds.core.errors import OptionError
    from any2ds.core.failures import FAILURE_CODES

    for topic in topics:
        name = topic.lstrip("-").replace("-", "_")
        if topic in ("all", *FIRST_WORDS):
            continue
        if topic == "codes":
            return codes_help()
        for page in (codes_help, option_help):
            with contextlib.suppress(KeyError):
                return page(name)
        known = (*FIRST_WORDS, *FAILURE_CODES, f"http_{topic[-3:]}", *_all_options())
        hint = (
            f"did you mean http_{topic}?" if re.fullmatch(r"[1-5]\d\d", topic) else suggestions.for_name(topic, known)
        )
        hint = hint or "any2ds help codes lists the failure codes, any2ds --help=all the options"
        raise OptionError(f"no command, option or failure code {topic!r}: {hint}")
    name = next((topic for topic in topics if topic not in ("all", "help")), "download")
    return help_text(name, "all" in topics, preset)


def _all_options() -> set[str]:
    from any2ds.config.commands import COMMANDS
    from any2ds.config.declare import declared

    return {info.name for command in COMMANDS.values() for info in declared(command.groups)}


def _completed(name: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options of a command, with those that it finds elsewhere."""
    if name == "estimate" and ("from_dataset" in given or "config" in given):
        from any2ds.estimate.sample import with_recorded

        return with_recorded(given)
    return given


def parse(words: Sequence[str], command: Command) -> dict[str, str]:
    """The options among the words of a command line, as text for their parsers. Raises OptionError for other words."""
    from any2ds.config.options import makes_datasets
    from any2ds.core.errors import OptionError

    before = _before_dashes(words)
    # Presets take a tenth of the start to load: their options are known where there may be one, or an unknown option.
    has_presets = makes_datasets(command.groups)
    is_named = any(word.startswith(("--preset", "--config")) for word in before)
    options, others = _split(before, command, has_presets and is_named)
    if has_presets and not is_named and any(word.startswith("--") for word in others):
        options, others = _split(before, command, with_presets=True)
    given: dict[str, str] = vars(options)
    for word in others:
        if re.match(r"--[^=]|-[A-Za-z]", word):
            raise OptionError(_unknown(word, command))
    by_position: dict[str, str] = {}
    for word in (*others, *words[len(before) + 1 :]):
        place = _place(word, given | by_position, command)
        by_position[place] = word
    if twice := next((name for name in by_position if name in given), None):
        raise OptionError(f"{twice} is given twice: {by_position[twice]} and {given[twice]}")
    return by_position | given


def _normalized(words: Sequence[str], command: Command, with_presets: bool) -> Iterator[str]:
    """`--max-per-host 3`, `--nofsync` and `--quiet` as `--max_per_host 3`, `--fsync=False` and `--quiet=True`: a flag
    takes the word behind it only if that is True or False, since it may be the list or the folder. A value
    that begins with a dash is joined, `--user_agent=-x`: argparse takes it for an option, where it is no number."""
    from any2ds.config.commands import SHORT_NAMES
    from any2ds.config.declare import declared
    from any2ds.config.presets import foreign_flags

    flags = {info.name for info in declared(command.groups) if info.is_flag}
    flags |= foreign_flags() if with_presets else set()
    rest = deque(words)
    while rest:
        word = rest.popleft()
        if not word.startswith("--"):
            yield word
            continue
        name, equals, value = word[2:].partition("=")
        name = name.replace("-", "_")
        name = command.aliases.get(name, name)
        negated = name[2:].lstrip("_") if name.startswith("no") else name
        if equals:
            yield f"--{name}={value}"
        elif name in flags:
            yield f"--{name}={rest.popleft() if rest and rest[0].lower() in ('true', 'false') else True}"
        elif name != negated and negated in flags:
            yield f"--{negated}=False"
        elif rest and re.match(r"-[^-]", rest[0]) and rest[0] not in (*SHORT_NAMES.values(), "-h", "-V"):
            yield f"--{name}={rest.popleft()}"
        else:
            yield f"--{name}"


def _has_one_dash_too_few(word: str, command: Command) -> bool:
    """Whether a word is the name of an option behind a single dash: `-output_format`."""
    from any2ds.config.declare import declared

    if not re.match(r"-[^-]{2}", word):
        return False
    name = word[1:].partition("=")[0].replace("-", "_")
    return any(name == info.name or name in info.hints.split() for info in declared(command.groups))


def _unknown(word: str, command: Command) -> str:
    """The message on an option that there is not: `--nme`, `-x`, `-name`."""
    from any2ds.config.declare import declared
    from any2ds.config.options import check_names
    from any2ds.core import suggestions

    name = word.partition("=")[0]
    if word.startswith("--"):
        check_names([name[2:]], command.groups)  # raises
    known = {info.name: info.hints for info in declared(command.groups)} | {"--help": "help", "--version": "version"}
    hint = suggestions.for_name(name, known) or "options are given as --name=value"
    return f"unknown option {name!r}: {hint}"


def _place(word: str, given: Mapping[str, str], command: Command) -> str:
    """The option that is given without its name. Raises OptionError if there is none, or this is a mistake."""
    from any2ds.config.commands import FIRST_WORDS
    from any2ds.config.parsers import split_format
    from any2ds.core import suggestions
    from any2ds.core.errors import OptionError
    from any2ds.core.plugins import exists

    place = next((name for name in command.positional if name not in given), None)
    hint = "options are given as --name=value"
    if place is None and len(command.positional) == 1:
        hint = f"this command takes {command.positional[0]}, and options as --name=value"
    elif place == "url_list" and _is_no_path(word):
        if word in FIRST_WORDS:
            hint = f"a command comes first: any2ds {word} ..."
        elif not (hint := suggestions.for_name(word, (*FIRST_WORDS, "--version"))):
            return place
    elif place == "output_folder" and "url_list" in command.positional:
        suffix = os.path.basename(word).partition(".")[2]
        if not os.path.isfile(word) and not exists("readers", split_format(suffix)[0]):
            return place
        first = given["url_list"]
        if _is_no_path(first):
            raise OptionError(f"{first!r} is no command, and there is no such file: any2ds lists the commands")
        hint = f"the second argument is the output folder; for several lists quote a glob, or give '[{first},...]'"
    elif place is not None:
        return place
    raise OptionError(f"unexpected {word!r}: {hint}")


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


_handlers: list[logging.Handler] = []  # that the command has added: one, also where a program runs several commands


def _log_to_terminal(is_json: bool) -> None:
    logging.raiseExceptions = False  # the terminal may be gone
    logger = logging.getLogger("any2ds")
    while _handlers:
        logger.removeHandler(_handlers.pop())
    _handlers.append(_json_handler() if is_json else _TextHandler())
    logger.addHandler(_handlers[0])


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
