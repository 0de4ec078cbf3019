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
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa

from any2ds.config.command_line import build_command, download_command
from any2ds.config.options import CardOptions, ParsedOptions
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
from any2ds.dataset.shard_sample import ShardSample
from any2ds.describe.card import hub, split_files
from any2ds.describe.inspect import SHARDS_OF_METADATA
from any2ds.describe.loaders import Loadable, shard_table, snippets
from any2ds.describe.rendering import environment
from any2ds.describe.summary import Summary, summarize, with_limit
from any2ds.storage.stores import Stores
from any2ds.writers.formats.parquet import body_columns

_OWN_FIELDS = (
    "pretty_name",
    "license",
    "license_name",
    "language",
    "size_categories",
    "tags",
    "configs",
    "dataset_info",
)
_GIVEN_FIELDS = ("pretty_name", "license", "license_name", "language")  # which stay if they are not given again
_SHARDS_LOOKED_INTO = 4
_MEMBERS_LOOKED_AT = 200  # of a tar file: each is a read in a store
_MOST_EXTS = 40  # of tar files; beyond that `datasets` finds out by itself
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]*")

_COLUMNS = {
    "key": "names the sample: number of the shard in which its row was first tried, then of the row in it",
    "url": "where the file was fetched, without user name and password",
    "caption": "text that the list has for the file",
    "status": "success, failed_to_download, failed_to_subsample, dropped, filtered or duplicate",
    "error_code": "why a row failed",
    "error_message": "the same in words, and why something was dropped or filtered",
    "http_status": "what the server answered",
    "mime_type": "type of the file, by its bytes or else as the server said",
    "ext": "extension of the stored file",
    "bytes": "size of the file that arrived",
    "final_url": "where redirects led",
    "etag": "the server's mark for this version of the file",
    "last_modified": "when the file was changed, as the server said",
    "attempts": "transfers that were made for the row",
    "md5": "hash of the file that arrived",
    "sha256": "hash of the file that arrived",
    "sha512": "hash of the file that arrived",
    "expected_hash": "hash that the list has for the file",
    "hash_matches": "whether the file that arrived has that hash",
    "duplicate_of": "key of the first row with the same URL",
    "stored_bytes": "size of the stored file, where it is another than the one that arrived",
    "stored_crc32": "CRC-32 of the stored file, where it is another than the one that arrived",
    "path": "name of the file in its archive",
    "pages": "pages of the document",
    "duration": "seconds",
    "sample_rate": "of the sound, per second",
    "channels": "of the sound",
    "codec": "of the sound",
    "video_codec": "of the pictures",
    "fps": "pictures per second",
    "width": "of the stored file, in pixels",
    "height": "of the stored file, in pixels",
    "original_width": "of the file that arrived, in pixels",
    "original_height": "of the file that arrived, in pixels",
    "clip_start": "of the clip in its video, in seconds",
    "clip_end": "of the clip in its video, in seconds",
    "frame_time": "of the picture in its video, in seconds",
    "exif": "what the camera wrote into the file, as JSON",
}


@dataclass(frozen=True, slots=True)
class Card:
    """A dataset card that was made."""

    text: str
    path: str | None  # where it was written; None if nowhere


@dataclass(frozen=True, slots=True)
class _Facts:
    """What a card tells of, each part of which takes long to find out for a million shards."""

    dataset: Dataset
    found: Summary
    loadable: Loadable


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
    text = _text(_Facts(dataset, found, Loadable.of(dataset, found.exts)), wanted, previous)
    if wanted.output == "-":
        return Card(text, None)
    content = text.encode("utf-8", "replace")
    if wanted.output is None:
        try:
            dataset.folder.write(layout.CARD_FILE, content)
        except Exception as error:  # every file system has exceptions of its own
            raise OutputError(
                f"{wanted.output_folder!r}: {layout.CARD_FILE} cannot be written: {error_text(error)}"
            ) from error
        return Card(text, f"{found.output_folder.rstrip('/')}/{layout.CARD_FILE}")
    path = expanded(wanted.output)
    try:
        write_file(path, content)
    except OSError as error:
        raise OutputError(f"--output={wanted.output}: {error.strerror}") from error
    return Card(text, str(path))


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
    before, after = "", "\n"
    header: Mapping[str, Any] = {}
    if previous:
        head, _ = hub.split(previous)
        header = head or {}
        around = hub.parts(previous)
        if around is not None:
            before, after = hub.split(around[0])[1] if head is not None else around[0], around[1]
    name = wanted.pretty_name or str(header.get("pretty_name") or "") or _title(facts)
    own = _header(facts, wanted, name)
    kept = {field: header[field] for field in _GIVEN_FIELDS if field in header}
    if wanted.license:
        kept.pop("license_name", None)
    head = hub.merged({**kept, **own}, header, _OWN_FIELDS)
    body = _body(facts, name, head)
    return f"{hub.header(head)}{before}{hub.BEGIN}\n\n{body}\n{hub.END}\n{after.removeprefix(chr(10))}"


