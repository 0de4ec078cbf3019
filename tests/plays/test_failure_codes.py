"""Failure codes, reached from outside: a row and what the web answers. Transient ones are tried again, others not."""

import gzip
import hashlib
import io
import json
import socket
import zipfile
from collections import Counter
from typing import Any

import pytest
from PIL import Image

from tests.support import stored
from tests.support.dns import serve_dns
from tests.support.play import Play, Row
from tests.support.recordings import film, tone

BODY = bytes(range(256)) * 400
LIMIT = {"max_file_bytes": 1_000_000}
# What the web answers -> the code of the row, and options.
TRANSIENT: list[tuple[str, str, dict[str, Any]]] = [
    ("http_408", "http_408", {}),
    ("http_425", "http_425", {}),
    ("http_500", "http_500", {}),
    ("http_503", "http_503", {}),
    ("http_599", "http_599", {}),
    ("hangup", "reset", {}),
    ("reset", "reset", {}),
    ("truncated", "truncated", {}),
    ("truncated-chunks", "truncated", {}),
    ("cut:gzip", "truncated", {}),
    ("cut:br", "truncated", {}),
]
SLOW: list[tuple[str, str, dict[str, Any]]] = [
    ("timeout", "timeout_total", {"timeout": 0.5}),
    ("stall", "timeout_total", {"timeout": 0.5}),
    ("drip:0.1", "timeout_total", {"total_timeout": 0.5}),
    ("drip:0.05", "timeout_stalled", {"stall_timeout": 0.5}),
]
FINAL: list[tuple[str, str, dict[str, Any]]] = [
    ("http_204", "http_204", {}),
    ("http_302", "http_302", {}),
    ("http_304", "http_304", {}),
    ("http_403", "http_403", {}),
    ("http_404", "http_404", {}),
    ("http_999", "http_999", {}),
    ("empty", "empty_body", {}),
    ("bad-chunk", "protocol", {}),
    ("not-http", "protocol", {}),
    ("bad-gzip", "bad_encoding", {}),
    ("long-header", "headers_too_large", {}),
    ("endless-header", "headers_too_large", {}),
    ("endless-hints", "headers_too_large", {}),
    ("endless-trailers", "headers_too_large", {}),
    ("big:1000001", "too_large", LIMIT),
    ("big-unknown:1000001", "too_large", LIMIT),
    ("endless", "too_large", LIMIT),
    ("bomb:gzip", "too_large", {}),
    ("bomb:gzip,gzip", "too_large", LIMIT),
    ("redirect:ftp://127.0.0.1/a", "bad_redirect", {}),
    ("302:Location=data:,a", "bad_redirect", {}),
    ("redirect:http://a b/", "bad_redirect", {}),
    ("ok:X-Robots-Tag=noai", "opted_out", {}),
]


def _ids(case: Any) -> str | None:
    return case if isinstance(case, str) else None


@pytest.mark.parametrize(("answer", "code", "options"), TRANSIENT, ids=_ids)
def test_a_transient_failure_is_tried_again(answer: str, code: str, options: Any) -> None:
    rows = {"gone.bin": Row(answer, body=BODY), "back.bin": Row([answer, "ok"], body=BODY)}
    outcome = Play(rows, retries=1, **options).run()
    assert outcome.code_of == {"gone.bin": code, "back.bin": "success"}
    assert outcome.codes == {code: 1, "success": 1}
    if answer not in ("hangup", "http_408"):  # a kept connection that was closed: asked once more, without counting
        assert outcome.requests == {"gone.bin": 2, "back.bin": 2}
    assert [row["attempts"] for row in outcome.metadata] == [2, 2]
    assert [sample.data for sample in outcome.samples] == [BODY]
    assert outcome.exit_code == 0


@pytest.mark.parametrize(("answer", "code", "options"), SLOW, ids=_ids)
def test_a_server_that_is_too_slow_is_given_up_and_tried_again(answer: str, code: str, options: Any) -> None:
    outcome = Play({"a.bin": Row(answer, body=BODY)}, retries=1, **options).run()
    assert outcome.codes == {code: 1}
    assert outcome.metadata[0]["attempts"] == 2
    assert outcome.requests == {"a.bin": 2}


