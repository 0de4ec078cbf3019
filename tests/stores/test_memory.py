"""Datasets in the memory of this process, from lists and files there; what stands for every other store of fsspec."""

import random
import threading
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.support.storing import StoreContract


class Failing(MemoryFileSystem):
    """The same memory, at times out of reach."""

    share = 0.0
    cuts_beyond: int | None = None
    rng = random.Random(5)
    lock = threading.Lock()
    failed: ClassVar[Counter[str]] = Counter()

    @classmethod
    def _may_fail(cls, what: str) -> None:
        with cls.lock:
            if cls.rng.random() < cls.share:
                cls.failed[what] += 1
                raise ConnectionResetError(f"{what}: told to fail")

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        self._may_fail("open")
        return super()._open(path, mode, **options)

    def cat_file(self, path: str, *args: Any, **options: Any) -> bytes:
        self._may_fail("cat_file")
        return bytes(super().cat_file(path, *args, **options))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        self._may_fail("pipe_file")
        if self.cuts_beyond is not None and len(value) > self.cuts_beyond:
            self.failed["upload"] += 1
            raise ConnectionResetError("told to cut uploads")
        super().pipe_file(path, value, mode, **options)

    def info(self, path: str, **options: Any) -> Any:
        self._may_fail("info")
        return super().info(path, **options)

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        self._may_fail("ls")
        return super().ls(path, detail, **options)

    def cp_file(self, path1: str, path2: str, **options: Any) -> None:
        self._may_fail("cp_file")
        super().cp_file(path1, path2, **options)

    def put_file(self, lpath: str, rpath: str, *args: Any, **options: Any) -> None:
        """In pieces, as from a socket: what is half there can be seen."""
        self._may_fail("put_file")
        with open(lpath, "rb") as source, self.open(rpath, "wb") as target:
            done = 0
            while piece := source.read(10_000):
                target.write(piece)
                done += len(piece)
                if self.cuts_beyond is not None and done > self.cuts_beyond:
                    self.failed["upload"] += 1
                    raise ConnectionResetError("told to cut uploads")


class Memory:
    """A folder there, as a `storing.Place`."""

    is_private = True
    environment: ClassVar[Mapping[str, str]] = {}
    options: ClassVar[Mapping[str, Any]] = {}

    def __init__(self) -> None:
        self.url = f"memory://{uuid.uuid4().hex}"

    def connect(self) -> Any:
        return MemoryFileSystem(skip_instance_cache=True)

    @contextmanager
    def failing(self, share: float) -> Iterator[Counter[str]]:
        Failing.failed, Failing.share = Counter(), share
        try:
            yield Failing.failed
        finally:
            Failing.share = 0.0

    @contextmanager
    def cutting_uploads(self, beyond: int) -> Iterator[Counter[str]]:
        Failing.failed, Failing.cuts_beyond = Counter(), beyond
        try:
            yield Failing.failed
        finally:
            Failing.cuts_beyond = None


class TestMemory(StoreContract):
    @pytest.fixture
    def place(self) -> Iterator[Memory]:
        fsspec.register_implementation("memory", Failing, clobber=True)
        yield Memory()
        fsspec.register_implementation("memory", MemoryFileSystem, clobber=True)
