"""`dl`: what a recipe downloads and unpacks by itself: archives, lists, tables.

Files are fetched by the engine of `download`, many at once, and kept in the cache by URL. `checksums.tsv` beside the
recipe says what each should be.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import logging
import lzma
import os
import re
import shutil
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from any2ds.config.options import FetchOptions, StorageOptions
from any2ds.core.bodies.buffer import Buffer
from any2ds.core.errors import MissingExtra, RunError, UsageError, redacted
from any2ds.core.failures import Failure
from any2ds.core.paths import expanded
from any2ds.core.rows import Row
from any2ds.core.schemes import GUARDED
from any2ds.core.text import size as shown_size
from any2ds.fetch.fetcher import UrlFetcher
from any2ds.recipes.unpacking import is_tar, opened_tar, unpack_archive
from any2ds.storage.stores import Stores

log = logging.getLogger(__name__)

CHECKSUMS = "checksums.tsv"
_HEAD = "url\tsize\tsha256\tfile name"
_TELL_SECONDS = 5.0  # between two messages on how far it is
_TAR = re.compile(r"\.(tar(\.(gz|bz2|xz|zst))?|tgz|tbz2?|txz|tzst)$", re.IGNORECASE)
_ARCHIVES = "zip, tar, tar.gz, tar.bz2, tar.xz, tar.zst, gz, bz2, xz or zst"
_RETRIES = 3


def _open_zst(path: Path, mode: str) -> IO[bytes]:
    return io.BufferedReader(pa.CompressedInputStream(pa.OSFile(str(path), mode), "zstd"))


_SINGLE: Mapping[str, Callable[..., Any]] = {  # no archives
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": _open_zst,
}


class ChecksumError(RunError):
    """A file is not the one that checksums.tsv names."""


@dataclass(frozen=True, slots=True)
class Checksum:
    """The size and digest that a URL should give."""

    url: str
    size: int  # bytes
    sha256: str
    name: str

    def line(self) -> str:
        return f"{self.url}\t{self.size}\t{self.sha256}\t{self.name}\n"


class Checksums:
    """`checksums.tsv` of a recipe."""

    def __init__(self, path: Path | None) -> None:
        """Raises UsageError if it cannot be read."""
        self.path = path
        self.known: dict[str, Checksum] = {}
        if path is None or not path.is_file():
            return
        for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), 1):
            if not line.strip() or line == _HEAD:
                continue
            try:
                url, size, sha256, name = line.split("\t")
                if not re.fullmatch(r"[0-9a-f]{64}", sha256):
                    raise ValueError
                self.known[url] = Checksum(url, int(size), sha256, name)
            except ValueError:
                raise UsageError(f"{path}: line {number}: expected url, size, sha256, file name") from None

    def add(self, found: Sequence[Checksum]) -> None:
        """Write these as well. Raises UsageError where there is no folder of the recipe."""
        if self.path is None:
            raise UsageError(f"--register_checksums: the recipe lies in no file, so there is no {CHECKSUMS}")
        self.known.update({each.url: each for each in found})
        lines = "".join(each.line() for _, each in sorted(self.known.items()))
        temporary = self.path.with_suffix(f".{uuid.uuid4().hex[:8]}.tmp")
        temporary.write_text(f"{_HEAD}\n{lines}", encoding="utf-8")
        temporary.replace(self.path)


@dataclass(frozen=True, slots=True)
class DownloadOptions:
    """How a recipe downloads."""

    cache: Path  # folder for what is downloaded and unpacked
    fetch: FetchOptions
    storage: StorageOptions
    manual_dir: Path
    manual_instructions: str = ""
    registers: bool = False  # whether checksums are recorded
    replaced: Mapping[str, str] | None = None  # URL -> file to take instead: a test's dummy data


class Downloads:
    """The object that `splits` is given as `dl`."""

    def __init__(self, name: str, options: DownloadOptions, checksums: Checksums) -> None:
        self._name, self._options, self._checksums = name, options, checksums
        self.bytes = 0  # of all files that were downloaded, now or before
        self.urls: list[str] = []  # that were asked for

    def download(self, urls: Any) -> Any:
        """The files at these URLs: a path for a URL, and lists and dicts of paths for lists and dicts of URLs.

        A path of this machine stays as it is. Raises RunError for what cannot be fetched, ChecksumError.
        """
        wanted = list(dict.fromkeys(_leaves(urls)))
        found = dict(zip(wanted, self._paths(wanted), strict=True))
        return _mapped(urls, found.__getitem__)

    def extract(self, paths: Any) -> Any:
        """The folders, or the file of a .gz, .bz2, .xz or .zst, that archives become; nested as the paths are.

        Raises UsageError for what is no archive.
        """
        return _mapped(paths, lambda path: self._extracted(Path(path)))

    def download_and_extract(self, urls: Any) -> Any:
        """`download`, then `extract`."""
        return self.extract(self.download(urls))

    def iter_archive(self, path: str | os.PathLike[str]) -> Iterator[tuple[str, IO[bytes]]]:
        """The name of each file in an archive (zip, tar.*), or of the only one in a gz, bz2, xz or zst, and the file.

        Nothing is unpacked to disk; a file can be read until the next one is asked for. Raises UsageError.
        """
        path = Path(path)
        kind = _kind(path)
        if kind == "zip":
            with zipfile.ZipFile(path) as archive:
                for info in archive.infolist():
                    if not info.is_dir():
                        with archive.open(info) as file:
                            yield info.filename, file
        elif kind == "tar":
            with opened_tar(path, is_streamed=False) as tar:
                for member in tar:
                    if member.isreg() and (content := tar.extractfile(member)) is not None:
                        with content:
                            yield member.name, content
        elif kind == "single":
            with _SINGLE[path.suffix.lower()](path, "rb") as file:
                yield path.stem, cast("IO[bytes]", file)
        else:
            raise UsageError(f"{path}: is no archive: expected {_ARCHIVES}")

    @property
    def manual_dir(self) -> Path:
        """The folder for what only a person can download. Raises UsageError, which says what to put there."""
        folder = self._options.manual_dir
        if not folder.is_dir() or not any(folder.iterdir()):
            said = self._options.manual_instructions.strip() or "its files cannot be downloaded by a program"
            raise UsageError(f"{self._name} needs files in {folder}, where there are none (--manual_dir=...): {said}")
        return folder

    def path(self, url: str | os.PathLike[str]) -> Any:
        """A path object: a `pathlib.Path`, or for a store (`s3://…`) one of universal_pathlib, which is like it."""
        if "://" not in os.fspath(url):
            return expanded(url)
        try:
            from upath import UPath
        except ModuleNotFoundError as error:
            raise MissingExtra(f"the path {redacted(str(url))}", "recipes") from error
        scheme = os.fspath(url).split("://")[0]
        settings = (self._options.storage.storage_options or {}).get(scheme, {})
        return UPath(url, **settings)

    # --- download ---

    def _paths(self, urls: Sequence[str]) -> list[Path]:
        self.urls += [url for url in urls if "://" in url]
        found: dict[str, Path] = {}
        missing = []
        for url in urls:
            if (dummy := (self._options.replaced or {}).get(url)) is not None:
                found[url] = Path(dummy)
            elif self._options.replaced is not None and "://" in url:
                raise UsageError(
                    f"{redacted(url)}: the test has no dummy data for it: DUMMY_DATA maps each URL to a file"
                )
            elif "://" not in url:
                found[url] = expanded(url)
                if not found[url].exists():
                    raise UsageError(f"{url}: no such file, and no URL")
            elif (cached := self._cached(url)) is not None:
                found[url] = cached
            else:
                missing.append(url)
        if missing:
            found.update(self._fetched(missing))
        known = [self._recorded(url) for url in urls if "://" in url and url not in (self._options.replaced or {})]
        self.bytes += sum(each.size for each in known)
        if self._options.registers and known:
            self._checksums.add(known)
        elif unknown := [each.url for each in known if each.url not in self._checksums.known]:
            log.warning(
                "%s: no checksum of %s: --register_checksums records what is there now", CHECKSUMS, redacted(unknown[0])
            )
        return [found[url] for url in urls]

    def _place(self, url: str) -> Path:
        """The folder of a file in the cache."""
        return self._options.cache / "downloads" / hashlib.sha256(url.encode()).hexdigest()[:40]

    def _recorded(self, url: str) -> Checksum:
        found = json.loads((self._place(url) / "about.json").read_text(encoding="utf-8"))
        return Checksum(url, int(found["size"]), str(found["sha256"]), str(found["name"]))

    def _cached(self, url: str) -> Path | None:
        """The file of an earlier download, if it is whole and the one that is expected."""
        try:
            about = self._recorded(url)
            path = self._place(url) / about.name
            if path.stat().st_size != about.size:
                return None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        expected = self._checksums.known.get(url)
        if expected is not None and not self._options.registers and expected.sha256 != about.sha256:
            return None
        return path

    def _fetched(self, urls: Sequence[str]) -> dict[str, Path]:
        """Fetch files into the cache. Raises RunError, ChecksumError."""
        # The author names these files: they are no crawl, and may be as large as they like.
        fetch = replace(
            self._options.fetch,
            robots="ignore",
            disallowed_header_directives=None,
            max_file_bytes=1 << 62,
            allow_schemes=tuple(GUARDED),
            retries=max(_RETRIES, self._options.fetch.retries),
        )
        stores = Stores(self._options.storage.storage_options)
        found: dict[str, Path] = {}
        failed: list[str] = []
        (folder := self._options.cache / "downloads").mkdir(parents=True, exist_ok=True)
        rows = [Row(0, number, str(number), url) for number, url in enumerate(urls)]
        told = time.monotonic()
        with ExitStack() as stack:
            buffer = stack.enter_context(closing(Buffer(fetch.max_buffered_bytes, len(urls), str(folder))))
            fetcher = stack.enter_context(closing(UrlFetcher(fetch, buffer, stores)))
            for batch in fetcher.fetch(iter(rows)):
                for row, outcome, *_ in batch:
                    url = urls[row.position]
                    if isinstance(outcome, Failure):
                        failed.append(f"{redacted(url)}: {outcome.code}: {redacted(outcome.detail)}")
                        continue
                    try:
                        found[url] = self._kept(url, outcome.body)
                    finally:
                        outcome.body.release()
                if time.monotonic() - told > _TELL_SECONDS:
                    told, size = time.monotonic(), shown_size(buffer.received)
                    log.warning("%s: %d of %d files, %s so far", self._name, len(found), len(urls), size)
        if failed:
            raise RunError(f"{self._name}: cannot be downloaded: {'; '.join(failed[:3])}")
        return found

    def _kept(self, url: str, body: Any) -> Path:
        """Write a file into the cache, under its own name, and compare it with its checksum."""
        place = self._place(url)
        name = _file_name(url)
        temporary = place.with_name(f"{place.name}.{uuid.uuid4().hex[:8]}.tmp")
        temporary.mkdir(parents=True)
        try:
            digest, size = hashlib.sha256(), 0
            with (temporary / name).open("wb") as file:
                for chunk in body.chunks():
                    digest.update(chunk)
                    size += len(chunk)
                    file.write(chunk)
            expected = self._checksums.known.get(url)
            if expected is not None and not self._options.registers:
                shown = redacted(url)
                if size != expected.size:
                    raise ChecksumError(f"{shown}: it has {size:,} bytes, {CHECKSUMS} expects {expected.size:,}")
                if digest.hexdigest() != expected.sha256:
                    raise ChecksumError(
                        f"{shown}: its sha256 is {digest.hexdigest()}, {CHECKSUMS} expects {expected.sha256}"
                    )
            about = {"url": redacted(url), "size": size, "sha256": digest.hexdigest(), "name": name}
            (temporary / "about.json").write_text(json.dumps(about), encoding="utf-8")
            shutil.rmtree(place, ignore_errors=True)
            try:
                temporary.rename(place)
            except OSError:  # another build was first
                if not (place / "about.json").is_file():
                    raise
            return place / name
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    # --- extract ---

    def _extracted(self, path: Path) -> Path:
        kind = _kind(path)
        if kind == "folder":  # a test's dummy data
            return path
        if kind is None:
            raise UsageError(f"{path}: is no archive: expected {_ARCHIVES}")
        stat = path.stat()
        stamp = f"{path.resolve()}\n{stat.st_size}\n{stat.st_mtime_ns}"
        place = self._options.cache / "extracted" / hashlib.sha256(stamp.encode()).hexdigest()[:40]
        inner = place / path.stem if kind == "single" else place
        if place.is_dir():
            return inner
        temporary = place.with_name(f"{place.name}.{uuid.uuid4().hex[:8]}.tmp")
        temporary.mkdir(parents=True)
        try:
            unpack_archive(path, kind, temporary)
            try:
                temporary.rename(place)
            except OSError:  # another build was first
                if not place.is_dir():
                    raise
            return inner
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _kind(path: Path) -> str | None:
    """folder, zip, tar or single, by the content of an archive; None if it is none."""
    if path.is_dir():
        return "folder"
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    if _TAR.search(path.name):
        return "tar"
    if zipfile.is_zipfile(path):
        return "zip"
    if path.suffix.lower() in _SINGLE:
        return "single"
    return "tar" if is_tar(path) else None


def _file_name(url: str) -> str:
    """The last part of the path of a URL, as a file may be called."""
    parts = urlsplit(url)
    name = unquote(parts.path.rstrip("/").rpartition("/")[2]) or parts.netloc or "file"
    return re.sub(r"[^\w.()+-]", "_", name)[-120:].lstrip(".") or "file"


def _leaves(nested: Any) -> Iterator[str]:
    if isinstance(nested, Mapping):
        for each in nested.values():
            yield from _leaves(each)
    elif isinstance(nested, (str, os.PathLike)):
        yield os.fspath(nested)
    elif isinstance(nested, (list, tuple)):
        for each in nested:
            yield from _leaves(each)
    else:
        raise UsageError(f"dl.download takes URLs, and lists and dicts of them, not {type(nested).__name__}")


def _mapped(nested: Any, change: Any) -> Any:
    if isinstance(nested, Mapping):
        return {name: _mapped(each, change) for name, each in nested.items()}
    if isinstance(nested, (list, tuple)):
        return type(nested)(_mapped(each, change) for each in nested)
    return change(os.fspath(nested))
