"""Everything any2ds raises, as one tree.

    Any2dsError
    ├── UsageError            what was asked for cannot be done; nothing was created (exit code 2)
    │   ├── OptionError       an unknown option, or a value that it cannot take
    │   ├── InputError        the url list is missing or empty
    │   │   ├── MissingColumns    it lacks a column
    │   │   └── WrongFormat       it is not in the format that it was read as
    │   ├── OutputError       the output folder cannot be used
    │   │   └── OutputInUse       another run is at work in it
    │   └── MissingExtra      a library is not installed that this choice needs
    └── RunError              the run ended, but not with everything that was asked for (exit code 1)
        ├── ReadError         the url list broke off: malformed line, broken gzip, truncated parquet
        │   ├── NoGoodRow         none of its first rows can be read as its format
        │   └── ChangedList       it can be read only once, and has turned out to be another one than before
        ├── DamagedShard      a file of a finished shard cannot be read to its end
        ├── LockLost          another run has taken the output folder over
        ├── NetworkDown       nothing answers any more, for ten minutes
        ├── StuckFetcher      nothing moves any more where rows are fetched; other processes go on, if there are any
        ├── BrokenStep        a step of the user's own cannot do anything at all
        ├── UnfitWorker       a machine lacks what the steps of the run need
        ├── DiskFull          a disk has no room for more, or less than --min_free_bytes
        ├── NothingStored     a command has tried rows and could store none (exit code 4; functions return their report)
        └── IncompleteRun     shards are missing (`reports.IncompleteRun`)

    ValueError
    └── NotDecodable          a file is broken, or is not what it claims to be; a transform raises it
    TypeError
    └── WrongResult           a step of the user's own returned what no step may return

What goes wrong with one row is not an exception but a `failures.Failure`; what goes wrong with
one shard travels as a `reports.ShardError`.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import pickle
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from any2ds.core.text import size

_NAMES_SHOWN = 20
_NEARLY_FULL = 64 << 20  # bytes free with which a disk may be called full: some keep a part to themselves

_FULL = {errno.ENOSPC, errno.EDQUOT}
_FULL_WINDOWS = {39, 112}  # ERROR_HANDLE_DISK_FULL, ERROR_DISK_FULL
_MESSAGES = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))  # some errors of pyarrow have only a message

# Only the end of the scheme: what begins at each letter of a long word would take time that is quadratic in its length.
_CREDENTIALS = re.compile(r"(?<=[A-Za-z0-9+.-]://)[^/?#\s]*@")

# Parts of a URL that let anybody in: signatures of stores, and tokens.
_SIGNED = re.compile(
    r"([?&](?:x-(?:amz|goog)-(?:signature|security-token|credential)|signature|sig|(?:access_?|auth_?)?token|api_?key)=)"
    r"[^&#\s\"'<>]+",
    re.IGNORECASE,
)
_SECRETS: set[str] = set()  # of this process


def conceal(secrets: Iterable[str]) -> None:
    """From now on `redacted` leaves these out of whatever this process says."""
    _SECRETS.update(secrets)


def redacted(text: str) -> str:
    """`text` without user names, passwords, signatures and tokens of the URLs in it, and what is to be concealed."""
    for secret in _SECRETS:
        if secret in text:  # as a word of its own: a short one may be part of others
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(secret)}(?![A-Za-z0-9])", "[secret]", text)
    if "=" in text:
        text = _SIGNED.sub(r"\1[secret]", text)
    return _CREDENTIALS.sub("", text) if "@" in text else text


def error_text(error: BaseException) -> str:
    """The words of an exception of another library, on one line and without credentials; its name if it says
    nothing."""
    return redacted(" ".join(said_by(error).split())) or type(error).__name__


def access_text(error: BaseException) -> str:
    """`error_text` of a store's exception; "no such file" or "access denied" before it, where it does not say that."""
    text = error_text(error)
    if isinstance(error, FileNotFoundError) and not re.search("no such|not found", text, re.IGNORECASE):
        return f"no such file: {text}"
    if isinstance(error, PermissionError) and not re.search("denied|forbidden|permi", text, re.IGNORECASE):
        return f"access denied: {text}"
    return text


def said_by(error: BaseException) -> str:
    """The words of an exception; empty if its `__str__` fails, which may happen with exceptions of other people."""
    try:
        return str(error)
    except Exception:
        return ""


def printable(text: str) -> str:
    """`text` on one line, without what a terminal would obey: such characters as Python would write them."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def harmless(text: str) -> str:
    """`text` as a log may have it: its lines without credentials, and without what a terminal would obey."""
    return "\n".join(map(printable, redacted(text).split("\n")))


def shard_count(count: int, one: str = "", several: str = "") -> str:
    """So many of them, and what is said of one or of several: `1 shard is`, `1,200 shards are`."""
    return f"{count:,} shard {one}".rstrip() if count == 1 else f"{count:,} shards {several}".rstrip()


class NotDecodable(ValueError):
    """Raised by a transform: the file is broken, or is not what it claims to be."""


class WrongResult(TypeError):
    """A step of the user's own has returned what no step may return, for one row."""


