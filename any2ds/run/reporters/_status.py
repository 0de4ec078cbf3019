"""The status of a run, as a few lines for a terminal or a single one for a log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.text import Text

from any2ds.core.errors import printable, redacted
from any2ds.core.failures import DROPPED, DUPLICATE, FILTERED, NO_FAILURES, SUCCESS
from any2ds.core.metrics import HostLoad, Snapshot
from any2ds.core.terminal.stderr import wrapped
from any2ds.core.text import duration, number, percent, size, time_left
from any2ds.run.reporters._figures import rows_tried

_MOST_FAILURES = 5  # named
_MOST_HOSTS = 3  # named
_HOST_LENGTH = 40  # characters of a host's name
_WHY_LENGTH = 60
_BAR = 40  # columns at most


@dataclass(frozen=True, slots=True)
class Glyphs:
    """What the terminal can show."""

    done: str = "━"
    todo: str = "─"
    between: str = " · "
    ellipsis: str = "…"


UNICODE = Glyphs()
ASCII = Glyphs("#", "-", " | ", "...")


def live(now: Snapshot, columns: int, glyphs: Glyphs = UNICODE, subject: str = "the list") -> list[Text]:
    """Lines of at most so many columns, without what is unknown.

    `subject` names what the share is of while its number of rows is unknown.
    """
    lines = _progress(now, columns, glyphs, subject)
    for pieces, style in (
        (_speed(now), ""),
        (_state(now), ""),
        (_failures(now), "yellow"),
        (_hosts(now, glyphs), ""),
        ([_limit(now)], "cyan"),
    ):
        lines += [Text(f" {line}", style=style) for line in _wrapped(pieces, columns - 1, glyphs)]
    return lines


def plain(now: Snapshot) -> str:
    """One line, with everything that is known."""
    parts = [
        f"{duration(now.seconds)}: {_rows(now)}" + (f" ({percent(now.share, 1)})" if now.share is not None else ""),
        *filter(None, [_left(now)]),
        *_speed(now),
        *_state(now)[:-1],  # which says how long it has been
    ]
    line = ", ".join(parts)
    for pieces in (_failures(now), _hosts(now, ASCII)):
        line += f"; {', '.join(pieces)}" if pieces else ""
    return line + (f"; {limit}" if (limit := _limit(now)) else "")


def _limit(now: Snapshot) -> str:
    """What limits the run."""
    return "" if now.verdict is None else printable(now.verdict.message)


def _rows(now: Snapshot) -> str:
    rows = sum(now.outcomes.values())
    of = f" of {now.total_rows:,}" if now.total_rows is not None else ""
    return f"{rows:,}{of} rows"


def _progress(now: Snapshot, columns: int, glyphs: Glyphs, subject: str) -> list[Text]:
    """`12,345 of 100,000 rows ━━━━━────── 12.3%, 4 min left`; without a share, only the rows."""
    text = Text(f" {_rows(now)}", style="bold")
    if now.share is None:
        return [text]
    after = f" {percent(now.share, 1)}{'' if now.total_rows is not None else f' of {subject}'}"
    remaining = _left(now)
    if remaining and text.cell_len + len(f"{after}{glyphs.between}{remaining}") < columns:
        after, remaining = f"{after}{glyphs.between}{remaining}", ""
    width = min(_BAR, columns - text.cell_len - len(after) - 2)
    if width >= 8:
        full = int(width * now.share)
        text.append(" ").append(glyphs.done * full, "green").append(glyphs.todo * (width - full), "not bold dim")
    return [text.append(after), *([Text(f" {remaining}")] if remaining else [])]


def _left(now: Snapshot) -> str:
    return time_left(now.eta) if now.eta is not None and now.share != 1 else ""


def _speed(now: Snapshot) -> list[str]:
    pieces = [
        f"{number(now.successes_per_second)} stored/s",
        f"{number(now.attempts_per_second)} attempts/s" if now.attempts else "",
        f"{size(now.bytes_per_second)}/s",
        _in_flight(now),
        "1 row waits" if now.queued == 1 else f"{now.queued:,} rows wait" if now.queued else "",
        f"{duration(now.latency_p50)} a file" if now.latency_p50 is not None else "",
        f"95% within {duration(now.latency_p95)}" if now.latency_p95 is not None else "",
    ]
    return [piece for piece in pieces if piece]


def _in_flight(now: Snapshot) -> str:
    """Beyond the limit are those that wait for silent hosts, or were begun before it fell."""
    if not now.window:
        return ""
    if now.in_flight > now.window:
        return f"{now.in_flight:,} in flight ({now.window:,} and {now.in_flight - now.window:,} slow ones)"
    return f"{now.in_flight:,} of {now.window:,} in flight"


def _state(now: Snapshot) -> list[str]:
    outcomes = now.outcomes
    stored = outcomes.get(SUCCESS, 0)
    open_ones = [f"{now.shards_open:,} open"] if now.shards_open else []
    failed = [f"{now.shards_failed:,} failed"] if now.shards_failed else []
    before = [f"{now.shards_before:,} before"] if now.shards_before else []
    pieces = [
        f"{stored:,} stored" + (f" ({percent(stored, rows_tried(now))})" if rows_tried(now) else ""),
        *(f"{outcomes[code]:,} {name}" for code, name in _NOT_FAILED.items() if outcomes.get(code)),
        "shards: " + ", ".join([*open_ones, f"{now.shards_done:,} done", *failed, *before]),
        f"{size(now.memory)} memory" if now.memory else "",
        duration(now.seconds),
    ]
    return [piece for piece in pieces if piece]


_NOT_FAILED = {DROPPED: "dropped", FILTERED: "filtered", DUPLICATE: "duplicates"}


def _failures(now: Snapshot) -> list[str]:
    found = sorted(
        ((code, rows) for code, rows in now.outcomes.items() if code not in NO_FAILURES),
        key=lambda item: (-item[1], item[0]),
    )
    pieces = [f"{printable(code)} {rows:,}" for code, rows in found[:_MOST_FAILURES]]
    if len(found) > _MOST_FAILURES:
        pieces.append(f"others {sum(rows for _, rows in found[_MOST_FAILURES:]):,}")
    return [f"failed: {pieces[0]}", *pieces[1:]] if pieces else []


def _hosts(now: Snapshot, glyphs: Glyphs) -> list[str]:
    pieces = [_host(host, glyphs) for host in now.hosts[:_MOST_HOSTS] if host.waiting]
    return [f"rows wait for {pieces[0]}", *pieces[1:]] if pieces else []


def _host(host: HostLoad, glyphs: Glyphs) -> str:
    why = f" ({shortened(host.why, _WHY_LENGTH, glyphs.ellipsis)})" if host.why else ""
    return f"{shortened(host.name, _HOST_LENGTH, glyphs.ellipsis)} {host.waiting:,}{why}"


def _wrapped(pieces: Iterable[str], columns: int, glyphs: Glyphs) -> list[str]:
    """The pieces in lines, which break between them; a longer one breaks at its words."""
    lines: list[str] = []
    for piece in filter(None, pieces):
        longer = f"{lines[-1]}{glyphs.between}{piece}" if lines else piece
        if Text(longer).cell_len <= columns:
            lines[-1:] = [longer]
        else:
            lines += wrapped(piece, columns).split("\n")
    return lines


def shortened(text: str, length: int, ellipsis: str = "...") -> str:
    """`text` on one line, without credentials and control characters, its middle left out."""
    text = printable(redacted(text))
    if len(text) <= length:
        return text
    kept = max(2, length - len(ellipsis))
    return f"{text[: kept - kept // 2]}{ellipsis}{text[-(kept // 2) :]}"
