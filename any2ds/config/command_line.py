"""Commands that are suggested, made of what was given to another one."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence

from any2ds.config import presets
from any2ds.config.declare import declared, names_of
from any2ds.config.given import SECRET, Given
from any2ds.config.options import DECIDING_GROUPS, GROUPS, FetchOptions, RunOptions, StorageOptions
from any2ds.core.errors import printable, redacted

# The list and folder, which a command names first, what is for a folder with shards, and what hides the run's words.
_LEFT_OUT = frozenset({"url_list", "output_folder", "incremental_mode", "quiet", "log_level"})
_OF_RETRY = names_of((StorageOptions, FetchOptions, RunOptions)) - _LEFT_OUT
_OF_DATASETS = names_of(DECIDING_GROUPS)
_MOST_LISTS = 3  # named
_PYTHON = re.compile(r"-?[0-9]+(\.[0-9]+)?|True|False|None|\.\.\.", re.ASCII)  # texts that are values of Python


def retry_command(folder: str, given: Given) -> str:
    """The command that fetches again what failed in a dataset, as the run did that was `given` these options."""
    subject = f"--output_folder={folder}" if folder.startswith("-") else folder
    return _quoted(["any2ds", "retry", subject, *(f"--{name}={text}" for name, text in _for_retry(given))])


def retry_call(folder: str, given: Given) -> str:
    """`retry_command` as a call from Python."""
    defaults = {each.name: each.default for each in declared([StorageOptions, FetchOptions, RunOptions])}
    keywords = [
        f"{name}={text if _PYTHON.fullmatch(text) and not isinstance(defaults.get(name), str) else repr(text)}"
        for name, text in _for_retry(given)
    ]
    steps, _ = given.get("transform", ("", ""))
    if "__main__:" in steps or "<" in steps:  # functions that no other process finds by their names
        keywords.append("transform=...")
    return f"any2ds.retry({', '.join([repr(folder), *keywords])})"


def _for_retry(given: Given) -> Iterator[tuple[str, str]]:
    """The options that a retry takes as well, first the config file with those that stand in it."""
    if "config" in given:
        yield "config", given["config"][0]
    for name, (text, source) in given.items():
        if name in _OF_RETRY and source != "config":
            yield name, text


def download_command(folder: str, lists: Sequence[str], given: Given, for_others: bool = False) -> str:
    """The command that makes such a dataset in `folder`, of `lists`, with what was `given`, but for credentials; one
    `for_others` has no options on how a machine fetched and stored it."""
    more = "…" if len(lists) > _MOST_LISTS else ""
    words = [f"--url_list={','.join(map(redacted, lists[:_MOST_LISTS])) or '…'}{more}", f"--output_folder={folder}"]
    options = dataset_options(given) if for_others else _flags(given, names_of(GROUPS).union(_foreign_names(given)))
    return printable("any2ds " + " ".join(map(shlex.quote, [*words, *options])))


def build_command(recipe: str, given: Given, data_dir: str = "", for_others: bool = False) -> str:
    """The command that builds `recipe`, in `data_dir`, with what was `given`; see `download_command`."""
    from any2ds.config.recipes import BUILD_GROUPS, BuildOptions  # which a run of a list does not need

    taken = names_of(BUILD_GROUPS) - names_of([BuildOptions])
    taken = (taken & _OF_DATASETS if for_others else taken) | {"imports", "max_examples_per_split"}
    words = [recipe, *([f"--data_dir={data_dir}"] if data_dir else []), *_flags(given, taken)]
    return printable("any2ds build " + " ".join(map(shlex.quote, words)))


def dataset_options(given: Given) -> list[str]:
    """`--name=value` for each option that was given about what the dataset holds."""
    return _flags(given, _OF_DATASETS.union(_foreign_names(given)))


def _foreign_names(given: Given) -> Collection[str]:
    """The names of options that only the tool of the preset has."""
    preset = presets.find(given["preset"][0]) if "preset" in given else None
    return preset.options.keys() if preset else ()


def _flags(given: Given, taken: Collection[str]) -> list[str]:
    """`--name=value` for each of the options `taken` that was given, without credentials."""
    return [
        f"--{name}={redacted(text)}"
        for name, (text, source) in given.items()
        if name in taken and name not in _LEFT_OUT and source != "preset" and text != SECRET
    ]


def load_call(folder: str, has_stores: bool = False) -> str:
    """The call that loads the samples of a dataset; with `has_stores` it needs `storage_options`, which are secret."""
    return f"any2ds.load({json.dumps(folder, ensure_ascii=False)}{', storage_options=...' if has_stores else ''})"


def flag(name: str, value: str) -> str:
    """`--name=value`, quoted for a shell."""
    return _quoted([f"--{name}={value}"])


def _quoted(arguments: list[str]) -> str:
    return subprocess.list2cmdline(arguments) if sys.platform == "win32" else shlex.join(arguments)
