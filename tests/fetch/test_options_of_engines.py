"""Options on fetching that cannot be followed are refused."""

from pathlib import Path
from typing import Any

import pytest

from any2ds.core.errors import OptionError
from any2ds.run.download import download


def refuses(options: dict[str, Any], out: Path, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        download(["http://127.0.0.1:1/"], output_folder=str(out), quiet=True, **options)
    assert not out.exists()


def test_name_servers_are_refused_where_a_proxy_resolves_all_names(tmp_path: Path) -> None:
    options = {"nameservers": "127.0.0.1:5353", "proxy": "http://127.0.0.1:1"}
    refuses(options, tmp_path / "out", "nameservers: a proxy resolves")


def test_a_proxy_of_the_environment_resolves_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    refuses({"nameservers": "127.0.0.1:5353"}, tmp_path / "out", "nameservers: a proxy resolves")
