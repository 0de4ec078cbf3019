"""`card()`: a README.md for a dataset, in the form of a Hugging Face dataset card, from the figures in its folder.

What stands between the two marks is ours and written anew each time; what people put before or behind them stays, and
so does what they add to the YAML. A README.md without the marks is somebody else's.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from typing import Any

import pyarrow as pa

from any2ds.config.command_line import build_command, download_command
from any2ds.config.datasets import CardOptions
from any2ds.config.options import ParsedOptions
from any2ds.config.signature import command
from any2ds.core import layout
from any2ds.core.errors import OutputError, error_text, printable
from any2ds.core.failures import in_order
from any2ds.core.metadata import SPLIT
from any2ds.core.paths import expanded
from any2ds.core.terminal.results import write_file
from any2ds.core.version import HOMEPAGE, __version__
from any2ds.dataset.dataset import Dataset
from any2ds.dataset.places import located
from any2ds.dataset.recipe_file import RecipeFile, trial_text
from any2ds.dataset.shard_sample import ShardSample, shard_table
from any2ds.describe.card import hub, split_files
from any2ds.describe.inspect import SHARDS_OF_METADATA
from any2ds.describe.loaders import kind_of, literal, snippets
from any2ds.describe.rendering import environment
from any2ds.describe.summary import Summary, summarize, with_limit
from any2ds.storage.stores import Stores
from any2ds.writers.formats.parquet import body_columns

_REMADE = ("size_categories", "configs", "dataset_info")  # fields of the header of which nothing former stays
_SHARDS_LOOKED_INTO = 4
_MEMBERS_LOOKED_AT = 200  # of a tar file: each is a read in a store
_MOST_EXTS = 40  # of tar files; beyond that `datasets` finds out by itself
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]*")


@dataclass(frozen=True, slots=True)
class Card:
    """A dataset card that was made."""

    text: str
    path: str | None  # where it was written; None if nowhere


@dataclass(frozen=True)
class _Facts:
    """Facts for a card, each of which takes long to find out for a million shards."""

    dataset: Dataset
    found: Summary

    @property
    def exts(self) -> Mapping[str, int]:
        """Extension -> files."""
        return {ext: files for ext, files in self.found.exts.items() if ext}

    @cached_property
    def recipe(self) -> RecipeFile | None:
        return RecipeFile.found(self.dataset.folder, self.dataset.entries)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the last shard: shards of other tools, which differ, are the first ones."""
        with self.dataset.visible_file(self.dataset.finished[-1]) as file:
            return file.schema_arrow

    @property
    def samples(self) -> int:
        """Samples of the dataset, or of the shards that were read where nobody has counted all."""
        return self.found.successes if self.found.samples is None else self.found.samples


@command(
    [CardOptions],
    "Returns the card and where it was written. Raises UsageError for a folder that holds no dataset, and for a",
    "README.md that any2ds did not write.",
)
def card(options: ParsedOptions) -> Card:
    """Write a README.md that tells what is in a dataset, with the header that `datasets.load_dataset` goes by."""
    (wanted,) = options.groups
    stores = Stores(wanted.storage_options)
    wanted = located(wanted, stores)
    dataset = Dataset(wanted.output_folder, stores)
    previous = _previous(dataset, wanted)
    found = summarize(ShardSample.listed(dataset), SHARDS_OF_METADATA)
    text = _text(_Facts(dataset, found), wanted, previous)
    if wanted.output == "-":
        return Card(text, None)
    content = text.encode("utf-8", "replace")
    if wanted.output is not None:
        path = expanded(wanted.output)
        try:
            write_file(path, content)
        except OSError as error:
            raise OutputError(f"--output={wanted.output}: {error.strerror}") from error
        return Card(text, str(path))
    try:
        dataset.folder.write(layout.CARD_FILE, content)
    except Exception as error:  # every file system has exceptions of its own
        place = f"{wanted.output_folder!r}: {layout.CARD_FILE}"
        raise OutputError(f"{place} cannot be written: {error_text(error)}") from error
    return Card(text, f"{found.output_folder.rstrip('/')}/{layout.CARD_FILE}")


def _previous(dataset: Dataset, wanted: CardOptions) -> str:
    """The card that is there, "" if there is none or it is to be replaced. Raises OutputError if it is not ours."""
    try:
        if wanted.output is None:
            content = dataset.read(layout.CARD_FILE) if layout.CARD_FILE in dataset.entries else b""
        else:
            path = expanded(wanted.output)
            content = path.read_bytes() if wanted.output != "-" and path.exists() else b""
    except Exception as error:  # every file system has exceptions of its own
        raise OutputError(f"the {layout.CARD_FILE} that is there cannot be read: {error_text(error)}") from error
    previous = content.decode("utf-8", "replace")
    if not previous.strip():
        return ""
    place = wanted.output or f"{wanted.output_folder}/{layout.CARD_FILE}"
    problem = ""
    if hub.parts(previous) is None:
        problem = "was not written by any2ds"
    else:
        try:
            hub.split(previous)
        except ValueError as error:
            problem = f"has a header that cannot be understood ({error})"
    if problem and not wanted.force:
        raise OutputError(f"{place!r} {problem}: --force replaces it, --output=FILE writes another file")
    return "" if problem else previous


