"""The rules of robots.txt (RFC 9309) for our user agent, and those known so far, by origin. No I/O and no clock.

An origin is `scheme://host[:port]`. Its robots.txt is asked for once, before the first of its rows, which wait here.
"""

from __future__ import annotations

import codecs
import contextlib
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import lru_cache

from any2ds.core.failures import Failure
from any2ds.core.reports import RobotsCost
from any2ds.core.rows import Row
from any2ds.core.samples import Payload
from any2ds.fetch.policy.addresses import address_kind
from any2ds.fetch.policy.rules import address_of

LONGEST = 512 * 1024  # bytes that are read; the RFC asks for 500 KiB at least
REDIRECTS = 5  # followed at least, as the RFC asks
RETRIES = 1  # at least: all rows of a host depend on it
MOST_DELAY = 60.0  # seconds between two requests, whatever the file wants
_KEPT_FOR = 24 * 3600.0  # seconds, as the RFC asks
_UNREACHABLE_FOR = 600.0  # seconds until a robots.txt that could not be fetched is requested once more
_MOST_ORIGINS = 50_000  # remembered; about 300 bytes each, if there are no rules
_MOST_BYTES = 64 << 20  # of all rules that are remembered
_MOST_RULES = 20_000  # that count, the first ones of a file: what it takes to parse them stops all transfers
_MOST_WILDCARDS = 1000  # of these with wildcards: each is compared with each URL
_MOST_PARTS = 4000  # between the wildcards of these rules, together
_MOST_COMPARED = 1 << 20  # characters of a path, times rules; of a path of more than 1,000, fewer rules count
_RULE_BYTES = 200  # what one rule takes, besides its text

# Such failures are those of the host: its rows would fail alike, and say so.
_OF_THE_HOST = frozenset(
    {"bad_url", "dns", "connect", "tls", "timeout_connect", "blocked_address", "host_down", "protocol"}
)
# Of these, those without a connection, by which nothing was asked for.
_NOT_ASKED = _OF_THE_HOST - {"protocol"}
# Nothing to be had, or nothing that makes sense; the RFC lets us take both for a site without rules.
_NO_RULES = frozenset({"empty_body", "bad_encoding", "too_many_redirects", "bad_redirect"})

# --- which hosts are asked ---

_PRIVATE_SUFFIXES = (".localhost", ".local", ".internal", ".test", ".home.arpa")
_HOST = re.compile(r"(?:([a-z0-9._\-]+)|\[([0-9a-f:.]+)\])(?::\d*)?")
_ORIGIN = re.compile(r"(https?)://(?:[^/?#]*@)?([^/?#@]+)", re.IGNORECASE)


def is_public(host: str) -> bool:
    """Whether `host`, with or without a port, can be part of the public web by its name. What is no host name can."""
    match = _HOST.fullmatch(host)
    if match is None:
        return True
    name = match[2] or match[1].rstrip(".")
    address = name if match[2] else address_of(name)
    try:
        return address_kind(address or name) == "public"
    except ValueError:
        return "." in name and not name.endswith(_PRIVATE_SUFFIXES)


def origin_of(url: str) -> str | None:
    """The origin of a normalised URL, without the default port; None if it is not http(s)."""
    match = _ORIGIN.match(url)
    if match is None:
        return None
    scheme, host = match[1].lower(), match[2].lower()
    return f"{scheme}://{host.removesuffix(':443' if scheme == 'https' else ':80')}"


# --- parsing the file ---

_USER_AGENT = frozenset({"user-agent", "useragent", "user agent"})
# With the misspellings that are common enough to be meant.
_DISALLOW = frozenset({"disallow", "dissallow", "dissalow", "disalow", "diasllow", "disallaw"})
# They belong to a group as its rules do, and other lines (Sitemap) do not.
_OF_A_GROUP = _DISALLOW | {"allow", "crawl-delay", "request-rate", "visit-time"}
_LINE_END = re.compile(r"[\r\n]+")
_RATE = re.compile(r"(\d{1,9})\s*/\s*(\d{1,9})\s*([smhd]?)", re.IGNORECASE)
_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,9})?|\.\d{1,9}")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def parse(content: bytes, product: str) -> Rules:
    """The rules for `product`: of all groups that name it, in whatever case, else of those for `*`.

    Lines that cannot be parsed are skipped. Of a file longer than `LONGEST` only the complete lines before that count.
    """
    ours: list[tuple[str, str]] = []
    everybodys: list[tuple[str, str]] = []
    named = False  # a group without rules counts as well
    collecting: list[list[tuple[str, str]]] = []
    agents_end = True
    product = product.lower()
    for line in _LINE_END.split(_text(content)):
        field, value = _directive(line)
        if field in _USER_AGENT:
            if agents_end:
                collecting, agents_end = [], False
            token = re.split(r"[\s/]", value, maxsplit=1)[0].lower()
            group = ours if token == product else everybodys if token == "*" else None
            named = named or group is ours
            if group is not None and not any(group is each for each in collecting):  # a name may come twice
                collecting.append(group)
        elif field in _OF_A_GROUP:
            agents_end = True
            if value:
                for group in collecting:
                    if len(group) < _MOST_RULES:
                        group.append((field, value))
    return _rules(ours if named else everybodys)


