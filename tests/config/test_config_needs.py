"""Options that have no effect without others, and texts that are empty: both are refused."""

import fnmatch
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from any2ds import download, report, retry, verify
from any2ds.config.datasets import RETRY_GROUPS, ReportOptions, VerifyOptions
from any2ds.config.declare import declared
from any2ds.config.needs import option_names
from any2ds.config.options import GROUPS, Config
from any2ds.core.errors import MissingExtra, OptionError, OutputError

# options, of which the first has no effect beside the others, and what is said
REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"row_group_bytes": 5},
        "row_group_bytes has no effect without output_format=parquet: add --output_format=parquet",
    ),
    ({"on_hash_mismatch": "drop", "verify_hash": None}, "without verify_hash: add --verify_hash=... or leave it out"),
    ({"resize_mode": "border", "file_size": 0}, "resize_mode has no effect without file_size"),
    ({"file_size": 256, "resize_mode": "no"}, "file_size=256 has no effect with resize_mode=no"),
    ({"upscale_interpolation": "cubic", "file_size": 9}, "no effect without resize_only_if_bigger=False"),
    ({"encode_quality": 95, "encode_format": "keep"}, "encode_quality has no effect without"),
    ({"encode_quality": 10, "encode_format": "png"}, "encode_quality=10: for png it is how hard it is compressed"),
    ({"encode_quality": 95, "encode_format": "png"}, "encode_quality=95: for png it is how hard it is compressed"),
    ({"unpack_max_bytes": 9, "audio_format": "keep"}, "unpack_max_bytes has no effect without"),
    ({"allow_link_local": True, "block_private_addresses": True}, "allow_link_local has no effect with block_private"),
]

# what asks for nothing, or for what is done anyway
ACCEPTED: list[dict[str, Any]] = [
    {"resize_mode": "no"},
    {"resize_mode": "no", "file_size": 0},
    {"ray_address": None, "beam_options": "None"},
    {"allow_link_local": False, "block_private_addresses": True},
    {"encode_format": "png"},
    {"encode_quality": 9, "encode_format": "png"},
]


def config(**options: Any) -> Config:
    return Config.from_options({"url_list": "-", **options})


# what an option needs, in each of the ways in which that can be written
MET: list[dict[str, Any]] = [
    {"row_group_bytes": "4MiB", "output_format": "parquet"},
    {"data_column": "data", "output_format": "tfrecord"},
    {"unpack_max_bytes": "1GiB", "audio_rate": 16_000},
    {"unpack_max_bytes": "1GiB", "clips_col": "c"},
    {"upscale_interpolation": "lanczos", "file_size": 256, "resize_only_if_bigger": False},
    {"encode_quality": 95, "skip_reencode": False},
    {"wandb_project": "any2ds", "reporters": "wandb"},
]


@pytest.mark.parametrize("options", MET, ids=str)
def test_an_option_is_taken_with_what_it_needs_and_refused_without(options: dict[str, Any]) -> None:
    name = next(iter(options))
    assert config(**options).to_options()[name] is not None
    with pytest.raises(OptionError, match=f"^{name} has no effect without "):
        config(**{name: options[name]})


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=lambda case: "-".join(map(str, case)))
def test_options_that_come_to_nothing_together_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        config(**options)


@pytest.mark.parametrize("options", ACCEPTED, ids=str)
def test_what_asks_for_nothing_needs_nothing(options: dict[str, Any]) -> None:
    assert config(**options)


def test_every_need_names_options() -> None:
    known = {info.name for info in declared(GROUPS)}
    for info in declared(GROUPS):
        assert all(fnmatch.filter(known, name) for name in option_names(info.needs)), info.name


@pytest.mark.parametrize("groups", [GROUPS, [VerifyOptions], [ReportOptions]])
def test_the_needs_are_shown_in_the_help(groups: Any) -> None:
    for info in declared(groups):
        if info.needs:
            assert info.help.endswith((f" (needs {info.needs})", f" (not with {info.needs.removeprefix('not ')})"))


