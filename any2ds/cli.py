"""The command line: flags in, exit code out.

0 done, 1 not everything could be done, 2 it cannot be done, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import fire
from fire.decorators import SetParseFns

from any2ds.config import Config, OptionInfo, check_names, declared
from any2ds.errors import Any2dsError, OptionError
from any2ds.version import __version__

_EXAMPLES = """\
examples:
  any2ds --url_list=urls.txt
  any2ds --url_list=urls.parquet --output_format=webdataset --caption_col=caption --output_folder=dataset
  any2ds --url_list='lists/*.csv.gz' --url_col=link --save_additional_columns=id,licence
  any2ds --url_list=s3://bucket/urls.parquet --output_folder=s3://bucket/dataset --processes_count=16
  zcat urls.txt.gz | any2ds --url_list=-
  any2ds --config=run.yaml --timeout=30
"""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    given = list(sys.argv[1:] if arguments is None else arguments)
    code = _run(given)
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: threads that hang in the system's resolver would keep the process for seconds.
    os._exit(code)


def _run(given: list[str]) -> int:
    if not given or {"--help", "-h"} & set(given) or given == ["help"]:
        print(help_text(), end="")
        return 0
    if "--version" in given:
        print(f"any2ds {__version__}")
        return 0
    debug = False
    try:
        options = parse(given)
        config = Config.from_options(options)
        debug = config.run.log_level == "debug"
        _log_to_terminal()
        # Imported late: --help and a mistyped option answer at once.
        from any2ds.api import download

        signal.signal(signal.SIGTERM, _terminate)
        download(**options)
    except Any2dsError as error:
        print(f"any2ds: {error}", file=sys.stderr)
        if debug:
            logging.getLogger("any2ds").exception("where it happened")
        return error.exit_code
    except KeyboardInterrupt:
        print("any2ds: interrupted; finished shards are kept, run the same command again to go on", file=sys.stderr)
        return 130
    except SystemExit as exit:
        print("any2ds: terminated; finished shards are kept, run the same command again to go on", file=sys.stderr)
        return int(exit.code or 0)
    except Exception as error:
        print(f"any2ds: unexpected {type(error).__name__}: {error} (--log_level=debug shows where)", file=sys.stderr)
        if debug:
            logging.getLogger("any2ds").exception("where it happened")
        return 1
    return 0


def parse(given: Sequence[str]) -> dict[str, Any]:
    """The options among the arguments, as text. Raises OptionError for whatever is not an option.

    fire would call the function first and complain about unknown flags afterwards, and would guess types from the
    look of a value (`1,2` a tuple, `None` nothing): here names are checked before, and values stay text for the
    option's own parser.
    """
    _check_flags(given)
    parsed: dict[str, Any] = {}

    def any2ds(**options: str) -> None:
        parsed.update(options)

    fire.Fire(SetParseFns(**dict.fromkeys(_names(), str))(any2ds), command=list(given), name="any2ds")
    return parsed


def _check_flags(given: Sequence[str]) -> None:
    flags = {info.name for info in declared() if info.is_flag}
    expects_value = False
    for argument in given:
        if not argument.startswith("--") or len(argument) == 2:
            if not expects_value:
                raise OptionError(f"unexpected {argument!r}: options are given as --name=value (quote a glob)")
            expects_value = False
            continue
        name, equals, _ = argument[2:].partition("=")
        name = name.replace("-", "_")
        if name.startswith("no") and name[2:] in flags and not equals:
            expects_value = False
            continue
        if name != "config":
            check_names([name])
        expects_value = not equals
    if expects_value and name not in flags:
        raise OptionError(f"--{name} needs a value: --{name}=...")


def _names() -> list[str]:
    return [*(info.name for info in declared()), "config"]


def help_text() -> str:
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
        lines.append(_help_line(info))
    lines += [
        "",
        "Also:",
        "  --config=FILE               YAML or JSON file with any of these; the command line wins",
        "  --version, --help",
        "",
        _EXAMPLES,
    ]
    return "\n".join(lines)


def _help_line(info: OptionInfo) -> str:
    return f"  --{info.name:<25} {info.help} [{info.shown}]"


def _log_to_terminal() -> None:
    from rich.console import Console
    from rich.logging import RichHandler

    logging.getLogger("any2ds").addHandler(RichHandler(console=Console(stderr=True), show_path=False))


def _terminate(number: int, frame: Any) -> NoReturn:
    raise SystemExit(128 + number)
