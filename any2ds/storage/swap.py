"""Puts the new version of a shard in the place of the previous one: whatever happens, one of them is complete.

    .any2ds/swap/00012/00012.tar, 00012.parquet, 00012_stats.json   the files of the new version, each complete
    .any2ds/swap/00012/_commit                                      last: from here on the new version is the valid one

Then each file is moved over the previous one, and the folder removed. A process that dies before the commit leaves the
previous version; after it, the next process moves the rest: a worker that gets the shard again, the run at its end, or
the next one. A shard that is a folder gets files added to it.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import orjson

from any2ds.core.errors import OutputError, error_text
from any2ds.core.layout import SWAP_FOLDER, is_of_shard
from any2ds.core.reports import IncompleteRun
from any2ds.storage.folders import OutputFolder

log = logging.getLogger(__name__)

_COMMIT = "_commit"  # holds the names of the files, in the order in which they are moved
_AT_ONCE = 16  # files of a folder moved at once where each takes a request
_at_work = threading.Lock()  # held by a swap of this process, in a thread that may outlive its worker


def swap(output: OutputFolder, shard: str, files: Mapping[str, Path]) -> None:
    """Replace files of the shard that is called `shard`; `files` are final name -> staged file or folder, in order."""
    folder = f"{SWAP_FOLDER}/{shard}"
    with _at_work:
        try:
            output.create_folder(folder)
            for name, staged in files.items():
                output.publish(staged, f"{folder}/{_short(name)}")
            output.write(f"{folder}/{_COMMIT}", orjson.dumps(list(files)))
        except BaseException:
            with contextlib.suppress(Exception):  # it may be what failed; then the next start removes it
                _withdraw(output, folder)
            raise
        finish_swap(output, shard)


def _of_anybody(shard_id: int) -> bool:
    return True


@contextmanager
def no_swap_left(output: OutputFolder, is_meant: Callable[[int], bool] = _of_anybody) -> Iterator[None]:
    """Around a run: what runs that are gone have begun is finished, and so is what its own killed workers have.

    Raises OutputError at the start if that cannot be. By whoever has the folder for itself, or the shards that are
    meant.
    """
    finish_swaps(output, is_meant)
    try:
        yield
    except (KeyboardInterrupt, SystemExit, IncompleteRun):
        _finish_own(output, is_meant)
        raise
    _finish_own(output, is_meant)


def _finish_own(output: OutputFolder, is_meant: Callable[[int], bool]) -> None:
    if not _at_work.acquire(blocking=False):
        return  # a thread that was left behind is still at it; what it leaves is for the next run
    try:
        output.guard()  # if others have the folder by now, what lies there is theirs
        finish_swaps(output, is_meant)
    except Exception as error:  # every file system has exceptions of its own; the next run tries again
        log.debug("new versions of shards are left in %s: %s", SWAP_FOLDER, error_text(error))
    finally:
        _at_work.release()


def finish_swaps(output: OutputFolder, is_meant: Callable[[int], bool] = _of_anybody) -> None:
    """Finish what runs that are gone have begun. Raises OutputError if that cannot be.

    To be called before anything else is done with the shards, by whoever has the folder for itself, or those that are
    meant.
    """
    for shard in sorted(output.names(SWAP_FOLDER)):
        if re.fullmatch(r"\d+", shard) and is_meant(int(shard)) and _is_ours(output, shard):
            try:
                finish_swap(output, shard)
            except OutputError:
                raise
            except Exception as error:  # every file system has exceptions of its own
                raise OutputError(
                    f"{output.url!r}: the new version of shard {shard} lies in {SWAP_FOLDER}/{shard}, "
                    f"and cannot be moved to its place: {error_text(error)}"
                ) from error
    output.remove_folder_if_empty(SWAP_FOLDER)


def _is_ours(output: OutputFolder, shard: str) -> bool:
    """Whether the folder of a shard holds nothing that `swap` does not put there, or has its commit."""
    names = output.names(f"{SWAP_FOLDER}/{shard}")
    return _COMMIT in names or all(is_of_shard(name, shard) for name in names)


def finish_swap(output: OutputFolder, shard: str) -> None:
    """Move the new version of one shard into its place if it was committed, else remove it; if there is one."""
    folder = f"{SWAP_FOLDER}/{shard}"
    there = set(output.names(folder))
    if _COMMIT in there:
        for name in _committed(output, shard):
            if _short(name) in there:  # else it was moved before
                _move(output, folder, name)
    if there or output.is_local:
        _withdraw(output, folder)
        output.remove_folder_if_empty(SWAP_FOLDER)


def _committed(output: OutputFolder, shard: str) -> list[str]:
    """The names that the commit lists. Raises OutputError for one that is none of this shard: a dataset may be somebody
    else's, and no file is moved out of its folder."""
    commit = f"{SWAP_FOLDER}/{shard}/{_COMMIT}"
    try:
        names = orjson.loads(output.read(commit) or b"[]")
    except orjson.JSONDecodeError:
        names = None
    if not isinstance(names, list):
        names = [names]
    for name in names:
        if not isinstance(name, str) or not is_of_shard(name, shard):
            raise OutputError(
                f"{output.url!r}: {commit} names {name!r}, which is no file of shard {shard}: any2ds has not written"
                f" it; remove the folder {SWAP_FOLDER}/{shard}"
            )
    return names


def _short(name: str) -> str:
    """Of a file of a shard, wherever it lies: no two of them have the same."""
    return name.rpartition("/")[2]


def _move(output: OutputFolder, folder: str, name: str) -> None:
    if "." in name:  # all files of a shard have an extension, and folders have none
        output.move(f"{folder}/{_short(name)}", name)
        return
    members = output.names(f"{folder}/{name}")
    output.create_folder(name)
    with ThreadPoolExecutor(1 if output.is_local else _AT_ONCE) as pool:
        list(pool.map(lambda member: output.move(f"{folder}/{name}/{member}", f"{name}/{member}"), members))


def _withdraw(output: OutputFolder, folder: str) -> None:
    """Remove it; the commit first, which is valid only as long as all is there that was not moved."""
    if not output.is_local or output.exists(f"{folder}/{_COMMIT}"):  # fsspec takes trouble for an absent file
        output.remove(f"{folder}/{_COMMIT}")
    output.remove_tree(folder)
