"""Nothing secret is written or said: whole runs with a secret in each place where users put one."""

import json
import logging
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from any2ds import download
from any2ds.config.options import public
from any2ds.core.errors import redacted
from any2ds.core.metadata import example_of, without_credentials
from any2ds.core.reports import RunReport
from any2ds.describe.shown import shown_url
from any2ds.testing.pixel import jpg
from any2ds.testing.server import serve
from tests.support.params import sampled
from tests.support.proxy import serve_proxy

SECRET = "hunter2"
FORMS = (b"hunter2", b"aHVudGVyM", b"h1bnRlcjI", b"odW50ZXIy")  # and within base64, at each of the three offsets


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """A config with secrets everywhere, and the servers it needs."""
    with ExitStack() as stack:
        media = tmp_path / "media"
        media.mkdir()
        (media / "a.jpg").write_bytes(jpg(b"body" * 100))
        end = stack.enter_context(serve(media))
        secret_end = end.url("a.jpg").replace("://", f"://you:{SECRET}-location@")
        script = {
            "to": [f"redirect:{secret_end}"],
            "gone": [f"redirect:{secret_end.replace('a.jpg', 'gone')}"],
            "away": [f"redirect:gopher://you:{SECRET}-away@127.0.0.1/x"],
            "nowhere": [f"redirect:http://you:{SECRET}-nowhere@nowhere.invalid/x"],
            "broken": [f"redirect:http://you:{SECRET}-broken@[nonsense/x"],
            "port": [f"redirect:http://you:{SECRET}-port@127.0.0.1:99999/x"],
            "loop": ["redirect:loop"],
            "cut": ["truncated"],
        }
        server = stack.enter_context(serve(media, script))
        proxy = stack.enter_context(serve_proxy(f"me:{SECRET}-proxy"))
        strict = stack.enter_context(serve_proxy("me:another"))
        listener = stack.enter_context(serve(media))
        closed = listener.port
        listener.close()
        own = f"me:{SECRET}-own@"
        urls = [server.url(path).replace("://", f"://{own}") for path in ("a.jpg", "missing", *script)]
        refusing = strict.url.replace("another", f"{SECRET}-wrong")
        urls += [
            f"http://{own}nowhere.invalid/x",
            f"http://{own}127.0.0.1:{closed}/x",
            f"http://{own}127.0.0.1:99999/x",
            f"HTTP://{own}exa mple.invalid/x",
            f"http:/{own}127.0.0.1:{server.port}/a.jpg",
            f"http:{own}127.0.0.1:{server.port}/a.jpg",
            f"\u00a0http:\\\\{own}127.0.0.1:{server.port}/a.jpg",
            f"http://me:{SECRET}@own@127.0.0.1:{server.port}/a.jpg",
            f"http://me:{SECRET}/own@127.0.0.1:{server.port}/a.jpg",
            f"http://me:{SECRET}#own@127.0.0.1:{server.port}/a.jpg",
            f"gopher://{own}127.0.0.1/x",
            f"ftp://{own}127.0.0.1:{closed}/x",
            f"ftps://{own}127.0.0.1:{closed}/x",
            f"webhdfs://{own}127.0.0.1:{closed}/x",
            f"sftp://{own}127.0.0.1:{closed}/x",
            f"http://{own}proxied.test:{server.port}/a.jpg",
            f"http://{own}refused.test:{server.port}/a.jpg",
            f"https://{own}refused.test:{server.port}/a.jpg",
            f"https://{own}unknown.test:{closed}/a.jpg",
        ]
        (tmp_path / "urls.txt").write_text("\n".join(urls) + "\n", encoding="utf-8")
        options = {
            "url_list": str(tmp_path / "urls.txt"),
            "output_folder": str(tmp_path / "out"),
            "headers": [f"X-Key: {SECRET}-header", f"Cookie: c={SECRET}-cookie"],
            "hosts": {
                "proxied.test": {"proxy": proxy.url, "headers": [f"Authorization: Bearer {SECRET}-bearer"]},
                "refused.test": {"proxy": refusing},
                "unknown.test": {"proxy": f"http://me:{SECRET}-unknown@127.0.0.1:{closed}"},
            },
            "log_level": "debug",
            "allow_schemes": "sftp,webhdfs",
            "timeout": 10,
            "retries": 1,
        }
        yield options, len(urls)


def secrets_in(content: bytes) -> list[bytes]:
    return [content[max(0, content.find(form) - 150) :][:250] for form in FORMS if form in content]


def expect_no_secret(folder: Path, rows: int) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) >= 3
    for path in files:
        assert not secrets_in(path.read_bytes()), path
    for path in folder.glob("*.parquet"):  # whose columns are compressed
        table = pq.read_table(path)
        assert len(table) == rows
        assert not secrets_in(str(table.to_pylist()).encode()), path


