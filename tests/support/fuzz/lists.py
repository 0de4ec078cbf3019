"""Damaged url lists: cut, mixed, re-encoded, spliced. Each ends in rows that add up, or in words.

    python -m tests.support.fuzz.lists --cases=200000 --seed=1
    python -m tests.support.fuzz.lists --seed=1 --only=1234

Nothing but errors of any2ds may be raised, no list may take longer than a minute, and no row may vanish: where lines
are rows, each line that is still whole is a row, or named as a bad one.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import faulthandler
import gzip
import io
import json
import multiprocessing
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from any2ds.config.options import InputOptions
from any2ds.core.errors import Any2dsError
from any2ds.core.rows import BAD_ROW_COLUMN
from any2ds.readers.sources import Source

_SECONDS = 60  # for one list
_CONTEXT = multiprocessing.get_context("spawn")  # faulthandler is of no use after a fork
_WORDS = ("a cat", 'a "small" dog', "naïve café", "東京", "x, y; z", "", "it's 5' 10\"", "tab\tin it", "&amp;", "null")


@dataclass(frozen=True)
class List:
    """A list before and after it was damaged."""

    name: str
    data: bytes
    urls: Sequence[str]  # of its rows
    options: dict[str, Any] = field(default_factory=dict)
    lines: Sequence[bytes] = ()  # of its rows, where each is a line
    damage: tuple[str, ...] = ()


def written(random: Random) -> List:
    """A list of one of the forms."""
    count = random.choice((3, 20, 200))
    urls = [f"http://host/{number}.jpg" for number in range(count)]
    rows = [{"url": url, "caption": random.choice(_WORDS), "n": number} for number, url in enumerate(urls)]
    name, write, options = random.choice(FORMS)
    data = write(rows)
    is_by_line = name.startswith(("l.txt", "l.csv", "l.tsv", "l.jsonl")) and not name.endswith(".gz")
    lines = [line for line in data.split(b"\n") if any(url.encode() in line for url in urls[:1]) or b"http:" in line]
    return List(name, data, urls, {"url_col": "url", **options}, lines if is_by_line else ())


def _separated(separator: str, **options: Any) -> Callable[[list[dict[str, Any]]], bytes]:
    def write(rows: list[dict[str, Any]]) -> bytes:
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), delimiter=separator, lineterminator="\n", **options)
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue().encode()

    return write


def _unquoted(rows: list[dict[str, Any]]) -> bytes:
    lines = (f"{row['url']}\t{row['caption'].replace(chr(9), ' ')}\t{row['n']}\n" for row in rows)
    return ("url\tcaption\tn\n" + "".join(lines)).encode()


def _parquet(rows: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink, row_group_size=16)
    return sink.getvalue()


def _jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def _nested(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"id": row["n"], "images": [{"url": row["url"], "alt": row["caption"]}]} for row in rows]


_COLUMNS = {"caption_col": "caption", "save_additional_columns": ("n",)}
_ELEMENTS = {"url_col": "images[].url", "save_additional_columns": ("id",)}
FORMS: Sequence[tuple[str, Callable[[list[dict[str, Any]]], bytes], dict[str, Any]]] = (
    ("l.txt", lambda rows: "".join(row["url"] + "\n" for row in rows).encode(), {}),
    ("l.csv", _separated(","), _COLUMNS),
    ("l.csv", _separated(";"), {**_COLUMNS, "separator": ";"}),
    ("l.tsv", _separated("\t"), _COLUMNS),
    ("l.tsv", _unquoted, _COLUMNS),
    ("l.jsonl", _jsonl, _COLUMNS),
    ("l.jsonl", lambda rows: _jsonl(_nested(rows)), _ELEMENTS),
    ("l.json", lambda rows: json.dumps(rows).encode(), _COLUMNS),
    ("l.json", lambda rows: json.dumps({key: [row[key] for row in rows] for key in rows[0]}).encode(), _COLUMNS),
    ("l.json", lambda rows: json.dumps({"a": {"b": 1}, "rows": rows}).encode(), {**_COLUMNS, "rows": "rows"}),
    ("l.json", lambda rows: json.dumps(_nested(rows)).encode(), _ELEMENTS),
    ("l.parquet", _parquet, _COLUMNS),
    ("l.parquet", lambda rows: _parquet(_nested(rows)), _ELEMENTS),
    ("l.csv.gz", lambda rows: gzip.compress(_separated(",")(rows)), _COLUMNS),
    ("l.txt.gz", lambda rows: gzip.compress("".join(row["url"] + "\n" for row in rows).encode()), {}),
)


# --- damage ---


def cut(data: bytes, other: bytes, random: Random) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def cut_out(data: bytes, other: bytes, random: Random) -> bytes:
    start, end = _span(data, random)
    return data[:start] + data[end:]


def flip(data: bytes, other: bytes, random: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(random.choice((1, 4, 64)) if data else 0):
        changed[random.randrange(len(changed))] = random.choice((random.randrange(256), *b'"\n\r\0,\t{}[]\\'))
    return bytes(changed)


def splice(data: bytes, other: bytes, random: Random) -> bytes:
    at, (start, end) = random.randrange(len(data) + 1), _span(other, random)
    return data[:at] + other[start:end] + data[at:]


def append(data: bytes, other: bytes, random: Random) -> bytes:
    return data + random.choice((b"", b"\n", b"\xef\xbb\xbf", b"\0\0")) + other


def double(data: bytes, other: bytes, random: Random) -> bytes:
    start, end = _span(data, random)
    return data[:end] + data[start:]


def swap(data: bytes, other: bytes, random: Random) -> bytes:
    start, end = _span(data, random)
    return data[end:] + data[start:end] + data[:start]


def encode(data: bytes, other: bytes, random: Random) -> bytes:
    """Another encoding, of all of it or from a place on."""
    at = random.choice((0, random.randrange(len(data) + 1)))
    code = random.choice(("latin-1", "cp1252", "utf-16", "utf-16-le", "utf-8-sig", "shift_jis", "utf-32"))
    return data[:at] + data[at:].decode("utf-8", "replace").encode(code, "replace")


def lines_end_otherwise(data: bytes, other: bytes, random: Random) -> bytes:
    return data.replace(b"\n", random.choice((b"\r", b"\r\n", b"\n\n", b"\n\r", b" \n", b"\x0b", b"\xe2\x80\xa8")))


def insert(data: bytes, other: bytes, random: Random) -> bytes:
    at = random.randrange(len(data) + 1)
    odd = (
        b"\0" * 9,
        b"\xef\xbb\xbf",
        b'"',
        b"''",
        b"\xff\xfe",
        b"\x1b[2J",
        b"NaN",
        b"# no row\n",
        b"\n\n\n",
        b"9" * 5000,
    )
    return data[:at] + random.choice(odd) + data[at:]


def nest(data: bytes, other: bytes, random: Random) -> bytes:
    at = random.randrange(len(data) + 1)
    return data[:at] + random.choice((b"[", b'{"a":', b"[{")) * random.choice((3, 100, 20_000)) + data[at:]


WAYS = (cut, cut_out, flip, splice, append, double, swap, encode, lines_end_otherwise, insert, nest)


def _span(data: bytes, random: Random) -> tuple[int, int]:
    start, end = sorted(random.randrange(len(data) + 1) for _ in range(2))
    return start, end


def case(seed: int, number: int) -> tuple[List, List]:
    """A list, and the same list damaged."""
    random = Random(f"{seed} {number}")
    before, other = written(random), written(random)
    ways = random.choices(WAYS, k=random.choice((1, 1, 1, 2, 3)))
    data = before.data
    for way in ways:
        data = way(data, other.data, random)
    after = List(before.name, data, before.urls, before.options, before.lines, tuple(way.__name__ for way in ways))
    return before, after


# --- what becomes of it ---


def outcome(seed: int, number: int) -> str:
    """`rows`, `refused` or `broken off`; anything else is a fault."""
    before, after = case(seed, number)
    urls: list[str | None] = []
    bad: list[str | None] = []  # why rows are bad
    ending = "rows"
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, after.name)
            path.write_bytes(after.data)
            try:
                source = Source(InputOptions(url_list=str(path), **after.options))
            except Any2dsError as error:
                return "refused" if str(error).strip() else "fault: no words"
            with source, contextlib.closing(source.batches()) as batches:
                try:
                    for batch in batches:
                        urls += batch["url"].to_pylist()
                        bad += batch[BAD_ROW_COLUMN].to_pylist()
                except Any2dsError as error:
                    ending = "broken off" if str(error).strip() else "fault: no words"
    except BaseException as error:
        return f"fault: {type(error).__name__}: {error}"
    if missing := _missing(before, after, urls, " ".join(filter(None, bad)), ending):
        return f"fault: {len(missing)} rows are missing, such as {missing[0]}"
    return ending


def _missing(before: List, after: List, urls: Sequence[str | None], bad: str, ending: str) -> list[str]:
    """URLs of lines that are whole, and are neither rows nor named in the reasons of the bad ones."""
    if not before.lines or "encode" in after.damage or ending != "rows":
        return []
    is_jsonl_or_txt = before.name in ("l.txt", "l.jsonl")
    whole = Counter(after.data.split(b"\n"))
    if not is_jsonl_or_txt and (b"\r" in after.data.replace(b"\r\n", b"") or not after.data.startswith(_head(before))):
        return []
    given = set(urls)
    return [
        url
        for url, line in zip(before.urls, before.lines, strict=False)
        if whole[line] and url.encode() in line and url not in given and url not in bad
    ]


def _head(before: List) -> bytes:
    return before.data.partition(b"\n")[0] + b"\n"


def outcomes(seed: int, numbers: range, parallel: int) -> Iterator[tuple[int, str]]:
    """Number of each case, and its outcome, which is a fault where the case takes its process with it."""
    parts = filter(None, (numbers[first::parallel] for first in range(parallel)))
    players = [_Player(seed, part) for part in parts]
    while players:
        for player in [player for player in players if player.receiver in wait([each.receiver for each in players])]:
            yield player.next()
            if not player.numbers:
                players.remove(player)


class _Player:
    """A process that plays cases, and the numbers of those whose outcome it has not sent yet."""

    def __init__(self, seed: int, numbers: range) -> None:
        self.seed, self.numbers = seed, numbers
        self._start()

    def _start(self) -> None:
        self.receiver, sender = _CONTEXT.Pipe(duplex=False)
        _CONTEXT.Process(target=_play, args=(self.seed, self.numbers, sender), daemon=True).start()
        sender.close()

    def next(self) -> tuple[int, str]:
        """The next case and its outcome; a process that is gone is started again, behind the case that ended it."""
        number, self.numbers = self.numbers[0], self.numbers[1:]
        try:
            return number, self.receiver.recv()
        except EOFError:
            self._start()
            return number, "fault: its process ended"


def _play(seed: int, numbers: range, sender: Connection) -> None:
    faulthandler.enable()
    for number in numbers:
        # Also ends code that never comes back from C.
        faulthandler.dump_traceback_later(_SECONDS, exit=True)
        sender.send(outcome(seed, number))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.fuzz.lists", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--only", type=int, help="number of a single one, whose list is written to standard output")
    parser.add_argument("--parallel", type=int, default=2)
    given = parser.parse_args()
    if given.only is not None:
        _, after = case(given.seed, given.only)
        sys.stdout.buffer.write(after.data)
        sys.stderr.write(f"{after.name} {after.options} {after.damage}: {outcome(given.seed, given.only)}\n")
        return 0
    counts = Counter[str]()
    for number, text in outcomes(given.seed, range(given.start, given.start + given.cases), given.parallel):
        counts[text.partition(":")[0]] += 1
        if text.startswith("fault"):
            sys.stdout.write(f"{number}: {text}\n")
            sys.stdout.flush()
    sys.stdout.write(", ".join(f"{count} {text}" for text, count in counts.most_common()) + "\n")
    return int(bool(counts["fault"]))


if __name__ == "__main__":
    sys.exit(main())
