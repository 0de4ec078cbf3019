"""The options of each host: those of the run, overridden by `hosts`.

All patterns that match a host count, option by option: an exact host wins over `*.` patterns, the longest of these over
the shorter ones, and among equals the one that names the port.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from any2ds.config.options import FetchOptions
from any2ds.fetch.policy.hosts import UNLIMITED, HostPolicy
from any2ds.fetch.policy.robots import Policy
from any2ds.fetch.policy.rules import product_of
from any2ds.fetch.policy.schedule import host_name
from any2ds.fetch.urls import DEFAULT_PORTS, LONG_ORIGIN, normalize, origin_of, parts

_REMEMBERED = 8192  # origins


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """The options that hold for some hosts. There is one for each combination of patterns, compared by identity."""

    options: FetchOptions
    policy: HostPolicy
    headers: list[str]  # of requests; never empty, which to pycurl would mean that nothing is to be changed
    has_own_headers: bool = False  # `headers` are meant for these very hosts


class Profiles:
    """The options of each host.

    Limits of hosts are for all `machines` together: each has its part, but at least one transfer at a time.
    """

    def __init__(self, options: FetchOptions, machines: int = 1) -> None:
        self._machines = machines
        self._overrides = options.hosts or {}
        self._made: dict[tuple[str, ...], Profile] = {}
        self._options = options
        self.default = self._made[()] = self._make(())
        self.differ = bool(self._overrides)  # if not, `default` is all there is
        self._at = lru_cache(_REMEMBERED)(self._find)

    def of(self, url: str) -> Profile:
        """The profile for a normalised URL."""
        return self._found(url)[0]

    def host_of(self, url: str | None) -> tuple[str, HostPolicy]:
        """The name by which a URL of the list shares limits with others, and its policy; "" for what has no host
        (data:, file:, and what is no URL)."""
        normalized = normalize(url)
        if not isinstance(normalized, str):
            return "", self.default.policy
        profile, name = self._found(normalized)
        return name, profile.policy

    @property
    def tells_hosts_apart(self) -> bool:
        """Whether `host_of` says more of a URL than its host's name, and the same policy for all."""
        return self.differ or self.default.policy.host_delay > 0

    @property
    def robots_policy(self) -> Policy | None:
        """None if it is the same for all hosts."""

        def policy(origin: str) -> tuple[str, str]:
            options = self.of(origin).options
            return options.robots, product_of(options.user_agent)

        return policy if self.differ else None

    def _found(self, url: str) -> tuple[Profile, str]:
        origin = origin_of(url)
        return self._at(origin) if len(origin) < LONG_ORIGIN else self._find(origin)

    def _find(self, origin: str) -> tuple[Profile, str]:
        scheme, _, host, port = parts(origin)
        host = host.rstrip(".")
        if not host:
            return self.default, host_name(origin)
        matching = self._matching(_canonical(host), port)
        default = DEFAULT_PORTS.get(scheme, "")
        names_port = any(_port_of(pattern) for pattern in matching)
        name = host if port == default and not names_port else f"{host}:{port}"
        return self._profile(matching), name

    def _matching(self, host: str, port: str) -> tuple[str, ...]:
        """The patterns for a host, the least specific first."""
        domains, domain = [host], host
        if not host.startswith("["):
            while "." in domain:
                domain = domain.partition(".")[2]
                domains.append(f"*.{domain}")
        matching = []
        for name in reversed(domains):
            matching += [pattern for pattern in (name, f"{name}:{port}") if pattern in self._overrides]
        return tuple(matching)

    def _profile(self, patterns: tuple[str, ...]) -> Profile:
        profile = self._made.get(patterns)
        if profile is None:
            profile = self._made[patterns] = self._make(patterns)
        return profile

    def _make(self, patterns: tuple[str, ...]) -> Profile:
        own: dict[str, Any] = {}
        for pattern in patterns:
            own.update(self._overrides[pattern])
        options = replace(self._options, **own)
        at_once, delay = max(1, options.max_per_host // self._machines), options.host_delay * self._machines
        if options.max_per_host >= UNLIMITED:
            at_once = UNLIMITED
        policy = HostPolicy(at_once, delay, options.max_retry_after)
        return Profile(options, policy, ["Accept: */*", *(options.headers or ())], "headers" in own)


def _canonical(host: str) -> str:
    """An IPv4 address may be written in many ways; in a pattern it is written in the usual one."""
    if host[-1:].isdigit() or ".0x" in host or host.startswith("0x"):
        import ada_url

        try:
            return str(ada_url.URL(f"http://{host}").hostname)
        except ValueError:
            return host
    return host


def _port_of(pattern: str) -> str:
    """ "" if it names none."""
    return pattern.rpartition("]")[2].partition(":")[2]
