"""Where shards are written before they are published: folders of one process each, swept when that is gone.

Beside each folder lies a file of the same name and `.lock`, which names its process and output, and is locked
by its process for as long as that lives. It is there before the folder, and goes after it.

Roots of a dataset's own folder belong to whoever may write there. Those in a temporary folder, which other users may
write to as well, are private (`private.py`).
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from any2ds.core.layout import STATE_FOLDER
from any2ds.storage.disk.private import is_private, named_for_user, private_folder, private_folders
from any2ds.storage.lock.file_lock import FileLock, NoLocks
from any2ds.storage.lock.owner import Owner as Owner

_LOCK = ".lock"
_SHARED_ROOT = "any2ds-staging"
_TRIES = 100  # at a folder whose parent others may be removing at the same time


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who has a staging folder."""

    owner: Owner
    serves: str = ""  # a fingerprint of the output that its shards are for; "" if that is not known
    member: str = ""  # which of several runs that make the dataset together it works for

    @classmethod
    def parse(cls, name: str, content: bytes) -> Tenant | None:
        """From the content of its lock file, or the name alone if that is empty; None if any2ds did not write it."""
        if (named := Owner.parse(name)) is None:
            return None
        if not content.strip(b"\0 \n"):
            return cls(named)
        try:
            written = orjson.loads(content)["any2ds_staging"]
            return cls(Owner(**written["owner"]), str(written["serves"]), str(written.get("member", "")))
        except (ValueError, KeyError, TypeError):
            return None

    def is_for(self, output: str, is_meant: Callable[[str], bool]) -> bool:
        """An `output` of "" means any."""
        return (not output or self.serves == fingerprint(output)) and is_meant(self.member)

    def to_bytes(self) -> bytes:
        return orjson.dumps({"any2ds_staging": asdict(self)})


def fingerprint(output: str) -> str:
    """What stands for the URL of an output in files that others can read."""
    return hashlib.sha256(output.encode()).hexdigest()[:32]


def shared_root(folder: Path | None) -> Path:
    """The root for this user in a folder that others may use as well; in the system's temporary one with None."""
    return named_for_user(folder or Path(tempfile.gettempdir()), _SHARED_ROOT)


def _is_shared(root: Path) -> bool:
    return root == shared_root(root.parent)


@contextmanager
def staging(root: Path, output: str = "", member: str = "") -> Iterator[Path]:
    """A folder of this process alone for shards of `output` being written, removed at the end."""
    tenant = Tenant(Owner.here(), fingerprint(output) if output else "", member)
    wanted, tries = root, 0
    while True:
        tries += 1
        try:
            if _is_shared(wanted):
                root = private_folder(wanted)
            else:
                root.mkdir(parents=True, exist_ok=True)
            folder = root / _new_name()
            lock = _occupy(folder, tenant)
            # As long as the root was empty, others of ours might remove it, and another user take its name.
            if lock is not None and _is_shared(wanted) and not is_private(root):
                folder.rmdir()
                with lock:
                    lock = None
            if lock is not None:
                break
        # Others may just be removing the empty root, also while `mkdir` looks what it is that is there already.
        except (FileNotFoundError, FileExistsError):
            if tries == _TRIES:  # there can be no such folder, as below /proc, an automounter's root, or a file
                raise
    try:
        with lock:
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    finally:
        _remove_if_empty(root)


def sweep(
    root: Path, output: str = "", is_meant: Callable[[str], bool] = lambda member: True, fence: bool = False
) -> list[Owner]:
    """Remove what processes that are gone have left in staging, and nothing else; the others that serve `output`.

    Without `output` all of them do, as far as the members that they work for are meant. Folders whose process may be
    alive, as far as this process can know, stay, unless they serve `output` and are to be fenced off: the owner of
    the dataset knows that they are of a run that does not any more. Such a process finds nothing in its place that it
    could publish.
    """
    if _is_shared(root):
        found = [_sweep(folder, output, is_meant, fence) for folder in private_folders(root)]
        return [owner for owners in found for owner in owners]
    return _sweep(root, output, is_meant, fence)


def _sweep(root: Path, output: str, is_meant: Callable[[str], bool], fence: bool) -> list[Owner]:
    alive: list[Owner] = []
    with contextlib.suppress(OSError):  # not there, or another run is sweeping too
        for folder in _folders(root):
            with _examined(folder) as found:
                if found is None:
                    continue
                is_meant_here = found.tenant.is_for(output, is_meant)
                is_fenced = fence and not found.is_locked and found.tenant.owner.state() != "alive"
                if found.is_gone or (is_fenced and is_meant_here):
                    _remove_folder(folder)
                    found.is_removed = True
                elif is_meant_here:
                    alive.append(found.tenant.owner)
        _remove_if_empty(root)
    return alive


