"""`build()`: from a recipe to its dataset.

    recipe ─splits─▶ samples, or rows with URLs ─▶ spool ─▶ shard jobs ─distributor─▶ shards ─▶ published dataset

A local dataset is made in a folder beside its final one, and renamed when it is complete. In a store, where nothing can
be renamed, `.any2ds/run` says that it is being built until all is there, and everything refuses to open it.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import os
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from any2ds.config.declare import names_of
from any2ds.config.media import MEDIA_GROUPS
from any2ds.config.options import (
    Config,
    FetchOptions,
    InputOptions,
    OutputOptions,
    ParsedOptions,
    RunOptions,
    ShareOptions,
    StorageOptions,
    check_members,
)
from any2ds.config.recipes import BUILD_GROUPS, BuildOptions
from any2ds.config.signature import command
from any2ds.config.watch import WatchOptions
from any2ds.core import layout, plugins
from any2ds.core.errors import OptionError, OutputError, RunError, UsageError, error_text
from any2ds.core.manifest import Beginning, Ending, Manifest, Segment, columns_of, key_format
from any2ds.core.members import URL as URL_OF_MEMBER
from any2ds.core.members import column as column_of_member
from any2ds.core.paths import expanded
from any2ds.core.reports import RunReport
from any2ds.core.rows import ShardJob
from any2ds.dataset import tfds
from any2ds.dataset.features import KEY_COLUMN, SPLIT_COLUMN, Features, WrongValue
from any2ds.dataset.own_code import is_own, signature
from any2ds.dataset.places import data_dir as default_data_dir
from any2ds.dataset.recipe_file import RecipeFile, Split, trial_text
from any2ds.dataset.run_file import begin_segment, read_manifest
from any2ds.dataset.shard_list_file import rebuild
from any2ds.distributors._contract import Worker
from any2ds.load.files import cache_folder
from any2ds.recipes import spool
from any2ds.recipes.downloads import CHECKSUMS, Checksums, DownloadOptions, Downloads
from any2ds.recipes.info import Info
from any2ds.recipes.recipe import GivenSplit, Recipe, Skipped, as_splits
from any2ds.recipes.registry import recipe_of
from any2ds.recipes.sample_worker import ROWS_PER_PROCESS, SampleWorker
from any2ds.recipes.spool import ShardRows, Slice, Spool, Spooled
from any2ds.run.last_report import LastReport
from any2ds.run.ledger import Ledger
from any2ds.run.loop import run
from any2ds.run.monitor import Outlook
from any2ds.run.overwrite import overwrite
from any2ds.run.reporting import Reporters
from any2ds.run.segments import deciding_options
from any2ds.run.session import (
    check_parts,
    check_private,
    check_user_steps,
    checked_steps,
    distributing,
    refuse_clashes,
    run_info,
)
from any2ds.run.user_files import ShardNames, refuse_users_files
from any2ds.storage.folders import OutputFolder
from any2ds.storage.lock.lease import RunLock
from any2ds.storage.lock.run_lock import locked
from any2ds.storage.opening import open_folder
from any2ds.storage.report_file import is_others_report
from any2ds.transforms.chain import step_records
from any2ds.worker.worker import ShardWorker

log = logging.getLogger(__name__)

_SPOOL = f"{layout.STATE_FOLDER}/spool"
_URL = "url"
_NOT_FOR_BUILD = {
    **dict.fromkeys(
        ("output_folder", "preset", "incremental_mode", "data_column"),
        "the dataset of a recipe is in data_dir/name/config/version",
    ),
    **dict.fromkeys(("referer_col", "key_col"), "it is for a column of a list"),
}
_OF_URLS = (  # options that change nothing of samples which a recipe generates
    "verify_hash",
    "on_hash_mismatch",
    "dedupe",
    "transform_threads",
    "transform_timeout",
    *names_of(MEDIA_GROUPS),
)


@command(
    BUILD_GROUPS,
    "Returns the figures of the run. Raises UsageError if it cannot start or the recipe is wrong, and IncompleteRun if",
    "shards could not be written.",
    positional=("recipe",),
)
def build(options: ParsedOptions) -> RunReport:
    """Make the dataset of a recipe in `data_dir`/name/config/version.

    A build that was interrupted goes on, and a dataset that is there already is not made again.
    """
    asked = options.group(BuildOptions)
    for name, why in _NOT_FOR_BUILD.items():
        if name in options.given:
            raise OptionError(f"{name} cannot be given here: {why}")
    return RecipeBuild.of(options, recipe_of(asked.recipe, asked.imports or ())).make()


@dataclass(frozen=True)
class RecipeBuild:
    """A recipe, and where and how its dataset is made."""

    asked: BuildOptions
    recipe: Recipe
    info: Info
    features: Features
    config: Config  # without a list; its output is the folder in which the dataset is made
    final: str  # path or URL of the dataset
    given: Mapping[str, Any]  # options, for reporters
    replaced: Mapping[str, str] | None = None  # URL -> dummy data

    @classmethod
    def of(cls, options: ParsedOptions, recipe: Recipe, replaced: Mapping[str, str] | None = None) -> RecipeBuild:
        """Raises UsageError if the recipe, or an option, is wrong."""
        asked = options.group(BuildOptions)
        info = recipe.completed_info()
        features = Features(info.features)
        final = "/".join(
            [
                str(asked.data_dir or default_data_dir()).rstrip("/"),
                recipe.name(),
                *([recipe.config.name] if recipe.config else []),
                recipe.version,
            ]
        )
        output = options.group(OutputOptions)
        folder = final
        if "://" not in final:
            final = os.path.abspath(os.path.expanduser(final))
            folder = os.path.join(os.path.dirname(final), f".{os.path.basename(final)}.building")
        plugins.load("writers", output.output_format)
        if output.output_format == "dummy":
            raise OptionError("output_format=dummy stores no files: a recipe's dataset needs another format")
        if output.dedupe == "run":
            raise OptionError(
                "dedupe=run cannot be given here: rows are in the order of a hash of their keys, so none is the first"
            )
        has_own_name = output.output_format in ("parquet", "tfrecord", "arrayrecord")
        column = features.main if has_own_name else "data"
        names = features.schema.names
        listed = InputOptions(
            url_list=[],
            caption_col="caption" if "caption" in names else None,
            save_additional_columns=(*(name for name in names if name != "caption"), KEY_COLUMN, SPLIT_COLUMN),
        )
        output = replace(output, output_folder=folder, data_column=column)
        between = (options.group(group) for group in (StorageOptions, *MEDIA_GROUPS, FetchOptions, RunOptions))
        groups: list[Any] = [listed, output, *between, ShareOptions(), options.group(WatchOptions)]
        config = replace(Config(*groups), given=options.given, written=options.written)
        if absent := [name for name in config.media.step_columns if name not in names]:
            raise OptionError(
                f"{absent[0]!r} is no feature of {recipe.full_name}: it has {', '.join(names) or 'files only'}"
            )
        given = {name: value for name, value in config.to_options().items() if name != "url_list"}
        return cls(asked, recipe, info, features, config, final, {**given, "output_folder": final}, replaced)

    # --- the flow ---

    def make(self) -> RunReport:
        """Make the dataset, or what is missing of it."""
        config = self.config
        check_parts(config)
        self._check_steps(config)
        check_user_steps(config)
        if not self.features.files:  # then no split can have rows with URLs
            self._check_effects(())
        final = open_folder(self.final, config.storage)
        output = open_folder(config.output.output_folder, config.storage)
        output.url = self.final  # which is what people are told
        check_private(output, config.run)
        if not self.asked.overwrite and (found := self._finished(final)) is not None:
            what = found.full_name if found.trial is None else f"{found.full_name} ({trial_text(found.trial)})"
            anew = "makes it anew, and registers the checksums" if self.asked.register_checksums else "makes it anew"
            log.warning("%s is there already, in %s: --overwrite %s", what, final.url, anew)
            self._name_first_config()
            return RunReport(skipped_shards=sum(split.shards for split in found.splits))
        self._check_free(final)
        info = run_info("download", final, config, self.given)
        with LastReport(config.watch, info) as last_report:
            with locked(output, "build") as lock:
                total = self._make_in(output, lock)
            if output.identity != final.identity:
                self._put_in_place(output, final)
            self._name_first_config()
            last_report.total = replace(total, shards=total.shards or 1)
        return total

    def _check_steps(self, config: Config) -> None:
        columns = [*self.features.schema.names, KEY_COLUMN, SPLIT_COLUMN]  # those that a list of its rows would have
        refuse_clashes(config, checked_steps(config), columns)

    def _make_in(self, output: OutputFolder, lock: RunLock) -> RunReport:
        """Make the dataset in the folder that it has for itself until it is complete."""
        state = self._state()
        if (complete := self._complete(output)) is not None and complete.state == state:
            return RunReport(skipped_shards=sum(split.shards for split in complete.splits))  # killed before its rename
        self._begin(output, state)
        folder = self._spool_folder(output)
        samples = spool.recorded(folder)
        if samples is None or samples.get("state") != state or not _schemes_are_own(samples, output):
            shutil.rmtree(folder, ignore_errors=True)
            samples = {**self._generate(folder), "state": state}
            samples["signature"] = signature(output.identity, _allowed_by_recipe(samples))
            spool.record(folder, samples)
        made = self._with_members(samples["members"])._with_schemes(samples.get("allow_schemes", ()))
        return made._make_shards(output, lock, folder, samples)

    def _with_members(self, of_rows: Mapping[str, Any] | None) -> RecipeBuild:
        """A build whose rows have several URLs, with the options `of_rows`; those of the command
        win. Raises OptionError for some that cannot be."""
        config = self.config
        if of_rows is not None:
            options = {**(of_rows["member_options"] or {}), **(config.files.member_options or {})}
            config = replace(
                config,
                input=replace(config.input, url_col=of_rows["url_col"], require=of_rows["require"]),
                output=replace(config.output, data_column="data"),
                files=replace(config.files, member_options=options or None),
            )
        check_members(config)
        self._check_steps(config)
        return replace(self, config=config)

    def _with_schemes(self, of_rows: Iterable[str]) -> RecipeBuild:
        """A build whose rows may also have the schemes that the recipe allows."""
        fetch = self.config.fetch
        allowed = (*(fetch.allow_schemes or ()), *of_rows)
        return replace(self, config=replace(self.config, fetch=replace(fetch, allow_schemes=allowed or None)))

    def _make_shards(self, output: OutputFolder, lock: RunLock, folder: Path, samples: Mapping[str, Any]) -> RunReport:
        """Make the shards that are missing, and then what is told of all of them."""
        shards = self._shards(folder, samples["splits"])
        described = self._described(shards, samples)
        output.write(layout.BUILDING_FILE, samples["state"].encode())
        manifest = self._manifest(shards)
        output.put_if_absent(layout.RUN_FILE, manifest.to_json())
        for segment in manifest.segments:
            begin_segment(output, segment)
        output.write(layout.RECIPE_FILE, described.to_json())
        total = RunReport()
        plans = [(kind, own) for kind in ("samples", "urls") if (own := [each for each in shards if each.kind == kind])]
        for kind, own in plans:
            plan = _Plan(output, own, self.config.run.is_on_this_machine)
            worker = self._worker(kind, lock)
            info = replace(run_info("download", output, self.config, self.given), finished=plan.finished)
            watching = Reporters(self.config.watch, info, self.config.run.quiet)
            ledger = Ledger(plan, lock, self.config.run.max_shard_retry)
            with distributing(self._sharing(kind, own)) as distributor:
                total = total.followed_by(run(worker, distributor, watching, ledger, self.config.run.grace))
        rebuild(output, self.config.output)
        output.remove(layout.BUILDING_FILE)  # from here on it can be opened
        shutil.rmtree(folder, ignore_errors=True)
        return total

    def _sharing(self, kind: str, shards: Sequence[_SplitShards]) -> RunOptions:
        """How the work is shared out: what takes less than a process takes to begin is done in this one."""
        running = self.config.run
        is_little = kind == "samples" and sum(each.rows for each in shards) <= ROWS_PER_PROCESS
        if is_little and running.distributor == "multiprocessing" and running.processes_count is None:
            return replace(running, distributor="inline")
        return running

    def _worker(self, kind: str, lock: RunLock) -> Worker:
        config = self.config
        if kind == "samples":
            return SampleWorker(config, self.features.spec, lock.locks)
        return ShardWorker.of(config, lock.locks)

    # --- what is there ---

    def _finished(self, final: OutputFolder) -> RecipeFile | None:
        """The recipe file of a complete dataset; None for a trial, where another one or the whole is asked
        for. Raises OutputError if it is one of another format."""
        found = self._complete(final)
        if found is None:
            return None
        if found.trial is not None and found.trial != self.asked.max_examples_per_split:
            log.warning("%s: what is there, %s, is replaced", found.full_name, trial_text(found.trial))
            return None
        manifest = Manifest.parse(final.read(layout.RUN_FILE) or b"")
        there, wanted = manifest.options.get("output_format"), self.config.output.output_format
        if there != wanted:
            raise OutputError(
                f"{final.url!r} holds {found.full_name} as {there}: --overwrite makes it anew as {wanted}"
            )
        return found

    @staticmethod
    def _complete(folder: OutputFolder) -> RecipeFile | None:
        """The recipe file of the dataset in a folder; None if there is none, or one that is being built."""
        try:
            found = RecipeFile.of(folder)
            _ = Manifest.parse(folder.read(layout.RUN_FILE) or b"")
        except (ValueError, FileNotFoundError, NotADirectoryError):
            return None
        return None if folder.exists(layout.BUILDING_FILE) else found

    def _check_free(self, final: OutputFolder) -> None:
        """Raises OutputError if something else lies where the dataset is to be."""
        names = [name for name in final.names() if name != layout.STATE_FOLDER]
        if not names:
            return
        before = read_manifest(final)
        if before is None:
            raise OutputError(f"{final.url!r} holds {names[0]}, which no recipe has made: move that away")
        refuse_users_files(final, names, before, self.config.to_options(), layout.finished_shards(names))

    def _begin(self, output: OutputFolder, state: str) -> None:
        """Make the folder ready: what lies in it of another build is removed."""
        before = output.read(layout.RUN_FILE)
        if before is not None:
            manifest = Manifest.parse(before)
            building = output.read(layout.BUILDING_FILE)
            if building == state.encode():
                return
            if building is not None:
                log.warning("%s: the recipe or its options have changed: the build starts anew", self.recipe.full_name)
            names = [*output.names(), *output.state_files()]
            overwrite(output, manifest, names, ())

    def _state(self) -> str:
        """Changes with whatever decides what the build makes."""
        code = ""
        try:
            code = inspect.getsource(sys.modules[type(self.recipe).__module__])
        except (OSError, TypeError, KeyError):  # typed in
            code = repr(type(self.recipe))
        deciding = deciding_options({**self.config.to_options(), "url_list": None})
        parts = [code, self.recipe.full_name, self.features.spec, deciding, self.asked.max_examples_per_split]
        return hashlib.sha256(json.dumps(parts, default=repr, sort_keys=True).encode()).hexdigest()

    def _spool_folder(self, output: OutputFolder) -> Path:
        if output.is_local:
            return Path(output.path) / _SPOOL
        name = hashlib.sha256(output.identity.encode()).hexdigest()[:32]
        return expanded(self.config.storage.staging_dir or cache_folder() / "builds") / name

    def _put_in_place(self, output: OutputFolder, final: OutputFolder) -> None:
        """Rename a local folder that is complete. What people have put beside the previous dataset moves along."""
        target, made = Path(final.path), Path(output.path)
        previous = target.with_name(f".{target.name}.previous")
        shutil.rmtree(previous, ignore_errors=True)
        if target.exists():
            for name in _users_files(final):
                if not os.path.lexists(made / name):
                    (target / name).rename(made / name)
            target.rename(previous)
        made.rename(target)
        shutil.rmtree(previous, ignore_errors=True)

    def _name_first_config(self) -> None:
        """For TensorFlow Datasets, which looks there for the config that the name of the recipe alone stands for."""
        if not self.recipe.CONFIGS or not tfds.names_for(self.config.output):
            return
        content = json.dumps({"default_config_name": self.recipe.CONFIGS[0].name}).encode()
        folder = open_folder(self.final.rsplit("/", 2)[0], self.config.storage)
        if folder.read(layout.TFDS_CONFIG) != content:
            folder.create_folder(os.path.dirname(layout.TFDS_CONFIG))
            folder.write(layout.TFDS_CONFIG, content)

    # --- samples ---

    def _generate(self, folder: Path) -> dict[str, Any]:
        """Run the recipe's code, and spool the samples of all splits."""
        recipe = self.recipe
        own = recipe.folder()
        cache = expanded(self.asked.download_dir or cache_folder() / "recipes")
        manual = self.asked.manual_dir or f"{self.asked.data_dir or default_data_dir()}/manual/{recipe.name()}"
        dl = Downloads(
            recipe.name(),
            DownloadOptions(
                cache,
                self.config.fetch,
                self.config.storage,
                expanded(manual),
                recipe.MANUAL_DOWNLOAD_INSTRUCTIONS,
                self.asked.register_checksums,
                self.replaced,
            ),
            Checksums(own / CHECKSUMS if own is not None else None),
        )
        made: dict[str, Any] = {}
        try:
            splits = {name: GivenSplit(name, own) for name, own in as_splits(recipe.splits(dl)).items()}
            self._check_effects(splits.values())
            for name, split in splits.items():
                made[name] = self._spooled(spool.path_of(folder, name), split)
                made[name]["skipped"] = dict(recipe.skipped)
                log.info("%s: %s: %d samples", recipe.full_name, name, made[name]["count"])
        except (UsageError, RunError):
            raise
        except OSError as error:
            raise RunError(f"{recipe.full_name}: {error_text(error)}") from error
        spool.check_keys({name: Spooled(spool.path_of(folder, name)) for name in made})
        members = [split.get("members") for split in made.values()]
        if any(each != members[0] for each in members):
            raise UsageError(
                f"{recipe.full_name}: if rows of a split have several URLs, those of the others have the same"
            )
        return {
            "splits": made,
            "download_bytes": dl.bytes,
            "members": members[0] if members else None,
            "allow_schemes": sorted({scheme for split in made.values() for scheme in split.get("allow_schemes", ())}),
        }

    def _check_effects(self, splits: Iterable[GivenSplit]) -> None:
        """Raises OptionError for options that only rows with URLs have, if there are none of these in any split."""
        without_effect = [name for name in _OF_URLS if name in self.config.given]
        if without_effect and not any(split.has_urls(self.recipe) for split in splits):
            raise OptionError(
                f"{without_effect[0]} has no effect on {self.recipe.full_name}: no split of it has rows with URLs, and"
                " samples are stored as the recipe makes them"
            )

    def _spooled(self, path: Path, split: GivenSplit) -> dict[str, Any]:
        name, is_sorted, record = split.name, self.info.disable_shuffling, None
        schemes: tuple[str, ...] = ()
        rows = split.rows(self.recipe)
        if rows is not None:
            from any2ds.recipes.url_rows import member_record, members_of, schemes_of, spool_rows

            schemes = schemes_of(rows)
            members = members_of(rows, self.features, name)
            record = member_record(rows, self.features, members)
            self._with_members(record)  # what cannot be is refused before anything is read
            with closing(Spool(path, self._url_schema_of(members), 0, is_sorted)) as into:
                most = self.asked.max_examples_per_split
                spool_rows(rows, into, self.features, self.recipe, name, most, self.config)
        else:
            with closing(Spool(path, self.features.schema, max(1, len(self.features.files)), is_sorted)) as into:
                self._spool_samples(split.samples, into, name)
        kind = "samples" if rows is None else "urls"
        return {"kind": kind, "count": into.count, "members": record, "allow_schemes": schemes}

    def _spool_samples(self, samples: Iterable[Any], into: Spool, split: str) -> None:
        skipped, skip = tuple(self.recipe.SKIPPED), self.recipe.skip
        encode, exts_of, has_files = self.features.encode, self.features.exts, bool(self.features.files)
        with closing(_iterator(samples)) as found:
            for each in islice(found, self.asked.max_examples_per_split):
                try:
                    key, sample = each
                except (TypeError, ValueError):
                    raise UsageError(f"split {split}: expected (key, sample), got {type(each).__name__}") from None
                if sample is None or isinstance(sample, Skipped):
                    continue
                try:
                    if callable(sample):
                        sample = sample()
                    values, files = encode(key, sample)
                except Exception as error:
                    cause = error.__cause__ or error
                    if skipped and isinstance(cause, skipped):
                        skip(key, type(cause).__name__)
                        continue
                    if isinstance(error, WrongValue):
                        raise UsageError(f"split {split}: {error}") from error.__cause__
                    raise
                exts = exts_of(sample) if has_files else ["bin"]
                origin = _origin(sample, self.features) if has_files and exts[0] else ""
                into.add(key, values, files or [b""], exts, origin)

    def _url_schema_of(self, members: Mapping[str, str]) -> pa.Schema:
        texts = [_URL, *(column_of_member(member, URL_OF_MEMBER) for member in members)]
        if self.config.output.verify_hash is not None:
            from any2ds.recipes.url_rows import expected_hashes

            texts += expected_hashes(self.config, members)
        return pa.schema([*(pa.field(name, pa.string()) for name in texts), *self.features.schema])

    # --- shards ---

    def _shards(self, folder: Path, splits: Mapping[str, Any]) -> list[_SplitShards]:
        found, first = [], 0
        for name, split in splits.items():
            path = spool.path_of(folder, name)
            slices = Spooled(path).slices(self.config.output.number_sample_per_shard)
            found.append(_SplitShards(name, split["kind"], first, slices, path, split["count"], split["skipped"]))
            first += len(slices)
        return found

    def _manifest(self, shards: Sequence[_SplitShards]) -> Manifest:
        """The manifest of the dataset, in which each split is a segment."""
        options = deciding_options({**self.config.to_options(), "url_list": None})
        segments = tuple(
            Segment(
                number,
                each.first_shard,
                (),
                Beginning(min(1000, each.rows), each.slices[0].fingerprint),
                "recipe",
                list_number=number,
                ending=Ending(each.rows, len(each.slices)),
            )
            for number, each in enumerate(each for each in shards if each.slices)
        )
        members = self.config.members
        of_rows = self._url_schema_of(members.columns if members is not None else {})
        schema = pa.schema([*of_rows, (KEY_COLUMN, pa.string()), (SPLIT_COLUMN, pa.string())])
        keys = key_format(self.config.output.layout)
        steps = step_records(self.config.media) if any(each.kind == "urls" for each in shards) else ()
        place = open_folder(self.final, self.config.storage).identity
        signed = signature(place, options["transform"] or ())
        return Manifest(options, keys, columns_of(schema), segments, steps, given=self.config.written, signature=signed)

    def _described(self, shards: Sequence[_SplitShards], samples: Mapping[str, Any]) -> RecipeFile:
        recipe, info = self.recipe, self.info
        return RecipeFile(
            name=recipe.name(),
            version=recipe.version,
            features_spec=self.features.spec,
            splits=tuple(
                Split(each.name, each.rows, each.first_shard, len(each.slices), each.skipped) for each in shards
            ),
            config=recipe.config.name if recipe.config else "",
            is_default=recipe.is_default_config,
            config_description=recipe.config.description if recipe.config else "",
            description=info.description,
            homepage=info.homepage,
            license=info.license,
            citation=info.citation,
            tags=tuple(info.tags),
            supervised_keys=info.supervised_keys,
            release_notes=dict(recipe.RELEASE_NOTES),
            download_bytes=int(samples["download_bytes"]),
            module=type(recipe).__module__,
            disable_shuffling=info.disable_shuffling,
            trial=self.asked.max_examples_per_split,
            state=samples["state"],
        )


