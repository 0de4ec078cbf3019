"""Url lists, wherever they are: the files that a URL, a folder or a glob stands for, and how they are opened."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from any2ds.core import layout, plugins, suggestions
from any2ds.core.errors import InputError, UsageError, error_text, redacted
from any2ds.core.manifest import ListFile
from any2ds.storage.patience import persist
from any2ds.storage.reading import opened, version_of
from any2ds.storage.stores import Stores, is_local

_MOST_NAMES = 1000  # that are compared with one that is misspelt


@dataclass(frozen=True, slots=True)
class InputFile:
    """A url list that exists. `name` is its absolute path, or its URL."""

    name: str
    fs: Any
    path: str

    def open(self, random_access: bool = False) -> BinaryIO:
        """The file from its start; `seekable()` says whether the place where it lies can do more.

        Raises MissingExtra, or whatever the file system raises.
        """
        try:
            if is_local(self.fs):
                return open(self.path, "rb")
            if not self.has_ranges:  # one HTTP answer, however long its rows are in use
                stream = self.fs.open(self.path, "rb", block_size=0)
                stream.seekable = lambda: False  # fsspec says True, and fails
                return cast(BinaryIO, stream)
            # Where several columns are read in turns, each would drop the others' read-ahead.
            options = {"cache_type": "none"} if random_access else {}
            return opened(self.name, lambda: self.fs.open(self.path, "rb", block_size=2**22, **options))
        except ImportError as error:
            raise plugins.missing_extra(self.name, error) from error

    @property
    def has_ranges(self) -> bool:
        """Whether any part of it can be read by itself."""
        if is_local(self.fs):
            return Path(self.path).is_file()  # no pipe, which gives its bytes once
        return "http" not in self.fs.protocol or bool(self.fs.info(self.path).get("partial"))

    def ranges(self, starts: Sequence[int], ends: Sequence[int]) -> list[bytes]:
        """The bytes between these places. Raises whatever the file system raises."""
        if is_local(self.fs):
            with open(self.path, "rb") as file:
                return [_part(file, start, end) for start, end in zip(starts, ends, strict=True)]
        found: list[bytes] = self.fs.cat_ranges([self.path] * len(starts), list(starts), list(ends), on_error="raise")
        return found


def _part(file: BinaryIO, start: int, end: int) -> bytes:
    file.seek(start)
    return file.read(end - start)


def stamps(files: Sequence[InputFile]) -> tuple[ListFile, ...]:
    """Size, and ETag or time of change, of each of `files`: if they are equal, the file is the same."""
    if all(is_local(file.fs) for file in files):
        return tuple(_stamp(file) for file in files)
    with ThreadPoolExecutor(min(32, len(files)), thread_name_prefix="any2ds-stamps") as pool:
        return tuple(pool.map(_stamp, files))


def _stamp(file: InputFile) -> ListFile:
    name = redacted(file.name)
    try:
        if is_local(file.fs):
            found = os.stat(file.path)
            return ListFile(name, found.st_size, str(found.st_mtime_ns))
        info = file.fs.info(file.path)
    except Exception:  # of any file system; one that cannot be asked is one that is not known
        return ListFile(name, None, None)
    size = info.get("size")
    return ListFile(name, size if isinstance(size, int) else None, version_of(info))


def input_files(url: str, stores: Stores) -> tuple[list[InputFile], bool]:
    """The files that `url`, a file, a folder or a glob, stands for, sorted; and whether it is a folder.

    Of folders and globs, files and folders whose names start with `_` or `.` are left out, unless the glob itself asks
    for them. Raises InputError if there is nothing.
    """
    try:
        fs, path = stores.open(url)
        kind, paths = _found(fs, path) if is_local(fs) else persist(f"looking at {url}", lambda: _found(fs, path))
    except UsageError:
        raise
    except FileNotFoundError:
        raise InputError(f"{url}: no such file or folder{similar_beside(url)}") from None
    except ImportError as error:
        raise plugins.missing_extra(url, error) from error
    except Exception as error:  # every file system has exceptions of its own
        raise InputError(f"{url}: cannot be looked at: {error_text(error)}") from error
    if not paths:
        raise InputError(f"{url}: " + ("matches no file" if kind == "glob" else "no files in this folder"))
    chain = "::" + url.split("::", 1)[1] if "::" in url else ""
    return [InputFile(name_of(fs, path) + chain, fs, path) for path in sorted(paths)], kind == "directory"


def relative_place(folder_fs: Any, folder: str, fs: Any, path: str) -> str | None:
    """The path of a file or folder, seen from `folder`: "" for the folder itself, None for what lies elsewhere.

    On this machine symbolic links are followed, and the system is asked what is the same folder: it may ignore case.
    """
    if not is_local(folder_fs) or not is_local(fs):
        if is_local(folder_fs) or is_local(fs):
            return None
        root, name = name_of(folder_fs, folder).rstrip("/"), name_of(fs, path).rstrip("/")
        return name[len(root) + 1 :] if f"{name}/".startswith(f"{root}/") else None
    try:
        root_stat = os.stat(folder)
    except OSError:  # it is not there yet, and neither is anything in it
        return None
    beside = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    for place in (Path(beside), Path(os.path.realpath(path))):  # the link itself, or what it leads to
        for parent in (place, *place.parents):
            with contextlib.suppress(OSError):
                if os.path.samestat(os.stat(parent), root_stat):
                    return "/".join(place.relative_to(parent).parts)
    return None


def similar_beside(path: str) -> str:
    """`: did you mean urls.txt?` for a path on this machine at which there is nothing; empty if nothing is likely."""
    wanted = path.rstrip("/")
    try:
        with os.scandir(os.path.dirname(os.path.expanduser(wanted)) or ".") as entries:
            names = [entry.name for entry in itertools.islice(entries, _MOST_NAMES)]
    except OSError:
        return ""
    hint = suggestions.for_path(wanted, names)
    return f": {hint}" if hint else ""


def _found(fs: Any, path: str) -> tuple[str, list[str]]:
    """The kind of `path`, and the files that it stands for."""
    if not is_local(fs):
        fs.invalidate_cache()  # another run of this process may have listed it, before it changed
    kind = _kind(fs, path)
    if kind == "glob":
        found = fs.glob(path, detail=True)
        return kind, [name for name, info in found.items() if info["type"] == "file" and _is_shown(name, path)]
    if kind == "directory":
        root, names = f"{path.rstrip('/')}/", fs.find(path)
        # Datasets in it are none of the lists, also before their first shard is finished.
        datasets = tuple(n.removesuffix(layout.RUN_FILE) for n in names if n.endswith(f"/{layout.RUN_FILE}"))
        inner = tuple(folder for folder in datasets if folder != root)
        return kind, [name for name in names if _is_shown(name, root) and not name.startswith(inner)]
    return kind, [path]


def _kind(fs: Any, path: str) -> str:
    """file, directory or glob; a file with a bracket in its name is a file."""
    if path.startswith(("http://", "https://")):
        return "glob" if "*" in path else "file"
    try:
        if is_local(fs):
            return "directory" if stat.S_ISDIR(os.stat(path).st_mode) else "file"
        return str(fs.info(path)["type"])
    except FileNotFoundError:
        if any(magic in path for magic in "*?["):
            return "glob"
        raise


def _is_shown(name: str, root: str) -> bool:
    """Whether no part of `name` is hidden, beyond what `root`, a glob or a folder with its slash, spells out itself."""
    spelled = root.split("/")
    return not any(
        part[:1] in ("_", ".") and (depth >= len(spelled) or spelled[depth][:1] != part[:1])
        for depth, part in enumerate(name.split("/"))
    )


def name_of(fs: Any, path: str) -> str:
    """The path, or the URL, without who is logged in."""
    if is_local(fs):
        return path
    url, host = str(fs.unstrip_protocol(path)), fs.storage_options.get("host")
    if not host or host in url:
        return url
    port = fs.storage_options.get("port")
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{host}{f':{port}' if port else ''}/{rest.lstrip('/')}"
