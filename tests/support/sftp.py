"""Debian's OpenSSH server on loopback, for the files of this machine.

It runs as the user who runs the tests, root or not, and lets that user in with a key made for it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.support.programs import program
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
    """A running server, with the `storage_options` for it."""

    def __init__(self, folder: Path, port: int) -> None:
        self.port = port
        self.options = {
            "host": "127.0.0.1",
            "port": port,
            "username": _user(),
            "key_filename": str(folder / "user"),
            "known_hosts": str(folder / "known_hosts"),
            "look_for_keys": False,
            "allow_agent": False,
        }

    def url(self, path: Path | str) -> str:
        return f"sftp://127.0.0.1:{self.port}{path}"


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
        with running(command, port, folder / "log"):
            (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {host_key}\n")
            yield SftpServer(folder, port)


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
