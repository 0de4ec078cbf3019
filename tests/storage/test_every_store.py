"""Every store that fsspec has a name for: without its library, a list, a dataset or a row there ends in words."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fsspec.registry import known_implementations

from any2ds.fetch.urls import normalize
from any2ds.testing.processes import LONG

WITHOUT_LIBRARIES = """
import contextlib, io, json, sys
from fsspec.registry import known_implementations
from any2ds.cli import run

libraries = {known["class"].partition(".")[0] for known in known_implementations.values()} - {"fsspec"}
others = "aiohttp distributed libarchive paramiko pygit2 requests smbclient smbprotocol"  # of those in fsspec
sys.modules.update(dict.fromkeys([*libraries, *others.split()]))
for name in sorted(known_implementations):
    if name not in ("file", "local", "memory"):
        for words in ([f"{name}://127.0.0.1:9/x/urls.txt", "out"], ["urls.txt", f"{name}://127.0.0.1:9/x/out"]):
            said = io.StringIO()
            with contextlib.redirect_stderr(said):
                code = run([*words, "--distributor=inline", "--quiet"])
            print(json.dumps([name, words, code, said.getvalue()]))
"""
EXTRAS = {"adlfs": "azure", "gcsfs": "gcs", "huggingface_hub": "hf", "s3fs": "s3"}  # by package
OF_FSSPEC = {"http": "https", "smb": "smb", "webhdfs": "hdfs"}  # by store


def test_a_list_or_dataset_in_any_store_without_its_library_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "urls.txt").write_text("http://127.0.0.1:9/a\n")
    command = [sys.executable, "-c", WITHOUT_LIBRARIES]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LONG, check=True)

    found = [json.loads(line) for line in ran.stdout.splitlines()]
    assert {name for name, *_ in found} == known_implementations.keys() - {"file", "local", "memory"}
    for name, words, code, said in found:
        assert code == 2, said
        assert said.startswith("any2ds: "), said
        assert said.count("\n") == 1
        assert f"{name}://127.0.0.1:9/x/" in said, words
        package = known_implementations[name]["class"].partition(".")[0]
        extra = OF_FSSPEC.get(name) or EXTRAS.get(package)
        if extra or package != "fsspec":
            assert "needs a library that is not installed: " in said
            assert said.rstrip().endswith(f"[{extra}]'") == (extra is not None)
    assert sorted(tmp_path.iterdir()) == [tmp_path / "urls.txt"]


@pytest.mark.parametrize("name", sorted(known_implementations))
def test_a_row_in_any_store_is_fetched_or_fails_by_its_scheme(name: str) -> None:
    found = normalize(f"{name}://127.0.0.1:9/x/a.jpg")
    assert isinstance(found, str) or found.code in ("unsupported_scheme", "bad_url")
