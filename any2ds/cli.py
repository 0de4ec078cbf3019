"""The command line: flags in, exit code out.

0 done, 1 not everything could be done, 2 it cannot be done, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn, TextIO

_EXAMPLES = """\
examples:
  any2ds --url_list=urls.txt
  any2ds --url_list=urls.parquet --output_format=webdataset --caption_col=caption --output_folder=dataset
  any2ds --url_list='lists/*.csv.gz' --url_col=link --save_additional_columns=id,licence
  any2ds --url_list=s3://bucket/urls.parquet --output_folder=s3://bucket/dataset --processes_count=16
  zcat urls.txt.gz | any2ds --url_list=-
  any2ds --config=run.yaml --timeout=30
"""


_GO_ON = "finished shards are kept, run the same command again to go on"


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    code = 130
    with contextlib.suppress(KeyboardInterrupt):  # in the moment before there is anything to clean up
        code = run(list(sys.argv[1:] if arguments is None else arguments))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # closed, or nobody reads
            stream.flush()
    # Not sys.exit: threads that hang in the system's resolver would keep the process for seconds.
    os._exit(code)


def run(given: Sequence[str]) -> int:
    """Do what the arguments say; the exit code."""
    from any2ds.errors import Any2dsError

    if not given or {"--help", "-h"} & set(given) or list(given) == ["help"]:
        return _say(help_text(), sys.stdout)
    if "--version" in given:
        from any2ds.version import __version__

        return _say(f"any2ds {__version__}", sys.stdout)
    debug = "--log_level=debug" in given
    try:
        options = parse(given)
        _check(options)
        from any2ds.api import download

        _log_to_terminal()
        signal.signal(signal.SIGTERM, _terminate)
        download(**options)
        return 0
    except Any2dsError as error:
        code, words, trace = error.exit_code, str(error), traceback.format_exc()
    except KeyboardInterrupt:
        code, words, trace = 130, f"interrupted; {_GO_ON}", ""
    except _Terminated:
        code, words, trace = 143, f"terminated; {_GO_ON}", ""
    except Exception as error:
        code, words = 1, f"unexpected {type(error).__name__}: {error} (--log_level=debug shows where)"
        trace = traceback.format_exc()
    if debug and trace:
        _say(trace, sys.stderr)
    # What a list or a server has put into the words must not reach the terminal as more than words.
    _say("any2ds: " + "".join(c if c.isprintable() else " " for c in words), sys.stderr)
    return code


def parse(given: Sequence[str]) -> dict[str, Any]:
    """The options among the arguments, as text. Raises OptionError for whatever is not an option.

    fire would call the function first and complain about unknown flags afterwards, guess types from the look of a
    value (`1,2` a tuple, `None` nothing) and take `-` for a separator: here names are checked before, values are
    joined to them, and stay text for the option's own parser.
    """
    import fire
    from fire.decorators import SetParseFns

    arguments = _joined(given)
    names = [argument[2:].partition("=")[0] for argument in arguments]
    parsed: dict[str, Any] = {}

    def any2ds(**options: str) -> None:
        parsed.update(options)

    fire.Fire(SetParseFns(**dict.fromkeys(names, str))(any2ds), command=arguments, name="any2ds")
    return parsed


def _joined(given: Sequence[str]) -> list[str]:
    """Every option as `--name=value`. Raises OptionError for anything else."""
    from any2ds.config import check_names, declared
    from any2ds.errors import OptionError

    flags = {info.name for info in declared() if info.is_flag}
    found: list[str] = []
    arguments = list(given)
    while arguments:
        argument = arguments.pop(0)
        if not argument.startswith("--") or argument == "--":
            raise OptionError(f"unexpected {argument!r}: options are given as --name=value (quote a glob)")
        name, equals, value = argument[2:].partition("=")
        name = name.replace("-", "_")
        if not equals and name.startswith("no") and name[2:] in flags:
            name, equals, value = name[2:], "=", "False"
        if name != "config":
            check_names([name])
        next_is_value = bool(arguments) and not arguments[0].startswith("--")
        if not equals and next_is_value:
            value = arguments.pop(0)
        elif not equals and name in flags:
            value = "True"
        elif not equals:
            raise OptionError(f"--{name} needs a value: --{name}=...")
        found.append(f"--{name}={value}")
    return found


def _check(options: dict[str, Any]) -> None:
    """Raises OptionError for values that cannot be, before anything heavy is loaded."""
    from any2ds.config import Config

    Config.from_options(options)


def help_text() -> str:
    from any2ds.config import declared

    lines = [
        "any2ds: from a list of URLs to a dataset",
        "",
        "usage: any2ds --url_list=urls.txt [--option=value ...]",
    ]
    group = ""
    for info in declared():
        if info.group != group:
            group = info.group
            lines += ["", f"{group}:"]
        lines.append(f"  --{info.name:<25} {info.help} [{info.shown}]")
    lines += [
        "",
        "Also:",
        "  --config=FILE               YAML or JSON file with any of these; the command line wins",
        "  --version, --help",
        "",
        _EXAMPLES,
    ]
    return "\n".join(lines)


def _say(words: str, stream: TextIO) -> int:
    """Print, if anybody listens, without credentials. 0, so that saying something can be the last thing done."""
    from any2ds.errors import redacted

    with contextlib.suppress(AttributeError, OSError, ValueError):
        print(redacted(words.rstrip("\n")), file=stream)
    return 0


def _log_to_terminal() -> None:
    from rich.logging import RichHandler

    from any2ds.errors import redacted
    from any2ds.reporters._stderr import StderrConsole

    class WithoutCredentials(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return redacted(super().format(record))

    logging.raiseExceptions = False  # a terminal that is gone is no reason to complain to it
    handler = RichHandler(console=StderrConsole(), show_path=False)
    handler.setFormatter(WithoutCredentials("%(message)s"))
    logging.getLogger("any2ds").addHandler(handler)


class _Terminated(BaseException):
    """SIGTERM, on its way through the same clean-up as Ctrl-C."""


def _terminate(number: int, frame: Any) -> NoReturn:
    raise _Terminated
