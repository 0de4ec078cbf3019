"""Turns what stands in a list into a URL that can be sent, as a browser's address bar would."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
from functools import lru_cache

from any2ds.core.failures import Failure
from any2ds.core.schemes import FILE_SYSTEMS, WEB

LONGEST = 2**16  # characters; readers cut what is longer so that it stays longer than this
LONG_ORIGIN = 300  # characters; longer ones are not remembered

# Nothing in it needs encoding, and a host stands where it belongs: by far the most rows, and they skip the parser.
_PORT = r"[1-9]\d{0,3}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d\d|655[0-2]\d|6553[0-5]"
_PLAIN = re.compile(
    rf"(?:https?|ftps?)://[A-Za-z0-9.\-]+(?::(?:{_PORT}))?(?:[/?#][A-Za-z0-9\-._~:/?#@!$&'()*+,;=%\[\]]*)?"
)
# The standard lets these characters stand in a host; no name server knows one with them, and libcurl refuses them.
_NO_HOST = re.compile(r"[a-z]+://(?:[^/?#@]*@|(?![^/?#@]*@))[^/?#]*?[!\"$&'()*+,;=`{}]")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):(//)?")
_PATH = re.compile(r"/(?!/)|\.{1,2}/|~[^/]*/|[A-Za-z]:[\\/]")  # how a path of this machine begins

DEFAULT_PORTS = {"http": "80", "https": "443", "ftp": "21", "ftps": "990"}
_AUTHORITY = re.compile(r"([a-z][a-z0-9+.\-]*)://(?:([^/?#@]*)@)?(\[[^\]]*\]|[^/?#:]*)(?::(\d+))?", re.IGNORECASE)


def normalize(url: str | None) -> str | Failure:
    """The URL with blanks and other characters percent-encoded and its host in ASCII (WHATWG URL Standard).

    URLs of file systems (s3:, file: …) have names in them that mean what is written; only their scheme is put right.
    A Failure with `bad_url` or `unsupported_scheme` if nothing can be fetched from it.
    """
    if url is None or not (url := url.strip()):
        return Failure("fetch", "bad_url", "the row has no URL")
    if len(url) > LONGEST:
        return Failure("fetch", "bad_url", f"the URL is longer than {LONGEST} characters")
    if _PLAIN.fullmatch(url):
        return url
    if _PATH.match(url):
        return Failure("fetch", "bad_url", "a path, not a URL: write file:///... and give --allow_schemes=file")
    match = _SCHEME.match(url)
    if match is None:
        return Failure("fetch", "bad_url", "the URL has no scheme such as https://")
    scheme = match[1].lower()
    if scheme in FILE_SYSTEMS:
        return _of_file_system(scheme, url[match.end(1) + 1 :])
    if scheme not in WEB:
        # `example.com:8080/a.jpg` reads as a scheme too, but what is missing there is one.
        if match[2] is None and url[match.end() : match.end() + 1].isdigit():
            return Failure("fetch", "bad_url", "the URL has no scheme such as https://")
        return Failure("fetch", "unsupported_scheme", f"{scheme}: is not fetched")
    import ada_url

    try:
        href = str(ada_url.URL(url).href)
    except (ValueError, UnicodeError):
        return Failure("fetch", "bad_url", "not a valid URL")
    return href if _NO_HOST.match(href) is None else Failure("fetch", "bad_url", "not a valid host name")


def absolute(reference: str, base: str) -> str:
    """Where a reference in the answer of a normalised URL leads; itself if it leads nowhere."""
    import ada_url

    try:
        return str(ada_url.join_url(base, reference))
    except ValueError:
        return reference


def as_referer(value: object) -> str | None:
    """The value of a Referer header for the page at a URL: without credentials and fragment (RFC 9110, 10.1.3)."""
    url = normalize(value.partition("#")[0]) if isinstance(value, str) else None
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        return None
    return re.sub(r"//[^/?#]*@", "//", url, count=1)


def scheme_of(url: str) -> str:
    """The scheme of a URL that has been normalised."""
    return url[: url.index(":")]


def origin_of(url: str) -> str:
    """The part before the path of a normalised URL."""
    end = url.find("/", url.find("://") + 3)
    return url[:end] if end > 0 else url


def parts(url: str) -> tuple[str, str | None, str, str]:
    """Scheme, credentials, host and port of a normalised URL."""
    end = url.find("/", url.find("://") + 3)
    origin = url[:end] if end > 0 else url
    return _parts(origin) if len(origin) < LONG_ORIGIN else _parts.__wrapped__(origin)


@lru_cache(4096)
def _parts(origin: str) -> tuple[str, str | None, str, str]:
    match = _AUTHORITY.match(origin)
    if match is None:
        return "", None, "", ""
    scheme, credentials, host, port = match.groups()
    return scheme.lower(), credentials, host.lower(), port or DEFAULT_PORTS.get(scheme.lower(), "")


def _of_file_system(scheme: str, rest: str) -> str | Failure:
    if scheme == "data":
        complete = "," in rest
    elif scheme == "file":  # of this machine, and not relative to wherever a worker runs
        complete = rest.startswith("///") and len(rest) > 3
    else:
        host, _, path = rest.removeprefix("//").partition("/")
        complete = rest.startswith("//") and bool(path and (host or scheme in ("hdfs", "memory")))
    return f"{scheme}:{rest}" if complete else Failure("fetch", "bad_url", f"not a complete {scheme}: URL")


def environment_has_proxy() -> bool:
    """Whether the environment names a proxy (`http_proxy` and the like), which libcurl uses of itself."""
    if not any(name.lower().endswith("_proxy") and name.lower() != "no_proxy" for name in os.environ):
        return False  # most often: that module brings those for email and http
    from urllib.request import getproxies_environment

    return bool(getproxies_environment().keys() - {"no"})


def environment_proxy(url: str) -> str:
    """The proxy that the environment names for a normalised URL, found as libcurl does; "" if there is none."""
    scheme, _, host, _ = parts(url)
    # HTTP_PROXY in upper case may come from the `Proxy` header of a request that a CGI script answers.
    names = [f"{scheme}_proxy", *([] if scheme == "http" else [f"{scheme.upper()}_PROXY"]), "all_proxy", "ALL_PROXY"]
    proxy = next((value for name in names if (value := os.environ.get(name))), "")
    excluded = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    return "" if _is_among(host, excluded) else proxy


def _is_among(host: str, listed: str) -> bool:
    """Whether `host` is one of the names, domains, addresses and networks of a `no_proxy`."""
    if listed.strip() == "*":
        return True
    host = host.strip("[]").rstrip(".")
    for each in listed.lower().replace(",", " ").split():
        name = each.strip("[]").strip(".")
        if host == name or host.endswith(f".{name}"):
            return True
        with contextlib.suppress(ValueError):
            if ipaddress.ip_address(host) in ipaddress.ip_network(name, strict=False):
                return True
    return False
