"""A DNS server on loopback, embedded in the calling process, that drops, delays and lies as it is told to.

    with serve_dns({"a.test": ["drop", "a:127.0.0.1"]}) as dns:
        ...                       # --nameservers=dns.address
    assert dns.counts["a.test", "A"] == 2

Each query for a name, by type, takes the next entry of its list, and the last entry repeats; other names have the
address 127.0.0.1 and no IPv6 one. An entry is one or several of these, joined by blanks:

    drop            no answer at all               delay:SECONDS   the answer comes late
    nxdomain[:TTL]  no such name, with a SOA if a TTL is given     servfail        the server failed
    a:ADDRESS       an IPv4 address                aaaa:ADDRESS    an IPv6 one
    cname:NAME      an alias                       ttl:SECONDS     of these answers; 300 by default
    truncate        over UDP an empty answer that says to come again over TCP

It needs the library `dnslib`.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import itertools
import random
import selectors
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dnslib

DnsScript = Mapping[str, Sequence[str]]
"""Name in lower case -> what its queries get, one entry each; the last entry repeats."""

_TTL = 300
_OK = (("a", "127.0.0.1"),)
_FAULTS = frozenset({"drop", "delay", "nxdomain", "servfail", "a", "aaaa", "cname", "ttl", "truncate"})
Entry = tuple[tuple[str, str], ...]


class DnsServer:
    """A running server. What it saw can be read from any thread."""

    def __init__(self, script: DnsScript, drop: float, host: str, port: int) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()  # (name, "A" or "AAAA" or …) -> queries
        self.over_tcp = 0  # queries among them
        self.dropped = 0
        self._script = {name: [_parse(entry) for entry in entries] for name, entries in script.items()}
        self._drop = drop  # share of queries over UDP that get no answer
        self._random = random.Random(0)
        self._tcp, self._udp = _sockets(host, port)
        self.host, self.port = self._udp.getsockname()
        self._late: list[tuple[float, int, bytes, Any]] = []  # when, tie, answer, client
        self._order = itertools.count()
        self._stop, self._stop_button = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="any2ds-dns", daemon=True)

    @property
    def address(self) -> str:
        """As `--nameservers` takes it."""
        return f"{self.host}:{self.port}"

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop_button.send(b"\0")
        self._thread.join()
        for part in (self._udp, self._tcp, self._stop, self._stop_button):
            part.close()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for part in (self._udp, self._tcp, self._stop):
                part.setblocking(False)
                selector.register(part, selectors.EVENT_READ)
            while True:
                wait = max(0.0, self._late[0][0] - time.monotonic()) if self._late else None
                for key, _ in selector.select(wait):
                    if key.fileobj is self._stop:
                        return
                    if key.fileobj is self._udp:
                        self._serve_udp()
                    else:
                        self._serve_tcp()
                while self._late and self._late[0][0] <= time.monotonic():
                    self._udp.sendto(*heapq.heappop(self._late)[2:])

    def _serve_udp(self) -> None:
        for _ in range(64):
            try:
                query, client = self._udp.recvfrom(4096)
            except BlockingIOError:
                return
            if self._drop and self._random.random() < self._drop:
                self.dropped += 1
                continue
            answer, delay = self._answer(query, udp=True)
            if answer is None:
                self.dropped += 1
            elif delay:
                heapq.heappush(self._late, (time.monotonic() + delay, next(self._order), answer, client))
            else:
                self._udp.sendto(answer, client)

    def _serve_tcp(self) -> None:
        """One query, then the connection is closed."""
        client, _ = self._tcp.accept()
        with client:
            client.settimeout(5)
            stream = client.makefile("rb")
            head = stream.read(2)
            if len(head) < 2:
                return
            self.over_tcp += 1
            answer, _ = self._answer(stream.read(struct.unpack("!H", head)[0]), udp=False)
            if answer is not None:
                client.sendall(struct.pack("!H", len(answer)) + answer)

    def _answer(self, query: bytes, udp: bool) -> tuple[bytes | None, float]:
        """The answer, None for silence, and after how many seconds it is to be sent."""
        name, kind, end = _question(query)
        steps = self._script.get(name)
        count = self.counts[name, kind]
        self.counts[name, kind] += 1
        if steps is None:  # at a tenth of dnslib's cost
            return _plain(query, kind, end), 0.0
        entry = steps[min(count, len(steps) - 1)]
        message = dict(entry)
        if "drop" in message:
            return None, 0.0
        return self._made(query, entry, udp and "truncate" in message), float(message.get("delay", 0))

    def _made(self, query: bytes, entry: Entry, truncated: bool) -> bytes:
        request = dnslib.DNSRecord.parse(query)
        reply = request.reply()
        message = dict(entry)
        name, kind = request.q.qname, request.q.qtype
        ttl = int(message.get("ttl", _TTL))
        if truncated:
            reply.header.tc = 1
            return bytes(reply.pack())
        if "servfail" in message:
            reply.header.rcode = dnslib.RCODE.SERVFAIL
        elif "nxdomain" in message:
            reply.header.rcode = dnslib.RCODE.NXDOMAIN
            if message["nxdomain"]:
                least = int(message["nxdomain"])
                zone = dnslib.SOA("ns.test.", "me.test.", (1, 60, 60, 60, least))
                reply.add_auth(dnslib.RR("test.", dnslib.QTYPE.SOA, rdata=zone, ttl=least))
        for word, value in entry:
            if word == "cname":
                reply.add_answer(dnslib.RR(name, dnslib.QTYPE.CNAME, rdata=dnslib.CNAME(value), ttl=ttl))
                name = dnslib.DNSLabel(value)
            elif word == "a" and kind == dnslib.QTYPE.A:
                reply.add_answer(dnslib.RR(name, dnslib.QTYPE.A, rdata=dnslib.A(value), ttl=ttl))
            elif word == "aaaa" and kind == dnslib.QTYPE.AAAA:
                reply.add_answer(dnslib.RR(name, dnslib.QTYPE.AAAA, rdata=dnslib.AAAA(value), ttl=ttl))
        return bytes(reply.pack())


def _sockets(host: str, port: int) -> tuple[socket.socket, socket.socket]:
    """TCP and UDP on one port. A free one of the one kind may be taken in the other: then the next is tried."""
    for left in reversed(range(100)):
        with contextlib.ExitStack() as stack:
            tcp = stack.enter_context(socket.create_server((host, port)))
            udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
            try:
                udp.bind(tcp.getsockname())
            except OSError:
                if port or not left:
                    raise
                continue
            stack.pop_all()
            return tcp, udp
    raise AssertionError


def _parse(text: str) -> Entry:
    found = []
    for part in text.split():
        word, _, value = part.partition(":")
        if word not in _FAULTS:
            raise ValueError(f"no such word: {part!r}; there are {', '.join(sorted(_FAULTS))}")
        found.append((word, value))
    return tuple(found) or _OK


def _question(query: bytes) -> tuple[str, str, int]:
    """Name, type, and where the question ends."""
    labels, at = [], 12
    while size := query[at]:
        labels.append(query[at + 1 : at + 1 + size])
        at += size + 1
    kind = dnslib.QTYPE.get(struct.unpack_from("!H", query, at + 1)[0])
    return b".".join(labels).decode("latin-1").lower(), kind, at + 5


def _plain(query: bytes, kind: str, end: int) -> bytes:
    """127.0.0.1 for A, nothing for all other types."""
    question = query[12:end]
    if kind != "A":
        return query[:2] + b"\x81\x80\0\1\0\0\0\0\0\0" + question
    record = b"\xc0\x0c\0\1\0\1" + struct.pack("!I", _TTL) + b"\0\4" + socket.inet_aton("127.0.0.1")
    return query[:2] + b"\x81\x80\0\1\0\1\0\0\0\0" + question + record


@contextlib.contextmanager
def serve_dns(
    script: DnsScript | None = None, *, drop: float = 0.0, host: str = "127.0.0.1", port: int = 0
) -> Iterator[DnsServer]:
    """Answer on `host` over UDP and TCP from a thread of its own; `drop` is the share of datagrams that get lost."""
    server = DnsServer(script or {}, drop, host, port)
    server.start()
    try:
        yield server
    finally:
        server.close()


def main() -> None:
    """Serves until its standard input is closed; the first line of output is the address."""
    parser = argparse.ArgumentParser(description="All names have the address 127.0.0.1.")
    parser.add_argument("--drop", type=float, default=0.0, help="share of queries that get no answer")
    with serve_dns(drop=parser.parse_args().drop) as server:
        sys.stdout.write(f"{server.address}\n")
        sys.stdout.flush()
        sys.stdin.read()
        sys.stdout.write(f"{sum(server.counts.values())} {server.dropped}\n")


if __name__ == "__main__":
    main()
