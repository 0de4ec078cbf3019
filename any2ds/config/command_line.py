"""Options written as a command line, or a call from Python, takes them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shlex
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from any2ds.config import presets
from any2ds.config.options import (
    GROUPS,
    FetchOptions,
    RunOptions,
    StorageOptions,
    changed,
    flat,
    parse_options,
    public,
    read_config_file,
)
from any2ds.config.recipes import BUILD_GROUPS
from any2ds.core.errors import OptionError, UsageError, printable, redacted

_LEFT_OUT = frozenset({"quiet", "log_level"})  # whoever reads the command wants to see what it does
_NOT_OF_THE_DATASET = frozenset({"url_list", "output_folder", *_LEFT_OUT})
_OF_BUILD = frozenset(f.name for group in BUILD_GROUPS for f in dataclasses.fields(group)) - _NOT_OF_THE_DATASET
_MOST_LISTS = 3  # named


def retry_command(folder: str, options: Mapping[str, Any], has_stores: bool = False) -> str:
    """The command that fetches again what failed, with those `options` on fetching, storing and running that differ
    from their defaults, and the file that `config` among them names.

    `options` are as `config.public` has them: what is secret has to be given again by whoever knows it. With
    `has_stores`, `storage_options` were given, which no command shows.
    """
    chosen = (f"--{name}={_text(value)}" for name, value in _chosen(options))
    return _quoted(["any2ds", "retry", _subject(folder), *_access_flags(options, has_stores), *chosen])


def download_command(folder: str, lists: Sequence[str], options: Mapping[str, Any], asked: Collection[str] = ()) -> str:
    """The command that makes such a dataset in `folder`, of `lists`: with those `options` that are changed, or `asked`
    for with their default values, and without secrets."""
    more = "…" if len(lists) > _MOST_LISTS else ""
    arguments = [f"--url_list={','.join(map(redacted, lists[:_MOST_LISTS])) or '…'}{more}", f"--output_folder={folder}"]
    known = {name: value for name, value in options.items() if name not in _NOT_OF_THE_DATASET}
    arguments += [f"--{name}={redacted(value)}" for name, value in given_options(known, asked).items()]
    return printable("any2ds " + " ".join(map(shlex.quote, arguments)))


def build_command(recipe: str, options: Mapping[str, Any], asked: Collection[str] = (), data_dir: str = "") -> str:
    """The command that builds `recipe`, in `data_dir`, with those of the `options` of a dataset that it takes."""
    known = {name: value for name, value in options.items() if name in _OF_BUILD}
    given = {"data_dir": data_dir} if data_dir else {}
    arguments = [f"--{name}={redacted(value)}" for name, value in {**given, **given_options(known, asked)}.items()]
    return printable(" ".join(["any2ds build", shlex.quote(recipe), *map(shlex.quote, arguments)]))


def given_options(options: Mapping[str, Any], asked: Collection[str] = ()) -> dict[str, str]:
    """Those of recorded `options` that a command has to give, as text: that are changed, or `asked` for with their
    default values, without secrets; with a preset those that it does not set itself, and under its names."""
    known = public(options)
    try:
        chosen = _by_preset(known) if known.get("preset") is not None else changed(known, asked)
    except (OptionError, ValueError):  # recorded by another version
        chosen = changed(known, asked)
    return {name: _text(value) for name, value in chosen.items()}


def _by_preset(known: Mapping[str, Any]) -> dict[str, Any]:
    """The options that differ from those of the preset alone, under its names. Raises OptionError or ValueError."""
    preset = presets.find(known["preset"])
    if preset is None:
        raise ValueError("without a preset")
    given = {"preset": known["preset"]}

    def differing() -> dict[str, Any]:
        made = public(flat(parse_options({"url_list": "-", **given}, GROUPS).groups))
        return {name: value for name, value in known.items() if made.get(name) != value and value not in (None, [])}

    for name in preset.deciding:
        if name in (others := differing()):
            given[name] = others[name]
    theirs = {ours: name for name, ours in preset.renamed.items()}
    return {theirs.get(name, name): value for name, value in {**given, **differing()}.items()}


def load_call(folder: str, has_stores: bool = False) -> str:
    """The call that loads the samples of a dataset; see `retry_command`."""
    return f"any2ds.load({json.dumps(folder, ensure_ascii=False)}{', storage_options=...' if has_stores else ''})"


def _access_flags(options: Mapping[str, Any], has_stores: bool) -> list[str]:
    """How a command gets the options that it does not show, such as credentials."""
    if options.get("config"):
        return [f"--config={options['config']}"]
    return ["--storage_options=..."] if has_stores else []


def _access_keywords(options: Mapping[str, Any], has_stores: bool) -> list[str]:
    """Keywords of a call that stand for the flags of `_access_flags`."""
    if options.get("config"):
        return [f"config={options['config']!r}"]
    return ["storage_options=..."] if has_stores else []


def flag(name: str, value: Any) -> str:
    """`--name=value`, quoted for a shell."""
    return _quoted([f"--{name}={_text(value)}"])


def retry_call(folder: str, options: Mapping[str, Any], has_stores: bool = False) -> str:
    """`retry_command` as a call from Python."""
    chosen = (f"{name}={value!r}" for name, value in _chosen(options))
    return f"any2ds.retry({', '.join([repr(folder), *_access_keywords(options, has_stores), *chosen])})"


def _chosen(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The options that differ from their defaults, as far as a retry takes them and text can express them. Nobody chose
    what a preset has set."""
    fields = {f.name: f for group in (StorageOptions, FetchOptions, RunOptions) for f in dataclasses.fields(group)}
    preset = presets.find(options.get("preset"))
    of_preset = public(preset.defaults) if preset is not None else {}
    of_file: Mapping[str, Any] = {}
    with contextlib.suppress(UsageError):  # it is gone, or was changed since the run began
        of_file = read_config_file(options["config"]) if options.get("config") else {}
    for name, value in changed(options).items():
        if name in fields and name in of_file and _means(fields[name], _text(of_file[name]), value):
            continue
        if name in of_preset and of_preset[name] == value:
            continue
        if name in fields and name not in _LEFT_OUT and _means(fields[name], _text(value), value):
            yield name, value


def _subject(folder: str) -> str:
    return f"--output_folder={folder}" if folder.startswith("-") else folder


def _quoted(arguments: list[str]) -> str:
    return subprocess.list2cmdline(arguments) if sys.platform == "win32" else shlex.join(arguments)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.15g}"
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _means(field: dataclasses.Field[Any], text: str, value: Any) -> bool:
    """Whether the parser of the option makes `value` of `text`."""
    try:
        return bool(_plain(field.metadata["parse"](text)) == _plain(value))
    except (ValueError, OptionError):
        return False