def _text(content: bytes) -> str:
    if len(content) >= LONGEST:
        content = content[:LONGEST]
        content = content[: max(content.rfind(b"\n"), content.rfind(b"\r")) + 1]
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16", "replace")
    # Other bytes than UTF-8 are kept: they stand for themselves when they are percent-encoded.
    return content.removeprefix(codecs.BOM_UTF8).decode("utf-8", "surrogateescape").replace("\0", "")


def _directive(line: str) -> tuple[str, str]:
    """Name, in lower case, and value; `disallow /path`, without its colon, is meant as well."""
    line = line.partition("#")[0].strip()
    name, colon, value = line.partition(":")
    if not colon or name.rstrip().lower() not in _USER_AGENT | _OF_A_GROUP:
        name, _, value = line.partition(" ")
    return name.rstrip().lower(), value.strip()


def _rules(lines: Iterable[tuple[str, str]]) -> Rules:
    patterns: list[tuple[str, bool]] = []
    delay = 0.0
    for field, value in lines:
        if field == "crawl-delay":
            if match := _NUMBER.match(value):
                delay = max(delay, float(match[0]))
        elif field == "request-rate":
            if (match := _RATE.match(value)) and int(match[1]):
                delay = max(delay, int(match[2]) * _UNITS[match[3].lower()] / int(match[1]))
        elif field == "allow" or field in _DISALLOW:
            patterns.append((value, field == "allow"))
    return Rules(patterns, min(delay, MOST_DELAY)) if patterns or delay else NO_RULES


