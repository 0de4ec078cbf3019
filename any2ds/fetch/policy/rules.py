"""Refusals of what could be fetched: addresses that nobody on the web may send us to, and opt-outs."""

from __future__ import annotations

import ipaddress
import socket
from functools import lru_cache

from any2ds.fetch.policy.addresses import address_kind

PROXIED = "proxied"
"""In place of the address of a host that a proxy connected to."""


@lru_cache(maxsize=4096)
def address_of(host: str) -> str | None:
    """The address that `host` of a URL is, in whatever way it is written; None if it is a name."""
    host = host.removesuffix(".")  # of the root of all names, which addresses do without
    try:
        if host.startswith("["):
            return str(ipaddress.ip_address(host[1:-1]))
        return socket.inet_ntoa(socket.inet_aton(host))  # 2852039166 and 0xa9fea9fe are addresses too
    except (OSError, ValueError):
        return None


@lru_cache(maxsize=16384)  # 300 bytes each; an address that is forgotten needs a new connection anyway
def refuses(first: str, last: str, block_private: bool, allow_link_local: bool) -> str | None:
    """Why the address `last` may not be asked, `first` being the one whose redirects led to it; None if it may.

    It is the address that is really connected to, so a name that resolves differently each time gains nothing. A host
    behind a proxy (PROXIED) counts as public: nobody here knows.
    """
    kind = address_kind(last)
    if kind == "metadata" and not allow_link_local:
        return "is link-local or a metadata service, where machines keep their secrets (--allow_link_local)"
    if kind != "public" and block_private:
        return "is not public (--block_private_addresses)"
    if kind != "public" and (first == PROXIED or address_kind(first) == "public"):
        return "is not public, and a public host redirected to it"
    return None


_HEADERS_FOR_ANY_HOST = frozenset(
    [
        "accept",
        "accept-charset",
        "accept-encoding",
        "accept-language",
        "cache-control",
        "connection",
        "dnt",
        "origin",
        "pragma",
        "priority",
        "referer",
        "sec-ch-ua",
        "sec-ch-ua-mobile",
        "sec-ch-ua-platform",
        "sec-fetch-dest",
        "sec-fetch-mode",
        "sec-fetch-site",
        "sec-fetch-user",
        "sec-gpc",
        "upgrade-insecure-requests",
        "user-agent",
    ]
)


def is_for_any_host(header: str) -> bool:
    """Whether the header of this name, which was given for the hosts of the list, goes to a host that one redirects to.

    Any other may be a secret: X-Api-Key, X-Auth-Token, Proxy-Authorization.
    """
    return header.strip().lower() in _HEADERS_FOR_ANY_HOST


def opted_out(header: str, product: str, disallowed: frozenset[str]) -> str | None:
    """The directive in an `X-Robots-Tag` that excludes the file for us; None if there is none.

    The header is a list of directives for everybody, or for one agent after its name: `noai`,
    `otherbot: noindex, nofollow`, `any2ds: noimageai`; several headers are lines. `none` stands for noindex and
    nofollow. `product` is the name in our user agent.
    """
    for line in header.lower().split("\n"):
        applies = True
        for part in line.split(","):
            agent, colon, rest = part.partition(":")
            directive = part.strip()
            if colon and agent.strip() not in _WITH_VALUES:
                applies = agent.strip() in ("*", product.lower())
                directive = rest.strip()
            if applies and (directive in disallowed or (directive == "none" and "noindex" in disallowed)):
                return directive
    return None


_WITH_VALUES = frozenset({"unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"})


def product_of(user_agent: str) -> str:
    """The name by which robots.txt and headers address us: `any2ds` of `any2ds/1.0 (+https://…)`."""
    return user_agent.split("/", 1)[0].split(" ", 1)[0].strip()