class Any2dsError(Exception):
    """The root: `except Any2dsError` catches whatever any2ds raises on purpose."""

    exit_code = 1

    def __str__(self) -> str:
        return redacted(self._words())

    def _words(self) -> str:
        return super().__str__()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled whatever `__init__` takes, with its causes, and without what `redacted` leaves out: the process that
        unpickles it need not know the secrets of this one."""
        causes = [_picklable(cause) for cause in _causes(self)]
        return _unpickled, (type(self), _without_secrets(self.args), _without_secrets(self.__dict__), causes)


def _unpickled(
    kind: type[Any2dsError], arguments: tuple[Any, ...], state: dict[str, Any], causes: list[BaseException]
) -> Any2dsError:
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(state)
    for effect, cause in itertools.pairwise([error, *causes]):
        effect.__cause__ = cause
    return error


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The causes of an exception, nearest first; each once, also if one was raised from itself."""
    seen = {id(error)}
    while (cause := error.__cause__) is not None and id(cause) not in seen:
        yield cause
        seen.add(id(cause))
        error = cause


def _picklable(cause: BaseException) -> BaseException:
    """The exception without its own causes, or one with its words if another process could not unpickle it, as those of
    some libraries."""
    alone = _unpickled(type(cause), cause.args, cause.__dict__, []) if isinstance(cause, Any2dsError) else cause
    try:
        pickle.loads(pickle.dumps(alone))
    except Exception:  # whatever the exceptions of libraries raise there
        return Exception(f"{type(cause).__name__}: {error_text(cause)}")
    return alone


def _without_secrets(value: Any) -> Any:
    if isinstance(value, str):
        return redacted(value)
    if type(value) in (tuple, list):
        return type(value)(map(_without_secrets, value))
    return {name: _without_secrets(each) for name, each in value.items()} if type(value) is dict else value


class UsageError(Any2dsError):
    """A request cannot be carried out, such as an unknown option or a missing list; nothing was created."""

    exit_code = 2


class OptionError(UsageError):
    pass


class InputError(UsageError):
    pass


class MissingColumns(InputError):
    """The columns `missing` are not among the `existing` ones; `source` names the url list and how it was read, and
    `advice` is what to do."""

    def __init__(
        self, missing: Sequence[str], existing: Sequence[str], source: str = "url list", advice: str = ""
    ) -> None:
        super().__init__(missing, existing, source, advice)
        self.missing, self.existing, self.source, self.advice = tuple(missing), tuple(existing), source, advice

    def _words(self) -> str:
        absent = ", ".join(map(repr, self.missing))
        shown = ", ".join(printable(name[:100]) for name in self.existing[:_NAMES_SHOWN]) or "none"
        more = len(self.existing) - _NAMES_SHOWN
        return f"{self.source}: no column {absent}; columns that exist: {shown}" + (
            f" … and {more:,} more" * (more > 0) + f"; {self.advice}" * bool(self.advice)
        )


class WrongFormat(InputError):
    """The url list `source` is not in the format that it was read as; `format` is the name of its own, if known."""

    def __init__(self, reason: str, format: str | None = None, source: str = "url list") -> None:
        super().__init__(reason, format, source)
        self.reason, self.format, self.source = reason, format, source

    def _words(self) -> str:
        hint = f": --input_format={self.format} reads it" if self.format else ""
        return f"{self.source}: {self.reason}{hint}"


class OutputError(UsageError):
    pass


class Unreachable(OutputError):
    """A store gives no answer, or refuses: what lies in the folder is not known."""


class OutputInUse(OutputError):
    """Another run is at work in the output folder; the words say which."""


class MissingExtra(UsageError):
    """A library is missing that `wanted` needs. `extra` is the name in `pip install any2ds[extra]` that brings it;
    where no extra does, it is empty, and `advice` says what is known."""

    def __init__(self, wanted: str, extra: str, advice: str = "") -> None:
        advice = advice or f"pip install '{_source()}[{extra}]'"
        super().__init__(f"{wanted} needs a library that is not installed: {advice}")
        self.wanted, self.extra = wanted, extra


def _source() -> str:
    """The source that pip installed any2ds from: its name, or the folder of a clone (PEP 610)."""
    import importlib.metadata  # a tenth of the start of a run, which needs no names
    from urllib.request import url2pathname

    try:
        url = json.loads(importlib.metadata.distribution("any2ds").read_text("direct_url.json") or "{}").get("url", "")
    except (importlib.metadata.PackageNotFoundError, ValueError, OSError):
        return "any2ds"
    return url2pathname(url.removeprefix("file://")) if url.startswith("file:///") else "any2ds"


