"""Features: what a sample of a recipe consists of, how its values are checked and stored, and how they are read back.

A nested feature becomes flat columns, as in TensorFlow Datasets: `{"box": {"area": …}}` is the column `box/area`, and a
sequence of dicts one column of lists for each of its parts. The first file of a sample is its `data`.
"""

from __future__ import annotations

import io
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Sequence as AnySequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import pyarrow as pa

from any2ds.core import suggestions
from any2ds.core.errors import UsageError, printable
from any2ds.core.metadata import RECIPE_KEY, RESERVED_COLUMNS
from any2ds.core.paths import expanded
from any2ds.dataset.tfds import LABELS_END, class_of

_SHOWN = 80  # characters of a value in a message
_TRUE, _FALSE = ("true", "yes", "on", "1", "t", "y"), ("false", "no", "off", "0", "f", "n")
KEY_COLUMN, SPLIT_COLUMN = RECIPE_KEY, "split"
"""Columns of the metadata that a recipe's dataset has besides those of its features."""

_DTYPES: Mapping[str, pa.DataType] = {
    **{f"{kind}{bits}": getattr(pa, f"{kind}{bits}")() for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    "float16": pa.float32(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "str": pa.string(),
}
_ALIASES = {"int": "int64", "float": "float32", "string": "str", "object": "str", "bytes": "str", "str_": "str"}


class WrongValue(ValueError):
    """A value that a feature cannot take; the message names key, feature and value."""


def parse_bool(value: Any) -> bool:
    """True for true, yes, on, 1, t and y, False for their opposites, in any case. Raises ValueError for all else."""
    if isinstance(value, (bool, int)) and value in (0, 1):
        return bool(value)
    if isinstance(value, (str, bytes)):
        text = (value.decode("utf-8", "replace") if isinstance(value, bytes) else value).strip().lower()
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
    raise ValueError(f"{value!r} is neither true nor false")


class Feature(ABC):
    """One feature of a sample. `doc` is a text about it, which the card and TensorFlow Datasets show."""

    is_file: ClassVar[bool] = False
    option_names: ClassVar[tuple[str, ...]] = ()  # with what it was made, but for `doc`; None and False are left out
    type: pa.DataType = pa.null()  # of its column

    def __init__(self, *, doc: str = "") -> None:
        """Raises UsageError for a `doc` that is no text."""
        if not isinstance(doc, str):
            raise UsageError(f"{type(self).__name__.rstrip('_')}: doc={doc!r}: expected a text")
        self.doc = doc

    @abstractmethod
    def encode(self, value: Any) -> Any:
        """As the column has it. Raises ValueError, TypeError or OSError for a value that it cannot take."""

    def decode(self, value: Any) -> Any:
        """The value of a column, as `any2ds.load` gives it."""
        return value

    def arrow_type(self) -> pa.DataType:
        """Type of its column."""
        return self.type

    def options(self) -> dict[str, Any]:
        """Options that it was made with, but for `doc`."""
        given = {name: getattr(self, name) for name in self.option_names}
        given = {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
        return {name: value for name, value in given.items() if value is not None and value is not False}

    @abstractmethod
    def tfds_class(self) -> dict[str, Any]:
        """As features.json of TensorFlow Datasets has it, but for `doc`."""

    def spec(self) -> dict[str, Any]:
        """As JSON, from which `of_spec` makes it again."""
        doc = {"doc": self.doc} if self.doc else {}
        return {"type": type(self).__name__.rstrip("_"), **_as_json(self.options()), **doc}

    def tfds(self) -> dict[str, Any]:
        """As features.json of TensorFlow Datasets has it."""
        return {**self.tfds_class(), **({"description": self.doc} if self.doc else {})}

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options().items())
        return f"{type(self).__name__.rstrip('_')}({options})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Feature) and self.spec() == other.spec()

    def __hash__(self) -> int:
        return hash(repr(self))


class Text(Feature):
    """A text: str, or bytes in UTF-8."""

    type = pa.string()

    def encode(self, value: Any) -> Any:
        if type(value) is str:
            return value
        if isinstance(value, (bytes, bytearray)):
            return bytes(value).decode()
        if isinstance(value, str):  # of NumPy
            return str(value)
        raise TypeError("expected a text")

    def tfds_class(self) -> dict[str, Any]:
        return class_of("text_feature.Text", text={})


class Scalar(Feature):
    """One number, truth value or text: bool, int8 to int64, uint8 to uint64, float16 to float64, str."""

    option_names = ("dtype",)

    def __init__(self, dtype: Any, *, doc: str = "") -> None:
        """`dtype` is a name, or a type of Python or NumPy. Raises UsageError."""
        super().__init__(doc=doc)
        self.dtype = _dtype(dtype)
        self.type, self._encode = _DTYPES[self.dtype], _encoder(self.dtype)

    def encode(self, value: Any) -> Any:
        return self._encode(value)

    def tfds_class(self) -> dict[str, Any]:
        return class_of("scalar.Scalar", tensor={"shape": {}, "dtype": _tfds_dtype(self.dtype), "encoding": "none"})


class ClassLabel(Feature):
    """A class among several: its name or its number, from 0; -1 for none. It is stored and read as the number.

    `names` are the classes in order, or a file with one name a line; with `num_classes` they have no names.
    """

    type = pa.int64()

    def __init__(
        self,
        names: Sequence[str] | str | os.PathLike[str] | None = None,
        *,
        num_classes: int | None = None,
        doc: str = "",
    ) -> None:
        """Raises UsageError."""
        super().__init__(doc=doc)
        if (names is None) == (num_classes is None):
            raise UsageError("ClassLabel takes names, or num_classes")
        if isinstance(names, (str, os.PathLike)):
            try:
                lines = expanded(names).read_text(encoding="utf-8-sig").splitlines()
            except (OSError, ValueError) as error:
                raise UsageError(
                    f"ClassLabel: the file of names {os.fspath(names)!r} cannot be read: {error}"
                ) from None
            names = [line.strip() for line in lines if line.strip()]
        self.names = None if names is None else tuple(map(str, names))
        self.num_classes = len(self.names) if self.names is not None else int(num_classes or 0)
        self._numbers = {name: number for number, name in enumerate(self.names or ())}
        if len(self._numbers) != len(self.names or ()):
            twice = next(name for name in self.names or () if (self.names or ()).count(name) > 1)
            raise UsageError(f"ClassLabel: the name {twice!r} stands there twice")
        if not self.num_classes:
            raise UsageError("ClassLabel: there are no classes")

    def encode(self, value: Any) -> Any:
        if isinstance(value, str):
            if (known := self._numbers.get(value)) is not None:
                return known
            if self.names is None and value.isdecimal():
                return self.encode(int(value))
            hint = suggestions.for_name(value, list(self._numbers)) if self.names else ""
            raise ValueError("it is none of the classes" + (f": {hint}" if hint else ""))
        number = _integer(value)
        if not -1 <= number < self.num_classes:
            raise ValueError(f"there are {self.num_classes} classes, from 0 to {self.num_classes - 1}")
        return number

    def int2str(self, number: int) -> str:
        """The name of a class. Raises IndexError."""
        if not 0 <= number < self.num_classes:
            raise IndexError(f"no class {number}: there are {self.num_classes}")
        return self.names[number] if self.names is not None else str(number)

    def str2int(self, name: str) -> int:
        """The number of a class. Raises ValueError."""
        return int(self.encode(str(name)))

    @property
    def option_names(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("num_classes",) if self.names is None else ("names",)

    def tfds_class(self) -> dict[str, Any]:
        return class_of("class_label_feature.ClassLabel", classLabel={"numClasses": str(self.num_classes)})


class Tensor(Feature):
    """Numbers or truth values of one type: a NumPy array, or nested lists. The first size is None if it differs between
    samples. `any2ds.load` gives an array of that shape.
    """

    option_names = ("shape", "dtype")

    def __init__(self, shape: Sequence[int | None], dtype: Any, *, doc: str = "") -> None:
        """Raises UsageError."""
        super().__init__(doc=doc)
        self.shape, self.dtype = tuple(shape), _dtype(dtype)
        if any(size is not None and (type(size) is not int or size < 1) for size in self.shape) or not self.shape:
            raise UsageError(
                f"Tensor: invalid shape {self.shape}: expected sizes from 1 on, such as (28, 28) or (None, 4)"
            )
        if None in self.shape[1:]:
            raise UsageError(
                f"Tensor: invalid shape {self.shape}: only the first size may be unknown; store others as Bytes"
            )
        self._encode, self.type = _encoder(self.dtype), pa.list_(_DTYPES[self.dtype])
        self.size = math.prod(size for size in self.shape if size is not None)  # of one entry, if the first is unknown

    def encode(self, value: Any) -> Any:
        flat: list[Any] = []
        if hasattr(value, "tolist") and hasattr(value, "shape"):
            found = tuple(value.shape)
            flat = value.reshape(-1).tolist() if found else [value.tolist()]
        else:
            found = _flattened(value, flat)
        if not flat and self.shape[0] is None and found[:1] == (0,) and len(found) < len(self.shape):
            found = (0, *(size or 0 for size in self.shape[1:]))  # an empty list, whatever it would hold
        if len(found) != len(self.shape) or any(
            wanted not in (None, size) for size, wanted in zip(found, self.shape, strict=True)
        ):
            raise ValueError(f"its shape is {found}, expected {self.shape}")
        return list(map(self._encode, flat))

    def decode(self, value: Any) -> Any:
        return None if value is None else _array(value, self.dtype, self.shape)

    def tfds_class(self) -> dict[str, Any]:
        shape = {"dimensions": [str(-1 if size is None else size) for size in self.shape]}
        tensor = {"shape": shape, "dtype": _tfds_dtype(self.dtype), "encoding": "none"}
        return class_of("tensor_feature.Tensor", tensor=tensor)


class FileFeature(Feature):
    """A file: bytes, a path, or an open binary file."""

    is_file = True
    type = pa.binary()
    ext: str = "bin"  # where neither its bytes nor its name tell

    def encode(self, value: Any) -> Any:
        """Its bytes. Raises OSError for a file that cannot be read."""
        if type(value) is bytes:
            return value
        if isinstance(value, (str, os.PathLike)):
            with open(value, "rb") as file:
                return file.read()
        if isinstance(value, (bytearray, memoryview)):
            return bytes(value)
        if hasattr(value, "read_bytes"):  # a path on a store
            return bytes(value.read_bytes())
        if hasattr(value, "read") and isinstance(found := value.read(), bytes):
            return found
        return self.encode_other(value)

    def encode_other(self, value: Any) -> bytes:
        raise TypeError("expected bytes, a path or an open binary file")

    def ext_of(self, value: Any) -> str:
        """The extension that its name has; "" if it has none."""
        name = value if isinstance(value, str) else getattr(value, "name", None) or ""
        if isinstance(value, os.PathLike):
            name = os.fspath(value)
        return os.path.splitext(name)[1][1:].lower() if isinstance(name, str) else ""

    def tfds_class(self) -> dict[str, Any]:
        """Bytes, which are decoded by whoever reads them."""
        return class_of("tensor_feature.Tensor", tensor={"shape": {}, "dtype": "string", "encoding": "none"})


class Bytes(FileFeature):
    """Bytes of any kind, such as a file of a format of its own."""


class Image(FileFeature):
    """An image file, stored as it is; or an array of uint8 (height x width x channels) or a Pillow image, stored as
    `encoding_format` (png or jpeg)."""

    ext = "png"
    option_names = ("channels", "encoding_format")

    def __init__(self, *, channels: int = 3, encoding_format: str = "png", doc: str = "") -> None:
        """`channels` (1, 3 or 4) are what TensorFlow Datasets decodes to. Raises UsageError."""
        super().__init__(doc=doc)
        if channels not in (1, 3, 4):
            raise UsageError(f"Image: invalid channels={channels!r}: expected 1, 3 or 4")
        if encoding_format not in ("png", "jpeg"):
            raise UsageError(f"Image: invalid encoding_format={encoding_format!r}: expected png or jpeg")
        self.channels, self.encoding_format = channels, encoding_format

    def encode_other(self, value: Any) -> bytes:
        if not hasattr(value, "save"):
            if not (hasattr(value, "dtype") and hasattr(value, "shape")):
                raise TypeError("expected an image: bytes, a path, an open binary file, an array or a Pillow image")
            if str(value.dtype) != "uint8" or len(value.shape) not in (2, 3):
                raise ValueError(
                    f"an array of {value.dtype} {tuple(value.shape)}: expected uint8, height x width x channels"
                )
            from PIL import Image as Pillow  # the extra `image`

            value = Pillow.fromarray(value[..., 0] if value.shape[2:] == (1,) else value)
        stream = io.BytesIO()
        value.save(stream, self.encoding_format)
        return stream.getvalue()

    def tfds_class(self) -> dict[str, Any]:
        shape = {"dimensions": ["-1", "-1", str(self.channels)]}
        return class_of("image_feature.Image", image={"shape": shape, "dtype": "uint8"})


class Audio(FileFeature):
    """A file of sound, stored as it is."""

    ext = "wav"


class Video(FileFeature):
    """A video file, stored as it is."""

    ext = "mp4"


class Optional(Feature):
    """A feature that may be None. TensorFlow Datasets, which has no nulls, reads "", 0, NaN or no values."""

    option_names = ("feature",)

    def __init__(self, feature: Any, *, doc: str = "") -> None:
        """Raises UsageError for a feature that is nested."""
        super().__init__(doc=doc)
        self.feature = feature_of(feature)
        if isinstance(self.feature, (Dict, Sequence_, Optional)):
            raise UsageError(f"Optional takes a plain feature, not a {type(self.feature).__name__.rstrip('_')}")
        self.is_file, self.type = self.feature.is_file, self.feature.type  # type: ignore[misc]

    def encode(self, value: Any) -> Any:
        return None if value is None else self.feature.encode(value)

    def decode(self, value: Any) -> Any:
        is_nothing = isinstance(self.feature, Tensor) and None not in self.feature.shape and not value
        return None if value is None or is_nothing else self.feature.decode(value)  # records have no nulls

    def tfds_class(self) -> dict[str, Any]:
        return self.feature.tfds()


class Sequence_(Feature):  # noqa: N801 - public as any2ds.Sequence
    """Any number of values of one feature, of dicts of features, or of sequences; `length` if there are always so many.

    A sequence of dicts may be given as a list of dicts or as a dict of lists, and is read as a dict of lists. With
    `as_dataset` TensorFlow Datasets reads it as its feature `Dataset`: a `tf.data.Dataset` in each sample.
    """

    option_names = ("feature", "length", "as_dataset")

    def __init__(self, feature: Any, *, length: int | None = None, as_dataset: bool = False, doc: str = "") -> None:
        """Raises UsageError for a feature that cannot be in a sequence."""
        super().__init__(doc=doc)
        self.feature, self.length, self.as_dataset = feature_of(feature), length, as_dataset
        for part in _parts_of(self.feature):
            is_ragged = isinstance(part, Tensor) and None in part.shape
            is_dataset = isinstance(part, Sequence_) and part.as_dataset
            if isinstance(part, Optional) or is_ragged or is_dataset:
                what = "a Tensor of an unknown size" if is_ragged else "an Optional" if not is_dataset else "a dataset"
                raise UsageError(f"Sequence cannot hold {what}: a Sequence, or a Tensor of a fixed shape, can be in it")

    def encode(self, value: Any) -> Any:
        if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__"):
            raise TypeError("expected a list")
        encode = self.feature.encode
        found = [encode(each) for each in (value.tolist() if hasattr(value, "tolist") else value)]
        if self.length is not None and len(found) != self.length:
            raise ValueError(f"it has {len(found)} values, expected {self.length}")
        return found

    def decode(self, value: Any) -> Any:
        value = value or []
        if isinstance(self.feature, Tensor):
            return _array(value, self.feature.dtype, (None, *self.feature.shape))
        return list(map(self.feature.decode, value)) if isinstance(self.feature, Sequence_) else list(value)

    def arrow_type(self) -> pa.DataType:
        if isinstance(self.feature, Tensor):
            return pa.list_(pa.list_(_DTYPES[self.feature.dtype], self.feature.size))
        return pa.list_(self.feature.arrow_type())

    def tfds_class(self) -> dict[str, Any]:
        sequence = {"feature": self.feature.tfds(), "length": str(-1 if self.length is None else self.length)}
        return class_of(
            "dataset_feature.Dataset" if self.as_dataset else "sequence_feature.Sequence", sequence=sequence
        )


class Dict(Feature):
    """Features by name; a plain dict stands for it."""

    def __init__(self, features: Mapping[str, Any], *, doc: str = "") -> None:
        """Raises UsageError."""
        super().__init__(doc=doc)
        self.parts: dict[str, Feature] = {}
        for name, feature in features.items():
            if not isinstance(name, str) or not name.isprintable() or not name or set(name) & set('/\\.:*?"<>|'):
                raise UsageError(f'invalid name of a feature {name!r}: expected a name without / \\ . : * ? " < > |')
            try:
                self.parts[name] = feature_of(feature)
            except UsageError as error:
                raise UsageError(f"feature {name!r}: {error}") from None
        if not self.parts:
            raise UsageError("there are no features")

    def encode(self, value: Any) -> Any:
        raise TypeError("a dict has no column of its own")

    def options(self) -> dict[str, Any]:
        return {"features": self.parts}

    def __repr__(self) -> str:
        return repr(self.parts)

    def tfds_class(self) -> dict[str, Any]:
        features = {name: feature.tfds() for name, feature in self.parts.items()}
        return class_of("features_dict.FeaturesDict", featuresDict={"features": features})


_KINDS: Mapping[str, type[Feature]] = {
    kind.__name__.rstrip("_"): kind
    for kind in (Text, Scalar, ClassLabel, Tensor, Bytes, Image, Audio, Video, Optional, Sequence_, Dict)
}


def _as_json(value: Any) -> Any:
    """The options of a feature, with those that are features as their `spec`."""
    if isinstance(value, Feature):
        return value.spec()
    return {name: _as_json(each) for name, each in value.items()} if isinstance(value, Mapping) else value


def _parts_of(feature: Feature) -> Iterator[Feature]:
    """It, and what is in it."""
    yield feature
    parts = feature.parts.values() if isinstance(feature, Dict) else ()
    for part in (feature.feature,) if isinstance(feature, (Sequence_, Optional)) else parts:
        yield from _parts_of(part)


def feature_of(given: Any) -> Feature:
    """A feature, or what stands for one: a dict of features, a type of Python or NumPy. Raises UsageError."""
    if isinstance(given, Feature):
        return given
    if isinstance(given, Mapping):
        return Dict(given)
    if isinstance(given, type) and issubclass(given, Feature):
        raise UsageError(f"{given.__name__.rstrip('_')} is the class: {given.__name__.rstrip('_')}() is the feature")
    return Scalar(given)


def of_spec(spec: Mapping[str, Any]) -> Feature:
    """Feature of which `spec` was made. Raises KeyError, TypeError or UsageError for anything else."""
    options = {name: value for name, value in spec.items() if name != "type"}
    kind = _KINDS[spec["type"]]
    if "feature" in options:
        options["feature"] = of_spec(options["feature"])
    if "features" in options:
        options["features"] = {name: of_spec(each) for name, each in options["features"].items()}
    return kind(**options)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A feature that is a column, or a file."""

    path: tuple[str, ...]  # names from the outside in
    feature: Feature  # with the sequences of dicts in which it is

    @property
    def column(self) -> str:
        return "/".join(self.path)

    @property
    def plain(self) -> Feature:
        """The feature, also if it is optional."""
        return self.feature.feature if isinstance(self.feature, Optional) else self.feature

    def is_among(self, names: Sequence[str]) -> bool:
        """Whether it, or the feature of which it is a part, is one of these."""
        return self.column in names or self.path[0] in names


class Features:
    """The features of a dataset, ready to encode its samples: their columns, and the files of a sample."""

    def __init__(self, features: Mapping[str, Any]) -> None:
        """Raises UsageError for features that there cannot be."""
        self.tree = Dict(features)
        leaves = list(_leaves(self.tree, ()))
        self.files = [leaf for leaf in leaves if leaf.feature.is_file]
        self.columns = [leaf for leaf in leaves if not leaf.feature.is_file]
        if self.files and isinstance(self.files[0].feature, Optional):
            required = [leaf for leaf in self.files if not isinstance(leaf.feature, Optional)]
            if not required:
                raise UsageError(f"feature {self.files[0].column!r}: a sample needs a file that is not Optional")
            self.files = [required[0], *(leaf for leaf in self.files if leaf is not required[0])]
        taken = RESERVED_COLUMNS | {KEY_COLUMN, SPLIT_COLUMN, "url"}
        for leaf in leaves:
            is_main = bool(self.files) and leaf is self.files[0]
            if leaf.column in taken and not (is_main and leaf.column == "data"):
                raise UsageError(
                    f"feature {leaf.column!r}: any2ds writes a column of this name itself: choose another name"
                )
        self._encoders = [(leaf, _value_at(leaf.path), leaf.feature.encode) for leaf in self.columns]
        self._file_encoders = [(leaf, _value_at(leaf.path), leaf.feature) for leaf in self.files]

    @classmethod
    def of_spec(cls, spec: Mapping[str, Any]) -> Features:
        """From `spec`. Raises KeyError, TypeError or UsageError."""
        return cls({name: of_spec(each) for name, each in spec.items()})

    def __getitem__(self, name: str) -> Feature:
        """A feature by its name. Raises KeyError."""
        return self.tree.parts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tree.parts)

    @property
    def spec(self) -> dict[str, Any]:
        """As JSON."""
        return dict(self.tree.spec()["features"])

    @property
    def main(self) -> str:
        """The feature that is the file of a sample; `data`, which is empty, where there is none."""
        return self.files[0].column if self.files else "data"

    @cached_property
    def schema(self) -> pa.Schema:
        """Schema of the columns that are no files."""
        return pa.schema([pa.field(leaf.column, leaf.feature.arrow_type()) for leaf in self.columns])

    def encode(
        self, key: object, sample: Mapping[str, Any], with_files: bool = True
    ) -> tuple[list[Any], list[bytes | None]]:
        """The values of the columns, and the files, of a sample. Raises WrongValue."""
        if not isinstance(sample, Mapping):
            raise WrongValue(f"sample {_text(key)}: expected a dict of features, not {_text(sample)}")
        if len(sample) > len(self.tree.parts) and (more := [name for name in sample if name not in self.tree.parts]):
            raise WrongValue(f"sample {_text(key)}: no feature is called {more[0]!r}: {', '.join(self.tree.parts)}")
        values, files = [], []
        at, value = 0, None
        try:
            for _, find, encode in self._encoders:
                value = find(sample)
                values.append(encode(value))
                at += 1
            for _, find, feature in self._file_encoders if with_files else ():
                value = find(sample)
                files.append(feature.encode(value))
                at += 1
        except Exception as error:  # of whatever the value is
            name = [*self.columns, *self.files][at].column
            if isinstance(error, _Missing):
                raise WrongValue(f"sample {_text(key)}: the feature {name!r} is missing") from None
            raise WrongValue(f"sample {_text(key)}: feature {name!r} cannot be {_text(value)}: {error}") from error
        return values, files

    def exts(self, sample: Mapping[str, Any]) -> list[str]:
        """The extensions of the files, as far as their names have any; to be called after `encode`."""
        found = []
        for _, find, feature in self._file_encoders:
            if (value := find(sample)).__class__ is bytes:
                found.append("")
                continue
            inner = feature.feature if isinstance(feature, Optional) else feature
            assert isinstance(inner, FileFeature)
            found.append(inner.ext_of(value))
        return found

    def decoded(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """The features of a sample as `any2ds.load` reads it, nested as they were given; those that it has."""
        found: dict[str, Any] = {}
        for leaf in (*self.columns, *self.files):
            if leaf.column not in sample:
                continue
            value = sample[leaf.column]
            if not leaf.feature.is_file:
                value = leaf.feature.decode(value)
            place = found
            for name in leaf.path[:-1]:
                place = place.setdefault(name, {})
            place[leaf.path[-1]] = value
        return found

    def tfds(self) -> dict[str, Any]:
        """features.json."""
        return self.tree.tfds()

    def labels(self) -> dict[str, tuple[str, ...]]:
        """File -> names of the classes, as TensorFlow Datasets reads them."""
        return {f"{name}{LABELS_END}": names for name, names in _labels(self.tree, "")}


class _Missing(KeyError):
    """A feature that a sample does not have."""


def _leaves(feature: Feature, path: tuple[str, ...], around: tuple[Sequence_, ...] = ()) -> Iterator[Leaf]:
    """`around` are the sequences of dicts in which it is, the outermost first."""
    if isinstance(feature, Dict):
        for name, part in feature.parts.items():
            yield from _leaves(part, (*path, name), around)
    elif isinstance(feature, Sequence_) and any(isinstance(part, Dict) for part in _parts_of(feature)):
        yield from _leaves(feature.feature, path, (*around, feature))
    else:
        for outer in reversed(around):
            feature = Sequence_(feature, length=outer.length)
        yield Leaf(path, feature)


def _value_at(path: tuple[str, ...]) -> Callable[[Any], Any]:
    if len(path) == 1:
        (name,) = path

        def top(sample: Any) -> Any:
            try:
                return sample[name]
            except KeyError:
                raise _Missing from None

        return top

    def at(found: Any, depth: int) -> Any:
        if depth == len(path):
            return found
        if isinstance(found, Mapping):
            if path[depth] not in found:
                raise _Missing
            return at(found[path[depth]], depth + 1)
        if depth and isinstance(found, AnySequence) and not isinstance(found, (str, bytes)):
            return [at(each, depth) for each in found]  # a list of dicts
        raise TypeError("expected a dict")

    return lambda sample: at(sample, 0)


def _labels(feature: Feature, name: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    if isinstance(feature, Dict):
        for part_name, part in feature.parts.items():
            yield from _labels(part, f"{name}-{part_name}" if name else part_name)
    elif isinstance(feature, (Sequence_, Optional)):
        yield from _labels(feature.feature, name)
    elif isinstance(feature, ClassLabel) and feature.names is not None:
        yield name, feature.names


def _dtype(given: Any) -> str:
    """The name of a type. Raises UsageError."""
    name = str(given if isinstance(given, str) else getattr(given, "__name__", None) or getattr(given, "name", given))
    name = _ALIASES.get(name, name)
    name = "bool" if name in ("bool_", "bool8") else name
    if name not in _DTYPES:
        raise UsageError(f"invalid dtype {given!r}: expected one of {', '.join(_DTYPES)}")
    return name


def _tfds_dtype(dtype: str) -> str:
    return "string" if dtype == "str" else dtype


def _encoder(dtype: str) -> Callable[[Any], Any]:
    """Checks a value, and makes it one of Python."""
    if dtype == "str":
        return Text().encode
    if dtype == "bool":
        return _boolean
    if dtype.startswith("float"):
        return _float
    bits = int(dtype.lstrip("uint"))
    least, most = (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)

    def integer(value: Any) -> int:
        number = value if type(value) is int else _integer(value)
        if not least <= number <= most:
            raise ValueError(f"{dtype} is from {least:,} to {most:,}")
        return number

    return integer


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError("expected an integer")
    return int(value.__index__())


def _float(value: Any) -> float:
    if type(value) is float:
        return value
    if isinstance(value, (str, bytes, bool)) or not hasattr(value, "__float__"):
        raise TypeError("expected a number")
    return float(value)


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if type(value).__name__ in ("bool", "bool_"):  # of NumPy
        return bool(value)
    raise TypeError("expected True or False (any2ds.parse_bool reads a text)")


def _flattened(value: Any, flat: list[Any]) -> tuple[int, ...]:
    """Adds the numbers of nested lists to `flat`; returns their shape. Raises ValueError for several lengths."""
    if not isinstance(value, (list, tuple)):
        flat.append(value)
        return ()
    shapes = {_flattened(each, flat) for each in value}
    if len(shapes) > 1:
        raise ValueError("its lists have several lengths")
    return (len(value), *(shapes.pop() if shapes else ()))


def _array(values: Any, dtype: str, shape: Sequence[int | None]) -> Any:
    """An array of NumPy; where that is not installed, the numbers as they are stored."""
    try:
        import numpy as np
    except ImportError:
        return values
    return np.asarray(values, dtype=np.str_ if dtype == "str" else dtype).reshape(
        [-1 if size is None else size for size in shape]
    )


def _text(value: Any) -> str:
    shown = printable(repr(value))
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