@pytest.mark.parametrize(("answer", "code", "options"), FINAL, ids=_ids)
def test_a_final_failure_is_not_tried_again(answer: str, code: str, options: Any) -> None:
    outcome = Play({"a.bin": Row([answer, "ok"], body=BODY)}, retries=3, **options).run()
    assert outcome.codes == {code: 1}
    assert outcome.requests == {"a.bin": 1}
    (row,) = outcome.metadata
    assert (row["status"], row["attempts"]) == ("failed_to_download", 1)
    if code.startswith("http_"):
        assert row["http_status"] == int(code[5:])


def test_more_than_ten_redirects_are_too_many() -> None:
    outcome = Play({"a.bin": Row("redirect:loop", body=BODY)}, retries=3).run()
    assert outcome.codes == {"too_many_redirects": 1}
    assert outcome.requests == {"a.bin": 11}


# Options that are limits: what the web answers, the option's name, a value that fails, one that does not.
LIMITS: list[tuple[str, str, Any, Any, str]] = [
    ("big:1000", "max_file_bytes", 999, 1000, "too_large"),
    ("big-unknown:1000", "max_file_bytes", 999, 1000, "too_large"),
    ("gzip", "max_file_bytes", len(BODY) - 1, len(BODY), "too_large"),
    ("ok:X-Robots-Tag=noindex", "disallowed_header_directives", "noai,noindex", "noai", "opted_out"),
    ("ok:X-Robots-Tag=noai", "disallowed_header_directives", "noai", "None", "opted_out"),
]


@pytest.mark.parametrize(("answer", "option", "too_low", "enough", "code"), LIMITS, ids=_ids)
def test_a_limit_holds_to_its_value(answer: str, option: str, too_low: Any, enough: Any, code: str) -> None:
    play = Play({"a.bin": Row(answer, body=BODY)})
    assert play.run(**{option: too_low}).codes == {code: 1}
    enough_for_all = {"max_file_bytes": 2_000_000} if answer.startswith("bomb") else {}
    passed = play.run(incremental_mode="overwrite", **{option: enough}, **enough_for_all)
    if answer.startswith("bomb"):
        assert "2000000" in passed.metadata[0]["error_message"]  # the other limit
    else:
        assert passed.codes == {"success": 1}


# --- hosts that are not there ---


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    play = Play({"a.txt": "ok"}, lists={"l.txt": f"http://127.0.0.1:{port}/b.txt\n{{web}}a.txt\n"}, retries=1)
    outcome = play.run()
    assert outcome.code_of == {"b.txt": "connect", "a.txt": "success"}
    assert outcome.metadata[0]["attempts"] == 2


@pytest.mark.parametrize("answer", ["nxdomain", "servfail"])
def test_a_name_that_nobody_knows(answer: str) -> None:
    with serve_dns({"gone.example": [answer]}) as dns:
        play = Play({"a.txt": "ok"}, nameservers=dns.address)
        port = play.web.port
        urls = f"http://gone.example:{port}/b.txt\nhttp://there.example:{port}/a.txt\n"
        (play.folder / "l.txt").write_text(urls)
        outcome = play.run("download", "l.txt", robots="ignore", allow_link_local=True)
    assert outcome.code_of == {"b.txt": "dns", "a.txt": "success"}
    assert dns.counts["gone.example", "A"] >= 1


def test_an_unknown_certificate_fails_unless_any_is_accepted() -> None:
    play = Play({"a.txt": "ok"}, tls=True)
    assert play.run().codes == {"tls": 1}
    assert play.run("retry", codes="tls", ignore_ssl_certificate=True).exit_code == 0
    assert stored_codes(play) == {"success": 1}


def test_a_server_without_tls_fails_as_tls() -> None:
    play = Play({"a.txt": "ok"})
    (play.folder / "l.txt").write_text(play.web.url("a.txt").replace("http:", "https:"))
    assert play.run("download", "l.txt").codes == {"tls": 1}


