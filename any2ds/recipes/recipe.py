"""`Recipe`: the base class of datasets as code, its configs and versions, and what a split may be."""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from any2ds.core import suggestions
from any2ds.core.errors import UsageError
from any2ds.recipes.info import Info

if TYPE_CHECKING:
    from any2ds.recipes.downloads import Downloads

_VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_CONFIG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_REASON = 200  # characters of a reason that are kept
_REGISTERED: dict[str, type[Recipe]] = {}


class RecipeConfig:
    """A way in which a recipe can be built; what is given by name are its attributes.

    >>> RecipeConfig("small", image_size=256).image_size
    256
    """

    def __init__(self, name: str, *, description: str = "", version: str | None = None, **options: Any) -> None:
        """Raises UsageError for a name that cannot be a folder, or a version that is none."""
        if not isinstance(name, str) or not _CONFIG.fullmatch(name) or _VERSION.fullmatch(name):
            raise UsageError(f"RecipeConfig: invalid name {name!r}: expected letters, digits, _, . and -")
        self.name, self.description = name, description
        self.version = None if version is None else checked_version(version, f"RecipeConfig {name!r}")
        self.options = options
        for option, value in options.items():
            setattr(self, option, value)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the config {self.__dict__.get('name')!r} has no {name!r}")

    def __repr__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"RecipeConfig({self.name!r}{options})"


