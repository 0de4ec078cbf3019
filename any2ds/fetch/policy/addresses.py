"""Tells public addresses, private ones and metadata services apart, also where another address is hidden inside.

The tables are our own: what Python's `is_global` says differs between its patch releases.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Literal

Kind = Literal["public", "private", "metadata"]
"""`metadata`: link-local addresses and metadata services of clouds; `private`: everything else that is not public."""

_METADATA_V4 = tuple(
    map(
        IPv4Network,
        (
            "169.254.0.0/16",  # link-local (RFC 3927): 169.254.169.254 of most clouds, 169.254.170.2 of AWS ECS …
            "168.63.129.16",  # Azure's WireServer, among public addresses
            "100.100.100.200",  # Alibaba Cloud
            "100.96.0.96",  # Volcano Engine
            "100.80.80.80",  # UCloud
            "192.0.0.192",  # Oracle Cloud Classic
        ),
    )
)
_METADATA_V6 = tuple(
    map(
        IPv6Network,
        (
            "fe80::/10",  # link-local (RFC 4291): fe80::a9fe:a9fe of OpenStack
            "fd00:ec2::/32",  # AWS: ::254 the instance, ::23 EKS Pod Identity
            "fd20:ce::254",  # Google Cloud
            "fd00:c1::a9fe:a9fe",  # Oracle Cloud
            "fd00:100::100:200",  # Alibaba Cloud
            "fd00:a9fe:a9fe::1",  # Akamai (Linode)
            "fd00:42::42",  # Scaleway
        ),
    )
)

# IANA's registries of special-purpose addresses (iana.org/assignments/iana-ipv4-special-registry and
# iana-ipv6-special-registry) with all RFCs up to RFC 9780 of 2025, as known in November 2026: what is not "globally
# reachable", and multicast.
_NOT_PUBLIC_V4 = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # this network
            "10.0.0.0/8",  # private
            "100.64.0.0/10",  # shared by the customers of a provider
            "127.0.0.0/8",  # loopback
            "172.16.0.0/12",  # private
            "192.0.0.0/24",  # protocol assignments
            "192.0.2.0/24",  # documentation
            "192.88.99.0/24",  # relays of 6to4, deprecated
            "192.168.0.0/16",  # private
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, and broadcast
        ),
    )
)
_PUBLIC_V4 = tuple(map(IPv4Address, ("192.0.0.9", "192.0.0.10")))  # anycast of PCP and TURN, among 192.0.0.0/24
# All others are loopback, unspecified, private (fc00::/7), site-local (fec0::/10), multicast or not assigned at all.
_ASSIGNED_V6 = IPv6Network("2000::/3")
_NOT_PUBLIC_V6 = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # protocol assignments, Teredo among them
            "2001:db8::/32",  # documentation
            "3fff::/20",  # documentation
        ),
    )
)
_PUBLIC_V6 = tuple(  # among 2001::/23
    map(
        IPv6Network,
        ("2001:1::1", "2001:1::2", "2001:1::3", "2001:3::/32", "2001:4:112::/48", "2001:20::/28", "2001:30::/28"),
    )
)

_MAPPED = IPv6Network("::ffff:0:0/96")
_NAT64 = IPv6Network("64:ff9b::/96")  # RFC 6052
_NAT64_LOCAL = IPv6Network("64:ff9b:1::/48")  # RFC 8215
_SIX_TO_FOUR = IPv6Network("2002::/16")
_TEREDO = IPv6Network("2001::/32")
_COMPATIBLE = (IPv6Network("::/96"), IPv6Network("::ffff:0:0:0/96"))  # RFC 4291, RFC 2765
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)  # RFC 5214: the first half of the interface's identifier

_DANGER: tuple[Kind, ...] = ("public", "private", "metadata")


def address_kind(address: str) -> Kind:
    """The most dangerous kind of an address and of those hidden in it. Raises ValueError for what is no address."""
    parsed = ip_address(address.partition("%")[0])
    if isinstance(parsed, IPv4Address):
        return _kind_v4(parsed)
    kinds = [_kind_v4(hidden) for hidden in _hidden_in(parsed)]
    if not any(parsed in form for form in (_MAPPED, _NAT64, _SIX_TO_FOUR)):  # these stand for the other address alone
        kinds.append(_kind_v6(parsed))
    return max(kinds, key=_DANGER.index)


def _kind_v4(address: IPv4Address) -> Kind:
    if any(address in network for network in _METADATA_V4):
        return "metadata"
    is_special = any(address in network for network in _NOT_PUBLIC_V4) and address not in _PUBLIC_V4
    return "private" if is_special else "public"


def _kind_v6(address: IPv6Address) -> Kind:
    if any(address in network for network in _METADATA_V6):
        return "metadata"
    is_special = any(address in network for network in _NOT_PUBLIC_V6) and not any(
        address in network for network in _PUBLIC_V6
    )
    return "private" if is_special or address not in _ASSIGNED_V6 else "public"


def _hidden_in(address: IPv6Address) -> Iterator[IPv4Address]:
    """The IPv4 addresses to which a gateway, or this machine, sends what is meant for `address`."""
    number = int(address)
    if any(address in form for form in (_MAPPED, _NAT64, *_COMPATIBLE)):
        yield _v4(number)
    elif address in _SIX_TO_FOUR:
        yield _v4(number >> 80)
    elif address in _TEREDO:
        yield _v4(number >> 64)  # the server
        yield _v4(~number)  # the client
    elif address in _NAT64_LOCAL:  # the length of its prefix is the network's own choice, and so is the place
        without_u = number >> 64 << 56 | number & (1 << 56) - 1  # RFC 6052: bits 64 to 71 hold nothing
        yield from (_v4(number), *(_v4(without_u >> shift) for shift in (40, 32, 24)))  # of /96, /48, /56 and /64
    if number >> 32 & 0xFFFF_FFFF in _ISATAP:
        yield _v4(number)


def _v4(number: int) -> IPv4Address:
    return IPv4Address(number & 0xFFFF_FFFF)