@dataclass(frozen=True, slots=True)
class _SplitShards:
    """The shards of a split."""

    name: str
    kind: str  # samples, or urls
    first_shard: int
    slices: Sequence[Slice]
    spool: Path
    rows: int
    skipped: Mapping[str, int]


class _Plan:
    """The `Plan` of the shards of some splits, all of one kind."""

    def __init__(self, output: OutputFolder, splits: Sequence[_SplitShards], is_local: bool) -> None:
        self._splits, self._is_local = splits, is_local
        there = output.finished_shards()
        own = {each.first_shard + number for each in splits for number in range(len(each.slices))}
        self.finished: Collection[int] = there & own
        self.shards: Collection[int] = self.finished
        self.skipped = 0
        self._rows = sum(each.rows for each in splits)
        self._planned = 0
        self._done = sum(
            len(piece.numbers)
            for each in splits
            for number, piece in enumerate(each.slices)
            if each.first_shard + number in self.finished
        )

    def jobs(self) -> Iterator[ShardJob]:
        """In order."""
        for split in self._splits:
            for number, piece in enumerate(split.slices):
                shard_id = split.first_shard + number
                count = len(piece.numbers)
                self._planned += count
                if shard_id in self.finished:
                    self.skipped += 1
                    continue
                yield ShardJob(shard_id, self._rows_of(split, piece), count, fingerprint=piece.fingerprint)

    def outlook(self) -> Outlook:
        """How much there is to do."""
        return Outlook(self._rows, self._planned, None, self._done)

    def _rows_of(self, split: _SplitShards, piece: Slice) -> bytes:
        if split.kind == "samples" and self._is_local:
            return spool.place_of(split.spool, piece, split.name)
        rows = ShardRows.of(split.spool, piece.numbers.to_pylist(), split.name)
        return rows.to_bytes() if split.kind == "samples" else spool.to_stream(rows.as_listed())