class RunError(Any2dsError):
    """The run ended without everything that was asked for; finished shards are kept."""


class NothingStored(RunError):
    """Rows were tried and none could be stored. Only the command line raises it."""

    exit_code = 4


class NetworkDown(RunError):
    """Nothing answers any more. It ends the run: what is not finished would fail without reason."""


class LockLost(RunError):
    """The output folder belongs to another run now. It ends this one, which may not publish anything more."""


class StuckFetcher(RunError):
    """A fetcher does nothing any more. It ends its process, and the run where that is the only one; else other
    processes make its open shards. `under_way`: number of each shard with rows that were being fetched -> their
    positions."""

    def __init__(self, reason: str, under_way: Mapping[int, Collection[int]]) -> None:
        super().__init__(
            f"fetching is stuck: {reason}. Run the same command again: finished shards are kept, and it goes on with "
            "the others. Without --distributor=inline, other processes do so at once"
        )
        self.reason, self.under_way = reason, under_way


class BrokenStep(RunError):
    """A step of the user's own can do nothing, whatever it is given. It ends the run: every row would fail."""


class UnfitWorker(RunError):
    """The machine of a worker cannot make the steps of the run. It ends the run: shards must not depend on where they
    are made."""


class DiskFull(RunError):
    """There is no room on the disk of `folder`, or less than is to stay free. It ends the run, which can be resumed.

    `free` bytes are left, None if nobody knows; `least` were to stay free, 0 if the disk itself said that it is full;
    with `no_more_files` it has no room for names. `way_out` is what to do beside making room.
    """

    def __init__(
        self, folder: str, free: int | None, least: int = 0, way_out: str = "", no_more_files: bool = False
    ) -> None:
        super().__init__(folder, free, least, way_out, no_more_files)
        self.folder, self.free, self.least = folder, free, least
        self.way_out, self.no_more_files = way_out, no_more_files

    def _words(self) -> str:
        left = "" if self.free is None else f"{size(self.free)} free"
        if self.least and self.free is not None:
            what = f"too little room on the disk of {self.folder!r}: {left}, --min_free_bytes is {size(self.least)}"
        elif self.no_more_files:
            what = f"the disk of {self.folder!r} takes no more files (no inodes; {left or 'its room is unknown'})"
        elif self.free is not None and self.free > _NEARLY_FULL:
            what = f"no more room for us on the disk of {self.folder!r} ({left}: is there a quota?)"
        else:
            what = f"the disk of {self.folder!r} is full" + (f" ({left})" if left else "")
        way_out = f", or {self.way_out}" if self.way_out else ""
        return (
            f"{what}. Make room there{way_out}; then run the same command again: finished shards are kept, "
            "and it goes on with the others"
        )


def is_full(error: BaseException | None, worded: type[BaseException] = BaseException) -> bool:
    """Whether this error, or a cause of it, means that a disk or a quota has no room.

    `worded`: errors whose message counts; messages of other code may quote what they were reading.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, DiskFull):
            return True
        if isinstance(error, OSError) and (error.errno in _FULL or getattr(error, "winerror", None) in _FULL_WINDOWS):
            return True
        if isinstance(error, worded) and any(message in said_by(error) for message in _MESSAGES):
            return True
        error = error.__cause__ or error.__context__
    return False


ENDS_THE_RUN = (BrokenStep, DiskFull, LockLost, NetworkDown, UnfitWorker)
"""What a worker raises that is the fault of no shard: it ends the run on all machines."""


class DamagedShard(RunError):
    pass


class ReadError(RunError):
    """A url list could be read only up to a point. `path` names the file, `where` the place in it."""

    def __init__(self, where: str, reason: str, path: str = "") -> None:
        super().__init__(path, where, reason)
        self.path, self.where, self.reason = path, where, reason

    def _words(self) -> str:
        return f"{self.path or 'url list'}: could be read only up to {self.where}: {self.reason}"

    def in_file(self, path: str, where: str = "") -> ReadError:
        """This error, which names the file from now on, and the place if it named none."""
        self.path, self.where = path, self.where or where
        return self


class NoGoodRow(ReadError):
    """None of the first `rows` rows could be read; `where` and `reason` are those of the first."""

    def __init__(self, where: str, reason: str, path: str = "", rows: int = 1) -> None:
        super().__init__(where, reason, path)
        self.rows = rows

    def _words(self) -> str:
        which = "the first row could not" if self.rows == 1 else f"none of the first {self.rows} rows could"
        return f"{self.path or 'url list'}: {which} be read as this format: {self.where}: {self.reason}"


class ChangedList(ReadError):
    def __init__(self, reason: str) -> None:
        super().__init__("", reason)

    def _words(self) -> str:
        return self.reason
