"""The kinds of stores, and how a URL is opened in one, with the options that the run has for it."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from typing import Any

from any2ds.core import plugins
from any2ds.core.errors import InputError, conceal, error_text, redacted
from any2ds.core.schemes import OBJECT_STORES, ROWS_ONLY, SERVERS
from any2ds.storage.patience import PATIENT, Patience

# Libraries that log failures with tracebacks: the exceptions hold the same, and networks fail often.
for _library in ("paramiko", "gcsfs"):
    logging.getLogger(_library).addHandler(logging.NullHandler())  # else Python prints it

_SECRET = re.compile(r"key|secret|token|pass|credential|sas|connection_string|auth|header|cookie", re.IGNORECASE)
_SERVER_OPTIONS = ("endpoint_url", "endpoint", "account_name", "account_host", "connection_string")
_SERVER_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "STORAGE_EMULATOR_HOST", "AZURE_STORAGE_ACCOUNT_NAME")
_WHOSE = frozenset({"account_name", "host", "port"})  # options that name the server or account of the others
_NO_SECRETS = frozenset({"anon", "browser", "cache", "cloud", "google_default"})  # what gcsfs takes as a token
_ONE_SLASH = re.compile(r"(\w{2,}):/(?!/)")  # a drive of Windows has one letter
_SECONDS = (10.0, 30.0)  # to connect, and without a byte
_LEAST = 4  # characters of what is kept out of messages; less would garble them, and is no secret


def protocols(fs: Any) -> frozenset[str]:
    return frozenset({fs.protocol} if isinstance(fs.protocol, str) else fs.protocol)


def is_object_store(fs: Any) -> bool:
    return bool(OBJECT_STORES & protocols(fs))


def appears_whole(fs: Any) -> bool:
    """Whether a file is there when its upload is complete, and not before."""
    return is_object_store(fs) or "hf" in protocols(fs)


def absolute(url: str) -> str:
    """The URL or path of the same place from any working directory of this machine."""
    return url if "://" in url or "::" in url else os.path.abspath(os.path.expanduser(url))


class LocalFiles:
    """The disks of this machine: fsspec's file system, which is loaded when it is used.

    Most runs with local paths do without, and to load fsspec takes a tenth of the CPU of a run of one row.
    """

    protocol = ("file", "local")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # of copying and pickling, which ask for what there may not be
            raise AttributeError(name)
        from fsspec.implementations.local import LocalFileSystem

        return getattr(LocalFileSystem(), name)


def server_of(fs: Any) -> str:
    """The setting that says, besides the URL, which server or account it is; "" for the usual one."""
    options = {**fs.storage_options, **(fs.storage_options.get("client_kwargs") or {})}
    given = [str(options[name]) for name in _SERVER_OPTIONS if options.get(name)]
    return " ".join(given or [os.environ[name] for name in _SERVER_VARIABLES if os.environ.get(name)])


def is_local(fs: Any) -> bool:
    return "file" in protocols(fs)


class Stores:
    """How the stores of a run are reached: protocol -> options of its file system (`storage_options`).

    What is secret among these is kept out of messages and logs from then on. `patience` decides on more attempts at
    what fails. It can be pickled.
    """

    def __init__(self, options: Mapping[str, Mapping[str, Any]] | None = None, patience: Patience = PATIENT) -> None:
        self._options, self.patience = options or {}, patience
        conceal(secrets_in(self._options))

    def __reduce__(self) -> tuple[type[Stores], tuple[Any, ...]]:
        return type(self), (self._options, self.patience)

    def open(self, url: str) -> tuple[Any, str]:
        """The file system of `url` and the path in it. Raises MissingExtra, or InputError for an unknown protocol."""
        url = os.path.expanduser(url)
        if (path := self._local_path(url)) is not None:
            return LocalFiles(), path
        from fsspec.core import split_protocol, url_to_fs
        from fsspec.registry import available_protocols, known_implementations

        if (mistaken := _ONE_SLASH.match(url)) and mistaken[1] in known_implementations and not os.path.exists(url):
            raise InputError(f"{redacted(url)}: a URL has two slashes, {redacted(url.replace(':/', '://', 1))}")
        chain = {split_protocol(part)[0] or (part if part in self._options else "file") for part in url.split("::")}
        if for_rows := chain & ROWS_ONLY:
            raise InputError(
                f"{redacted(url)}: {for_rows.pop()}:// is for rows of a list, not for lists or datasets: mount the"
                " folder (sshfs, rclone)"
            )
        try:
            fs, path = url_to_fs(url, **{protocol: found for protocol in chain if (found := self._settings(protocol))})
        except ImportError as error:
            raise plugins.missing_extra(url, error) from error
        except (ValueError, TypeError) as error:
            if unknown := sorted(chain - {*available_protocols()}):
                raise InputError(f"{url}: fsspec knows no store {unknown[0]!r}") from error
            raise InputError(f"{url}: fsspec cannot open it: {error}") from error
        except Exception as error:  # some connect at once, and have exceptions of their own
            raise InputError(f"{url}: cannot be reached: {error_text(error)}") from error
        if "s3" in protocols(fs) and hasattr(fs, "retries"):
            fs.retries = 1
        return fs, path

    def _local_path(self, url: str) -> str | None:
        """The path that fsspec makes of a plain path on this machine; None for anything else, and on Windows."""
        if ":" in url or os.sep != "/" or self._options.keys() & {*LocalFiles.protocol}:
            return None
        if url.startswith("/"):
            return url.rstrip("/") or "/"
        try:
            folder = os.getcwd()
        except FileNotFoundError as error:
            problem = (
                f"{url!r} is a path in the working directory, which has been deleted: cd to a directory that exists"
            )
            raise InputError(f"{problem}, or give an absolute path") from error
        return f"{folder}/{'' if url == '.' else url.removeprefix('./')}".rstrip("/") or "/"

    def of(self, protocol: str) -> dict[str, Any]:
        """The options of a protocol, under whichever of its names they were given."""
        kind = _kind(protocol)
        return next((dict(found) for name, found in self._options.items() if _kind(name) == kind), {})

    def _settings(self, protocol: str) -> dict[str, Any]:
        """`of`, with an end to waiting, and no attempts but ours (`patience`): S3's libraries make 25 of each.

        Options of the user for this hold as they are.
        """
        options, (connecting, silent) = self.of(protocol), _SECONDS
        if protocol in ("s3", "s3a"):
            usual = {"connect_timeout": connecting, "read_timeout": silent, "retries": {"max_attempts": 0}}
            options["config_kwargs"] = {**usual, **options.get("config_kwargs", {})}
        elif protocol in ("http", "https"):
            from aiohttp import ClientTimeout

            limits = ClientTimeout(total=None, sock_connect=connecting, sock_read=silent)
            options["client_kwargs"] = {"timeout": limits, **options.get("client_kwargs", {})}
        return options

    def of_item(self, protocol: str, in_url: Mapping[str, Any]) -> dict[str, Any]:
        """The options for a URL of the list that has `in_url` in itself.

        Strangers may have written the list: what belongs to one server or account goes to no other.
        """
        options = self.of(protocol)
        if protocol in SERVERS and ("host" not in options or options["host"] != in_url.get("host")):
            return {}
        named = {name: value for name, value in in_url.items() if name in _WHOSE or name in options}
        return options if all(options.get(name) == value for name, value in named.items()) else {}


def _kind(protocol: str) -> str:
    """The class behind a protocol, without loading it."""
    from fsspec.registry import known_implementations

    known = known_implementations.get(protocol)
    return known["class"] if known else protocol


def secrets_in(options: Any, name: str = "") -> set[str]:
    """The strings in it whose key looks like that of a secret."""
    if isinstance(options, Mapping):
        return {found for key, value in options.items() for found in secrets_in(value, f"{name} {key}")}
    if isinstance(options, (list, tuple)):
        return {found for value in options for found in secrets_in(value, name)}
    if not isinstance(options, str) or len(options) < _LEAST or options in _NO_SECRETS:
        return set()
    return {options} if _SECRET.search(name) else set()
