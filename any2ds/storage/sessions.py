"""What servers that are logged in to (sftp) have in common: their URLs, and a session for each thread.

The sessions of their libraries are for one thread at a time: with two, each takes the answers of the other one.
"""

from __future__ import annotations

import functools
import random
import re
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Generic, TypeVar, cast
from urllib.parse import unquote

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_PAUSES = (0.05, 0.3, 1.5)  # seconds, at most, before what a broken session has not done is asked of a new one

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://(?:([^/]*)@)?(\[[^\]/]*\]|[^/:]*)(?::(\d+))?(/.*)?", re.DOTALL)


def path_of(url: str) -> str:
    """The path as it stands there, `#`, `?` and `%` included: it is no part of a web address. Without a last slash."""
    match = _URL.fullmatch(url)
    return ((match[4] or "/") if match else url).rstrip("/") or "/"


def login_of(url: str) -> dict[str, Any]:
    """Host, port, user name and password, as far as the URL has them; the last two may be percent-encoded in it."""
    match = _URL.fullmatch(url)
    if match is None:
        return {}
    user, _, password = (match[1] or "").partition(":")
    found = {
        "host": match[2].strip("[]"),
        "port": int(match[3]) if match[3] else None,
        "username": unquote(user),
        "password": unquote(password),
    }
    return {name: value for name, value in found.items() if value}


class Sessions(Generic[T]):
    """One for each thread that asks, made when it asks for the first time and whenever its previous one is broken.

    With `exclusive` there is one, since one thread at a time is going to ask. Those of threads that are gone are closed
    as their objects are collected.
    """

    def __init__(self, connect: Callable[[], T], is_broken: Callable[[T], bool], exclusive: bool) -> None:
        self._connect, self._is_broken = connect, is_broken
        self._own: Any = SimpleNamespace() if exclusive else threading.local()

    def get(self) -> T:
        """Raises what connecting raises."""
        found: T | None = self.present()
        if found is None or self._is_broken(found):
            self._own.session = None  # gone before there is another: servers count them
            found = self._own.session = self._connect()
        return found

    def present(self) -> T | None:
        """The one of this thread, in whatever state it is."""
        return getattr(self._own, "session", None)

    @property
    def is_exclusive(self) -> bool:
        return isinstance(self._own, SimpleNamespace)


class LoggedIn(Generic[T]):
    """What file systems with `sessions` have in common; it stands before fsspec's class."""

    sessions: Sessions[T]
    info: Callable[..., dict[str, Any]]

    @staticmethod
    def _get_kwargs_from_urls(urlpath: str) -> dict[str, Any]:
        return login_of(urlpath)

    @property
    def ftp(self) -> T:
        """The session of this thread."""
        return self.sessions.get()

    def exists(self, path: str, **_: Any) -> bool:
        """Raises what fsspec would take for an absent file: that the server does not answer."""
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True


def healing(method: F) -> F:
    """Of a file system or a file with `sessions`: what may be done twice is, if the session broke in the middle.

    It is what the libraries of object stores do for each request. Where one thread fetches one file, that is up to the
    row and its limits.
    """

    @functools.wraps(method)
    def healed(self: Any, *args: Any, **options: Any) -> Any:
        for pause in () if self.sessions.is_exclusive else _PAUSES:
            try:
                return method(self, *args, **options)
            except ConnectionResetError:
                time.sleep(pause * random.random())
        return method(self, *args, **options)

    return cast(F, healed)
