"""What was given, as text: a command line of these texts asks for the same, and none of them is a secret."""

import textwrap
from pathlib import Path
from typing import Any

import pytest

from any2ds.config.command_line import build_command, download_command, retry_call, retry_command
from any2ds.config.options import Config

GIVEN: dict[str, dict[str, Any]] = {
    "a number": {"timeout": 2.5},
    "a flag": {"fsync": False},
    "nothing": {"disallowed_header_directives": None},
    "names": {"save_additional_columns": ["id", "width"]},
    "a path": {"staging_dir": Path("/var/tmp")},
    "types": {"column_types": {"id": "string", "score": "float"}},
    "several columns": {"url_col": {"image": "image_url", "mask": "mask_url"}},
    "a hash": {"verify_hash": ("checksum", "sha256")},
    "hashes": {"url_col": "image:a,mask:b", "verify_hash": {"image": ["x", "md5"], "mask": "y:sha256"}},
    "options of a member": {
        "url_col": "image:a,mask:b",
        "member_options": {"mask": {"encode_format": "png", "file_size": 0}, "image": {"file_size": 256}},
    },
}


@pytest.mark.parametrize("options", GIVEN.values(), ids=GIVEN)
def test_the_texts_of_values_from_python_ask_for_the_same(options: dict[str, Any]) -> None:
    config = Config.from_options({"url_list": "-", **options})
    texts = {name: text for name, (text, _) in config.written.items()}
    assert texts.keys() == {"url_list", *options}
    assert Config.from_options(texts).to_options() == config.to_options()


def test_a_long_list_and_a_function_are_told_by_what_they_are() -> None:
    config = Config.from_options({"url_list": ["http://a.test/"] * 101, "transform": textwrap.dedent})
    assert config.written["url_list"] == ("101 values", "call")
    assert config.written["transform"][0] == "textwrap:dedent"


def test_credentials_are_not_kept() -> None:
    options = {
        "url_list": "https://me:word@a.test/list.txt",
        "headers": "Cookie: a",
        "proxy": "http://me:word@b.test:1",
    }
    written = Config.from_options(options).written
    assert written == {
        "url_list": ("https://a.test/list.txt", "call"),
        "headers": ("...", "call"),
        "proxy": ("...", "call"),
    }
    assert retry_command("out", written) == "any2ds retry out --headers=... --proxy=..."
    assert download_command("out", ["l.txt"], written) == "any2ds --url_list=l.txt --output_folder=out"


def test_a_retry_is_given_functions_that_it_cannot_find_by_their_names() -> None:
    written = Config.from_options({"url_list": "-", "transform": [lambda sample: sample]}).written
    assert retry_call("out", written) == "any2ds.retry('out', transform=...)"
    assert retry_call("out", {"transform": ("my_steps:clean", "call")}) == "any2ds.retry('out')"


def test_a_config_file_is_named_for_a_retry_and_spelt_out_for_others(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text('{"timeout": 5, "file_size": 256}')
    written = Config.from_options({"url_list": "-", "config": str(file), "retries": 2, "quiet": True}).written
    assert retry_command("out", written) == f"any2ds retry out --config={file} --retries=2"
    assert retry_call("out", written) == f"any2ds.retry('out', config={str(file)!r}, retries=2)"
    options = "--timeout=5 --file_size=256 --retries=2"
    assert download_command("out", ["l.txt"], written) == f"any2ds --url_list=l.txt --output_folder=out {options}"


def test_a_preset_is_given_by_its_own_names() -> None:
    options = {"preset": "img2dataset", "image_size": 64, "user_agent_token": "me", "url_list": "l.txt"}
    written = Config.from_options(options).written
    command = download_command("out", ["l.txt"], written)
    assert command.endswith(" --preset=img2dataset --image_size=64 --user_agent_token=me")
    assert retry_command("out", written).startswith("any2ds retry out '--user_agent=me any2ds/")


def test_a_build_has_the_options_of_its_dataset_alone() -> None:
    given = {
        "recipe": ("r.py", "call"),
        "overwrite": ("True", "call"),
        "imports": ("m", "call"),
        "timeout": ("5", "call"),
    }
    assert build_command("flowers", given, "data") == "any2ds build flowers --data_dir=data --imports=m --timeout=5"
