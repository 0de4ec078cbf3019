"""`RecipeTestCase`, for pytest and unittest: builds every config of a recipe on dummy data, and reads it back."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import json
import pickle
import shutil
import tempfile
import threading
import unittest
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import any2ds
from any2ds.config.options import parse_options
from any2ds.config.recipes import BUILD_GROUPS
from any2ds.core.errors import UsageError
from any2ds.dataset.features import KEY_COLUMN, SPLIT_COLUMN
from any2ds.dataset.recipe_file import RecipeFile
from any2ds.load.source import Source
from any2ds.recipes.build import RecipeBuild
from any2ds.recipes.downloads import CHECKSUMS, Checksums
from any2ds.recipes.recipe import Recipe
from any2ds.storage.opening import open_folder

FORMATS: Mapping[str, tuple[str, ...]] = {
    "webdataset": (),
    "parquet": (),
    "files": (),
    "tfrecord": ("google_crc32c",),
    "arrayrecord": ("array_record",),
}
"""Output format -> the libraries that it needs."""


class RecipeTestCase(unittest.TestCase):
    """A subclass names the recipe, and has a test for each promise that a recipe makes.

    DUMMY_DATA maps each URL that the recipe downloads to a file or folder in `dummy_data` beside the test; a folder
    stands for an archive that is unpacked. A folder `manual` in it is `dl.manual_dir`.
    """

    RECIPE: ClassVar[type[Recipe]]
    DUMMY_DATA: ClassVar[Mapping[str, str]] = {}
    SPLITS: ClassVar[Mapping[str, int]] = {}  # how many samples each split has of the dummy data
    CONFIGS: ClassVar[Sequence[str] | None] = None  # those that are built; None: all
    OPTIONS: ClassVar[Mapping[str, Any]] = {}  # of `build`
    OVERLAPPING_SPLITS: ClassVar[Sequence[str]] = ()  # those that may have samples which others have as well
    CHECKS_CHECKSUMS: ClassVar[bool] = True  # whether each URL is to have its line in checksums.tsv

    _opened: ClassVar[ExitStack]
    _folder: ClassVar[Path]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "RECIPE" not in vars(cls):
            return
        for name, check in inspect.getmembers(RecipeTestCase, inspect.isfunction):
            if name.startswith("check_"):
                setattr(cls, f"test_{name.removeprefix('check_')}", _test_of(check))

    @classmethod
    def main(cls) -> None:
        """Run the tests of this class, as a program."""
        result = unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromTestCase(cls))
        raise SystemExit(not result.wasSuccessful())

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls._opened = ExitStack()
        cls._folder = Path(tempfile.mkdtemp(prefix="any2ds-recipe-"))

    @classmethod
    def tearDownClass(cls) -> None:
        cls._opened.close()
        shutil.rmtree(cls._folder, ignore_errors=True)
        super().tearDownClass()

    # --- what a subclass may use ---

    @classmethod
    def dummy_data(cls) -> Mapping[str, str]:
        """URL -> path of a file or folder. To be overridden where they are made by the test."""
        return {url: str(cls.dummy_folder() / path) for url, path in cls.DUMMY_DATA.items()}

    @classmethod
    def dummy_folder(cls) -> Path:
        """The folder `dummy_data` beside the test."""
        return Path(inspect.getfile(cls)).resolve().parent / "dummy_data"

    @classmethod
    def serve(cls, folder: str) -> list[str]:
        """The URLs of the files in a folder of `dummy_data`, on a server of this machine."""
        own = cls.dummy_folder() / folder
        base = cls._opened.enter_context(_served(own))
        files = sorted(path for path in own.rglob("*") if path.is_file())
        return [f"{base}/{quote(path.relative_to(own).as_posix())}" for path in files]

    @classmethod
    def list_of(cls, rows: Iterable[Mapping[str, Any]]) -> str:
        """The path of a list of rows."""
        path = cls._folder / "list.jsonl"
        path.write_text("".join(json.dumps(dict(row)) + "\n" for row in rows), encoding="utf-8")
        return str(path)

    # --- the promises; each becomes a test of a subclass ---

    def check_info(self) -> None:
        """The description of the recipe is valid, and stays the same through pickling."""
        for recipe in self._recipes():
            info = recipe.completed_info()
            self.assertTrue(info.description, "the recipe has no description: write its docstring or README.md")
            try:
                again = pickle.loads(pickle.dumps(recipe))
            except Exception as error:  # whatever its attributes raise
                self.fail(f"the recipe cannot be pickled, as Spark, Ray and Beam send it: {error}")
            self.assertEqual(recipe.full_name, again.full_name)
            self.assertEqual(info, again.completed_info(), "info() says something else the second time")

    def check_splits(self) -> None:
        """Every config can be built; splits have samples, as many as SPLITS says, and none that another one has under
        another key. That no key is in two of them is looked at by each build."""
        for recipe in self._recipes():
            with self._built(recipe) as folder:
                found = _recipe_file(folder)
                self.assertTrue(any(split.rows for split in found.splits), "there are no samples")
                counts = {split.name: len(any2ds.load(folder, split=split.name)) for split in found.splits}
                if self.SPLITS:
                    self.assertEqual(dict(self.SPLITS), counts, "SPLITS says how many samples each split has")
                self._check_overlap(_samples(any2ds.load(folder)))
                self.assertTrue(any2ds.verify(folder, quiet=True).ok)

    def check_determinism(self) -> None:
        """Two builds have the same keys, splits and samples; of samples that are generated, the same bytes."""
        for recipe in self._recipes():
            with self._built(recipe) as folder:
                first = _digests(folder)
                samples = _samples(any2ds.load(folder))
            with self._built(self._another(recipe)) as folder:
                found = any2ds.load(folder)
                self.assertEqual(samples, _samples(found), "a second build has other samples")
                if not any(sample.get("url") for sample in found):  # what servers say of files changes
                    self.assertEqual(first, _digests(folder), "a second build has other bytes")

    def check_formats(self) -> None:
        """The samples are the same in all formats whose libraries are installed."""
        for recipe in self._recipes():
            expected: list[Any] | None = None
            for output_format, libraries in FORMATS.items():
                if all(map(importlib.util.find_spec, libraries)):
                    with self._built(self._another(recipe), output_format=output_format) as folder:
                        found = _samples(any2ds.load(folder))
                        self.assertEqual(expected or found, found, f"the samples differ in {output_format}")
                        expected = found

    def check_checksums(self) -> None:
        """Each URL that the code downloads by itself has its line in checksums.tsv."""
        if not self.CHECKS_CHECKSUMS:
            return
        folder = self.RECIPE.folder()
        known = Checksums(folder / CHECKSUMS).known if folder is not None else {}
        for url in self.dummy_data():
            if "://" in url:
                self.assertIn(url, known, f"{CHECKSUMS} lacks it: any2ds build --register_checksums adds it")

    # --- how ---

    def _check_overlap(self, samples: Iterable[Sequence[Any]]) -> None:
        seen: dict[str, tuple[str, str]] = {}
        for key, split, *values in samples:
            if split in self.OVERLAPPING_SPLITS:
                continue
            other, other_split = seen.setdefault(repr(values), (key, split))
            if split != other_split:
                self.fail(
                    f"sample {other!r} of {other_split} and sample {key!r} of {split} are the same: splits must not"
                    " overlap, but for those in OVERLAPPING_SPLITS"
                )

    def _recipes(self) -> Iterator[Recipe]:
        names = [config.name for config in self.RECIPE.CONFIGS] if self.CONFIGS is None else self.CONFIGS
        for name in names or [None]:  # type: ignore[list-item]
            yield self.RECIPE(name)

    @staticmethod
    def _another(recipe: Recipe) -> Recipe:
        return type(recipe)(recipe.config, recipe.version)

    @contextmanager
    def _built(self, recipe: Recipe, **options: Any) -> Iterator[str]:
        """The folder of the dataset, until it is removed."""
        with tempfile.TemporaryDirectory(prefix="any2ds-recipe-") as folder:
            manual = self.dummy_folder() / "manual"
            given = {
                "recipe": recipe,
                "data_dir": folder,
                "download_dir": f"{folder}/cache",
                "quiet": True,
                "report": False,
                "robots": "ignore",
                **({"manual_dir": str(manual)} if manual.is_dir() else {}),
                **self.OPTIONS,
                **options,
            }
            build = RecipeBuild.of(parse_options(given, BUILD_GROUPS), recipe, self.dummy_data())
            report = build.make()
            if report.failed_to_download or report.failed_to_subsample:
                self.fail(f"rows have failed: {dict(report.status_dict)}")
            yield build.final


class _Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: Any) -> None:
        """Says nothing."""


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    """The address of a server of the standard library: a recipe's tests need nothing that any2ds does not need."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def _test_of(check: Callable[..., None]) -> Callable[[RecipeTestCase], None]:
    def test(self: RecipeTestCase) -> None:
        check(self)

    test.__doc__ = check.__doc__
    return test


def _recipe_file(folder: str) -> RecipeFile:
    found = RecipeFile.of(open_folder(folder))
    if found is None:
        raise UsageError(f"{folder} was made by no recipe")
    return found


def _digests(folder: str) -> dict[str, str]:
    """Digests of the data files: other files say when they were made."""
    ends = (".tar", ".tfrecord", ".array_record", ".jpg", ".png")
    files = sorted(path for path in Path(folder).rglob("*") if path.suffix in ends)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _samples(source: Source) -> list[Any]:
    """The part of the samples that recipes decide, to compare formats by: records have float32, and no nulls."""
    recipe = source.recipe
    assert recipe is not None
    return [
        [sample[KEY_COLUMN], sample[SPLIT_COLUMN], *(_comparable(sample[name]) for name in recipe.features)]
        for sample in source
    ]


def _comparable(value: Any) -> Any:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float):
        return None if value != value else float(f"{value:.5g}")
    if isinstance(value, Mapping):
        return {name: _comparable(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_comparable(each) for each in value]
    return None if value in ("", 0, b"", False) else value