def _text(facts: _Facts, wanted: CardOptions, previous: str) -> str:
    header, rest = hub.split(previous)
    before, after = hub.parts(rest) or ("", "\n")
    header = header or {}
    # The recipe's folder is called as its version.
    folder = _name(facts.found.output_folder) if facts.recipe is None else facts.recipe.full_name.partition(":")[0]
    name = wanted.pretty_name or str(header.get("pretty_name") or "") or folder
    own = _header(facts, wanted, name)
    kept = {field: value for field, value in header.items() if field not in _REMADE or field in own}
    if wanted.license:
        kept.pop("license_name", None)
    tags = [*own["tags"], *(tag for tag in kept.get("tags") or () if isinstance(tag, str))]
    head = {**kept, **own, "tags": list(dict.fromkeys(tags))}
    body = _body(facts, name, head)
    return f"{hub.header(head)}{before}{hub.BEGIN}\n\n{body}\n{hub.END}\n{after.removeprefix(chr(10))}"


def _name(folder: str) -> str:
    """The last part of a path or URL."""
    whole = folder if "://" in folder else os.path.abspath(folder)
    return printable(re.split(r"[/\\]", whole.rstrip("/\\"))[-1])


# --- the header ---


def _header(facts: _Facts, wanted: CardOptions, name: str) -> dict[str, Any]:
    found, recipe, kind = facts.found, facts.recipe, kind_of(facts.exts)
    own: dict[str, Any] = {"pretty_name": printable(name)}
    if license := wanted.license or (recipe.license if recipe is not None else ""):
        is_known = _LICENSE.fullmatch(license.lower())
        own |= {"license": license.lower()} if is_known else {"license": "other", "license_name": printable(license)}
    tags = list(recipe.tags) if recipe is not None else []
    spoken = [re.split("[:.]", tag)[-1] for tag in tags if tag.startswith(("language:", "content.language."))]
    if languages := list(wanted.language or dict.fromkeys(spoken)):
        own["language"] = languages
    own["size_categories"] = [hub.size_category(facts.samples)]
    media = ([kind] if kind else []) + (["text"] if "caption" in found.columns and kind != "text" else [])
    own["tags"] = [*(tag for tag in tags if not tag.startswith("language:")), *media, "any2ds"]
    if not found.shards:
        return own
    own["configs"] = _configs(facts)
    features = None
    with contextlib.suppress(Exception):  # what cannot be read cannot be loaded either, and `datasets` says why
        if found.output_format == "webdataset":
            features = _features_of_tar(facts)
        elif found.output_format == "parquet":
            features = _features_of_parquet(facts)
    if features is not None:
        own["dataset_info"] = [{"config_name": each["config_name"], "features": features} for each in own["configs"]]
    return own


def _configs(facts: _Facts) -> list[dict[str, Any]]:
    dataset, found, recipe = facts.dataset, facts.found, facts.recipe
    has_splits = SPLIT in found.columns and found.rows is not None  # else it is unknown which shards have which
    shards = list(shard_table(dataset).entries()) if has_splits else []
    of_rows = split_files.of_rows(recipe, shards) if recipe is not None else {}
    extension = "tar" if found.output_format == "webdataset" else "parquet"
    samples, rows = (
        split_files.data_files(runs, dataset.layout, dataset.finished.ids, extension)
        for runs in (split_files.of_samples(shards) or of_rows, of_rows)
    )
    name = recipe.config if recipe is not None and recipe.config not in ("", hub.ALL_ROWS) else hub.DEFAULT
    state = _state(facts)
    if found.output_format == "parquet" and "status" in found.columns:
        return hub.configs(name, samples, rows, state)
    return hub.configs(name, samples if found.output_format in ("webdataset", "parquet") else rows, None, state)


def _state(facts: _Facts) -> str:
    """Another text for each dataset, and after each change of one."""
    dataset, found = facts.dataset, facts.found
    shards = dataset.finished.ids.tolist()
    figures = (found.rows, found.samples, found.bytes, found.started, found.ended, found.outcomes, shards)
    lists = dataset.read(layout.RUN_FILE) if dataset.run else b""
    return hashlib.sha256(repr(figures).encode() + lists).hexdigest()[:16]


