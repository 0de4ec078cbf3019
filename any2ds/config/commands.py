"""The subcommands: what each is for, what runs it, and its options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

SHORT_NAMES: Mapping[str, str] = {"output_folder": "-o"}
"""Option -> what may stand in place of `--option`."""

_GO_ON = "finished shards are kept, run the same command again to go on"


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand."""

    usage: str
    summary: str
    function: str  # module:name of what runs it in the package: its `run` takes parsed options, others a group of them
    declared_in: str  # module:name of the groups of its options, loaded by `groups` for those who use the command
    positional: tuple[str, ...] = ("output_folder",)  # the options that may be given without their names, in order
    examples: tuple[str, ...] = ()
    if_stopped: str = ""  # added to the message when it is interrupted
    aliases: Mapping[str, str] = field(default_factory=dict)  # further names of options on the command line

    @property
    def groups(self) -> Sequence[Any]:
        """The groups of its options."""
        module, _, names = self.declared_in.partition(":")
        found = getattr(import_module(f"any2ds.config.{module}"), names)
        return found if isinstance(found, tuple) else (found,)


COMMANDS: Mapping[str, Command] = {
    "download": Command(
        "any2ds URL_LIST [OUTPUT_FOLDER] [--option=value ...]",
        "make a dataset of a list of URLs",
        "run.download:download",
        "options:GROUPS",
        ("url_list", "output_folder"),
        (
            "any2ds urls.txt",
            "any2ds urls.parquet s3://bucket/dataset --caption_col=caption",
            "any2ds 'lists/*.csv.gz' dataset --url_col=link",
            "any2ds pairs.parquet dataset --url_col=image:image_url,mask:mask_url",
            "any2ds urls.txt photos --output_format=webdataset --file_size=256",
            "any2ds urls.parquet sample --limit=1000",
            "zcat urls.txt.gz | any2ds - dataset",
            "any2ds --config=run.yaml --timeout=30",
            "any2ds --preset=img2dataset --url_list=urls.txt --image_size=384",
            "any2ds retry dataset --timeout=60",
        ),
        _GO_ON,
    ),
    "retry": Command(
        "any2ds retry OUTPUT_FOLDER [--codes=timeout_total,http_5xx] [--option=value ...]",
        "download again what failed in a dataset",
        "run.retry:retry",
        "datasets:RETRY_GROUPS",
        examples=("any2ds retry dataset", "any2ds retry dataset --codes=http_403 --user_agent='my-crawler/1.0'"),
        if_stopped="finished shards are kept, run the same command again for the others",
    ),
    "estimate": Command(
        "any2ds estimate URL_LIST [OUTPUT_FOLDER] [--machines=1,4,16] [--option=value ...]",
        "say what a run would take, by a sample of it",
        "estimate.estimate:estimate",
        "datasets:ESTIMATE_GROUPS",
        ("url_list", "output_folder"),
        (
            "any2ds estimate urls.parquet --machines=1,4,16 --bandwidth=1Gbit",
            "any2ds estimate urls.parquet s3://bucket/dataset --output_format=webdataset --file_size=256",
            "any2ds estimate urls.parquet --from=dataset",
        ),
        "the sample fetched so far is kept",
        {"from": "from_dataset"},
    ),
    "verify": Command(
        "any2ds verify OUTPUT_FOLDER [--sample=1%] [--repair]",
        "check that a dataset is complete and undamaged",
        "dataset.verify.verify:verify",
        "datasets:VerifyOptions",
    ),
    "inspect": Command(
        "any2ds inspect OUTPUT_FOLDER",
        "show what a dataset contains",
        "describe.inspect:inspect",
        "datasets:InspectOptions",
    ),
    "report": Command(
        "any2ds report OUTPUT_FOLDER [--format=html|md|json] [--open]",
        "write a report on the rows of a dataset",
        "describe.report.report:report",
        "datasets:ReportOptions",
    ),
    "card": Command(
        "any2ds card OUTPUT_FOLDER [--license=cc-by-4.0]",
        "write a README.md that describes a dataset",
        "describe.card.card:card",
        "datasets:CardOptions",
    ),
    "add-columns": Command(
        "any2ds add-columns OUTPUT_FOLDER LIST [--on=url|key]",
        "add columns of a list to the metadata of a dataset",
        "dataset.add_columns:add_columns",
        "datasets:AddColumnsOptions",
        ("output_folder", "url_list"),
        (
            "any2ds add-columns dataset scores.csv",
            "any2ds add-columns s3://bucket/dataset labels.parquet --on=key --add=label,split",
            "any2ds add-columns dataset scores.jsonl --on=url:link",
        ),
        "run the same command again to go on",
    ),
    "build": Command(
        "any2ds build RECIPE [--data_dir=FOLDER] [--option=value ...]",
        "make the dataset of a recipe",
        "recipes.build:build",
        "recipes:BUILD_GROUPS",
        ("recipe",),
        (
            "any2ds build ./flowers/flowers.py",
            "any2ds build flowers/small:1.1.0 --imports=my_recipes --output_format=tfrecord",
            "any2ds build ./flowers --data_dir=s3://bucket/datasets --max_examples_per_split=100",
        ),
        _GO_ON,
    ),
    "new": Command(
        "any2ds new NAME [--from_list=urls.parquet]",
        "make the folder of a recipe: code, test, dummy data",
        "recipes.new:new",
        "recipes:NewOptions",
        ("name",),
    ),
    "recipes": Command(
        "any2ds recipes [--imports=MODULES] [--data_dir=FOLDER]",
        "list the recipes, and what was built of them",
        "recipes.listing:lines",
        "recipes:RecipesOptions",
        (),
    ),
}

FIRST_WORDS = (*COMMANDS, "completion", "help")
"""What may stand first on a command line, besides a list."""
