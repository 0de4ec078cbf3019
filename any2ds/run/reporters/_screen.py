"""The facts of a run as lines for people: a few while it goes on, one for a log, and the screen at its end."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator

from rich.text import Text

from any2ds.core.errors import printable, shard_count
from any2ds.core.failures import NO_FAILURES, SUCCESS
from any2ds.core.members import member_figures
from any2ds.core.terminal.stderr import wrapped
from any2ds.core.text import duration, number, percent, size, time_left
from any2ds.core.text import rows as row_count
from any2ds.run.reporters._facts import Facts, shortened

_MOST_FAILURES, _MOST_HOSTS = 5, 3  # that the live lines name
_HOST_LENGTH, _WHY_LENGTH = 40, 60  # characters of a host's name, and of what it said
_BAR, _SHORTEST_BAR = 40, 8  # columns
_MOST_OUTCOMES = 12  # failures with a line of their own at the end
_MOST_TYPES = 8  # that are named
_LONGEST_PATTERN = 200


def live(facts: Facts, columns: int) -> list[Text]:
    """The status of a run in lines of at most so many columns, without what is unknown."""
    groups = (
        ("", [*_rates(facts), *_transfers(facts)]),
        ("", [*_state(facts), duration(facts["seconds"])]),
        ("yellow", _failures(facts)),
        ("", _hosts(facts)),
        ("cyan", _limit(facts)),
    )
    lines = [(style, line) for style, pieces in groups for line in _joined(pieces, columns - 1)]
    return [*_progress(facts, columns), *(Text(f" {line}", style=style) for style, line in lines)]


def plain(facts: Facts) -> str:
    """The facts in one line."""
    done = [] if facts["share"] is None else [f" ({percent(facts['share'], 1)})"]
    head = f"{duration(facts['seconds'])}: {_rows(facts)}{''.join(done)}"
    figures = [head, *_time_left(facts), *_rates(facts), *_transfers(facts), *_state(facts)]
    groups = (figures, _failures(facts), _hosts(facts), _limit(facts))
    return "; ".join(", ".join(pieces) for pieces in groups if pieces)


def _rows(facts: Facts) -> str:
    of = f" of {facts['total_rows']:,}" if facts["total_rows"] is not None else ""
    return f"{facts['rows']:,}{of} rows"


def _progress(facts: Facts, columns: int) -> list[Text]:
    """`12,345 of 100,000 rows ━━━━━────── 12.3% · 4 min left`; without a share, only the rows."""
    text = Text(f" {_rows(facts)}", style="bold")
    if facts["share"] is None:
        return [text]
    after, below = f" {percent(facts['share'], 1)}{'' if facts['total_rows'] is not None else ' of the list'}", []
    for left in _time_left(facts):
        if text.cell_len + len(after) + len(left) + 3 < columns:
            after += f" · {left}"
        else:
            below = [Text(f" {left}")]
    width = min(_BAR, columns - text.cell_len - len(after) - 2)
    if width >= _SHORTEST_BAR:
        full = int(width * facts["share"])
        text.append(" ").append("━" * full, "green").append("─" * (width - full), "not bold dim")
    return [text.append(after), *below]


def _time_left(facts: Facts) -> list[str]:
    return [time_left(facts["eta"])] if facts["eta"] is not None and facts["share"] != 1 else []


def _rates(facts: Facts) -> list[str]:
    attempts = [f"{number(facts['attempts_per_second'])} attempts/s"] if facts["attempts"] else []
    return [
        f"{number(facts['successes_per_second'])} stored/s",
        *attempts,
        f"{size(facts['bytes_per_second'])}/s",
    ]


def _transfers(facts: Facts) -> list[str]:
    in_flight, window, queued = facts["in_flight"], facts["window"], facts["queued"]
    of = f"{in_flight:,} of {window:,} in flight"
    if in_flight > window:  # those wait for silent hosts, or were begun before the limit fell
        of = f"{in_flight:,} in flight ({window:,} and {in_flight - window:,} slow ones)"
    p50, p95 = facts["latency_p50"], facts["latency_p95"]
    pieces = (
        of if window else "",
        f"{row_count(queued)} {'waits' if queued == 1 else 'wait'}" if queued else "",
        f"{duration(p50)} a file" if p50 is not None else "",
        f"95% within {duration(p95)}" if p95 is not None else "",
    )
    return [piece for piece in pieces if piece]


def _state(facts: Facts) -> list[str]:
    ratio = facts["success_ratio"]
    shards = [f"{facts[f'shards_{name}']:,} {name}" for name in ("open", "done", "failed", "before")]
    shown = [each for each in shards if not each.startswith("0 ") or each.endswith("done")]
    pieces = (
        f"{facts['stored']:,} stored" + (f" ({percent(ratio, 1)})" if ratio is not None else ""),
        *_neither(facts),
        f"shards: {', '.join(shown)}",
        f"{size(facts['memory'])} memory" if facts["memory"] else "",
    )
    return [piece for piece in pieces if piece]


def _neither(facts: Facts) -> list[str]:
    """Rows that are neither stored nor failed."""
    return [f"{facts[name]:,} {name}" for name in ("dropped", "filtered", "duplicates") if facts[name]]


def _failures(facts: Facts) -> list[str]:
    failed = [(code, rows) for code, rows in facts["outcomes"].items() if code not in NO_FAILURES]
    failed.sort(key=lambda item: (-item[1], item[0]))
    pieces = [f"{printable(code)} {rows:,}" for code, rows in failed[:_MOST_FAILURES]]
    if rest := sum(rows for _, rows in failed[_MOST_FAILURES:]):
        pieces.append(f"others {rest:,}")
    return [f"failed: {pieces[0]}", *pieces[1:]] if pieces else []


def _hosts(facts: Facts) -> list[str]:
    pieces = []
    for host in facts["hosts"][:_MOST_HOSTS]:
        if host["waiting"]:
            why = f" ({shortened(host['why'], _WHY_LENGTH)})" if host["why"] else ""
            pieces.append(f"{shortened(host['name'], _HOST_LENGTH)} {host['waiting']:,}{why}")
    return [f"rows wait for {pieces[0]}", *pieces[1:]] if pieces else []


def _limit(facts: Facts) -> list[str]:
    return [printable(facts["limit_words"])] if facts["limit_words"] else []


def _joined(pieces: Iterable[str], columns: int) -> list[str]:
    """The pieces in lines, which break between them; a longer one breaks at its words."""
    lines: list[str] = []
    for piece in pieces:
        longer = f"{lines[-1]} · {piece}" if lines else piece
        if Text(longer).cell_len <= columns:
            lines[-1:] = [longer]
        else:
            lines += wrapped(piece, columns).split("\n")
    return lines


def as_place(folder: str) -> str:
    """A folder with a slash at its end: `any2ds writes to files/` reads like a sentence."""
    return f"{folder.rstrip('/')}/"


def ending(facts: Facts, width: int | None, phrase: Callable[[str], str]) -> Iterator[Text]:
    """What became of the rows, then where the dataset is and what to do next.

    Sentences are wrapped at `width`, if there is one; what is to be copied stands on one line. `phrase` has the options
    in a sentence as the user gives them: as flags, or as keywords.
    """

    def sentence(line: str) -> Text:
        return Text(wrapped(phrase(line), width) if width else phrase(line))

    if not (facts["shards_done"] or facts["shards_failed"] or facts["shards_given_up"]):
        yield from map(sentence, _nothing_done(facts))
    if facts["outcomes"]:
        yield from _outcomes(facts, width, phrase)
        yield Text()
        yield from map(sentence, _figures(facts))
    yield from map(sentence, (*_types(facts), *_shards(facts)))
    is_long = len(facts["pattern"] or "") > _LONGEST_PATTERN
    pattern = (
        "the files that .any2ds/shards lists" if is_long else f"{as_place(facts['output_folder'])}{facts['pattern']}"
    )
    has_data = facts["pattern"] is not None and (
        facts["stored"] or facts["shards_before"]
    )  # else nothing can be loaded
    retry = None if facts["shards_given_up"] else facts["retry"]  # the command of this run comes first
    for label, value, style in (
        ("to load", facts["load"] if has_data else None, ""),
        ("to load without any2ds", pattern if has_data else None, ""),
        ("to look at", facts["report"], ""),
        ("to look at what is finished", facts["report_command"], ""),
        (f"to retry what may work now ({row_count(facts['retryable_rows'])})", retry, "bold"),
    ):
        if value:
            between = "\n  " if width and len(label) + len(value) + 2 > width else " "
            yield Text(f"{label}:{between}").append(value, style)


def _nothing_done(facts: Facts) -> Iterator[str]:
    place = as_place(facts["output_folder"])
    if facts["command"] == "retry" and not facts["rows"]:
        codes = ", ".join(facts["codes"] or ())
        which = f"has failed with {codes}"
        if codes == "transient":
            which = "has a failure that another attempt can help; --codes=all tries the others again"
        yield f"nothing to retry: no row in {place} {which}"
    elif facts["shards_before"]:
        are = shard_count(facts["shards_before"], f"in {place} was", f"in {place} were")
        yield f"nothing to do: {'' if facts['shards_before'] == 1 else 'all '}{are} finished before"


def _outcomes(facts: Facts, width: int | None, phrase: Callable[[str], str]) -> Iterator[Text]:
    """A line for each outcome with its code, rows and share; below it, what it means and what to do, and an example."""
    failures = [outcome for outcome in facts["outcomes"] if outcome["code"] not in NO_FAILURES]
    rest = failures[_MOST_OUTCOMES:] if len(failures) > _MOST_OUTCOMES + 1 else []
    shown = [outcome for outcome in facts["outcomes"] if outcome not in rest]
    if rest:
        words = "any2ds inspect, or status_dict in the *_stats.json, show them all"
        rows = sum(outcome["rows"] for outcome in rest)
        shown.append({"code": f"{len(rest)} more", "rows": rows, "meaning": words, "advice": None, "example": None})
    cells = [(each["code"], f"{each['rows']:,}", percent(each["rows"], facts["rows"])) for each in shown]
    widths = [max(map(len, column)) for column in zip(("outcome", "rows", "share"), *cells, strict=True)]

    def line(code: str, rows: str, share: str) -> str:
        return f"{code:<{widths[0]}}  {rows:>{widths[1]}}  {share:>{widths[2]}}"

    yield Text(line("outcome", "rows", "share"), style="bold")
    for outcome, cell in zip(shown, cells, strict=True):
        style = "green" if cell[0] == SUCCESS else "" if cell[0] in NO_FAILURES else "yellow"
        text = Text(line(*cell))
        text.stylize(style, 0, len(cell[0]))
        yield text
        if cell[0] != SUCCESS:
            words = phrase(". ".join(filter(None, (outcome["meaning"], outcome["advice"]))))
            yield Text(textwrap.indent(wrapped(words, width - 4) if width else words, "    "))
        if outcome["example"]:
            yield Text(f"    e.g. {outcome['example']}", style="dim")


def _figures(facts: Facts) -> Iterator[str]:
    """How much, and how fast."""
    samples = f" as {facts['samples']:,} samples" if facts["samples"] != facts["stored"] else ""
    stored = f"{facts['stored']:,} stored{samples}"
    yield ", ".join([row_count(facts["rows"]), stored, f"{facts['failed']:,} failed", *_neither(facts)])
    received = f" ({size(facts['received'])} received)" if facts["received"] > facts["bytes"] else ""
    seconds, at_work = facts["seconds"], facts["seconds_at_work"]
    whole = f" ({duration(seconds)} with start-up and end)" if at_work < 0.95 * seconds else ""
    yield f"{size(facts['bytes'])}{received} in {duration(at_work)}{whole}: {', '.join(_rates(facts))}"
    if facts["command"] == "retry":
        are = "is" if facts["stored"] == 1 else "are"
        yield f"tried again: {row_count(facts['rows'])}, of which {facts['stored']:,} {are} stored now"
    if facts["robots_files"]:
        excluded = sum(each["rows"] for each in facts["outcomes"] if each["code"] in ("robots", "robots_unreachable"))
        each = f"{size(facts['robots_bytes'])}, {facts['robots_seconds'] / facts['robots_files']:.2f} s each"
        yield f"{facts['robots_files']:,} robots.txt asked for ({each}), {row_count(excluded)} excluded by them"
    for member in member_figures(facts["members"]):
        if member.failed:
            yield f"{member.name}: {member.text}"
    for reason, count in facts["not_processed"].items():
        yield f"not processed: {count:,} {'file' if count == 1 else 'files'} ({printable(reason)})"
    options_of: dict[str, list[str]] = {}
    for option, kinds in facts["unused_options"].items():
        options_of.setdefault(kinds, []).append(option)
    for kinds, options in options_of.items():
        yield f"{', '.join(options)} changed nothing: no {kinds} was among the files"
    if count := facts["files_of_other_kinds"]:
        are = (
            "1 file is no image, stored as it is"
            if count == 1
            else f"{count:,} files are no images, stored as they are"
        )
        yield f"{are}: --only_images refuses such files"


def _types(facts: Facts) -> Iterator[str]:
    """What the stored files are: pages of HTML are no failures, and no images."""
    shown = [f"{files:,} {name}" for name, files in facts["types"].items()]
    more = [f"{len(shown) - _MOST_TYPES:,} more types"] if len(shown) > _MOST_TYPES else []
    where = "types in the whole dataset" if facts["types_of_all"] else "types"
    yield f"{where}: {', '.join([*shown[:_MOST_TYPES], *more]) or 'none, no file is stored'}"


def _shards(facts: Facts) -> Iterator[str]:
    """What became of the shards, and what is left to do."""
    done, failed, given_up = facts["shards_done"], facts["shards_failed"], facts["shards_given_up"]
    if done or failed or given_up:
        yield ", ".join(
            [
                f"{shard_count(done)} written to {as_place(facts['output_folder'])}",
                *([f"{facts['shards_before']:,} finished before"] if facts["shards_before"] else []),
                *([f"{failed:,} FAILED"] if failed else []),
                *([f"{given_up:,} open given up: their rows are fetched again"] if given_up else []),
            ]
        )
    if facts["first_rows"] is not None:
        first = f"these are the first {facts['first_rows']:,} rows of the list"
        yield f"{first}: the same command without --limit makes the rest"
    if facts["shards_of_others"]:
        are = shard_count(facts["shards_of_others"], "is", "are")
        yield f"{are} left to others; the last of them writes the files about the whole dataset (or any2ds finish)"
    elif facts["shards_of_others"] == 0:
        yield "all shards of the list are there: the dataset is complete"
