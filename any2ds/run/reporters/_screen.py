"""The facts of a run as lines for people: a few while it goes on, one for a log, and the screen at its end."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence

from rich.text import Text

from any2ds.core.errors import printable, redacted, shard_count
from any2ds.core.failures import NO_FAILURES, SUCCESS
from any2ds.core.members import member_figures
from any2ds.core.terminal.stderr import wrapped
from any2ds.core.text import duration, number, percent, size, time_left
from any2ds.core.text import rows as row_count
from any2ds.run.reporters._contract import Facts
from any2ds.run.reporters._facts import shortened

_LONGEST_NAMES = 200  # characters of the columns that are named
_MOST_FAILURES = 5  # that the live lines name
_BAR, _SHORTEST_BAR = 40, 8  # columns
_MOST_EXPLAINED = 12  # outcomes at the end, the most frequent
_MOST_TYPES = 8  # that are named
_LONGEST_PATTERN = 200


def beginning(facts: Facts) -> Iterator[str]:
    """Lines for a run that begins."""
    folder, before = as_place(facts["output_folder"]), facts["shards_before"]
    if facts["command"] == "retry":
        yield f"any2ds retries failed rows ({', '.join(facts['options'].get('codes') or ())}) of {folder}"
        return
    who = f"any2ds, {facts['member'].replace('-', ' ')}," if facts["member"] else "any2ds"
    already = f", where {shard_count(before, 'is', 'are')} finished already" if before else ""
    yield f"{who} writes to {folder}{already}"
    if facts["columns_left_out"] and not before:  # these shards have what they have
        names = shortened(", ".join(facts["columns_left_out"]), _LONGEST_NAMES)
        is_kept = facts["options"].get("caption_col")
        options = f"{'' if is_kept else '--caption_col and '}--save_additional_columns keep{'s' if is_kept else ''}"
        yield f"not kept from the list: {names} ({options} columns)"


def failed(facts: Facts) -> str:
    """Why a shard could not be made."""
    again = " (it is tried again at the end)" if facts["again"] else ""
    return f"shard {facts['shard_id']} failed: {printable(redacted(facts['reason']))}{again}"


def stopping(facts: Facts) -> str:
    """The line for a run that was asked to stop: how its open shards end."""
    return (
        f"stopping: {shard_count(facts['shards_open'], 'is', 'are')} open; one whose last rows are being downloaded "
        f"gets up to {facts['grace']:g} s to finish, any other is given up now; finished shards are kept; press Ctrl-C "
        "again to stop at once"
    )


# --- while a run goes on ---


def live(facts: Facts, columns: int) -> list[Text]:
    """The status of a run in lines of at most so many columns, without what is unknown."""
    rows, share = _done(facts)
    bar = Text(f" {rows}", style="bold")
    width = min(_BAR, columns - bar.cell_len - len(share) - 3)
    if share and width >= _SHORTEST_BAR:
        full = int(width * facts["share"])
        bar.append(" ").append("━" * full, "green").append("─" * (width - full), "not bold dim")
    lines = [(style, line) for style, pieces in _groups(facts, _time(facts)) for line in _joined(pieces, columns - 1)]
    return [bar.append(f" {share}"), *(Text(f" {line}", style=style) for style, line in lines)]


def plain(facts: Facts) -> str:
    """The facts in one line."""
    rows, share = _done(facts)
    first = f"{_time(facts)}: {rows}{f' ({share})' if share else ''}"
    return "; ".join(", ".join(pieces) for _, pieces in _groups(facts, first) if pieces)


def _done(facts: Facts) -> tuple[str, str]:
    """How many rows are done, and their share, empty if it is unknown."""
    if facts["total_rows"] is not None:
        rows, of = f"{facts['rows']:,} of {facts['total_rows']:,} rows", ""
    else:
        rows, of = row_count(facts["rows"]), " of the list"
    return rows, "" if facts["share"] is None else f"{percent(facts['share'], 1)}{of}"


def _time(facts: Facts) -> str:
    left = f", {time_left(facts['eta'])}" if facts["eta"] is not None and facts["share"] != 1 else ""
    return duration(facts["seconds"]) + left


def _groups(facts: Facts, first: str) -> Iterator[tuple[str, list[str]]]:
    """The figures, the first of which is given, then problems: each group with its style, in pieces."""
    ratio = f" ({percent(facts['success_ratio'], 1)})" if facts["success_ratio"] is not None else ""
    shards = {name: facts[f"shards_{name}"] for name in ("open", "done", "failed", "before")}
    figures = [
        first,
        *_rates(facts),
        *_transfers(facts),
        f"{facts['stored']:,} stored{ratio}",
        *_neither(facts),
        f"shards: {', '.join(f'{count:,} {name}' for name, count in shards.items() if count or name == 'done')}",
        f"{size(facts['memory'])} memory" if facts["memory"] else "",
    ]
    yield "", [piece for piece in figures if piece]
    yield "yellow", _failures(facts)
    yield "cyan", [printable(facts["limit_words"])] if facts["limit_words"] else []


def _rates(facts: Facts) -> Iterator[str]:
    yield f"{number(facts['successes_per_second'])} stored/s"
    if facts["attempts"]:
        yield f"{number(facts['attempts_per_second'])} attempts/s"
    yield f"{size(facts['bytes_per_second'])}/s"


def _transfers(facts: Facts) -> Iterator[str]:
    in_flight, window, queued = facts["in_flight"], facts["window"], facts["queued"]
    if window:
        yield f"{min(in_flight, window):,} of {window:,} in flight"
        yield _counted(max(0, in_flight - window), "slow ones")  # they wait for silent hosts, or the limit fell
    if queued:
        yield f"{row_count(queued)} waiting"
    if facts["latency_p50"] is not None:
        yield f"{duration(facts['latency_p50'])} a file"
        yield f"95% within {duration(facts['latency_p95'])}"


def _neither(facts: Facts) -> Iterator[str]:
    """Rows that are neither stored nor failed."""
    return (_counted(facts[name], name) for name in ("dropped", "filtered", "duplicates"))


def _counted(count: int, words: str) -> str:
    """`3 dropped`; nothing if there are none."""
    return f"{count:,} {words}" if count else ""


def _failures(facts: Facts) -> list[str]:
    failed = [(printable(code), rows) for code, rows in facts["outcomes"].items() if code not in NO_FAILURES]
    others = sum(rows for _, rows in failed[_MOST_FAILURES:])
    pieces = [f"{code} {rows:,}" for code, rows in [*failed[:_MOST_FAILURES], ("others", others)] if rows]
    return [f"failed: {pieces[0]}", *pieces[1:]] if pieces else []


def _joined(pieces: Sequence[str], columns: int) -> list[str]:
    """The pieces in lines, which break between them; a longer one breaks at its words."""
    whole = (piece if len(piece) > columns else piece.replace(" ", "\xa0") for piece in pieces)
    return wrapped("\xa0· ".join(whole), columns).split("\n") if pieces else []


# --- at its end ---


def as_place(folder: str) -> str:
    """A folder with a slash at its end: `any2ds writes to files/` reads like a sentence."""
    return f"{folder.rstrip('/')}/"


def ending(facts: Facts, width: int | None) -> Iterator[Text]:
    """Lines for a run that has ended: outcomes of rows, where the dataset is and what to do next.

    Sentences are wrapped at `width`, if there is one; what is to be copied stands on one line.
    """

    def sentence(line: str, indent: int = 0) -> Text:
        text = wrapped(line, width - indent) if width else line
        return Text(textwrap.indent(text, " " * indent))

    yield from map(sentence, _nothing_done(facts))
    if facts["outcomes"]:
        yield from _outcomes(facts, sentence)
        yield Text()
        yield from map(sentence, _figures(facts))
    yield from map(sentence, (*_types(facts), *_shards(facts)))
    for label, value in _next_steps(facts).items():
        if value:
            between = "\n  " if width and len(label) + len(value) + 2 > width else " "
            yield Text(f"{label}:{between}").append(value, "bold")


def _nothing_done(facts: Facts) -> Iterator[str]:
    place = as_place(facts["output_folder"])
    if facts["shards_done"] or facts["shards_failed"] or facts["shards_given_up"]:
        return
    if facts["command"] == "retry":
        codes = ", ".join(facts["codes"] or ())
        which = f"has failed with {codes}"
        if codes == "transient":
            which = "has a failure that another attempt can help; --codes=all tries the others again"
        yield f"nothing to retry: no row in {place} {which}"
    elif facts["shards_before"]:
        are = shard_count(facts["shards_before"], f"in {place} was", f"in {place} were")
        yield f"nothing to do: {'' if facts['shards_before'] == 1 else 'all '}{are} finished before"


def _outcomes(facts: Facts, sentence: Callable[[str, int], Text]) -> Iterator[Text]:
    """A line for each outcome with its code, rows and share; below it what it means, what to do and an example."""
    outcomes = facts["outcomes"]
    longest_code = max(len("outcome"), *(len(outcome["code"]) for outcome in outcomes))
    longest_count = max(len("rows"), *(len(f"{outcome['rows']:,}") for outcome in outcomes))
    yield Text(f"{'outcome':{longest_code}}  {'rows':>{longest_count}}   share", style="bold")
    for place, outcome in enumerate(outcomes):
        code, rows, share = outcome["code"], f"{outcome['rows']:,}", percent(outcome["rows"], facts["rows"])
        style = "green" if code == SUCCESS else "" if code in NO_FAILURES else "yellow"
        yield Text.assemble((f"{code:{longest_code}}", style), f"  {rows:>{longest_count}}  {share:>6}")
        if code != SUCCESS and place < _MOST_EXPLAINED:
            yield sentence(". ".join(filter(None, (outcome["meaning"], outcome["advice"]))), 4)
            if outcome["example"]:
                yield Text(f"    e.g. {outcome['example']}", style="dim")


def _figures(facts: Facts) -> Iterator[str]:
    """How much, and how fast."""
    samples = f" as {facts['samples']:,} samples" if facts["samples"] != facts["stored"] else ""
    stored, failed = f"{facts['stored']:,} stored{samples}", f"{facts['failed']:,} failed"
    yield ", ".join(filter(None, [row_count(facts["rows"]), stored, failed, *_neither(facts)]))
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


def _types(facts: Facts) -> Iterator[str]:
    """The types of the stored files: pages of HTML are no failures, and no images."""
    shown = [f"{files:,} {name}" for name, files in facts["types"].items()]
    more = [f"{len(shown) - _MOST_TYPES:,} more types"] if len(shown) > _MOST_TYPES else []
    if facts["outcomes"]:
        yield f"types: {', '.join([*shown[:_MOST_TYPES], *more]) or 'none, no file is stored'}"


def _shards(facts: Facts) -> Iterator[str]:
    """The number of shards that were made, and of those that are left."""
    done, failed, given_up = facts["shards_done"], facts["shards_failed"], facts["shards_given_up"]
    if done or failed or given_up:
        pieces = (
            f"{shard_count(done)} written to {as_place(facts['output_folder'])}",
            _counted(facts["shards_before"], "finished before"),
            _counted(failed, "FAILED"),
            _counted(given_up, "open given up: their rows are fetched again"),
        )
        yield ", ".join(filter(None, pieces))
    if facts["first_rows"] is not None:
        first = f"these are the first {facts['first_rows']:,} rows of the list"
        yield f"{first}: the same command without --limit makes the rest"
    if facts["shards_of_others"]:
        are = shard_count(facts["shards_of_others"], "is", "are")
        yield f"{are} left to others; the last of them writes the files about the whole dataset"
    elif facts["shards_of_others"] == 0:
        yield "all shards of the list are there: the dataset is complete"


def _next_steps(facts: Facts) -> dict[str, str | None]:
    """Commands to copy, by what they are for."""
    pattern = facts["pattern"] and f"{as_place(facts['output_folder'])}{facts['pattern']}"
    is_long = pattern and len(facts["pattern"]) > _LONGEST_PATTERN
    return {
        "to load": facts["load"],
        "to load without any2ds": "the files that .any2ds/shards lists" if is_long else pattern,
        "to look at": facts["report"],
        f"to retry what may work now ({row_count(facts['retryable_rows'])})": facts["retry"],
    }