def _title(facts: _Facts) -> str:
    """The name of the recipe, whose folder is called as its version, or that of the folder."""
    recipe = facts.found.recipe
    return _name(facts.found.output_folder) if recipe is None else str(recipe["name"]).partition(":")[0]


def _name(folder: str) -> str:
    return printable(
        os.path.basename(os.path.abspath(folder)) if "://" not in folder else folder.rstrip("/").rsplit("/", 1)[-1]
    )


# --- the header ---


def _header(facts: _Facts, wanted: CardOptions, name: str) -> dict[str, Any]:
    dataset, found, loadable = facts.dataset, facts.found, facts.loadable
    own: dict[str, Any] = {"pretty_name": printable(name)}
    recipe = RecipeFile.found(dataset.folder, dataset.entries)
    if license := wanted.license or (recipe.license if recipe is not None else ""):
        own.update(_license(license))
    tags = list(recipe.tags) if recipe is not None else []
    spoken = [re.split("[:.]", tag)[-1] for tag in tags if tag.startswith(("language:", "content.language."))]
    if languages := list(wanted.language or dict.fromkeys(spoken)):
        own["language"] = languages
    own["size_categories"] = [hub.size_category(_samples(found))]
    own["tags"] = [
        *(tag for tag in tags if not tag.startswith("language:")),
        *([loadable.kind] if loadable.kind else []),
        *(["text"] if "caption" in found.columns and loadable.kind != "text" else []),
        "any2ds",
    ]
    if not found.shards:
        return own
    is_tar, is_parquet = dataset.output_format == "webdataset", dataset.output_format == "parquet"
    own["configs"] = _configs(facts, recipe)
    features = None
    with contextlib.suppress(Exception):  # what cannot be read cannot be loaded either, and `datasets` says why
        features = (
            _features_of_tar(facts) if is_tar else _features_of_parquet(dataset, loadable) if is_parquet else None
        )
    if features is not None:
        own["dataset_info"] = [{"config_name": each["config_name"], "features": features} for each in own["configs"]]
    return own


def _configs(facts: _Facts, recipe: RecipeFile | None) -> list[dict[str, Any]]:
    dataset, found = facts.dataset, facts.found
    has_splits = SPLIT in found.columns and found.rows is not None  # else it is unknown which shards have which
    shards = list(shard_table(dataset).entries()) if has_splits else []
    of_samples = split_files.of_samples(shards)
    # Shards of a list may have rows of several splits.
    of_rows = split_files.of_rows(recipe, shards) if recipe is not None else {}
    extension = "tar" if dataset.output_format == "webdataset" else "parquet"
    samples, rows = (
        split_files.data_files(runs, dataset.layout, dataset.finished.ids, extension)
        for runs in (of_samples or of_rows, of_rows)
    )
    name = recipe.config if recipe is not None and recipe.config not in ("", hub.ALL_ROWS) else hub.DEFAULT
    state = _state(facts)
    if dataset.output_format == "parquet" and "status" in found.columns:
        return hub.configs(name, samples, rows, state)
    return hub.configs(name, samples if dataset.output_format in ("webdataset", "parquet") else rows, None, state)


def _features(recipe: RecipeFile) -> dict[str, tuple[str, str]]:
    """Feature -> what it is, as code, and what the recipe says about it."""
    found = {name: recipe.features[name] for name in recipe.features}
    return {name: (repr(feature), feature.doc) for name, feature in found.items()}


def _samples(found: Summary) -> int:
    """Samples of the dataset, or of the shards that were read where nobody has counted all."""
    return found.successes if found.samples is None else found.samples


def _license(given: str) -> dict[str, str]:
    if _LICENSE.fullmatch(given.lower()):
        return {"license": given.lower()}
    return {"license": "other", "license_name": printable(given)}


