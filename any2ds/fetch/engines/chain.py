"""The requests of one attempt: that for the row's URL, then one for each redirect, and what each of them may carry."""

from __future__ import annotations

import re
from dataclasses import replace

from any2ds.config.options import FetchOptions
from any2ds.core.failures import Failure
from any2ds.core.samples import LONGEST_FINAL_URL
from any2ds.fetch.policy.hosts import Attempt
from any2ds.fetch.policy.robots import REDIRECTS, Robots
from any2ds.fetch.policy.rules import PROXIED, address_of, is_for_any_host, refuses
from any2ds.fetch.profiles import Profile
from any2ds.fetch.urls import as_referer, normalize, parts

_MOST_COOKIES, _LONGEST_COOKIE = 50, 4096  # of one attempt
_NO_TIME_LEFT = re.compile(r"max-age\s*=\s*(?:0|-\d+)")  # how a server deletes a cookie


class Chain:
    """Begins at the normalised `url` of an attempt; `follow` goes on to the next one.

    What a user gave for hosts of the list (credentials in a URL, headers that may be secrets) is sent to their origin
    alone, and an address that is not public is asked only if no public one has led to it.
    """

    redirects = 0
    final_url: str | None = None  # where redirects have led; None also if it is too long to be kept
    first_address: str | None = None  # that was asked, or PROXIED

    def __init__(self, attempt: Attempt, url: str, options: FetchOptions) -> None:
        self.attempt = attempt
        self.at = url  # without credentials that a redirect brought
        self.sent_url = url  # with the credentials for it
        self.scheme, self._credentials, self.host, self.port = parts(url)
        self.origin = self._first_origin = self.scheme, self.host, self.port
        self._most = max(options.max_redirects, REDIRECTS) if attempt.asks else options.max_redirects
        name = options.referer_col
        self._referer = None if name is None else as_referer(attempt.row.of_list(name))
        self._cookies: dict[tuple[str, str], tuple[str, bool]] = {}  # (host, name) -> name=value, and if only for https

    def follow(self, location: str, status: int, set_cookie: str, robots: Robots | None) -> Failure | None:
        """Go on to where an answer redirects to, or say why not. `set_cookie` has a cookie in each line."""
        if self.redirects >= self._most:
            return Failure("fetch", "too_many_redirects", f"more than {self.redirects}", status, self.final_url)
        url = normalize(location)
        if isinstance(url, Failure) and url.code == "bad_url":
            return Failure("fetch", "bad_redirect", f"to what is {url.detail}", status, self.final_url)
        if isinstance(url, Failure) or not url.startswith(("http://", "https://")):
            return Failure("fetch", "bad_redirect", f"to {location.partition(':')[0][:16]}:", status, self.final_url)
        if robots is not None and not self.attempt.asks and (refusal := robots.redirect_refusal(url)):
            return replace(refusal, http_status=status, final_url=self.final_url)
        if set_cookie:
            self._keep_cookies(set_cookie)
        self.redirects += 1
        self.scheme, given, self.host, self.port = parts(url)
        self.origin = self.scheme, self.host, self.port
        self.at = url if given is None else url.replace(f"{given}@", "", 1)  # used, and not reported
        self.final_url = self.at if len(self.at) <= LONGEST_FINAL_URL else None
        inherits = given is None and self._credentials is not None and self.origin == self._first_origin
        self.sent_url = url.replace("://", f"://{self._credentials}@", 1) if inherits else url
        return None

    def headers(self, profile: Profile) -> list[str]:
        """Header lines of the next request."""
        headers = profile.headers
        if self.origin != self._first_origin:
            # Headers that tell who we are belong to the hosts of the list, not to those that they redirect to; if they
            # were given for this very host, they must not be lured out of the encryption.
            is_downgrade = self.scheme == "http" and self._first_origin[0] == "https"
            if is_downgrade or not profile.has_own_headers:
                headers = [header for header in headers if is_for_any_host(header.partition(":")[0])]
        if self._referer is not None and (self._referer.startswith("http:") or self.scheme == "https"):
            others = (header for header in headers if not header.lower().startswith("referer:"))
            headers = [*others, f"Referer: {self._referer}"]
        return headers

    def cookie(self) -> str | None:
        """The value of the Cookie header: what answers have set on the way of redirects to here."""
        cookies = [
            text
            for (host, _), (text, is_secure) in self._cookies.items()
            if host == self.host and (self.scheme == "https" or not is_secure)
        ]
        return "; ".join(cookies) or None

    def _keep_cookies(self, lines: str) -> None:
        """Cookies that an answer sets which redirects: they are for its host, and forgotten with the attempt."""
        for line in lines.split("\n"):
            text, *attributes = map(str.strip, line.split(";"))
            lowered = [attribute.lower() for attribute in attributes]
            is_secure = "secure" in lowered
            place = self.host, text.partition("=")[0].strip()
            if any(_NO_TIME_LEFT.fullmatch(attribute) for attribute in lowered):
                self._cookies.pop(place, None)
            elif (
                text.isascii()
                and text.isprintable()
                and len(text) <= _LONGEST_COOKIE
                and len(self._cookies) < _MOST_COOKIES
                and not (is_secure and self.scheme == "http")
            ):
                self._cookies[place] = text, is_secure

    def ask_proxy(self, options: FetchOptions) -> str | None:
        """Why a proxy may not be asked for the host: known only where its address is written, as the proxy resolves."""
        address = address_of(self.host)
        reason = None if address is None else self.refusal(address, options)
        self.first_address = self.first_address or address or PROXIED
        return reason

    def refusal(self, address: str, options: FetchOptions) -> str | None:
        """Why `address` may not be asked; None if it may."""
        first = self.first_address or address
        reason = refuses(first, address, options.block_private_addresses, options.allow_link_local)
        return None if reason is None else f"{address} {reason}"
