"""The command: measures cases, prints their tables, and writes their results.

    python -m benchmarks                          # what there is
    python -m benchmarks messy peers              # two cases; the results go to benchmarks/results/
    python -m benchmarks planning --rows=1e7 --rounds=1
    python -m benchmarks --quick [--part=0/9]     # whether they run: short lists, one round, no result is kept
    python -m benchmarks --pages                  # the results into the tables on the pages

Exit code 0 unless a side broke; a goal that is missed is not a failure.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.case import Case, read_cases
from benchmarks.runner import run_case
from benchmarks.tables import RESULTS, page_of, write_pages


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help="all of them with --quick")
    parser.add_argument("--quick", action="store_true", help="short lists and one round: a trial, not a measurement")
    parser.add_argument("--part", default="0/1", metavar="N/OF", help="every OF-th case, from the N-th on")
    parser.add_argument("--results", type=Path, help="folder for the results; benchmarks/results without --quick")
    parser.add_argument("--pages", action="store_true", help="put the results into the tables on the pages")
    parser.add_argument("--list", action="store_true", help="only say what would run")
    parser.add_argument("--described", type=Path, help="another file than benchmarks/cases.yaml")
    given, further = parser.parse_known_args(arguments)
    cases = read_cases(given.described) if given.described else read_cases()
    if unknown := sorted(set(given.cases) - set(cases)):
        parser.error(f"no such case: {', '.join(unknown)}; there are {', '.join(cases)}")
    number, _, parts = given.part.partition("/")
    names = (given.cases or (list(cases) if given.quick else []))[int(number) :: int(parts)]
    values = parse_values(parser, further, [cases[name] for name in names])
    if given.list or not (names or given.pages):
        print("\n".join(listed(cases[name]) for name in names or cases))
        return 0
    is_broken = False
    results = given.results or (None if given.quick else RESULTS)
    for name in names:
        case = cases[name]
        result = run_case(case, options_of(case, values, given.quick), given.quick, say)
        print(f"\n# {name}\n\n{page_of(case, result)}", flush=True)
        is_broken |= any("broken" in side for side in result["sides"])
        if results is not None:
            results.mkdir(parents=True, exist_ok=True)
            (results / f"{name}.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8")
    if given.pages:
        say(f"renewed: {', '.join(write_pages(cases, results or RESULTS)) or 'nothing'}")
    return 1 if is_broken else 0


def parse_values(parser: argparse.ArgumentParser, flags: Sequence[str], cases: Sequence[Case]) -> dict[str, str]:
    """The options of cases that are given as `--NAME=VALUE`."""
    known = {"rounds", *(name for case in cases for name in case.options)}
    values = {}
    for flag in flags:
        name, is_set, value = flag.removeprefix("--").partition("=")
        if not is_set or name not in known:
            parser.error(
                f"no such option: {flag}; these cases take {', '.join(f'--{name}=' for name in sorted(known))}"
            )
        values[name] = value
    return values


def options_of(case: Case, values: Mapping[str, str], quick: bool) -> dict[str, Any]:
    """Each option of a case, in the type of its default."""
    options: dict[str, Any] = {"rounds": 1 if quick else case.rounds}
    options |= {name: pair[quick] for name, pair in case.options.items()}
    for name in options.keys() & values.keys():
        kind = type(options[name])
        options[name] = int(float(values[name])) if kind is int else kind(values[name])
    return options


def listed(case: Case) -> str:
    options = "".join(f" --{name}={pair[0]}" for name, pair in case.options.items())
    return f"{case.name:<16} {case.about.partition('. ')[0]}{f'   {options}' if options else ''}"


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
