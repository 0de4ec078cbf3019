"""`--preset=img2dataset`: its command lines mean what they meant, or are refused with words; nothing is fetched."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from any2ds import download
from any2ds.cli import parse
from any2ds.config.commands import COMMANDS
from any2ds.config.datasets import RETRY_GROUPS
from any2ds.config.help import help_text
from any2ds.config.options import Config, parse_groups
from any2ds.core.errors import OptionError
from any2ds.core.version import USER_AGENT

# As in its README and its dataset_examples: what a person has on the command line behind the program's name.
LINES = {
    "usage": "--url_list=myimglist.txt --output_folder=output_folder --thread_count=64 --image_size=256",
    "cc3m": """--url_list cc3m.tsv --input_format "tsv" --url_col "url" --caption_col "caption"
        --output_format webdataset --output_folder cc3m --processes_count 16 --thread_count 64 --image_size 256
        --enable_wandb False --user_agent_token img2dataset --disallowed_header_directives '["noai", "noindex"]'""",
    "cc12m": """--url_list cc12m.tsv --input_format "tsv" --url_col "url" --caption_col "caption"
        --output_format webdataset --output_folder cc12m --processes_count 16 --thread_count 64 --image_size 256
        --enable_wandb False""",
    "laion400m": """--url_list laion400m-meta --input_format "parquet" --url_col "URL" --caption_col "TEXT"
        --output_format webdataset --output_folder laion400m-data --processes_count 16 --thread_count 128
        --image_size 256 --save_additional_columns '["NSFW","similarity","LICENSE"]' --enable_wandb False""",
    "laion-high-resolution": """--url_list laion-high-resolution --input_format "parquet" --url_col "URL"
        --caption_col "TEXT" --output_format webdataset --output_folder laion-high-resolution-output
        --processes_count 16 --thread_count 64 --image_size 1024 --resize_only_if_bigger=True
        --resize_mode="keep_ratio" --skip_reencode=True --enable_wandb False
        --save_additional_columns '["similarity","hash","punsafe","pwatermark","LANGUAGE"]'""",
    "laion-art, without directives": """--url_list laion-art --input_format "parquet" --url_col "URL"
        --caption_col "TEXT" --output_format webdataset --output_folder laion-art --processes_count 16
        --thread_count 64 --image_size 384 --resize_only_if_bigger=True --resize_mode="keep_ratio"
        --skip_reencode=True --user_agent_token img2dataset --disallowed_header_directives '[]'""",
    "coyo-700m": """--url_list coyo-700m --input_format "parquet" --url_col "url" --caption_col "text"
        --output_format webdataset --output_folder coyo-700m-webdataset --processes_count 16 --thread_count 64
        --image_size 384 --resize_only_if_bigger=True --resize_mode="keep_ratio" --skip_reencode=True
        --save_additional_columns '["clip_similarity_vitb32","watermark_score"]' --enable_wandb False""",
    "mscoco": """--url_list mscoco.parquet --input_format "parquet" --url_col "URL" --caption_col "TEXT"
        --output_format webdataset --output_folder mscoco --processes_count 16 --thread_count 64 --image_size 256""",
    "sbu": """--url_list sbu-captions-all.json --input_format "json" --url_col "image_urls" --caption_col "captions"
        --output_format webdataset --output_folder sbucaptions --processes_count 16 --thread_count 64
        --image_size 256""",
    "hashes": """--url_list l.parquet --input_format parquet --compute_hash "md5" --verify_hash '["md5","md5"]'""",
    "benchmark": "--url_list l.txt.gz --input_format txt.gz --output_format dummy --disable_all_reencoding True",
    "everything": """--url_list s3://bucket/lists --input_format csv.gz --output_folder s3://bucket/out
        --resize_mode center_crop --upscale_interpolation bicubic --downscale_interpolation LANCZOS4
        --encode_format webp --encode_quality 90 --number_sample_per_shard 1000 --extract_exif False --timeout 20
        --enable_wandb=False --wandb_project mine --oom_shard_count 6 --compute_hash None
        --distributor multiprocessing --subjob_size 1000 --retries 2 --min_image_size 10 --max_image_area inf
        --max_aspect_ratio 3 --incremental_mode overwrite --max_shard_retry 2""",
}


def config_of(line: str) -> Config:
    """What the command line turns a line into."""
    given = ["--preset=img2dataset", *shlex.split(line)]
    return Config.from_options(parse(given, COMMANDS["download"]))


def options_of(line: str) -> dict[str, Any]:
    return config_of(line).to_options()


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_its_command_lines_are_understood(line: str) -> None:
    given = parse(shlex.split(line), COMMANDS["download"])
    found = options_of(line)
    for name in ("url_list", "url_col", "caption_col", "output_folder", "output_format"):
        if name in given:
            assert found[name] == given[name]
    if "disable_all_reencoding" not in given:  # with it nothing is resized
        assert found["file_size"] == int(given.get("image_size", 256))
        assert found["resize_mode"] == given.get("resize_mode", "border")
    assert found["file_ext"] == found["data_column"] == given.get("encode_format", "jpg")


def test_its_defaults_are_the_defaults() -> None:
    found = options_of("--url_list=urls.txt")
    theirs = {
        "url_col": "url",
        "caption_col": None,
        "output_folder": "images",
        "output_format": "files",
        "processes_count": 1,
        "thread_count": 256,
        "timeout": 10.0,
        "retries": 0,
        "number_sample_per_shard": 10000,
        "oom_shard_count": 5,
        "file_size": 256,
        "resize_mode": "border",
        "resize_only_if_bigger": False,
        "skip_reencode": False,
        "upscale_interpolation": "lanczos",
        "downscale_interpolation": "area",
        "encode_format": "jpg",
        "encode_quality": 95,
        "extract_exif": True,
        "compute_hash": "sha256",
        "compute_md5": False,
        "disable_all_reencoding": False,
        "min_image_size": 0,
        "max_aspect_ratio": None,
        "incremental_mode": "incremental",
        "max_shard_retry": 1,
        "subjob_size": 1000,
        "bbox_col": None,
        "verify_hash": None,
        "disallowed_header_directives": ("noai", "noimageai", "noindex", "noimageindex"),
    }
    assert {name: found[name] for name in theirs} == theirs


def test_values_are_translated() -> None:
    found = options_of(LINES["everything"])
    assert (found["input_format"], found["compute_hash"], found["extract_exif"]) == ("csv.gz", None, False)
    assert (found["upscale_interpolation"], found["downscale_interpolation"]) == ("cubic", "lanczos")
    assert found["max_image_area"] == float("inf")
    assert found["file_ext"] == found["data_column"] == "webp"
    assert options_of(LINES["laion-art, without directives"])["disallowed_header_directives"] is None
    assert options_of(LINES["cc3m"])["disallowed_header_directives"] == ("noai", "noindex")
    assert options_of(LINES["cc3m"])["user_agent"] == f"img2dataset {USER_AGENT}"
    assert options_of(LINES["laion400m"])["save_additional_columns"] == ("NSFW", "similarity", "LICENSE")
    assert str(options_of(LINES["hashes"])["verify_hash"]) == "md5:md5"


def test_boxes_are_carried_along_as_they_are_there() -> None:
    line = "--url_list=l.parquet --bbox_col=face_bboxes --save_additional_columns="
    assert options_of(line + "'[\"uid\"]'")["save_additional_columns"] == ("uid", "face_bboxes")
    assert options_of(line + "'[]'")["save_additional_columns"] == ("face_bboxes",)


def test_our_own_options_go_with_it() -> None:
    found = options_of("--url_list=u.txt --file_size=128 --thread_count=auto --file_ext=auto --transform=my.py:clean")
    assert (found["file_size"], found["thread_count"], found["file_ext"]) == (128, "auto", "auto")
    assert found["transform"] == ("any2ds.config.presets._images:with_exif", "my.py:clean")


def test_it_reports_to_wandb_under_its_own_project_name() -> None:
    for line in ("--enable_wandb True", "--enable_wandb"):
        found = options_of(f"--url_list=u.txt {line}")
        assert (found["enable_wandb"], found["wandb_project"]) == (True, "img2dataset")
    assert options_of("--url_list=u.txt --wandb_project mine")["wandb_project"] == "mine"
    assert options_of("--url_list=u.txt")["enable_wandb"] is False


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--enable_wandb=perhaps", "True or False"),
        ("--image_size=256 --file_size=256", "image_size and file_size"),
        ("--user_agent_token=a --user_agent=b", "user_agent_token and user_agent"),
        ("--distributor=slurm", "multiprocessing"),
        ("--resize_mode=stretch", "resize_mode='stretch'"),
        ("--image_sice=3", "unknown option 'image_sice'"),
        ("--save_additional_columns=jpg", "'jpg' is the column of the files"),
        ("--output_format=tfrecord --data_column=image", "the file is in 'data' of its records: --data_column=data"),
        ("--save_additional_columns=url,width --disable_all_reencoding", "width: columns of these names"),
        ("--bbox_col=faces --disable_all_reencoding", "bbox_col would have no effect"),
        ("--data_column=sha256", "a name that no column of the metadata has"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_words(line: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("url,status,jpg,faces\nhttp://127.0.0.1:9/a,1,2,[]\n")
    here = [f"--url_list={tmp_path / 'l.csv'}", f"--output_folder={tmp_path / 'out'}"]
    with pytest.raises(OptionError, match=re.escape(words)):
        download(**parse(["--preset=img2dataset", *here, *shlex.split(line)], COMMANDS["download"]))
    assert not (tmp_path / "out").exists()


def test_its_names_without_the_preset_say_what_they_belong_to() -> None:
    with pytest.raises(
        OptionError,
        match=r"did you mean file_size\? --preset=img2dataset takes it",
    ):
        Config.from_options({"url_list": "u.txt", "image_size": 256})
    with pytest.raises(OptionError, match="invalid preset='img3dataset': expected one of img2dataset"):
        Config.from_options({"url_list": "u.txt", "preset": "img3dataset"})


def test_the_preset_works_in_a_config_file(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("preset: img2dataset\nimage_size: 384\nuser_agent_token: me\ntimeout: 33\nenable_wandb: false\n")
    given = parse([f"--config={file}", "--url_list=u.txt", "--resize_mode=no"], COMMANDS["download"])
    found = Config.from_options(given).to_options()
    assert (found["file_size"], found["resize_mode"], found["output_folder"]) == (384, "no", "images")
    plain = tmp_path / "plain.json"
    plain.write_text(json.dumps({"image_size": 300, "url_list": "u.txt"}))
    assert Config.from_options({"config": plain, "preset": "img2dataset"}).files.file_size == 300
    # Other commands take from it what is theirs, under its own name.
    _, _, fetch, running, _ = parse_groups({"output_folder": "out", "config": file}, RETRY_GROUPS)
    assert (fetch.timeout, fetch.user_agent, running.processes_count) == (33.0, f"me {USER_AGENT}", 1)


def test_help_shows_its_names_and_defaults() -> None:
    shown, plain = (help_text(everything=True, preset=preset) for preset in ("img2dataset", None))
    for name in ("image_size", "user_agent_token", "enable_wandb"):
        assert f"--{name} " in shown
    assert "[border]" in shown
    assert "[border]" not in plain
