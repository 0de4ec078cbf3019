"""The rules of robots.txt (RFC 9309) for our user agent, and those known so far, by origin. No I/O and no clock.

An origin is `scheme://host[:port]`. Its robots.txt is asked for once, before the first of its rows, which wait here;
what other processes of this machine have asked for is found in `Files`.
"""

from __future__ import annotations

import codecs
import contextlib
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

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
_MOST_COMPARED = 4096  # characters of a URL
_RULE_BYTES = 600  # what one rule takes, besides its text
_OTHERS = "others"  # stands for all agents but us

# Such failures are those of the host: its rows would fail alike, and say so.
_OF_THE_HOST = frozenset(
    {"bad_url", "dns", "connect", "tls", "timeout_connect", "blocked_address", "host_down", "protocol"}
)
# Failures without a connection, by which nothing was asked for.
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

_AGENT = re.compile(r"\s*user[ -]?agent\s*(?::|\s)\s*(.*)", re.IGNORECASE)
_END_OF_TOKEN = re.compile(r"[\s/]")
_NO_TEXT = re.compile("[\udc80-\udcff]")  # bytes that are not UTF-8, as `surrogateescape` has them
_DOTS = re.compile(r"/(?:\.|%2e)", re.IGNORECASE)


class Rules:
    """The rules for us, read by `protego`; all sockets wait for it, so what a file and a URL can cost is bounded."""

    def __init__(self, text: str, product: str) -> None:
        from protego import Protego

        self._product = product.lower()
        lines = list(_lines_for_us(text, self._product))
        self.size = sum(map(len, lines)) + _RULE_BYTES * len(lines)  # bytes of memory, roughly
        rules = self._rules = Protego.parse("\n".join(lines))
        delays = [rules.crawl_delay(self._product) or 0.0]
        if (rate := rules.request_rate(self._product)) is not None:
            with contextlib.suppress(ArithmeticError):  # numbers of any length
                delays.append(rate.seconds / rate.requests)
        self.delay = min(max(delays), MOST_DELAY)  # seconds between two requests

    def allows(self, url: str) -> bool:
        """Whether a normalised http(s) URL may be asked for."""
        if _DOTS.search(url):  # `/a/../b` is asked for as `/b`
            import ada_url

            with contextlib.suppress(ValueError):
                url = str(ada_url.URL(url).href)
        url = url.partition("#")[0][:_MOST_COMPARED]
        return (url.endswith("/robots.txt") and url.count("/") == 3) or bool(self._rules.can_fetch(url, self._product))


def parse(content: bytes, product: str) -> Rules:
    """The rules for `product`: of all groups that name it, in whatever case, else of those for `*`.

    Of a file longer than `LONGEST` only the complete lines before that count.
    """
    if len(content) >= LONGEST:
        content = content[:LONGEST]
        content = content[: max(content.rfind(b"\n"), content.rfind(b"\r")) + 1]
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return Rules(content.decode("utf-16", "replace"), product)
    text = content.removeprefix(codecs.BOM_UTF8).decode("utf-8", "surrogateescape").replace("\0", "")
    return Rules(_NO_TEXT.sub(lambda match: f"%{ord(match[0]) - 0xDC00:02X}", text), product)


def _lines_for_us(text: str, product: str) -> Iterator[str]:
    """The lines of groups for `product` and for `*`, up to bounds; all other agents are one, whose rules are left out.

    So a file whose every rule is for 20,000 agents is no different from another one, and a part of our name is not
    taken for it.
    """
    rules = wildcards = parts = 0
    is_ours = in_agents = False
    for raw in text.splitlines():
        line = raw.partition("#")[0].strip()
        if match := _AGENT.fullmatch(line):
            token = _END_OF_TOKEN.split(match[1], maxsplit=1)[0].lower()
            is_ours = token in (product, "*") or (is_ours and in_agents)
            in_agents = True
            yield f"User-agent: {token if token in (product, '*') else _OTHERS}"
            continue
        if not line or line.lower().startswith(("sitemap", "host")):  # of the site, and in no group
            continue
        in_agents = False
        is_special = "*" in line or "$" in line
        if not is_ours or rules >= _MOST_RULES:
            continue
        if is_special and (wildcards >= _MOST_WILDCARDS or parts + line.count("*") > _MOST_PARTS):
            continue
        rules, wildcards, parts = rules + 1, wildcards + is_special, parts + line.count("*")
        yield line


# --- what is known so far ---

Policy = Callable[[str], tuple[str, str]]
"""An origin -> the value of `robots`, and the name by which robots.txt addresses us."""


