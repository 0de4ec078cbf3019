"""Where a file of a store can be read by plain HTTP: a signed URL, or one with headers.

The fsspec file system of the store makes them, with the account and the settings that it reads with itself; where it
has settings that plain HTTP would not follow, there is no address, and the file is read through fsspec.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from any2ds.storage.stores import protocols

_VALID = 3600  # seconds, of a signature; credentials that are passing may end it before
_RENEWED = 240.0  # seconds after which an address is made anew: credentials are renewed five minutes before they end
_PATIENCE = (10.0, 30.0)  # seconds to connect, and without a byte

# Options that change neither what is asked for nor who asks, or are in the URL that the library makes.
_CLIENT = {"aws_access_key_id", "aws_secret_access_key", "aws_session_token", "endpoint_url", "region_name", "verify"}
_CONFIG = {"connect_timeout", "read_timeout", "region_name", "retries", "s3", "signature_version"}


@dataclass(frozen=True, slots=True)
class Address:
    """How to ask for one file. The URL and the headers are secret."""

    url: str = field(repr=False)
    headers: tuple[str, ...] = field(default=(), repr=False)
    follows: bool = False  # redirects; `Authorization` is not sent to other hosts
    proxy: str = field(default="", repr=False)  # but for the hosts in `no_proxy` of the environment
    verify: bool | str = True  # certificates; or a file of authorities
    connect_timeout: float = _PATIENCE[0]  # seconds
    read_timeout: float = _PATIENCE[1]  # seconds without a byte
    until: float = 0.0  # time.monotonic() at which it is made anew

    def is_old(self) -> bool:
        return time.monotonic() > self.until


def address_of(fs: Any, path: str) -> Address | None:
    """None where only fsspec can read it. Raises whatever the file system raises; it may ask the store."""
    make = next((make for protocol, make in _MAKERS.items() if protocol in protocols(fs)), None)
    return None if make is None else make(fs, path)


def _until() -> float:
    return time.monotonic() + _RENEWED


def _proxy(url: str) -> str:
    """The one of the environment, as botocore takes it."""
    from urllib.request import getproxies_environment  # with email and http, which a run need not load

    found = getproxies_environment()
    return found.get(urlsplit(url).scheme) or found.get("all") or ""


def _s3(fs: Any, path: str) -> Address | None:
    client, config = fs.client_kwargs, fs.config_kwargs
    if set(client) - _CLIENT or set(config) - _CONFIG or fs.s3_additional_kwargs or fs.asynchronous:
        return None
    if "signature_version" not in config and not fs.anon:
        _sign_with_v4(fs.s3)
    url = fs.url(path, expires=_VALID, **fs.req_kw)
    verify = client.get("verify")
    if verify is None:
        verify = _authorities(fs)
    pays = ("x-amz-request-payer: requester",) if "x-amz-request-payer" in urlsplit(url).query.lower() else ()
    is_signed = "X-Amz-SignedHeaders" in url  # by version 2 the URL says it alone
    return Address(
        url,
        pays if is_signed else (),
        proxy=_proxy(url),
        verify=verify,
        connect_timeout=_seconds(config.get("connect_timeout"), _PATIENCE[0]),
        read_timeout=_seconds(config.get("read_timeout"), _PATIENCE[1]),
        until=_until(),
    )


def _sign_with_v4(client: Any) -> None:
    """botocore signs URLs for the usual region by version 2, which many stores do not take, unless a version is set."""
    if client in _SIGN_WITH_V4:
        return

    def version(signature_version: Any, **_: Any) -> str | None:
        is_other = not isinstance(signature_version, str) or signature_version.startswith(("v4a", "v4-s3express"))
        return None if is_other or not signature_version.endswith("-query") else "s3v4-query"

    client.meta.events.register_first("choose-signer.s3", version)
    _SIGN_WITH_V4.add(client)


_SIGN_WITH_V4: weakref.WeakSet[Any] = weakref.WeakSet()


def _authorities(fs: Any) -> bool | str:
    """The certificate authorities of the environment or the profile, as botocore has them; True for the usual."""
    found = fs.session.get_config_variable("ca_bundle") if fs.session is not None else None
    return str(found) if found else True


def _seconds(given: Any, usual: float) -> float:
    return float(given) if isinstance(given, (int, float)) and given > 0 else usual


def _gs(fs: Any, path: str) -> Address | None:
    if fs.requester_pays or fs.session_kwargs or fs.asynchronous:
        return None
    headers: dict[str, str] = {}
    fs.credentials.apply(headers)
    return Address(fs.url(path), _lines(headers), until=_until())  # gcsfs takes no proxy from the environment


def _az(fs: Any, path: str) -> Address | None:
    """With the key of the account, which signs; what else there is, adlfs has to do."""
    if not (fs.account_key or "accountkey=" in (fs.connection_string or "").lower()) or fs.asynchronous:
        return None
    url = fs.url(path, expires=_VALID)
    return Address(url, proxy=_proxy(url), until=_until())


def _hf(fs: Any, path: str) -> Address | None:
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers

    found = fs.resolve_path(path)
    if not hasattr(found, "repo_id"):
        return None
    url = hf_hub_url(
        found.repo_id,
        found.path_in_repo,
        repo_type=found.repo_type,
        revision=found.revision,
        endpoint=fs.endpoint,
    )
    return Address(url, _lines(build_hf_headers(token=fs.token)), follows=True, proxy=_proxy(url), until=_until())


def _http(fs: Any, path: str) -> Address | None:
    from fsspec.implementations.http import get_client

    options = {name: value for name, value in fs.kwargs.items() if name not in ("headers", "trust_env")}
    session = {
        name: value for name, value in fs.client_kwargs.items() if name not in ("headers", "trust_env", "timeout")
    }
    if options or session or fs.asynchronous or fs.get_client is not get_client:
        return None
    headers = {**fs.client_kwargs.get("headers", {}), **fs.kwargs.get("headers", {})}
    proxy = _proxy(path) if fs.client_kwargs.get("trust_env") else ""
    follows = all(name.lower() in ("authorization", "user-agent") for name in headers)
    limits = fs.client_kwargs.get("timeout")
    return Address(
        str(fs.encode_url(path)),
        _lines(headers),
        follows=follows,
        proxy=proxy,
        connect_timeout=_seconds(getattr(limits, "sock_connect", None), _PATIENCE[0]),
        read_timeout=_seconds(getattr(limits, "sock_read", None) or getattr(limits, "total", None), _PATIENCE[1]),
        until=_until(),
    )


def _lines(headers: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{name}: {value}" for name, value in headers.items())


_MAKERS: dict[str, Callable[[Any, str], Address | None]] = {
    "s3": _s3,
    "gs": _gs,
    "az": _az,
    "hf": _hf,
    "https": _http,
}