def staged(root: Path) -> tuple[list[str], list[str]]:
    """The staging folders that lie there, by name: those of processes that are gone, and the others."""
    gone: list[str] = []
    others: list[str] = []
    with contextlib.suppress(OSError):
        for folder in _folders(root):
            is_gone = False
            with contextlib.suppress(OSError), _examined(folder) as found:
                is_gone = found is not None and found.is_gone
            (gone if is_gone else others).append(folder.name)
    return gone, others


def remove(staged: Path) -> None:
    """Remove a staged file or folder, if it is there."""
    if staged.is_dir():
        shutil.rmtree(staged, ignore_errors=True)
    else:
        staged.unlink(missing_ok=True)


def is_staging_name(name: str) -> bool:
    """Whether any2ds gives such names to what it stages: that of a staging folder, or of its lock file."""
    return Owner.parse(name.removesuffix(_LOCK)) is not None


def _new_name() -> str:
    return f"{Owner.here().name}-{uuid.uuid4().hex[:8]}"


@contextmanager
def _unlocked(path: Path) -> Iterator[None]:
    """A lock file on a file system without locks: its content alone names the owner."""
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _occupy(folder: Path, tenant: Tenant) -> contextlib.AbstractContextManager[object] | None:
    """Make `folder` and the lock file beside it; None if it was taken for a dead one by who sweeps at this moment."""
    lock = _mark(folder, tenant)
    if lock is not None:
        try:
            folder.mkdir(mode=0o700)
        except OSError:
            with lock:
                raise
    return lock


def _mark(folder: Path, tenant: Tenant) -> contextlib.AbstractContextManager[object] | None:
    path = _lock_path(folder)
    try:
        return FileLock.take(path, tenant.to_bytes())
    except NoLocks:
        with contextlib.suppress(OSError):
            path.write_bytes(tenant.to_bytes())
        return _unlocked(path)


def _lock_path(folder: Path) -> Path:
    return folder.with_name(folder.name + _LOCK)


@dataclass
class _Examined:
    tenant: Tenant
    is_locked: bool  # by a process that lives
    is_gone: bool
    is_removed: bool = False  # and its lock file is to follow


def _folders(root: Path) -> list[Path]:
    """What lies there, or has left its lock file."""
    return sorted({path.with_name(path.name.removesuffix(_LOCK)) for path in root.iterdir()})


@contextmanager
def _examined(folder: Path) -> Iterator[_Examined | None]:
    """Who has a staging folder, whose lock is held meanwhile where that can be; None if it is none, or just going."""
    path = _lock_path(folder)
    lock, is_locked, content = None, False, b""
    try:
        content = path.read_bytes()
        lock = FileLock.take(path, create=False)
        is_locked = lock is None
    except NoLocks:
        pass
    except FileNotFoundError:
        if content or not folder.is_dir():
            yield None
            return
    tenant, found = Tenant.parse(folder.name, content), None
    if tenant is not None:
        found = _Examined(tenant, is_locked, not is_locked and _is_gone(tenant.owner, lock is not None))
    try:
        yield found
    finally:
        is_removed = found is not None and found.is_removed
        if lock is not None:
            lock.release(remove=is_removed)
        elif is_removed:
            path.unlink(missing_ok=True)


def _is_gone(owner: Owner, lock_was_free: bool) -> bool:
    if not owner.kernel:  # nothing but its name is known
        return lock_was_free or owner.state() == "gone"
    # Network file systems may keep the locks of each machine to itself.
    return owner.state() == "gone" or (lock_was_free and owner.shares_kernel())


def _remove_folder(folder: Path) -> None:
    """Atomic for a process that still works in it: its paths no longer exist."""
    aside = folder.with_name(_new_name())
    try:
        folder.rename(aside)
    except FileNotFoundError:
        return
    except OSError:  # Windows, with a file in it open
        aside = folder
    shutil.rmtree(aside, ignore_errors=True)


def _remove_if_empty(folder: Path) -> None:
    """And the folder that it is in, if that is one for the state of a dataset, which may be none of any2ds."""
    with contextlib.suppress(OSError):
        folder.rmdir()
        if folder.parent.name == STATE_FOLDER:
            folder.parent.rmdir()
