"""Turns what stands in a list into a URL that can be sent, as a browser's address bar would."""

from __future__ import annotations

import re

from any2ds.types import Failure

SCHEMES = frozenset({"http", "https", "ftp", "ftps"})
LONGEST = 2**16  # characters; readers cut what is longer so that it stays longer than this

# Nothing in it needs encoding, and a host stands where it belongs: by far the most rows, and they skip the parser.
# Ports of more than four digits do not: they may be too high.
_PLAIN = re.compile(r"(?:https?|ftps?)://[A-Za-z0-9.\-]+(?::\d{1,4})?(?:[/?#][A-Za-z0-9\-._~:/?#@!$&'()*+,;=%\[\]]*)?")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):(//)?")


def normalize(url: str | None) -> str | Failure:
    """The URL with blanks and other characters percent-encoded and its host in ASCII (WHATWG URL Standard).

    A Failure with `bad_url` or `unsupported_scheme` if nothing can be fetched from it.
    """
    if url is None or not (url := url.strip()):
        return Failure("fetch", "bad_url", "the row has no URL")
    if len(url) > LONGEST:
        return Failure("fetch", "bad_url", f"the URL is longer than {LONGEST} characters")
    if _PLAIN.fullmatch(url):
        return url
    match = _SCHEME.match(url)
    if match is None:
        return Failure("fetch", "bad_url", "the URL has no scheme such as https://")
    if match[1].lower() not in SCHEMES:
        # `example.com:8080/a.jpg` reads as a scheme too, but what is missing there is one.
        if match[2] is None and url[match.end() : match.end() + 1].isdigit():
            return Failure("fetch", "bad_url", "the URL has no scheme such as https://")
        return Failure("fetch", "unsupported_scheme", f"{match[1].lower()}: is not fetched")
    import ada_url

    try:
        return str(ada_url.URL(url).href)
    except (ValueError, UnicodeError):
        return Failure("fetch", "bad_url", "not a valid URL")
