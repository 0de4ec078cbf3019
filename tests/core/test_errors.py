"""Exceptions cross processes: whoever runs any2ds in a pool of processes gets them as they were raised."""

import ast
import builtins
import contextlib
import importlib
import inspect
import itertools
import pickle
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

import any2ds
from any2ds import IncompleteRun, download
from any2ds.core.errors import OutputError, RunError, UsageError, conceal
from any2ds.core.reports import RunReport
from any2ds.testing.server import serve


def exceptions_of_the_package() -> Iterator[type[BaseException]]:
    """Every class of any2ds that may reach a caller: below Any2dsError, or of core; as far as its library is there."""
    root = Path(any2ds.__file__).parent
    classes = [
        (".".join(("any2ds", *path.relative_to(root).with_suffix("").parts)), node.name, ast.unparse(node.bases[0]))
        for path in sorted(root.rglob("*.py"))
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.bases
    ]
    names = {
        name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)
    }
    names.add("HTTPException")  # of http.client
    while more := {name for _, name, base in classes if base in names} - names:
        names |= more
    for module, name, base in classes:
        if base in names and not name.startswith("_"):
            with contextlib.suppress(ImportError):
                kind = getattr(importlib.import_module(module), name)
                if issubclass(kind, any2ds.Any2dsError) or module.startswith("any2ds.core."):
                    yield kind


def an_argument(parameter: inspect.Parameter) -> Any:
    kinds = {"str": "words", "int": 3, "bool": True, "RunReport": RunReport(shards=7), "Sequence[str]": ["a", "b"]}
    return kinds.get(str(parameter.annotation).partition(" | ")[0], ("anything",))


def raised(kind: type[BaseException]) -> BaseException:
    """An exception with a value for each argument of its class, with a cause, and an attribute of its own."""
    if "__init__" in {name for each in kind.__mro__ if each.__module__.startswith("any2ds") for name in vars(each)}:
        arguments = [an_argument(each) for each in inspect.signature(kind).parameters.values()]
    else:
        arguments = ["words"]
    try:
        raise kind(*arguments) from ValueError("a cause")
    except kind as error:
        error.attribute = "its own"  # type: ignore[attr-defined]
        return error


def test_every_exception_survives_pickle_with_message_attributes_and_cause() -> None:
    kinds = list(exceptions_of_the_package())
    assert {IncompleteRun, UsageError} < {*kinds}
    for kind in kinds:
        error = raised(kind)
        found = pickle.loads(pickle.dumps(error))
        assert (type(found), str(found), found.args) == (kind, str(error), error.args)
        assert vars(found) == vars(error), kind
        if issubclass(kind, any2ds.Any2dsError):
            assert repr(found.__cause__) == repr(error.__cause__)


def test_a_cause_that_cannot_be_pickled_comes_as_its_words() -> None:
    class OfSomeLibrary(Exception):  # as a class in a function, it cannot be found by whoever unpickles it
        pass

    try:
        raise RunError("no more") from OfSomeLibrary("bucket is gone")
    except RunError as error:
        found = pickle.loads(pickle.dumps(error))

    assert str(found) == "no more"
    assert str(found.__cause__) == "OfSomeLibrary: bucket is gone"


def test_all_causes_come_along_in_their_order_each_once() -> None:
    links: list[BaseException] = [
        RunError("0"),
        OutputError("1"),
        ValueError("2"),
        *(RunError(f"{n}") for n in range(3, 30)),
    ]
    for effect, cause in itertools.pairwise([*links, links[3]]):  # the last one leads to the fourth again
        effect.__cause__ = cause
    error: BaseException | None = pickle.loads(pickle.dumps(links[0]))
    for link in links:
        assert repr(error) == repr(link)
        assert error is not None
        error = error.__cause__
    assert error is None
    assert links[0].__cause__ is links[1]


def test_what_is_secret_does_not_leave_the_process() -> None:
    conceal({"hunter2-and-more"})
    written = pickle.dumps(OutputError("https://me:pass@host/x?key=hunter2-and-more cannot be written"))
    assert b"hunter2" not in written
    assert b"me:pass" not in written


def call(urls: list[str], folder: str) -> RunReport:
    return download(
        urls, folder, output_format="webdataset", quiet=True, report=False, distributor="inline", max_shard_retry=0
    )


def test_a_download_in_a_users_process_pool_raises_there_what_it_raised(tmp_path: Path) -> None:
    (tmp_path / "media").mkdir()
    (tmp_path / "media" / "a").write_bytes(b"a file")
    with serve(tmp_path / "media") as server, ProcessPoolExecutor(1, get_context("spawn")) as pool:
        call([server.url("a")], str(tmp_path / "bad"))
        for name in ("00000_stats.json", "00000.tar"):
            (tmp_path / "bad" / name).unlink()
        (tmp_path / "bad" / "00000.tar").mkdir()
        with pytest.raises(IncompleteRun, match="1 shard could not be written") as refused:
            pool.submit(call, [server.url("a")], str(tmp_path / "bad")).result()
        assert len(refused.value.report.failed_shards) == 1
        with pytest.raises(UsageError, match="no such file"):
            pool.submit(call, str(tmp_path / "absent.txt"), str(tmp_path / "x")).result()  # type: ignore[arg-type]
        assert pool.submit(call, [server.url("a")], str(tmp_path / "good")).result().successes == 1
