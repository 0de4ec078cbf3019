"""The servers that the benchmarks fetch from, on loopback: nginx or the embedded one, and a slow one."""

from __future__ import annotations

import os
import random
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import certifi

_TICKS = os.sysconf("SC_CLK_TCK")
DELAY = 0.2  # seconds before each answer of the server that makes clients wait

_CONF = """\
daemon off; worker_processes 1; worker_rlimit_nofile {files}; pid {scratch}/nginx.pid; error_log {scratch}/nginx.log;
{user}
events {{ worker_connections {connections}; }}
http {{
  access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000000; types {{ image/jpeg jpg; }}
  open_file_cache max=10000; log_format time $msec;
  client_body_temp_path {scratch}/body; proxy_temp_path {scratch}/proxy; fastcgi_temp_path {scratch}/fastcgi;
  uwsgi_temp_path {scratch}/uwsgi; scgi_temp_path {scratch}/scgi;
  server {{ listen 127.0.0.1:{http} backlog=8192; root {www}; }}
  server {{ listen 127.0.0.1:{logged} backlog=8192; root {www}; access_log {scratch}/requests.log time; }}
  {tls}
}}
"""
# Each request a full handshake, as if each were to another host.
_TLS = """server {{
    listen 127.0.0.1:{https} ssl backlog=8192; root {www}; keepalive_timeout 0;
    ssl_certificate {certificate}; ssl_certificate_key {certificate}; ssl_session_cache off; ssl_session_tickets off;
  }}"""


@dataclass(frozen=True, slots=True)
class Server:
    """Where the files are served, as URLs without a slash at the end; None for what this server cannot do."""

    name: str
    http: str  # keeps connections
    logged: str  # the same, but notes when a request came in
    first_request: Callable[[], float | None]  # when the first one came in to `logged` since `forget`, in Unix seconds
    forget: Callable[[], None]
    cpu_seconds: Callable[[], float | None]  # what serving has cost so far
    https: str | None = None  # a new connection for each request
    ca_file: str | None = None  # trusts `https`, beside all that everybody trusts


@contextmanager
def start(www: Path, scratch: Path) -> Iterator[Server]:
    """nginx if it is installed, else the embedded server."""
    binary = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    with _nginx(binary, www, scratch) if binary else _embedded(www) as server:
        yield server


@contextmanager
def _nginx(binary: str, www: Path, scratch: Path) -> Iterator[Server]:
    http, logged, https = _free_ports(3)
    certificate, ca_file = _certificates(scratch)
    # nginx drops root's rights for its worker, which then may not read the files.
    user = "user root;" if os.geteuid() == 0 else ""
    files = min(65536, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    tls = _TLS.format(https=https, www=www, certificate=certificate) if certificate else ""
    conf = scratch / "nginx.conf"
    conf.write_text(
        _CONF.format(
            scratch=scratch,
            www=www,
            http=http,
            logged=logged,
            tls=tls,
            user=user,
            files=files,
            connections=files // 2,
        ),
        encoding="utf-8",
    )
    log = scratch / "requests.log"
    with (scratch / "nginx.out").open("wb") as out:
        process = subprocess.Popen(
            [binary, "-p", str(scratch), "-c", str(conf)], stdout=out, stderr=out, start_new_session=True
        )
    try:
        _wait_for_port(http, process, scratch / "nginx.log")
        worker = _first_child(process.pid)

        def first_request() -> float | None:
            with log.open(encoding="utf-8") as lines:
                line = lines.readline()
            return float(line) if line.endswith("\n") else None

        said = subprocess.run([binary, "-v"], capture_output=True, text=True, check=True).stderr
        yield Server(
            name=said.split(": ")[-1].strip(),
            http=f"http://127.0.0.1:{http}",
            logged=f"http://127.0.0.1:{logged}",
            https=f"https://127.0.0.1:{https}" if certificate else None,
            ca_file=str(ca_file) if certificate else None,
            first_request=first_request,
            forget=lambda: os.truncate(log, 0),
            cpu_seconds=lambda: _cpu_seconds(worker),
        )
    finally:
        process.terminate()
        process.wait()


@contextmanager
def _embedded(www: Path) -> Iterator[Server]:
    """The server of the tests, in a thread of this process."""
    from any2ds.testing.server import serve

    offset = time.time() - time.monotonic()
    with serve(www) as server:
        base = server.base_url.rstrip("/")
        yield Server(
            name="the embedded server (nginx is not installed)",
            http=base,
            logged=base,
            first_request=lambda: server.requests[0].at + offset if server.requests else None,
            forget=server.requests.clear,
            cpu_seconds=lambda: None,
        )


@contextmanager
def slow(www: Path) -> Iterator[str]:
    """Where the same files come after DELAY, and other paths never."""
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("slow.py")), str(www), str(DELAY)],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _certificates(scratch: Path) -> tuple[Path | None, Path | None]:
    """The server's key with its certificate, and the bundle that trusts it; None without the library `cryptography`."""
    try:
        from any2ds.testing.certificate import make_certificate
    except ModuleNotFoundError:
        return None, None
    _, ca_file = make_certificate("127.0.0.1", scratch)
    # With all the authorities of a real bundle in it: what loading them costs is part of what a connection costs.
    bundle = scratch / "bundle.pem"
    bundle.write_bytes(Path(certifi.where()).read_bytes() + b"\n" + Path(ca_file).read_bytes())
    return scratch / "server.pem", bundle


def _free_ports(count: int) -> list[int]:
    """Ports below those that the system gives to clients."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(20000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


def _wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if process.poll() is not None:
                break
            time.sleep(0.05)
    words = log.read_text(encoding="utf-8", errors="replace").strip() if log.exists() else ""
    raise RuntimeError(f"nginx does not start: {words}")


def _first_child(pid: int) -> int:
    """Of a process that listens already, and may not have started it yet."""
    for _ in range(200):
        if children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            return int(children[0])
        time.sleep(0.05)
    raise RuntimeError("nginx starts no worker")


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