def _schemes_are_own(samples: Mapping[str, Any], output: OutputFolder) -> bool:
    """Whether it was a recipe, run by this user, that allowed its rows their schemes: whoever gives a folder away may
    have written the record of its samples."""
    if not samples.get("allow_schemes"):
        return True
    return is_own(str(samples.get("signature")), output.identity, _allowed_by_recipe(samples))


def _allowed_by_recipe(samples: Mapping[str, Any]) -> list[str]:
    """The schemes that are signed beside the options: rows may have them though the options do not allow them."""
    schemes = samples["allow_schemes"]
    return ["allow_schemes", samples["state"], *map(str, schemes)] if schemes else []


def _iterator(samples: Iterable[Any]) -> Any:
    """A generator, which can be closed."""
    yield from samples


def _origin(sample: Mapping[str, Any], features: Features) -> str:
    """The path of its first file, if it was given as one."""
    if not features.files:
        return ""
    value: Any = sample
    for name in features.files[0].path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return os.fspath(value) if isinstance(value, (str, os.PathLike)) else ""


def _users_files(folder: OutputFolder) -> list[str]:
    """Names in the folder of a finished dataset that do not belong to it, such as notes, lists and a README.md."""
    names = folder.names()
    shards = ShardNames.of(Manifest.parse(folder.read(layout.RUN_FILE) or b"").options)
    own = {layout.STATE_FOLDER, *(name for name in names if shards.has(name) or name.endswith(tfds.LABELS_END))}
    if not is_others_report(folder):
        own.add(layout.REPORT_FILE)
    return [name for name in names if name not in own]