@dataclass(frozen=True)
class UrlRows:
    """Rows whose files are fetched: what a split may be instead of samples.

    `url_list` is what `any2ds.download` takes (a file in any format, a folder, an Arrow table, a list of dicts), or a
    generator of dicts. A row has the URL of its file, and a column for each feature that is no file.
    """

    url_list: Any
    # The column of the URLs; where a sample has several files image:image_url,mask:mask_url, or a mapping of the same
    url_col: str | Mapping[str, str] = "url"
    key_col: str | None = None  # the column of the keys; default: `key` if there is one, else the number of the row
    columns: Mapping[str, str] | None = None  # feature -> the column that holds it; default: the one of its name
    input_format: str | None = None
    # Schemes of URLs that rows may have besides http, https, ftp, ftps and data: ("file", "s3")
    allow_schemes: Sequence[str] = ()
    # Feature -> options of files that it has in place of those of `build`: {"mask": {"encode_format": "png"}}
    member_options: Mapping[str, Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class Skipped:
    """Stands for a sample that is left out."""

    reason: str


class Recipe(ABC):
    """A dataset as code: `info` says what it is, `splits` where its samples come from.

    A class that is defined is registered: `any2ds build` finds it by its name, which is that of the class in lower
    case with underscores, or `NAME`.
    """

    NAME: ClassVar[str] = ""
    VERSION: ClassVar[str] = "1.0.0"
    RELEASE_NOTES: ClassVar[Mapping[str, str]] = {}  # version -> what is new in it
    SUPPORTED_VERSIONS: ClassVar[Sequence[str]] = ()  # older ones that the code can still make, by `self.version`
    CONFIGS: ClassVar[Sequence[RecipeConfig]] = ()  # the first one is meant by the name of the recipe alone
    MANUAL_DOWNLOAD_INSTRUCTIONS: ClassVar[str] = ""  # what a person has to put into `dl.manual_dir`
    SKIPPED: ClassVar[Sequence[type[Exception]]] = ()  # what leaves out a sample that raises it, and is counted

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not inspect.isabstract(cls) and not cls.__name__.startswith("_"):
            _REGISTERED[cls.name()] = cls

    def __init__(self, config: str | RecipeConfig | None = None, version: str | None = None) -> None:
        """Raises UsageError for a config or version that it does not have."""
        self.config = self._config_of(config)
        current = self.config.version if self.config and self.config.version else self.VERSION
        checked_version(current, f"{type(self).__name__}.VERSION")
        known = [current, *(checked_version(each, "SUPPORTED_VERSIONS") for each in self.SUPPORTED_VERSIONS)]
        self.version = known[0] if version is None else _matching(version, known, self.name())
        self.skipped: Counter[str] = Counter()  # of the split that is being made: reason -> samples

    @classmethod
    def name(cls) -> str:
        """Raises UsageError for a name that cannot be a folder."""
        name = cls.NAME or re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", cls.__name__).lower()
        if not _NAME.fullmatch(name):
            raise UsageError(f"{cls.__name__}: invalid NAME {name!r}: expected small letters, digits and _")
        return name

    @classmethod
    def folder(cls) -> Path | None:
        """Where its code lies, with the files beside it; None where it was typed in."""
        try:
            return Path(inspect.getfile(cls)).resolve().parent
        except (OSError, TypeError):
            return None

    @abstractmethod
    def info(self) -> Info:
        """The description of the dataset."""

    @abstractmethod
    def splits(self, dl: Downloads) -> Any:
        """Name of each split -> its samples; or the samples of the only one, `train`.

        Samples are an iterable of `(key, sample)`, or `UrlRows` or what it takes as `url_list`.
        """

    def skip(self, key: object, reason: str) -> Skipped:
        """Leave out a sample, which is counted by its reason. What it returns may be yielded in the sample's place."""
        skipped = Skipped(str(reason)[:_REASON])
        self.skipped[skipped.reason] += 1
        return skipped

    @property
    def is_default_config(self) -> bool:
        return not self.CONFIGS or self.config is self.CONFIGS[0]

    @property
    def full_name(self) -> str:
        """`flowers/small:1.1.0`."""
        return f"{self.name()}{f'/{self.config.name}' if self.config else ''}:{self.version}"

    def completed_info(self) -> Info:
        """`info()` with what the files beside the recipe add. Raises UsageError."""
        info = self.info()
        if not isinstance(info, Info):
            raise UsageError(f"{type(self).__name__}.info() returned {type(info).__name__}, not any2ds.Info")
        own = type(self).__doc__ if type(self).__doc__ != Recipe.__doc__ else ""
        return info.completed(self.folder(), inspect.cleandoc(own or ""))

    def _config_of(self, wanted: str | RecipeConfig | None) -> RecipeConfig | None:
        names = [config.name for config in self.CONFIGS]
        if len(set(names)) < len(names):
            raise UsageError(f"{type(self).__name__}.CONFIGS: two have the same name: {', '.join(names)}")
        if isinstance(wanted, RecipeConfig):
            return wanted
        if wanted is None:
            return self.CONFIGS[0] if self.CONFIGS else None
        for config in self.CONFIGS:
            if config.name == wanted:
                return config
        hint = suggestions.for_name(wanted, names) or (f"one of {', '.join(names)}" if names else "it has no configs")
        raise UsageError(f"{self.name()}: no config {wanted!r}: {hint}")


def checked_version(version: object, where: str) -> str:
    """Raises UsageError if it is not three numbers."""
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise UsageError(f"{where}: invalid version {version!r}: expected three numbers, such as 1.0.0")
    return version


def _matching(wanted: str, known: Sequence[str], name: str) -> str:
    """The newest of the `known` versions that `wanted` names: `1.0.0`, or `1.*`."""
    fits = [each for each in known if version_fits(each, wanted)]
    if not fits:
        raise UsageError(f"{name}: its code does not make version {wanted}: it makes {', '.join(known)}")
    return max(fits, key=version_key)


def version_fits(version: str, wanted: str) -> bool:
    """Whether it is `wanted`, in which a number may be `*`."""
    numbers, pattern = version.split("."), wanted.split(".")
    pattern += ["*"] * (3 - len(pattern)) if pattern[-1] == "*" else []
    return len(pattern) == 3 and all(each in ("*", own) for own, each in zip(numbers, pattern, strict=True))


def version_key(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def registered() -> Mapping[str, type[Recipe]]:
    """The recipes that were defined in this process, by name."""
    return dict(_REGISTERED)


def as_splits(found: Any) -> dict[str, Any]:
    """The splits that `splits` has returned, by name. Raises UsageError for anything else."""
    splits = dict(found) if isinstance(found, Mapping) else {"train": found}
    for name, samples in splits.items():
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z]\w*", name) or name in ("all", "hash"):
            raise UsageError(f"invalid name of a split {name!r}: expected letters, digits and _, and not all or hash")
        if samples is None:
            raise UsageError(f"split {name}: it is None: does the method that makes its samples yield?")
    if not splits:
        raise UsageError("the recipe has no splits")
    return splits


class GivenSplit:
    """A split, as the recipe has returned it."""

    def __init__(self, name: str, samples: Any) -> None:
        self.name = name
        self.samples = samples  # (key, sample)
        self._rows = _url_rows(samples)
        self._skipped: Counter[str] | None = None  # what its code has left out before its first item

    def has_urls(self, recipe: Recipe) -> bool:
        """Whether it consists of rows with URLs; of a generator that needs its first item. Raises as `rows`."""
        return self._rows is not None or self._begun(recipe)

    def rows(self, recipe: Recipe) -> UrlRows | None:
        """The rows with URLs that it is; None if it yields samples. Of what `recipe` has skipped, that of this split is
        left. Raises UsageError for what cannot be iterated over."""
        if self._rows is None:
            self._begun(recipe)
        recipe.skipped.clear()
        recipe.skipped.update(self._skipped or ())
        return self._rows

    def _begun(self, recipe: Recipe) -> bool:
        """Look at its first item, once; whether that is a row with URLs."""
        if self._skipped is None:
            recipe.skipped.clear()
            try:
                found = iter(self.samples)
            except TypeError:
                raise UsageError(
                    f"split {self.name}: expected samples as (key, sample), or a list of URLs,"
                    f" not {type(self.samples).__name__}"
                ) from None
            first = list(islice(found, 1))
            self._skipped = Counter(recipe.skipped)
            self.samples = chain(first, found)
            if first and isinstance(first[0], Mapping):
                self._rows = UrlRows(self.samples)
        return self._rows is not None


def _url_rows(samples: Any) -> UrlRows | None:
    """The rows with URLs that a split is, as far as that can be told without its items."""
    if isinstance(samples, UrlRows):
        return samples
    is_table = any(hasattr(samples, name) for name in ("__arrow_c_stream__", "to_frame"))
    if isinstance(samples, (str, Path)) or is_table:
        return UrlRows(samples)
    if isinstance(samples, Sequence) and samples and all(isinstance(each, Mapping) for each in samples):
        return UrlRows(samples)
    return None
