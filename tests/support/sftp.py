"""Debian's OpenSSH server on loopback, for files below a folder, behind a relay that cuts connections.

It runs as the user who runs the tests, root or not, and lets that user in with a key made for it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.support.programs import program
from tests.support.relay import Relay, serve_relay
from tests.support.servers import free_port, running

_CONFIG = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile none
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PermitRootLogin yes
PermitUserEnvironment no
Subsystem sftp internal-sftp
"""


class SftpServer:
    """A running server: `port` is its own, `relay` stands before it."""

    def __init__(self, folder: Path, port: int, relay: Relay, user: str, host_key: str) -> None:
        self.folder, self.port, self.relay, self.user, self.host_key = folder, port, relay, user, host_key

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def url(self, path: Path | str, port: int | None = None) -> str:
        return f"sftp://127.0.0.1:{port or self.relay.port}{path}"

    @property
    def options(self) -> dict[str, Any]:
        """What a client of fsspec needs besides the URL; the server is in `known_hosts` under both ports."""
        return {
            "username": self.user,
            "key_filename": str(self.folder / "user"),
            "known_hosts": str(self.folder / "known_hosts"),
            "look_for_keys": False,
            "allow_agent": False,
        }

    def new_place(self, name: str) -> SftpPlace:
        place = self.folder / "files" / name
        place.mkdir(parents=True)
        return SftpPlace(self, place)


class SftpPlace:
    """A folder on a server, as a `storing.Place`."""

    is_private = False
    options: Mapping[str, Any] = {}

    def __init__(self, server: SftpServer, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.url = server.url(folder)
        self.environment = {"FSSPEC_SFTP": json.dumps(server.options)}

    def connect(self) -> Any:
        from any2ds.storage.sftp import SftpFileSystem

        return SftpFileSystem("127.0.0.1", port=self.server.port, **self.server.options, skip_instance_cache=True)

    @contextmanager
    def failing(self, share: float) -> Iterator[Counter[str]]:
        relay = self.server.relay
        relay.cut, relay.share = Counter(), share
        try:
            yield relay.cut
        finally:
            relay.share = 0.0

    @contextmanager
    def cutting_uploads(self, beyond: int) -> Iterator[Counter[str]]:
        relay = self.server.relay
        relay.cut, relay.cuts_beyond = Counter(), beyond
        try:
            yield relay.cut
        finally:
            relay.cuts_beyond = None


@contextmanager
def serve_sftp() -> Iterator[SftpServer]:
    """Skips the test if there is no OpenSSH server on this machine."""
    sshd = program("sshd")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        host_key, _ = _new_key(folder / "host"), _new_key(folder / "user")
        port = free_port()
        (folder / "config").write_text(_CONFIG.format(port=port, folder=folder))
        if sys.platform != "win32" and os.getuid() == 0:
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)  # as Debian's unit of systemd does it
        command = [sshd, "-D", "-e", "-f", str(folder / "config")]
        with running(command, port, folder / "log"), serve_relay(port) as relay:
            ports = (port, relay.port)
            lines = [f"[127.0.0.1]:{known} {host_key}\n" for known in ports]
            (folder / "known_hosts").write_text("".join(lines))
            yield SftpServer(folder, port, relay, _user(), host_key)


def _user() -> str:
    """Who runs this, by the number that the server goes by."""
    if sys.platform == "win32":
        return os.environ["USERNAME"]
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


def _new_key(path: Path) -> str:
    """A pair of keys at `path` and beside it; the public one, as it stands in lists of them."""
    key = Ed25519PrivateKey.generate()
    openssh = serialization.PrivateFormat.OpenSSH
    path.touch(0o600)
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, openssh, serialization.NoEncryption()))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path.with_name(f"{path.name}.pub").write_bytes(public + b"\n")
    return public.decode()
