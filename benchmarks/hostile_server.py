"""A server of which each path is another trouble, on every address of loopback; lean, so that it is not what limits.

    python benchmarks/hostile_server.py FOLDER

makes certificates in FOLDER and prints its ports as one line of JSON: `http`, and one for each kind of bad certificate.
The first part of a path is the name of a kind in `ANSWERS`; `/stats` tells what was seen of the good ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import gzip
import ipaddress
import json
import resource
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

LATENCY = 0.1  # seconds before each good answer
BAD_CERTIFICATES = ("tls-expired", "tls-self-signed", "tls-wrong-name")
HOSTS = 50  # for each bad kind
_BODY = b"\xff\xd8\xff\xe0\0\x10JFIF\0" + bytes(range(256)) * 40
_BLOCK = bytes(1 << 16)
_BOMB_SIZE = 100_000_000  # bytes, unpacked


def address(group: int, number: int) -> str:
    """Of host `number` in a group: all of them are this machine."""
    return f"127.{10 + group}.0.{1 + number}"


def _answer(*headers: str, body: bytes = b"", status: str = "200 OK") -> bytes:
    return "\r\n".join((f"HTTP/1.1 {status}", *headers, "", "")).encode() + body


def _with_length(*headers: str, body: bytes = b"", status: str = "200 OK") -> bytes:
    return _answer(*headers, f"Content-Length: {len(body)}", body=body, status=status)


_IMAGE = "Content-Type: image/jpeg"
_GOOD = _with_length(_IMAGE, body=_BODY)
_HALF = _answer(_IMAGE, f"Content-Length: {len(_BODY)}", body=_BODY[: len(_BODY) // 2])
_BOMB = _with_length(_IMAGE, "Content-Encoding: gzip", body=gzip.compress(bytes(_BOMB_SIZE)))
_CHUNKED = _answer(_IMAGE, "Transfer-Encoding: chunked")

# Kind -> the bytes that are sent at once.
_AT_ONCE: dict[str, bytes] = {
    "404": _with_length(body=b"not here\n", status="404 Not Found"),
    "429": _with_length("Retry-After: 1", body=b"later\n", status="429 Too Many Requests"),
    "204": _answer(status="204 No Content"),
    "empty": _with_length(_IMAGE),
    "gzip-bomb": _BOMB,
    "to-metadata": _with_length("Location: http://169.254.169.254/latest/meta-data/", status="302 Found"),
    "huge-headers": _with_length(*(f"X-Padding-{n}: {'x' * 8000}" for n in range(100)), body=_BODY),
    "length-too-long": _answer(_IMAGE, f"Content-Length: {2 * len(_BODY)}", body=_BODY),
    "length-too-short": _answer(_IMAGE, f"Content-Length: {len(_BODY) // 2}", body=_BODY),
}
# The same, and then the connection is closed.
_AND_CLOSE: dict[str, bytes] = {
    "truncated": _HALF,
    "bad-chunk": _CHUNKED + b"5\r\nhello\r\nnot a size\r\nhello\r\n",
    "not-http": b"220 mail.invalid ESMTP ready\r\n",
}


class Connection(asyncio.Protocol):
    """One client's connection. `seen` is shared by all."""

    def __init__(self, seen: dict[str, float]) -> None:
        self._seen = seen
        self._received = b""
        self._writing = True
        self._endless = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            path = self._received[:end].split(b" ", 2)[1].decode("latin-1")
            self._received = self._received[end + 4 :]
            self._respond(path, path.split("/", 2)[1])

    def _respond(self, path: str, kind: str) -> None:
        write, loop = self._transport.write, asyncio.get_running_loop()
        if kind == "good":
            self._seen.setdefault("first", time.monotonic())
            loop.call_later(LATENCY, self._good, loop.time() + LATENCY)
        elif kind in _AT_ONCE:
            write(_AT_ONCE[kind])
        elif kind in _AND_CLOSE:
            write(_AND_CLOSE[kind])
            self._transport.close()
        elif kind == "stats":
            write(_with_length(body=json.dumps({**self._seen, "cpu": time.process_time()}).encode()))
            self._seen.clear()
        elif kind == "loop":
            write(_with_length(f"Location: {path}", status="302 Found"))
        elif kind == "reset":
            write(_HALF)
            linger = struct.pack("ii", 1, 0)
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self._transport.abort()
        elif kind == "endless":
            self._endless = True
            # So that little more is sent than the client reads.
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 17)
            write(_answer(_IMAGE, "Connection: close"))
            self._more()
        elif kind == "drip":
            write(_CHUNKED)
            self._drip()
        # and `never` is not answered

    def _good(self, due: float) -> None:
        if not self._transport.is_closing():
            self._transport.write(_GOOD)
            self._seen["last"] = time.monotonic()
            self._seen["good"] = self._seen.get("good", 0) + 1
            self._seen["late"] = self._seen.get("late", 0) + time.monotonic() - due  # seconds, of all together

    def _drip(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(b"1\r\n.\r\n")
            asyncio.get_running_loop().call_later(1.0, self._drip)

    def _more(self) -> None:
        """As fast as it goes; the others have their turn after each block."""
        if self._endless and self._writing and not self._transport.is_closing():
            self._transport.write(_BLOCK)
            asyncio.get_running_loop().call_soon(self._more)

    def pause_writing(self) -> None:
        self._writing = False

    def resume_writing(self) -> None:
        self._writing = True
        self._more()

    def connection_lost(self, error: Exception | None) -> None:
        self._endless = False


def make_certificates(folder: Path, hosts: dict[str, list[str]]) -> dict[str, ssl.SSLContext]:
    """A server context for each bad certificate; the authority that clients trust goes to `ca.pem`."""
    now, day = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(days=1)
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "benchmark authority")])
    pem = serialization.Encoding.PEM

    def build(
        subject: x509.Name, key: ec.EllipticCurvePrivateKey, issuer: x509.Name, end: datetime.datetime
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 10 * day)
            .not_valid_after(end)
        )

    authority = build(ca_name, ca_key, ca_name, now + day)
    authority = authority.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    (folder / "ca.pem").write_bytes(authority.sign(ca_key, hashes.SHA256()).public_bytes(pem))
    contexts = {}
    for kind in BAD_CERTIFICATES:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, kind)])
        alone = kind == "tls-self-signed"
        certificate = build(name, key, name if alone else ca_name, now - day if kind == "tls-expired" else now + day)
        names: list[x509.GeneralName] = [x509.IPAddress(ipaddress.ip_address(host)) for host in hosts[kind]]
        if kind == "tls-wrong-name":
            names = [x509.DNSName("elsewhere.invalid")]
        certificate = certificate.add_extension(x509.SubjectAlternativeName(names), critical=False)
        file = folder / f"{kind}.pem"
        file.write_bytes(
            key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
            + certificate.sign(key if alone else ca_key, hashes.SHA256()).public_bytes(pem)
        )
        contexts[kind] = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        contexts[kind].load_cert_chain(file)
    return contexts


async def serve(folder: Path, hosts: dict[str, list[str]]) -> None:
    loop, seen = asyncio.get_running_loop(), dict[str, float]()
    loop.set_exception_handler(lambda *_: None)  # connections that a client cuts
    make: Callable[[], Connection] = lambda: Connection(seen)  # noqa: E731
    servers = {"http": await loop.create_server(make, "0.0.0.0", 0, backlog=4096)}
    for kind, context in make_certificates(folder, hosts).items():
        servers[kind] = await loop.create_server(make, "0.0.0.0", 0, ssl=context, backlog=4096)
    ports = {kind: server.sockets[0].getsockname()[1] for kind, server in servers.items()}
    sys.stdout.write(json.dumps(ports) + "\n")
    sys.stdout.flush()
    await loop.create_future()


if __name__ == "__main__":
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # those that wait are thousands
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(Path(sys.argv[1]), json.loads(sys.argv[2])))
