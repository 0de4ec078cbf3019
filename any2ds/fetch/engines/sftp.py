"""Rows of SFTP servers: fsspec's file system, for hosts whose key is known, and with an end to all waiting."""

from __future__ import annotations

import contextlib
import os
import re
from typing import Any
from urllib.parse import unquote

import paramiko
from fsspec.implementations.sftp import SFTPFileSystem

_PATIENCE = 30.0  # seconds for each step of connecting
_SILENCE = 60.0  # seconds that a server may take until the next byte
_REQUESTS = 64  # of 32 KB, that a file is read with at once: what the window of a channel holds
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://(?:([^/]*)@)?(\[[^\]/]*\]|[^/:]*)(?::(\d+))?(/.*)?", re.DOTALL)
_KNOWN_HOSTS = ("~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts")


class UnknownHost(paramiko.SSHException):  # type: ignore[misc]
    """A server that is not to be logged in to before somebody has looked at its key."""


class SftpFileSystem(SFTPFileSystem):  # type: ignore[misc]
    """One session, for one thread at a time.

    Takes what fsspec's does (`host_key_policy`, and all of `paramiko.SSHClient.connect`), and `known_hosts`, a file.
    fsspec drops what follows a `?` or `#`, and trusts each key that it does not know.
    """

    def __init__(self, host: str, known_hosts: str | None = None, **options: Any) -> None:
        if self._cached:
            return
        self._known_hosts = (known_hosts,) if known_hosts else _KNOWN_HOSTS
        limits = dict.fromkeys(("timeout", "banner_timeout", "auth_timeout", "channel_timeout"), _PATIENCE)
        super().__init__(host, **{"host_key_policy": _KnownOnly(), **limits, **options})

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        match = _URL.fullmatch(path)
        return ((match[4] or "/") if match else path).rstrip("/") or "/"

    @staticmethod
    def _get_kwargs_from_urls(urlpath: str) -> dict[str, Any]:
        """Host, port, user name and password, as far as the URL has them; the last two may be percent-encoded in it."""
        match = _URL.fullmatch(urlpath)
        if match is None:
            return {}
        user, _, password = (match[1] or "").partition(":")
        login = {
            "host": match[2].strip("[]"),
            "port": int(match[3]) if match[3] else None,
            "username": unquote(user),
            "password": unquote(password),
        }
        return {name: value for name, value in login.items() if value}

    def _connect(self) -> None:
        """Called by fsspec's constructor."""
        self.client = paramiko.SSHClient()
        for name in self._known_hosts:
            with contextlib.suppress(OSError):
                self.client.load_system_host_keys(os.path.expanduser(name))
        self.client.set_missing_host_key_policy(self.host_key_policy)
        try:
            self.client.connect(self.host, **self.ssh_kwargs)
            self.ftp = self.client.open_sftp()
        except BaseException:
            self.client.close()
            raise
        self.ftp.get_channel().settimeout(_SILENCE)

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **_: Any) -> Any:
        info = self.info(path)
        if info["type"] == "directory":
            raise IsADirectoryError(path)
        file = self.ftp.open(path, mode)
        file.size = info["size"]
        file.prefetch(file.size, _REQUESTS)  # else each 32 KB take a way there and back
        return file


class _KnownOnly(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
    """Refuses a host that `known_hosts` does not have."""

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        raise UnknownHost(
            f"the host key of {hostname} ({key.get_name()} {key.fingerprint}) is not in {_KNOWN_HOSTS[0]}: look at it"
            " and add it (ssh-keyscan), or set host_key_policy"
        )