def _features_of_tar(facts: _Facts) -> list[dict[str, Any]] | None:
    exts = {ext.lower() for ext in facts.found.exts} | _members(facts.dataset)
    if not exts or len(exts) > _MOST_EXTS:
        return None
    ends = ("txt", "json")  # which come last in a sample
    ordered = [*sorted(exts.difference(ends)), *(ext for ext in ends if ext in exts)]
    return hub.features_of_members(ordered, facts.schema)


def _members(dataset: Dataset) -> set[str]:
    """Extensions of the members in a few tar files, for what no stats tell: captions, and files beside a file."""
    found: set[str] = set()
    finished = dataset.finished
    for files in finished[:: max(1, len(finished) // _SHARDS_LOOKED_INTO)]:
        if files.data is None:
            continue
        with (
            contextlib.suppress(OSError, tarfile.TarError),
            dataset.folder.open(files.data) as stream,
            tarfile.open(fileobj=stream, mode="r:") as tar,
        ):
            for member in itertools.islice(tar, _MEMBERS_LOOKED_AT):
                found.add(member.name.rpartition("/")[2].partition(".")[2])
    return found - {""}


def _features_of_parquet(facts: _Facts) -> list[dict[str, Any]] | None:
    schema, bodies = facts.schema, body_columns(facts.schema)
    is_decoded = b"huggingface" in (schema.metadata or {})  # the files say what they are
    # img2dataset names the column of its files as their extension.
    feature = hub.media_feature(facts.exts or (bodies if facts.dataset.is_img2dataset else ()))
    if feature is None or is_decoded or len(bodies) != 1:
        return None
    return hub.features_of_columns(schema, bodies[0], feature)


# --- the body ---


def _body(facts: _Facts, name: str, head: Mapping[str, Any]) -> str:
    dataset, found, recipe = facts.dataset, facts.found, facts.recipe
    license = head.get("license_name") or head.get("license") or ""
    folder, is_remote = found.output_folder, "://" in found.output_folder
    if not is_remote:  # where it lay when the card was written is of no use to others
        folder = _name(folder)
    configs = head.get("configs")
    specs = {feature: recipe.features[feature] for feature in recipe.features} if recipe is not None else {}
    return (
        environment()
        .get_template("card.md")
        .render(
            name=name,
            found=found,
            counted=found.coverage.rows_of_stats,
            samples=facts.samples,
            recipe=recipe,
            trial=trial_text(recipe.trial) if recipe is not None and recipe.trial else "",
            features={feature: (repr(spec), spec.doc) for feature, spec in specs.items()},
            outcomes=in_order(found.outcomes),
            exts=list(found.exts.items()),
            columns=_columns(facts),
            configs=configs,
            load=_load_dataset(folder, configs) if configs and not is_remote else "",
            snippets=snippets(dataset, folder),
            when=_when(found),
            command=_command(facts),
            license=license if isinstance(license, str) else ", ".join(map(str, license)),
            homepage=HOMEPAGE,
            version=__version__,
        )
    )


def _load_dataset(folder: str, configs: Any) -> str:
    split = str(configs[0]["data_files"][0]["split"])
    return f"import datasets\n\nsamples = datasets.load_dataset({literal(folder)}, split={literal(split)})"


def _command(facts: _Facts) -> str:
    """The command without folders of the machine of the lists."""
    found, run, recipe = facts.found, facts.dataset.run, facts.recipe
    files = [name for each in found.lists for name in each["files"]]
    given = run.given if run else {}
    if recipe is not None:
        return build_command(recipe.full_name, given, for_others=True)
    lists = [name if "://" in name else _name(name) for name in files]
    return download_command(_name(found.output_folder), lists, with_limit(given, found.lists), for_others=True)


def _columns(facts: _Facts) -> dict[str, str]:
    """Column of the metadata -> what it holds; "" for those that every dataset has."""
    dataset, columns = facts.dataset, facts.found.columns
    options = dataset.run.options if dataset.run else {}
    of_list = dict.fromkeys(options.get("save_additional_columns") or (), "from the list")
    members = dataset.members.names if dataset.members is not None else ()
    known = {**of_list, **{member: f"the file of the {member}" for member in members}}
    if dataset.output_format == "parquet":
        known[str(options.get("data_column") or "data")] = "the file itself"
    of_members = {f"{member}_{name}" for member in members for name in columns} - of_list.keys()
    return {name: known.get(name, "") for name in columns if name not in of_members}


def _when(found: Summary) -> str:
    if found.started is None or found.ended is None:
        return ""
    first, last = (f"{datetime.fromtimestamp(at, timezone.utc):%Y-%m-%d}" for at in (found.started, found.ended))
    return f" on {first}" if first == last else f" from {first} to {last}"
