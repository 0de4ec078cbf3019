"""Options on fetching that an engine cannot follow are refused."""

import sys
from pathlib import Path
from typing import Any

import pytest

from any2ds.core.errors import OptionError
from any2ds.run.download import download

# What an engine cannot do: the option, further ones, and what the error says.
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("requests", {"nameservers": "127.0.0.1:5353"}, "nameservers: requests leaves host names to the operating system"),
    ("requests", {"max_header_bytes": 1000, "proxy": "socks5://127.0.0.1:1"}, "max_header_bytes: requests cannot"),
    ("curl", {"nameservers": "127.0.0.1:5353", "proxy": "http://127.0.0.1:1"}, "nameservers: a proxy resolves"),
]


def refuses(options: dict[str, Any], out: Path, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        download(["http://127.0.0.1:1/"], output_folder=str(out), quiet=True, **options)
    assert not out.exists()


@pytest.mark.parametrize(("engine", "options", "message"), REFUSED)
def test_what_an_engine_cannot_do_is_refused_before_anything_is_made(
    engine: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    refuses({"fetcher": engine, **options}, tmp_path / "out", message)


def test_it_is_also_refused_where_requests_takes_the_place_of_libcurl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pycurl", None)
    refuses({"nameservers": "127.0.0.1:5353"}, tmp_path / "out", "nameservers: requests leaves")


def test_a_proxy_of_the_environment_resolves_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    refuses({"nameservers": "127.0.0.1:5353"}, tmp_path / "out", "nameservers: a proxy resolves")
