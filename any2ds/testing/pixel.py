"""Pictures of one pixel, which any decoder takes; whatever bytes stand behind them make each another one."""

from __future__ import annotations

_JPG = bytes.fromhex(
    "ffd8ffe000104a46494600010100000100010000ffdb004300100b0c0e0c0a100e0d0e1211101318281a181616183123"
    "251d283a333d3c3933383740485c4e404457453738506d51575f626768673e4d71797064785c656763ffc0000b080001"
    "000101011100ffc40014000100000000000000000000000000000000ffc4001410010000000000000000000000000000"
    "0000ffda0008010100003f003fffd9"
)
_PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b550000000a4944415478da6368000000"
    "820081da45083b0000000049454e44ae426082"
)


def jpg(more: bytes = b"") -> bytes:
    """A grey pixel, and `more`, which decoders do not look at."""
    return _JPG + more


def png(more: bytes = b"") -> bytes:
    """A grey pixel, and `more`, which decoders do not look at."""
    return _PNG + more