class Files(Protocol):
    """The files that processes share (`fetch.robots_files`)."""

    def read(self, name: str) -> bytes | None: ...

    def write(self, name: str, content: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class Known:
    """The robots.txt of one origin as it was read, until a time of the schedule's clock."""

    failure: Failure  # of the rows that may not be asked for
    until: float
    rules: Rules | None = None
    allows_all: bool = False  # what no `rules` mean
    delay: float = 0.0  # seconds between two requests of this machine

    @property
    def size(self) -> int:
        return self.rules.size if self.rules else 0

    def refusal(self, url: str) -> Failure | None:
        """Why a normalised URL of this origin is not asked for; None if it may be."""
        is_allowed = self.allows_all if self.rules is None else self.rules.allows(url)
        return None if is_allowed else self.failure


class Robots:
    """The origins that are known, the least recently used ones forgotten, and the rows that wait for others.

    `policy` returns the `robots` option and our name for an origin; without it they are the same everywhere. Delays are
    for all `machines` together.
    """

    def __init__(
        self,
        product: str,
        robots: str = "public",
        policy: Policy | None = None,
        machines: int = 1,
        files: Files | None = None,
    ) -> None:
        self._machines, self._files = machines, files
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
        """The rules of the origin of a normalised URL; None if they are unknown, or too old."""
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
            return None if origin is None or origin in self._held else self._read(origin, now)
        self._known.move_to_end(origin)
        return known

    def shares(self, origin: str) -> bool:
        """Whether processes share the robots.txt of an origin: names that are not public mean other hosts elsewhere."""
        return self._files is not None and is_public(origin.partition("://")[2])

    def is_brought(self, origin: str, now: float) -> bool:
        """Whether another process has asked for the robots.txt that rows wait for here."""
        return self._read(origin, now) is not None

    def _read(self, origin: str, now: float) -> Known | None:
        """The file that another process has asked for."""
        if self._files is None or not self.shares(origin):
            return None
        product = self._policy(origin)[1]
        content = self._files.read(f"{product} {origin}")
        if content is None:
            return None
        return self._remember(origin, self._ruled(origin, parse(content, product), now) if content else _free(now))

    def _ruled(self, origin: str, rules: Rules, now: float) -> Known:
        return Known(_disallowed(origin), now + _KEPT_FOR, rules, delay=rules.delay * self._machines)

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
        product, content = self._policy(origin)[1], b""
        if isinstance(outcome, Failure):
            known = _without(origin, outcome, now)
        else:
            content = outcome.body.read()
            outcome.body.release()
            rules = parse(content, product)
            known = self._ruled(origin, rules, now)
            delays = {origin.partition("://")[2]: rules.delay} if rules.delay else {}
            self._cost += RobotsCost(0, len(content), 0.0, delays)
        if self._files is not None and self.shares(origin) and (content or known.allows_all):
            self._files.write(f"{product} {origin}", content)
        self._remember(origin, known)
        return rows

    def release(self, origin: str) -> list[Row]:
        """The rows that were waiting for a robots.txt which another process has brought."""
        return self._held.pop(origin)[1]

    def take_cost(self) -> RobotsCost:
        """The cost of asking since the last call."""
        cost, self._cost = self._cost, RobotsCost()
        return cost

    def _remember(self, origin: str, known: Known) -> Known:
        before = self._known.pop(origin, None)
        self._bytes += known.size - (before.size if before else 0)
        self._known[origin] = known
        while len(self._known) > _MOST_ORIGINS or (self._bytes > _MOST_BYTES and len(self._known) > 1):
            self._bytes -= self._known.popitem(last=False)[1].size
        return known


def _disallowed(origin: str) -> Failure:
    return Failure("fetch", "robots", f"disallowed by {origin}/robots.txt")


_NO_REFUSAL = _disallowed("")  # one for all that have no rules
_FREE = Known(_NO_REFUSAL, float("inf"), allows_all=True)  # what robots.txt is not asked for


def _free(now: float) -> Known:
    return Known(_NO_REFUSAL, now + _KEPT_FOR, allows_all=True)


def _without(origin: str, failure: Failure, now: float) -> Known:
    """The rules that hold when there is no robots.txt to be had."""
    code, status = failure.code, failure.http_status or 0
    if code in _NO_RULES or (code == f"http_{status}" and status != 429 and status < 500):
        return _free(now)
    detail = f"{failure.detail or code}, asking for {origin}/robots.txt"
    if code not in _OF_THE_HOST or failure.final_url is not None:
        code, detail = "robots_unreachable", f"{code}: {detail}" if failure.detail else detail
    return Known(Failure("fetch", code, detail), now + _UNREACHABLE_FOR)