def _state(facts: _Facts) -> str:
    """Another one for each dataset, and after each change of one."""
    dataset, found = facts.dataset, facts.found
    shards = dataset.finished.ids.tolist()
    figures = (found.rows, found.samples, found.bytes, found.started, found.ended, found.outcomes, shards)
    lists = dataset.read(layout.RUN_FILE) if dataset.run else b""
    return hashlib.sha256(repr(figures).encode() + lists).hexdigest()[:16]


def _schema(dataset: Dataset) -> pa.Schema:
    """Of the last shard: those of other tools, which differ, are the first ones."""
    with dataset.visible_file(dataset.finished[-1]) as file:
        return file.schema_arrow


def _features_of_tar(facts: _Facts) -> list[dict[str, Any]] | None:
    exts = {ext.lower() for ext in facts.found.exts} | _members(facts.dataset)
    if not exts or len(exts) > _MOST_EXTS:
        return None
    ends = ("txt", "json")  # which come last in a sample
    ordered = [*sorted(exts.difference(ends)), *(ext for ext in ends if ext in exts)]
    return hub.features_of_members(ordered, _schema(facts.dataset))


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


def _features_of_parquet(dataset: Dataset, loadable: Loadable) -> list[dict[str, Any]] | None:
    schema = _schema(dataset)
    feature = hub.media_feature(loadable.exts)
    if feature is None or loadable.is_decoded or body_columns(schema) != [loadable.data_column]:
        return None
    return hub.features_of_columns(schema, loadable.data_column, feature)


# --- the body ---


def _body(facts: _Facts, name: str, head: Mapping[str, Any]) -> str:
    dataset, found, loadable = facts.dataset, facts.found, facts.loadable
    license = head.get("license_name") or head.get("license") or ""
    recipe = RecipeFile.found(dataset.folder, dataset.entries)
    return (
        environment()
        .get_template("card.md")
        .render(
            name=name,
            found=found,
            counted=found.coverage.rows_of_stats,
            samples=_samples(found),
            recipe=recipe,
            trial=trial_text(recipe.trial) if recipe is not None and recipe.trial else "",
            features=_features(recipe) if recipe is not None else {},
            outcomes=in_order(found.outcomes),
            exts=list(found.exts.items()),
            meanings=_meanings(dataset, found, loadable),
            configs=(configs := head.get("configs")),
            split=_first_split(configs),
            # Where it lay when the card was written is of no use to others.
            loadable=(shown := loadable if loadable.is_remote else replace(loadable, folder=_name(loadable.folder))),
            snippets=snippets(shown),
            when=_when(found),
            command=_command(dataset, found),
            license=license if isinstance(license, str) else ", ".join(map(str, license)),
            homepage=HOMEPAGE,
            version=__version__,
        )
    )


def _first_split(configs: Any) -> str:
    return str(configs[0]["data_files"][0]["split"]) if configs else ""


def _command(dataset: Dataset, found: Summary) -> str:
    """Without folders of the machine of the lists."""
    files = [name for each in found.lists for name in each["files"]]
    lists = [name if "://" in name else re.split(r"[/\\]", name.rstrip("/"))[-1] for name in files]
    given = dataset.run.given if dataset.run else {}
    if (recipe := RecipeFile.found(dataset.folder, dataset.entries)) is not None:
        return build_command(recipe.full_name, given, for_others=True)
    return download_command(_name(found.output_folder), lists, with_limit(given, found.lists), for_others=True)


def _meanings(dataset: Dataset, found: Summary, loadable: Loadable) -> dict[str, str]:
    """Column of the metadata -> what it holds."""
    of_list = (
        dict.fromkeys(dataset.run.options.get("save_additional_columns") or (), "from the list") if dataset.run else {}
    )
    of_files = {loadable.data_column: "the file itself"} if dataset.output_format == "parquet" else {}
    known = {**_COLUMNS, **of_list, **of_files}
    members = dataset.members.names if dataset.members is not None else ()
    known |= {member: f"the file of the {member}" for member in members}
    of_members = {f"{member}_{name}" for member in members for name in found.columns} - of_list.keys()
    return {name: known.get(name, "") for name in found.columns if name not in of_members}


def _when(found: Summary) -> str:
    if found.started is None or found.ended is None:
        return ""
    first, last = (f"{datetime.fromtimestamp(at, timezone.utc):%Y-%m-%d}" for at in (found.started, found.ended))
    return f" on {first}" if first == last else f" from {first} to {last}"