def stored_codes(play: Play) -> Counter[str]:
    """Outcomes of the rows of the dataset as it lies there now."""
    return Counter(row["error_code"] or row["status"] for row in stored.metadata(play.files()))


# --- rows that are not for the web ---

SCHEMES: list[tuple[str, str, dict[str, Any]]] = [
    ("gopher://127.0.0.1/a", "unsupported_scheme", {}),
    ("nothing://a/b", "unsupported_scheme", {}),
    ("nothing://a/b", "unsupported_scheme", {"allow_schemes": "file"}),
    ("{file}", "scheme_not_allowed", {}),
    ("{file}", "scheme_not_allowed", {"allow_schemes": "s3"}),
    ("{file}", "success", {"allow_schemes": "file"}),
    ("{file}", "success", {"allow_schemes": "s3,FILE://"}),
    ("{file}.absent", "not_found", {"allow_schemes": "file"}),
    ("{file}", "blocked_address", {"allow_schemes": "file", "block_private_addresses": True}),
    ("s3://bucket/a", "scheme_not_allowed", {}),
    ("data:text/plain,hello", "success", {}),
    ("data:text/plain;base64,aGVsbG8=", "success", {}),
    ("{web}a.txt", "blocked_address", {"block_private_addresses": True}),
    ("http://[oops/a", "bad_url", {}),
    ("https://", "bad_url", {}),
]


@pytest.mark.parametrize(("url", "code", "options"), SCHEMES)
def test_a_row_by_its_scheme(url: str, code: str, options: Any) -> None:
    play = Play({"a.txt": Row(body=b"hello")}, lists={}, retries=1, **options)
    file = play.folder / "local file.txt"
    file.write_bytes(b"hello")
    row = url.replace("{web}", play.web.base_url).replace("{file}", file.as_uri())
    (play.folder / "l.jsonl").write_text(json.dumps({"url": row}) + "\n" + json.dumps({"url": "data:,other"}))
    outcome = play.run("download", "l.jsonl")
    assert (outcome.metadata[0]["error_code"] or "success") == code
    assert [sample.data for sample in outcome.samples] == ([b"hello"] if code == "success" else []) + [b"other"]
    assert not outcome.requests


def test_rows_of_a_bucket_are_read_if_allowed() -> None:
    play = Play({}, store="s3")
    system = play.bucket.connect()
    root = play.out.removeprefix("s3://").partition("/")[0]
    system.pipe_file(f"{root}/rows/a.txt", b"in a bucket")
    (play.folder / "l.txt").write_text(f"s3://{root}/rows/a.txt\ns3://{root}/rows/b.txt\n")
    assert play.run("download", "l.txt").codes == {"scheme_not_allowed": 2}
    assert play.run("retry", codes="scheme_not_allowed", allow_schemes="s3").exit_code == 0
    assert stored_codes(play) == {"success": 1, "not_found": 1}


# --- files that steps do not like ---


def _picture(width: int, height: int, kind: str = "PNG") -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (width, height), "teal").save(content, kind)
    return content.getvalue()


def _zip(*files: bytes) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, file in enumerate(files):
            archive.writestr(f"{number}.txt", file)
    return content.getvalue()


SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"></svg>'
JPEG = _picture(64, 48, "JPEG")
# A file's name and content, options, columns of its row -> its code.
STEPS: dict[str, tuple[str, bytes, dict[str, Any], dict[str, Any], str]] = {
    "a cut image": ("a.jpg", JPEG[:-20], {"decode_check": True}, {}, "not_decodable"),
    "an image that is not cut": ("a.jpg", JPEG, {"decode_check": True}, {}, "success"),
    "a text among images": ("a.txt", b"text", {"only_images": True}, {}, "not_decodable"),
    "a side that is too short": ("a.png", _picture(64, 48), {"min_image_size": 49}, {}, "too_small"),
    "a side that is just long enough": ("a.png", _picture(64, 48), {"min_image_size": 48}, {}, "success"),
    "too many pixels": ("a.png", _picture(64, 48), {"max_image_area": 64 * 48 - 1}, {}, "too_many_pixels"),
    "just few enough pixels": ("a.png", _picture(64, 48), {"max_image_area": 64 * 48}, {}, "success"),
    "too narrow": ("a.png", _picture(60, 20), {"max_aspect_ratio": 2.9}, {}, "aspect_ratio"),
    "just wide enough": ("a.png", _picture(60, 20), {"max_aspect_ratio": 3}, {}, "success"),
    "too long for webp": ("a.png", _picture(16384, 1), {"encode_format": "webp"}, {}, "not_encodable"),
    "boxes in pixels": ("a.png", JPEG, {"bbox_col": "boxes"}, {"boxes": [[1, 2, 30, 40]]}, "bad_boxes"),
    "boxes of a drawing": ("a.svg", SVG, {"bbox_col": "boxes"}, {"boxes": [[0, 0, 0.5, 0.5]]}, "not_blurrable"),
    "sound that is too short": ("a.wav", tone(seconds=0.5), {"min_duration": 0.6}, {}, "too_short"),
    "sound that is too long": ("a.wav", tone(seconds=0.5), {"max_duration": 0.4}, {}, "too_long"),
    "sound within its limits": ("a.wav", tone(seconds=0.5), {"min_duration": 0.5, "max_duration": 0.5}, {}, "success"),
    "cut sound": ("a.wav", tone(seconds=0.5)[:9000], {"decode_check": True}, {}, "not_decodable"),
    "clips that are none": ("a.wav", tone(), {"clips_col": "clips"}, {"clips": "[[1, 0]]"}, "bad_clips"),
    "a clip beyond the end": ("a.wav", tone(), {"clips_col": "clips"}, {"clips": "[[5, 6]]"}, "too_short"),
    "video of too many pixels": (
        *("a.mp4", film(seconds=0.2, sound=None), {"video_size": 60, "max_image_area": 160 * 120 - 1}),
        *({}, "too_many_pixels"),
    ),
    "too many files in an archive": (
        "a.zip",
        _zip(*[b"x"] * 10_001),
        {"unpack": True},
        {},
        "unpacks_too_large",
    ),
    "too many bytes in an archive": (
        *("a.zip", _zip(b"x" * 70_000), {"unpack": True, "unpack_max_bytes": 69_999}, {}, "unpacks_too_large"),
    ),
    "an archive that swells": (*("a.zip", _zip(bytes(200_000)), {"unpack": True}, {}, "unpacks_too_large"),),
    "an empty archive": ("a.zip", _zip(), {"unpack": True}, {}, "empty_archive"),
    "a damaged archive": ("a.gz", gzip.compress(b"x" * 999)[:-9], {"unpack": True}, {}, "not_decodable"),
    "a damaged document": ("a.pdf", b"%PDF-1.4\nnothing", {"extract_text": True}, {}, "not_decodable"),
    "another hash": ("a.txt", b"x", {"verify_hash": "h:md5"}, {"h": "0" * 32}, "hash_mismatch"),
    "what is no hash": ("a.txt", b"x", {"verify_hash": "h:sha256"}, {"h": "word"}, "hash_mismatch"),
    "the right hash": ("a.txt", b"x", {"verify_hash": "h:md5"}, {"h": hashlib.md5(b"x").hexdigest()}, "success"),
}


@pytest.mark.parametrize("case", STEPS.values(), ids=STEPS.keys())
def test_a_step_fails_a_row_and_no_other(case: Any) -> None:
    name, body, options, columns, code = case
    rows = {name: Row(body=body, columns=columns), "absent.bin": Row("http_404", columns=dict.fromkeys(columns))}
    outcome = Play(rows, retries=1, **options).run()
    assert outcome.codes == {code: 1, "http_404": 1}
    assert outcome.requests == {name: 1, "absent.bin": 1}
    if code != "success":
        assert not outcome.samples
        if code != "hash_mismatch":
            assert outcome.metadata[0]["status"] == "failed_to_subsample"


