"""Starts the servers of the benchmarks: `server.py` and `store.py`, and nginx for files that are to come fast."""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import certifi

ROOT = Path(__file__).resolve().parents[1]
_CONF = """\
daemon off; worker_processes 1; worker_rlimit_nofile {files}; pid {scratch}/nginx.pid; error_log {scratch}/nginx.log;
{user} events {{ worker_connections {connections}; }}
http {{
  access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000000; types {{ image/jpeg jpg; }}
  open_file_cache max=10000; client_body_temp_path {scratch}/body; proxy_temp_path {scratch}/proxy;
  fastcgi_temp_path {scratch}/fastcgi; uwsgi_temp_path {scratch}/uwsgi; scgi_temp_path {scratch}/scgi;
  server {{ listen 127.0.0.1:{http} backlog=8192; root {www}; }}
  server {{  # each request a full handshake, as if each were to another host
    listen 127.0.0.1:{https} ssl backlog=8192; root {www}; keepalive_timeout 0;
    ssl_certificate {scratch}/server.pem; ssl_certificate_key {scratch}/server.pem;
    ssl_session_cache off; ssl_session_tickets off;
  }}
}}
"""


P = TypeVar("P", bound="Program")


class Program:
    """A module of the benchmarks that serves until its standard input ends, and first prints its ports."""

    module = ""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self.ports: list[int] = []

    def __enter__(self: P) -> P:
        command = [sys.executable, "-m", self.module, json.dumps(self._options, default=str)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.ports = json.loads(self._process.stdout.readline())
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def stats(self) -> dict[str, float]:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{self.ports[0]}/stats", timeout=60) as answer:
            return dict(json.load(answer))


class Server(Program):
    module = "benchmarks.server"

    def url(self, path: str, host: int = 0, tls: bool = False) -> str:
        """`path` is `KIND/MILLISECONDS/BYTES/NUMBER`; hosts are numbered from 0."""
        address = f"127.{host // 62500}.{host // 250 % 250}.{1 + host % 250}"
        return f"{'https' if tls else 'http'}://{address}:{self.ports[tls]}/{path}"


class Store(Program):
    module = "benchmarks.store"

    @property
    def environment(self) -> Mapping[str, str]:
        """In which programs find it."""
        url = f"http://127.0.0.1:{self.ports[0]}"
        names = ("AWS_ENDPOINT_URL", "S3_ENDPOINT_URL")  # the second is MosaicML's
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
        return {**keys, **dict.fromkeys(names, url)}


@dataclass(frozen=True, slots=True)
class FileServer:
    """Where files are served; no URL ends in a slash."""

    http: str
    https: str = ""  # a new connection for each request; "" where there is none
    environment: Mapping[str, str] | None = None  # in which clients trust it


@contextmanager
def served_files(www: Path, scratch: Path) -> Iterator[FileServer]:
    """nginx if it is installed, else `server.py`."""
    binary = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if binary is None:
        with Server(folder=www) as server:
            yield FileServer(server.url("")[:-1])
        return
    http, https = free_port(), free_port()
    bundle = make_certificates(scratch)
    files = min(65536, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    # nginx drops root's rights for its worker, which then may not read the files.
    user = "user root;" if os.geteuid() == 0 else ""
    values = {"scratch": scratch, "www": www, "http": http, "https": https, "user": user, "files": files}
    (scratch / "nginx.conf").write_text(_CONF.format(**values, connections=files // 2), encoding="utf-8")
    command = [binary, "-p", str(scratch), "-c", str(scratch / "nginx.conf")]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        wait_for_port(http, process)
        trusting = {"SSL_CERT_FILE": str(bundle)}
        yield FileServer(f"http://127.0.0.1:{http}", f"https://127.0.0.1:{https}", trusting)
    finally:
        process.terminate()
        process.wait()


def make_certificates(scratch: Path) -> Path:
    """The bundle that trusts the server: with all usual authorities, since loading them is part of a connection."""
    from any2ds.testing.certificate import make_certificate

    _, ca_file = make_certificate("127.0.0.1", scratch)
    bundle = scratch / "bundle.pem"
    bundle.write_bytes(Path(certifi.where()).read_bytes() + b"\n" + Path(ca_file).read_bytes())
    return bundle


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        with suppress(OSError):
            return socket.create_connection(("127.0.0.1", port), 1).close()
        time.sleep(0.05)
    raise RuntimeError("nginx does not start")
