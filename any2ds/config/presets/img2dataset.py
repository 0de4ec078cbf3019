"""`--preset=img2dataset`: command lines and calls that were written for img2dataset (its version 1.47)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from any2ds.config.media import ImageOptions
from any2ds.config.parsers import boolean, names, optional, text
from any2ds.config.presets import Foreign
from any2ds.core.errors import OptionError
from any2ds.core.version import USER_AGENT

_STEPS = "any2ds.config.presets._images"
_WITH_EXIF, _AS_THEY_COME = f"{_STEPS}:with_exif", f"{_STEPS}:as_they_come"

# Where an option is there in both tools, and differs in its name alone.
_RENAMED = {"image_size": "file_size"}
_INTERPOLATIONS = {"bilinear": "linear", "bicubic": "cubic", "lanczos4": "lanczos"}  # two names for one there

_OF_IMAGES = frozenset({"width", "height", "original_width", "original_height", "exif"})  # refused there as well
_FOR_IMAGES = frozenset({"file_size", *ImageOptions.__dataclass_fields__} - {"bbox_col"})
_OF_SOUND = ("duration", "sample_rate", "channels", "codec", "fps", "video_codec")  # filled by steps of every run
_MOST_PIXELS = 2**30  # what OpenCV decodes, and so what img2dataset does when it sets no limit itself


class Img2dataset:
    """A Preset."""

    options: Mapping[str, Foreign] = {
        "image_size": Foreign("pixels that images are resized to: file_size", "256"),
        "user_agent_token": Foreign("the name by which servers know you, in front of any2ds' own", "None"),
    }
    renamed: Mapping[str, str] = _RENAMED
    tolerated = frozenset(
        {
            "file_size",
            "resize_mode",
            "resize_only_if_bigger",
            "upscale_interpolation",
            "downscale_interpolation",
            "encode_quality",
            "wandb_project",
            "subjob_size",
        }
    )
    defaults: Mapping[str, Any] = {
        "output_folder": "images",
        "processes_count": 1,
        "thread_count": 256,
        "max_shard_retry": 1,
        "file_size": 256,
        "resize_mode": "border",
        "resize_only_if_bigger": False,
        "skip_reencode": False,
        "encode_format": "jpg",
        "max_image_area": _MOST_PIXELS,
        "extract_exif": True,
        "only_images": True,
        "compute_md5": False,
        "compute_hash": "sha256",
        "wandb_project": "img2dataset",
    }

    deciding = ("disable_all_reencoding", "encode_format")
    ignores_columns_of_txt = (
        True  # its reader.py, where the columns of txt are ["url"]; bbox_col ends in an error there
    )
    figures: Mapping[str, str] = {"failed_to_resize": "failed_to_subsample"}
    cuts_by_file = True

    def columns(self, of_list: Sequence[str], own: Sequence[str]) -> tuple[str, ...]:
        """As its reader.py and downloader.py have them; behind them what steps were asked for that it does not have."""
        from any2ds.core.metadata import DUPLICATE_OF, EXPECTED_HASH, HASHES, RESERVED_COLUMNS  # which brings pyarrow

        hashes = [name for name in HASHES if name in own]
        is_verified = EXPECTED_HASH.name in of_list
        of_rows = [name for name in of_list if name not in ("url", "caption", EXPECTED_HASH.name, DUPLICATE_OF.name)]
        captions = [name for name in ("caption",) if name in of_list]
        known = ("status", "error_message", "width", "height", "original_width", "original_height", "exif")
        theirs = [*of_rows, *captions, *(hashes if is_verified else []), "url", "key"]
        theirs += [name for name in known if name in own]
        theirs += [] if is_verified else hashes
        return (*theirs, *(name for name in own if name not in {*theirs, *RESERVED_COLUMNS, *_OF_SOUND}))

    def own(self, given: Mapping[str, Any]) -> dict[str, Any]:
        options = {**self.defaults, **_own_names(given)}
        token = options.pop("user_agent_token", None) or None  # there an empty one is none
        if (token := _parsed("user_agent_token", optional(text), token)) is not None:
            # In front, so that robots.txt and X-Robots-Tag may address it.
            options["user_agent"] = f"{token.strip()} {USER_AGENT}"
        for name in ("upscale_interpolation", "downscale_interpolation"):
            if isinstance(value := options.get(name), str):
                options[name] = _INTERPOLATIONS.get(value.lower(), value.lower())
        for name in ("save_additional_columns", "disallowed_header_directives"):
            if name in options and _is_empty(options[name]):
                options[name] = None
        columns = _parsed("save_additional_columns", optional(names), options.get("save_additional_columns")) or ()
        if taken := sorted(_OF_IMAGES.intersection(columns)):
            raise OptionError(
                f"save_additional_columns: {', '.join(taken)}: columns of these names say what is stored; leave them "
                "out, or give them other names in the list"
            )
        if boxes := _parsed("bbox_col", optional(text), options.get("bbox_col")):
            options["save_additional_columns"] = tuple(dict.fromkeys([*columns, boxes]))
        if (encoded := options["encode_format"]) != "keep":
            options = {"file_ext": encoded, "data_column": encoded, **options}
        as_they_come = _parsed("disable_all_reencoding", boolean, options.get("disable_all_reencoding", False))
        if as_they_come:  # there the options for images are of no effect then; that boxes are not blurred is refused
            options = {name: value for name, value in options.items() if name not in _FOR_IMAGES}
        options["transform"] = _with_step(options.get("transform"), _AS_THEY_COME if as_they_come else _WITH_EXIF)
        return options


def _own_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """Raises OptionError if one is given under both of its names."""
    for theirs, ours in (*_RENAMED.items(), ("user_agent_token", "user_agent")):
        if theirs in given and ours in given:
            raise OptionError(f"{theirs} and {ours} are for the same: give one of them")
    return {_RENAMED.get(name, name): value for name, value in given.items()}


def _parsed(name: str, parse: Any, value: Any) -> Any:
    try:
        return parse(value)
    except ValueError as error:
        raise OptionError(f"invalid {name}={value!r}: expected {error}") from None


def _is_empty(value: Any) -> bool:
    """A list without a word, also as it is written in a shell."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return False
    return isinstance(value, Sequence) and not isinstance(value, str) and not value


def _with_step(given: Any, step: str) -> list[Any]:
    """The steps of the user's own, with `step` before them."""
    if given is None or isinstance(given, str):
        steps: list[Any] = list(_parsed("transform", optional(names), given) or ())
    else:
        steps = list(given) if isinstance(given, Sequence) else [given]
    return [step, *(own for own in steps if own != step)]


PART = Img2dataset()