OWN_STEPS = """
import sys, time

def fails(sample):
    if sample.data != b"good":
        raise ValueError("it is not good")
    return sample

def leaves(sample):
    sys.exit(3)

def sleeps(sample):
    if sample.data != b"good":
        while True:
            time.sleep(0.01)
    return sample

def filters(sample):
    return sample if sample.data == b"good" else sample.filtered("it is not good")

def drops(sample):
    return sample if sample.data == b"good" else None

def judges(sample):
    return sample if sample.data == b"good" else sample.failed("not_decodable", "it is not good")

def returns(sample):
    return sample if sample.data == b"good" else 7
"""


@pytest.mark.parametrize(
    ("step", "code"),
    [
        ("fails", "transform_error"),
        ("returns", "transform_error"),
        ("sleeps", "transform_timeout"),
        ("filters", "filtered"),
        ("drops", "filtered"),
        ("judges", "not_decodable"),
    ],
)
def test_what_a_step_of_the_user_does_with_a_file(step: str, code: str) -> None:
    play = Play({"a.txt": Row(body=b"bad"), "b.txt": Row(body=b"good")})
    (play.folder / "steps_of_play.py").write_text(OWN_STEPS)
    timeout = {"transform_timeout": 0.5} if step == "sleeps" else {}
    outcome = play.run(transform=f"steps_of_play.py:{step}", **timeout)
    assert outcome.code_of == {"a.txt": code, "b.txt": "success"}
    assert sum(outcome.codes.values()) == 2
    assert (", 1 filtered" in outcome.screen) is (code == "filtered")
    if step in ("fails", "filters", "judges"):
        assert "not good" in outcome.metadata[0]["error_message"]


# --- time, and attempts ---


@pytest.mark.parametrize(("retries", "code", "requests"), [(0, "http_503", 1), (1, "http_503", 2), (2, "success", 3)])
def test_retries_are_further_attempts(retries: int, code: str, requests: int) -> None:
    outcome = Play({"a.txt": ["http_503", "reset", "ok"]}, retries=retries).run()
    assert outcome.requests == {"a.txt": requests}
    assert outcome.metadata[0]["attempts"] == requests
    assert (outcome.code_of["a.txt"] == "success") == (code == "success")


def test_a_slow_but_steady_body_arrives() -> None:
    outcome = Play({"a.bin": Row("flow:2.5", body=BODY)}, timeout=2).run()
    assert outcome.codes == {"success": 1}
    assert outcome.data.popitem()[1] == BODY


@pytest.mark.parametrize(
    "answer", ["gzip", "encoded:deflate", "encoded:br", "encoded:gzip,gzip", "no-type", "wrong-type"]
)
def test_a_body_is_stored_as_it_was_before_the_transfer(answer: str) -> None:
    outcome = Play({"a.jpg": Row(answer, body=JPEG)}).run()
    assert outcome.codes == {"success": 1}
    (row,), (sample,) = outcome.metadata, outcome.samples
    assert sample.files["jpg"] == JPEG
    assert (row["ext"], row["mime_type"], row["bytes"]) == ("jpg", "image/jpeg", len(JPEG))
    assert row["md5"] == hashlib.md5(JPEG).hexdigest()


def test_a_redirect_is_followed_and_told() -> None:
    play = Play({"a.txt": "redirect:b.txt", "b.txt": Row(body=b"there")})
    (play.folder / "l.txt").write_text(play.web.url("a.txt"))
    outcome = play.run("download", "l.txt")
    (row,) = outcome.metadata
    assert (row["url"], row["final_url"], row["http_status"]) == (play.web.url("a.txt"), play.web.url("b.txt"), 200)
    assert outcome.data == {row["key"]: b"there"}


def test_ftp_rows_are_read() -> None:
    from tests.support.ftp import Ftp

    play = Play({"a.txt": "ok"})
    server = Ftp(play.folder / "web")
    try:
        (play.folder / "l.txt").write_text(f"{server.url}/a.txt\n{server.url}/absent.txt\n")
        outcome = play.run("download", "l.txt")
    finally:
        server.close()
    assert outcome.code_of["a.txt"] == "success"
    assert outcome.code_of["absent.txt"] == "not_found"
    assert not any("secret" in str(row) for row in outcome.metadata)