class Rules:
    """Rules in the form in which a URL is compared with them; `patterns` are (path pattern, whether it allows).

    The longest matching pattern decides, of two as long the one that allows. A score orders both: twice the length
    in octets, and 1 more for an allowing one. Patterns without wildcards are found by their text, one look per length
    that there is, the others one by one: 0.5 µs for a URL and a handful of rules, 1.2 µs for 60 of which 20 have
    wildcards (`protego`, which does not give its rules away, takes 1 to 12 µs). What a file and a URL can cost is
    bounded, since all sockets wait for it.
    """

    __slots__ = ("_lengths", "_plain", "_special", "delay", "size")

    def __init__(self, patterns: Iterable[tuple[str, bool]], delay: float = 0.0) -> None:
        self.delay = delay  # seconds between two requests
        self._plain: dict[str, int] = {}  # beginning of a path -> score
        self._special: list[tuple[int, str, tuple[str, ...], bool]] = []  # score, longest part, parts, up to the end
        self.size = 0  # bytes of memory, roughly
        special: set[tuple[int, str, tuple[str, ...], bool]] = set()
        parts_left = _MOST_PARTS
        for pattern, allows in patterns:
            ends = pattern.endswith("$")
            is_plain = not ends and "*" not in pattern[:-1]
            if not is_plain and len(special) >= _MOST_WILDCARDS:
                continue
            # Before anything is decoded: an encoded asterisk is a character like others.
            texts = re.sub(r"\*+", "*", pattern[:-1] if ends else pattern).split("*")
            if not is_plain and len(texts) > parts_left:
                continue
            seen_query = False
            parts = []
            for text in texts:
                parts.append(_canonical(text, seen_query))
                seen_query = seen_query or "?" in text
            score = 2 * (sum(map(len, parts)) + len(parts) - 1 + ends) + allows
            if not ends and (len(parts) == 1 or parts[1:] == [""]):
                self._plain[parts[0]] = max(score, self._plain.get(parts[0], 0))
            else:
                special.add((score, max(parts, key=len), tuple(parts), ends))
                parts_left -= len(parts)
            self.size += len(pattern) + _RULE_BYTES
        self._special = sorted(special, reverse=True)
        self._lengths = tuple(sorted({len(text) for text in self._plain}, reverse=True))

    def allows(self, url: str) -> bool:
        """Whether a normalised http(s) URL may be asked for."""
        start = url.find("/", 8)
        path = url[start:] if start > 0 else "/"
        if "?" in url or "#" in url or "%" in url or "/." in url:
            path = _path(url)
        best = 1  # without any rule it may
        for length in self._lengths:
            if 2 * length + 3 < best:  # even with a `*` at its end
                break
            score = self._plain.get(path[:length])
            if score is not None and score > best:
                best = score
        special = self._special
        if len(special) * len(path) > _MOST_COMPARED:
            special = special[: _MOST_COMPARED // len(path)]
        for score, part, parts, ends in special:
            if score < best:
                break
            if part in path and _fits(path, parts, ends):
                best = score
                break
        return bool(best & 1) or path == "/robots.txt"


NO_RULES = Rules(())


def _fits(path: str, parts: tuple[str, ...], ends: bool) -> bool:
    """Whether `path` begins with the parts, in order and with anything in between; or is just that."""
    first, last = parts[0], parts[-1]
    if not path.startswith(first):
        return False
    at = len(first)
    if len(parts) == 1:
        return len(path) == at
    for part in parts[1:-1]:
        at = path.find(part, at)
        if at < 0:
            return False
        at += len(part)
    if ends:
        return len(path) - len(last) >= at and path.endswith(last)
    return path.find(last, at) >= 0


_AUTHORITY = re.compile(r"https?://[^/?#]*", re.IGNORECASE)
_DOTS = re.compile(r"/(?:\.|%2e){1,2}(?:[/?#]|$)", re.IGNORECASE)
_ENCODED = re.compile(r"%([0-9A-Fa-f]{2})")
_OTHER_SPELLING = re.compile(r"%(?:[2-7]|[0-9A-Fa-f]?[a-f])")  # what might be decoded, or is not in upper case
_TO_ENCODE = re.compile(r"[^\x21-\x7e]")


def _path(url: str) -> str:
    """Path and query of a URL, as they are compared. `/a/../b` is asked for as `/b`."""
    if _DOTS.search(url):
        import ada_url

        with contextlib.suppress(ValueError):
            url = str(ada_url.URL(url).href)
    match = _AUTHORITY.match(url)
    path = url[match.end() if match else 0 :].partition("#")[0]
    return _canonical(path if path.startswith("/") else f"/{path}")


def _canonical(text: str, in_query: bool = False) -> str:
    """`text` with each character spelled in one way: decoded where that is no other path, else in `%XX`.

    In a path, an encoded slash or question mark is none, and is kept; in a query both spellings are the same.
    """
    if "%" not in text and text.isascii() and text.isprintable() and " " not in text:
        return text
    text = _TO_ENCODE.sub(_encode, text)
    if not _OTHER_SPELLING.search(text):
        return text
    if not in_query:
        path, mark, query = text.partition("?")
        return _ENCODED.sub(_decode_in_path, path) + mark + _ENCODED.sub(_decode_in_query, query)
    return _ENCODED.sub(_decode_in_query, text)


def _encode(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogateescape"))


def _decode_in_path(match: re.Match[str]) -> str:
    return _decode(match[1].upper(), "%/?#")


def _decode_in_query(match: re.Match[str]) -> str:
    return _decode(match[1].upper(), "%#")


@lru_cache(maxsize=1024)
def _decode(digits: str, kept: str) -> str:
    char = chr(int(digits, 16))
    return char if "!" <= char <= "~" and char not in kept else f"%{digits}"


# --- what is known so far ---

Policy = Callable[[str], tuple[str, str]]
"""An origin -> the value of `robots`, and the name by which robots.txt addresses us."""


class Known:
    """What one origin's robots.txt came to, until a time of the schedule's clock."""

    __slots__ = ("_failure", "_rules", "until")

    def __init__(self, rules: Rules | None, failure: Failure, until: float) -> None:
        self._rules = rules  # None: nothing may be asked for
        self._failure = failure  # of the rows that may not
        self.until = until

    @property
    def delay(self) -> float:
        """Seconds between two requests."""
        return self._rules.delay if self._rules else 0.0

    @property
    def size(self) -> int:
        return self._rules.size if self._rules else 0

    def refusal(self, url: str) -> Failure | None:
        """Why a normalised URL of this origin is not asked for; None if it may be."""
        rules = self._rules
        return None if rules is NO_RULES or (rules is not None and rules.allows(url)) else self._failure


class Robots:
    """The origins that are known, the least recently used ones forgotten, and the rows that wait for others.

    `policy` returns the `robots` option and our name for an origin; without it they are the same everywhere.
    """

    def __init__(self, product: str, robots: str = "public", policy: Policy | None = None) -> None:
        self._cost = RobotsCost()
        self._policy = policy or (lambda origin: (robots, product))
        self._known: OrderedDict[str, Known] = OrderedDict()
        self._bytes = 0
        self._held: dict[str, tuple[float, list[Row]]] = {}  # origin -> since when, and which rows wait
        self._now = 0.0

    def __len__(self) -> int:
        return len(self._known)

    def asks(self, host: str) -> bool:
        """Whether rows of `host` are subject to robots.txt."""
        robots, _ = self._policy(f"https://{host}")
        return robots == "respect" or (robots == "public" and is_public(host))

    def known(self, url: str, now: float) -> Known | None:
        """What is known of the origin of a normalised URL; None if that is nothing, or too old."""
        self._now = now
        end = url.find("/", 8)
        origin: str | None = url[:end] if end > 0 else None
        known = self._known.get(origin) if origin else None
        if known is None:
            origin = origin_of(url)
            if origin is None or not self.asks(origin.partition("://")[2]):
                return _FREE
            known = self._known.get(origin)
        if known is None or origin is None or known.until <= now:
            return None
        self._known.move_to_end(origin)
        return known

    def delay_of(self, url: str) -> float:
        """Seconds between two requests that its host asks for, as far as that is known at the moment."""
        known = self.known(url, self._now)
        return 0.0 if known is None else known.delay

    def redirect_refusal(self, url: str) -> Failure | None:
        """Why the target of a redirect is refused. No robots.txt is requested for it: an unknown one allows."""
        known = self.known(url, self._now)
        return None if known is None else known.refusal(url)

    def hold(self, origin: str, row: Row, now: float) -> bool:
        """Let a row wait for the robots.txt of `origin`; whether it is the first to, so that the file is to be asked
        for."""
        held = self._held.get(origin)
        if held is None:
            self._held[origin] = (now, [row])
            return True
        held[1].append(row)
        return False

    def learn(self, origin: str, outcome: Payload | Failure, now: float) -> list[Row]:
        """Remember how the last attempt at a robots.txt ended, and give back the rows that were waiting for it."""
        since, rows = self._held.pop(origin)
        if not (isinstance(outcome, Failure) and outcome.code in _NOT_ASKED and outcome.final_url is None):
            self._cost += RobotsCost(1, 0, now - since)
        if isinstance(outcome, Failure):
            known = _without(origin, outcome, now)
        else:
            self._cost += RobotsCost(0, outcome.body.size, 0.0)
            content = outcome.body.read()
            outcome.body.release()
            known = Known(parse(content, self._policy(origin)[1]), _disallowed(origin), now + _KEPT_FOR)
        self._remember(origin, known)
        return rows

    def take_cost(self) -> RobotsCost:
        """What asking has cost since the last call."""
        cost, self._cost = self._cost, RobotsCost()
        return cost

    def _remember(self, origin: str, known: Known) -> None:
        before = self._known.pop(origin, None)
        self._bytes += known.size - (before.size if before else 0)
        self._known[origin] = known
        while len(self._known) > _MOST_ORIGINS or (self._bytes > _MOST_BYTES and len(self._known) > 1):
            self._bytes -= self._known.popitem(last=False)[1].size


def _disallowed(origin: str) -> Failure:
    return Failure("fetch", "robots", f"disallowed by {origin}/robots.txt")


_NO_REFUSAL = _disallowed("")  # one for all that have no rules
_FREE = Known(NO_RULES, _NO_REFUSAL, float("inf"))  # what robots.txt is not asked for


def _without(origin: str, failure: Failure, now: float) -> Known:
    """What follows when there is no robots.txt to be had."""
    code, status = failure.code, failure.http_status or 0
    if code in _NO_RULES or (code == f"http_{status}" and status != 429 and status < 500):
        return Known(NO_RULES, _NO_REFUSAL, now + _KEPT_FOR)
    detail = f"{failure.detail or code}, asking for {origin}/robots.txt"
    if code not in _OF_THE_HOST or failure.final_url is not None:
        code, detail = "robots_unreachable", f"{code}: {detail}" if failure.detail else detail
    return Known(None, Failure("fetch", code, detail), now + _UNREACHABLE_FOR)
