"""The command line: flags in, exit code out.

0 done, 1 not everything could be done, 2 it cannot be done, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import contextlib
import difflib
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

if TYPE_CHECKING:
    from any2ds.config.options import ParsedOptions

_EXAMPLES = """\
examples:
  any2ds --url_list=urls.txt
  any2ds --url_list=urls.parquet --output_format=webdataset --caption_col=caption --output_folder=dataset
  any2ds --url_list='lists/*.csv.gz' --url_col=link --save_additional_columns=id,licence
  any2ds --url_list=s3://bucket/urls.parquet --output_folder=s3://bucket/dataset --processes_count=16
  zcat urls.txt.gz | any2ds --url_list=-
  any2ds --config=run.yaml --timeout=30
  any2ds --preset=img2dataset --url_list=urls.parquet --input_format=parquet --image_size=384
  any2ds retry dataset --timeout=60
"""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    from any2ds.core.processes.signals import own_process

    own_process()
    code = 130
    with contextlib.suppress(KeyboardInterrupt):  # before there is anything to clean up
        code = run(list(sys.argv[1:] if arguments is None else arguments))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # closed, or nobody reads
            stream.flush()
    # Not sys.exit: threads that hang in the system's resolver would keep the process for seconds.
    os._exit(code)


@dataclass(frozen=True)
class Command:
    """A subcommand."""

    usage: str
    summary: str
    groups: Sequence[Any]  # of its options
    run: Callable[[ParsedOptions], int]  # its exit code
    positional: str = ""  # the option that may be given without its name
    if_stopped: str = ""  # what somebody who interrupts it should know


def _commands() -> dict[str, Command]:
    from any2ds.config import options

    return {
        "download": Command(
            "any2ds --url_list=urls.txt [--option=value ...]",
            "from a list of URLs to a dataset",
            options.GROUPS,
            _download,
            if_stopped="finished shards are kept, run the same command again to go on",
        ),
        "verify": Command(
            "any2ds verify OUTPUT_FOLDER [--sample=1%] [--repair]",
            "check that a dataset is complete and undamaged",
            [options.VerifyOptions],
            _verify,
            "output_folder",
        ),
        "inspect": Command(
            "any2ds inspect OUTPUT_FOLDER",
            "show what a dataset contains",
            [options.InspectOptions],
            _inspect,
            "output_folder",
        ),
        "card": Command(
            "any2ds card OUTPUT_FOLDER [--license=cc-by-4.0]",
            "write a README.md that describes a dataset",
            [options.CardOptions],
            _card,
            "output_folder",
        ),
        "report": Command(
            "any2ds report OUTPUT_FOLDER [--format=html|md|json] [--open]",
            "write a report on the rows of a dataset",
            [options.ReportOptions],
            _report,
            "output_folder",
        ),
        "finish": Command(
            "any2ds finish OUTPUT_FOLDER",
            "write the files about a whole dataset, after several runs made it together",
            [options.FinishOptions],
            _finish,
            "output_folder",
        ),
        "retry": Command(
            "any2ds retry OUTPUT_FOLDER [--codes=timeout_total,http_5xx] [--option=value ...]",
            "fetch again what failed in a dataset",
            options.RETRY_GROUPS,
            _retry,
            "output_folder",
            if_stopped="finished shards are kept, run the same command again for the others",
        ),
    }


def _download(options: ParsedOptions) -> int:
    from any2ds.config.options import ShareOptions
    from any2ds.run.download import download
    from any2ds.run.ranks import from_environment

    share = options.group(ShareOptions)
    numbers, message = from_environment(share, os.environ)
    if message:
        logging.getLogger("any2ds").warning(message)
    download.run(options.with_group(replace(share, **numbers)))
    return 0


def _finish(options: ParsedOptions) -> int:
    from any2ds.run.finish import finish

    completion = finish.run(options)
    _print(str(completion))
    return 0 if completion.is_whole else 1


def _retry(options: ParsedOptions) -> int:
    from any2ds.run.retry import retry

    retry.run(options)
    return 0


def _verify(options: ParsedOptions) -> int:
    from any2ds.core.errors import printable
    from any2ds.dataset.verify.verify import lines, verify

    (wanted,) = options.groups
    report = verify.run(options)
    if wanted.json:
        _write_json(report.to_json(), wanted.json)
    if wanted.json != "-":
        _print("\n".join(map(printable, lines(report))))
    return 0 if report.ok else 1


def _inspect(options: ParsedOptions) -> int:
    from any2ds.dataset.inspect import inspect, show

    (wanted,) = options.groups
    with contextlib.suppress(AttributeError):
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # captions are in any script
    overview = inspect.run(options)
    if wanted.json:
        _write_json(overview.to_json(), wanted.json)
    if wanted.json != "-":
        with contextlib.suppress(AttributeError, OSError, ValueError):  # closed, or nobody reads
            show(overview, sys.stdout)
    return 0


def _card(options: ParsedOptions) -> int:
    from any2ds.dataset.card.card import card

    _print_utf8()
    made = card.run(options)
    _print(made.text if made.path is None else f"written to {made.path}")
    return 0


def _report(options: ParsedOptions) -> int:
    from any2ds.core.errors import printable
    from any2ds.core.layout import REPORT_FILE
    from any2ds.dataset.report.report import report

    (wanted,) = options.groups
    _print_utf8()
    report.run(options)
    if wanted.format == "html" and wanted.output != "-":
        _print(printable(wanted.output or f"{wanted.output_folder.rstrip('/')}/{REPORT_FILE}"))
    return 0


def _print_utf8() -> None:
    """Write text in any script, which most often goes into a file."""
    with contextlib.suppress(AttributeError):
        sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]


def _write_json(content: Any, path: str) -> None:
    """Raises OutputError if the file cannot be written."""
    import json

    from any2ds.core.errors import OutputError

    text = json.dumps(content, indent=2, ensure_ascii=True) + "\n"
    if path == "-":
        _print(text)
        return
    try:
        with open(os.path.expanduser(path), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise OutputError(f"--json={path}: {error.strerror}") from error


def run(given: Sequence[str]) -> int:
    """Run the command line; the exit code."""
    from any2ds.config.options import WatchOptions, parse_options
    from any2ds.core.errors import Any2dsError
    from any2ds.core.processes.signals import Terminated

    commands = _commands()
    name, arguments = (given[0], given[1:]) if given and given[0] in commands else ("download", given)
    command = commands[name]
    if not given or {"--help", "-h"} & set(given) or list(given) == ["help"]:
        _print(help_text(name, _preset_in(arguments)))
        return 0
    if "--version" in given:
        from any2ds.core.version import __version__

        _print(f"any2ds {__version__}")
        return 0
    is_debug = "--log_level=debug" in given
    is_json = any(argument.replace("-", "_") == "__log_format=json" for argument in given)
    try:
        options = parse_options(parse(arguments, command), command.groups)
        is_json = WatchOptions in command.groups and options.group(WatchOptions).log_format == "json"
        _log_to_terminal(is_json)
        return command.run(options)
    except Any2dsError as error:
        code, message, trace = error.exit_code, str(error), traceback.format_exc()
    except KeyboardInterrupt:
        code, message, trace = 130, "; ".join(filter(None, ("interrupted", command.if_stopped))), ""
    except Terminated:
        code, message, trace = 143, "; ".join(filter(None, ("terminated", command.if_stopped))), ""
    except Exception as error:
        code, message = 1, f"unexpected {type(error).__name__}: {error} (--log_level=debug shows where)"
        trace = traceback.format_exc()
    if is_json:
        from any2ds.run.reporters import _jsonlines

        extra = {"traceback": trace} if is_debug and trace else {}
        _jsonlines.write("error", exit_code=code, message=message, **extra)
        return code
    if is_debug and trace:
        _print(trace, sys.stderr)
    # A list or a server may have put control characters into the message.
    _print("any2ds: " + "".join(c if c.isprintable() else " " for c in message), sys.stderr)
    return code


def parse(given: Sequence[str], command: Command) -> dict[str, Any]:
    """The options among the arguments, as text. Raises OptionError for anything else.

    fire alone would call the function before it rejects unknown flags, guess types (`1,2` a tuple, `None` nothing) and
    take `-` for a separator. So names are checked and values joined to them first, and stay text for their parsers.
    """
    import fire
    from fire.decorators import SetParseFns

    arguments = _joined(given, command)
    names = [argument[2:].partition("=")[0] for argument in arguments]
    parsed: dict[str, Any] = {}

    def any2ds(**options: str) -> None:
        parsed.update(options)

    fire.Fire(SetParseFns(**dict.fromkeys(names, str))(any2ds), command=arguments, name="any2ds")
    return parsed


def _joined(given: Sequence[str], command: Command) -> list[str]:
    """Every option as `--name=value`. Raises OptionError for arguments that are no options."""
    from any2ds.config import presets
    from any2ds.config.options import check_names, declared, makes_datasets
    from any2ds.core.errors import OptionError

    flags = {info.name for info in declared(command.groups) if info.is_flag}
    foreign = presets.foreign_options() if makes_datasets(command.groups) else {}  # a config file may name the preset
    if foreign:
        flags |= presets.foreign_flags()
    found: list[str] = []
    arguments = list(given)
    while arguments:
        argument = arguments.pop(0)
        if command.positional and not argument.startswith("--") and not found:
            argument = f"--{command.positional}={argument}"
        if not argument.startswith("--") or argument == "--":
            near = [] if found else difflib.get_close_matches(argument, _commands(), n=1)
            hint = f"did you mean {near[0]}?" if near else "options are given as --name=value (quote a glob)"
            raise OptionError(f"unexpected {argument!r}: {hint}")
        name, equals, value = argument[2:].partition("=")
        name = name.replace("-", "_")
        if not equals and name.startswith("no") and name[2:] in flags:
            name, equals, value = name[2:], "=", "False"
        if name != "config" and name not in foreign:
            check_names([name], command.groups)
        next_is_value = bool(arguments) and not arguments[0].startswith("--")
        if not equals and next_is_value:
            value = arguments.pop(0)
        elif not equals and name in flags:
            value = "True"
        elif not equals:
            raise OptionError(f"--{name} needs a value: --{name}=...")
        found.append(f"--{name}={value}")
    return found


def _preset_in(given: Sequence[str]) -> str | None:
    """The preset that the arguments name, if it exists."""
    from any2ds.core.plugins import names

    found = [
        argument.partition("=")[2] or value
        for argument, value in zip_longest(given, given[1:], fillvalue="")
        if argument.partition("=")[0] == "--preset"
    ]
    return next((preset for preset in found if preset in names("presets")), None)


def help_text(name: str = "download", preset: str | None = None) -> str:
    """The help for a command, with the defaults of a `preset` and the options that it adds."""
    from any2ds.config import presets
    from any2ds.config.options import declared

    commands = _commands()
    chosen = presets.find(preset)
    defaults = chosen.defaults if chosen else {}
    lines = [f"any2ds: {commands[name].summary}", "", f"usage: {commands[name].usage}"]
    if name == "download":
        others = [command for other, command in commands.items() if other != name]
        width = max((len(command.usage) for command in others), default=0)
        lines += [f"       {command.usage:<{width}}  {command.summary}" for command in others]
    group = ""
    for info in declared(commands[name].groups):
        if info.group != group:
            group = info.group
            lines += ["", f"{group}:"]
        lines.append(f"  --{info.name:<25} {info.help} [{defaults.get(info.name, info.shown)}]")
    if chosen:
        lines += ["", f"With --preset={preset}, whose defaults are shown above, also:"]
        lines += [f"  --{name:<25} {option.help} [{option.shown}]" for name, option in chosen.options.items()]
    lines += [
        "",
        "Also:",
        "  --config=FILE               YAML or JSON file with any of these; the command line wins",
        "  --version, --help",
        "",
        *([_EXAMPLES] if name == "download" else []),
    ]
    return "\n".join(lines)


def _print(text: str, stream: TextIO | None = None) -> None:
    """Print without credentials, to standard output if nothing else is given, even if nobody reads it."""
    from any2ds.core.errors import redacted

    with contextlib.suppress(AttributeError, OSError, ValueError):
        print(redacted(text.rstrip("\n")), file=stream or sys.stdout)


def _log_to_terminal(is_json: bool) -> None:
    logging.raiseExceptions = False  # the terminal may be gone
    logging.getLogger("any2ds").addHandler(_json_handler() if is_json else _text_handler())


def _json_handler() -> logging.Handler:
    from any2ds.run.reporters import _jsonlines

    _jsonlines.log_as_json()
    return _jsonlines.JsonHandler()


def _text_handler() -> logging.Handler:
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