def test_a_config_file_counts_as_given(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("wandb_project: x\n")
    with pytest.raises(OptionError, match="wandb_project has no effect without enable_wandb"):
        config(config=file)
    assert config(config=file, enable_wandb=True).watch.wandb_project == "x"


def test_other_commands_have_the_same_rule(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="ray_address has no effect without distributor=ray"):
        retry(tmp_path, ray_address="head:6379")
    with pytest.raises(OptionError, match="seed has no effect without sample"):
        verify(tmp_path, seed=1)
    with pytest.raises(OptionError, match="open has no effect without format=html"):
        report(tmp_path, open=True, format="md")


def test_retry_does_not_judge_the_file_of_a_download(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("preset: img2dataset\nsubjob_size: 5\nenable_wandb: true\n")
    with pytest.raises((OutputError, MissingExtra)):  # the folder is empty
        retry(tmp_path, config=file, wandb_project="mine")


# --- img2dataset's command lines ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": 300, "resize_mode": "no"}, "image_size=300 has no effect with resize_mode=no"),
        ({"subjob_size": 10}, "subjob_size=10 has no effect with distributor=multiprocessing"),
        ({"enable_wandb": False, "wandb_project": "mine"}, "wandb_project has no effect without enable_wandb"),
        ({"disable_all_reencoding": True, "image_size": 3}, "no effect with disable_all_reencoding: image_size"),
        ({"resize_mode": "no"}, ""),
        ({"resize_mode": "center_crop", "encode_quality": 90}, ""),
        ({}, ""),
    ],
)
def test_the_preset_warns_of_what_img2dataset_accepts(
    options: dict[str, Any], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "any2ds"):
        config(preset="img2dataset", **options)
    assert [record.getMessage()[: len(message)] for record in caplog.records] == ([message] if message else [])


@pytest.mark.parametrize("options", [{"on_hash_mismatch": "flag"}, {"encode_format": "png", "encode_quality": 95}])
def test_the_preset_refuses_what_img2dataset_does_not_have_or_refuses(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=f"^{next(reversed(options))}"):
        config(preset="img2dataset", **options)


# --- empty texts ---


@pytest.mark.parametrize("name", [info.name for info in declared(GROUPS) if info.name != "url_list"])
@pytest.mark.parametrize("value", ["", "  "], ids=["empty", "blank"])
def test_an_empty_text_is_refused(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=name):
        config(**{name: value})


@pytest.mark.parametrize("name", ["bbox_col", "transform", "clips_col", "caption_col", "verify_hash", "file_size"])
def test_an_empty_text_is_refused_in_a_config_file_and_nothing_behind_a_key_is_none(name: str, tmp_path: Path) -> None:
    empty, nothing = tmp_path / "empty.yaml", tmp_path / "nothing.yaml"
    empty.write_text(f'{name}: ""\n')
    nothing.write_text(f"{name}:\n")
    with pytest.raises(OptionError, match=name):
        config(config=empty)
    if name != "file_size":
        assert not config(config=nothing).to_options()[name]


@pytest.mark.parametrize("value", ["[]", "a.py:f,", ",a.py:f", "('')", ["a.py:f", ""], [" "], ("",)])
def test_a_list_of_steps_with_an_empty_member_is_refused(value: Any) -> None:
    with pytest.raises(OptionError, match="transform"):
        config(transform=value)


@pytest.mark.parametrize("value", [None, "None", []])
def test_no_steps_may_be_said(value: Any) -> None:
    assert not config(transform=value).files.transform


@pytest.mark.parametrize("name", ["bbox_col", "transform", "preset"])
def test_an_empty_text_is_refused_with_the_preset_as_well(name: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=name):
        download(["http://127.0.0.1:9/a"], output_folder=tmp_path / "out", **{"preset": "img2dataset", name: ""})
    assert not (tmp_path / "out").exists()


def test_retry_refuses_empty_texts(tmp_path: Path) -> None:
    for name in ("proxy", "reporters", "codes"):
        assert name in {info.name for info in declared(RETRY_GROUPS)}
        with pytest.raises(OptionError, match=name):
            retry(tmp_path, **{name: ""})