@pytest.mark.parametrize("output_format", sampled(["webdataset", "files", "parquet"]))
def test_no_secret_is_written_or_said(run: Any, output_format: str, tmp_path: Path) -> None:
    options, rows = run
    config = tmp_path / "any2ds.yaml"
    config.write_text(yaml.safe_dump({**options, "output_format": output_format}))
    command = [sys.executable, "-m", "any2ds", f"--config={config}"]
    environment = {**os.environ, "PYTHONWARNINGS": "default"}
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=120, env=environment)
    assert ran.returncode == 0, ran.stderr
    assert b"success" in ran.stderr
    assert not secrets_in(ran.stdout + ran.stderr)
    expect_no_secret(tmp_path / "out", rows)


def test_no_library_logs_a_secret(run: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options, rows = run
    with caplog.at_level(logging.DEBUG):
        report = download(**options, distributor="inline", quiet=True)
    assert isinstance(report, RunReport)
    assert report.successes >= 2
    assert not secrets_in(caplog.text.encode())
    expect_no_secret(tmp_path / "out", rows)


@pytest.mark.slow
def test_what_goes_wrong_before_the_start_is_said_without_secrets(tmp_path: Path) -> None:
    wrong = [
        {"url_list": f"http://me:{SECRET}@127.0.0.1:1/list.txt"},
        {"url_list": f"gopher://me:{SECRET}@127.0.0.1:1/list.txt"},
        {"url_list": "-", "output_folder": f"sftp://me:{SECRET}@127.0.0.1:1/out"},
        {"url_list": "-", "headers": f"Bearer {SECRET}"},
        {"url_list": "-", "proxy": f"me:{SECRET}@proxy"},
        {"url_list": "-", "hosts": {"a.test": {"headers": f"Bearer {SECRET}"}}},
    ]
    for options in wrong:
        config = tmp_path / "any2ds.yaml"
        config.write_text(yaml.safe_dump({**options, "log_level": "debug"}))
        command = [sys.executable, "-m", "any2ds", f"--config={config}", "--log_level=debug"]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=120, input=b"http://127.0.0.1:1/\n")
        assert ran.returncode != 0, options
        assert not secrets_in(ran.stdout + ran.stderr), ran.stderr.decode()


def test_urls_are_shown_without_credentials() -> None:
    for url, shown in {
        "http://me:a@b/x@y": "http://b/x@y",
        "http://me:a@b@c/": "http://c/",
        " HTTP://me@c": " HTTP://c",
        "http:me:a@c/": "http:c/",
        "https:/me:a@c/": "https:/c/",
        "https:\\\\me:a@c/": "https:\\\\c/",
        "\u00a0https:///me:a@c/": "\u00a0https:///c/",
        "http://me:a/b@c/": "http://c/",
        "http://me:a#b@c/": "http://c/",
        "http://c:80/b@c/": "http://c:80/b@c/",
        "http://[::1]/a:b/@c": "http://[::1]/a:b/@c",
        "data:text/plain,a@b": "data:text/plain,a@b",
        "mailto:me@c": "mailto:me@c",
        "http://c/me:a@c": "http://c/me:a@c",
        "http://c?q=me:a@c": "http://c?q=me:a@c",
    }.items():
        assert without_credentials(url) == shown
        import pyarrow.compute as pc

        from any2ds.core.metadata import _CREDENTIALS

        replaced = pc.replace_substring_regex(pa.array([url]), _CREDENTIALS.pattern, r"\1")
        assert replaced.to_pylist() == [shown]


@pytest.mark.parametrize(
    "parameter",
    ["X-Amz-Signature", "X-Amz-Security-Token", "X-Goog-Signature", "sig", "Signature", "access_token", "api_key"],
)
def test_what_a_signed_url_is_good_for_is_not_shown(parameter: str) -> None:
    url = f"https://store.example/list.txt?n=1&{parameter}={SECRET}%2B/=&design=2#part"
    reported = redacted(f"{url}: gone, see '{url}'")
    assert SECRET not in reported
    assert reported.count("https://store.example/list.txt?n=1&") == reported.count("&design=2#part") == 2
    assert SECRET not in example_of(url) + shown_url(url)
    assert SECRET not in str(public({"url_list": [url], "note": url}))


def test_options_that_hold_a_whole_list_say_how_long_it_is() -> None:
    assert public({"url_list": ["http://a.example/"] * 1200}) == {"url_list": "1,200 values"}


def test_a_secret_that_json_escapes_is_not_in_its_lines() -> None:
    code = """
from any2ds.core.errors import conceal
from any2ds.run.reporters.jsonl import write
conceal(['pa"ss\\wörd'])
write("log", message='it is pa"ss\\wörd', more={"list": ['at pa"ss\\wörd', 1, None]})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    said = json.loads(done.stderr)
    assert (said["message"], said["more"]) == ("it is [secret]", {"list": ["at [secret]", 1, None]})
