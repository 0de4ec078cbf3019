"""Cookie files: what is read from them, and which URL is sent what."""

from pathlib import Path

import pytest

from any2ds.config.options import Config
from any2ds.core.cookies import CookieJar
from any2ds.core.errors import OptionError

FILE = """# Netscape HTTP Cookie File

example.org\tFALSE\t/\tFALSE\t0\thost\t1
.example.org\tTRUE\t/\tFALSE\t4000000000\tall\t2
#HttpOnly_.example.org\tTRUE\t/deep\tFALSE\t0\tdeep\t3
example.org\tFALSE\t/\tTRUE\t0\tsafe\t4
example.org\tFALSE\t/\tFALSE\t1000000000\told\t5
127.0.0.1\tTRUE\t/\tFALSE\t0\taddress\t6
empty.test\tFALSE\t/\tFALSE\t0\tnone
"""


@pytest.fixture
def jar(tmp_path: Path) -> CookieJar:
    (tmp_path / "jar.txt").write_text(FILE)
    return CookieJar.read(str(tmp_path / "jar.txt"))


@pytest.mark.parametrize(
    ("url", "sent"),
    [
        ("http://example.org", "host=1; all=2"),
        ("http://me:secret@EXAMPLE.org:8080/x?y", "host=1; all=2"),
        ("https://example.org/", "host=1; all=2; safe=4"),
        ("http://a.b.example.org/", "all=2"),
        ("http://a.example.org/deep", "deep=3; all=2"),
        ("http://a.example.org/deep/er", "deep=3; all=2"),
        ("http://a.example.org/deeper", "all=2"),
        ("http://anexample.org/", None),
        ("http://org/", None),
        ("http://127.0.0.1/", "address=6"),
        ("http://empty.test/", "none="),
    ],
)
def test_a_cookie_goes_where_it_belongs(jar: CookieJar, url: str, sent: str | None) -> None:
    assert jar.header(url) == sent


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b'[{"domain": "example.org", "value": "hunter2"}]', "line 1"),
        (b"example.org\tFALSE\t/\tFALSE\t0\ta\tb\nexample.org TRUE / FALSE 0 hunter2 x\n", "line 2"),
        (b"example.org\tmaybe\t/\tFALSE\t0\ta\thunter2\n", "line 1"),
        (b"example.org\tTRUE\t/\tFALSE\tsoon\ta\thunter2\n", "line 1"),
        (b"\tTRUE\t/\tFALSE\t0\ta\thunter2\n", "line 1"),
        (b"example.org\tTRUE\t/\tFALSE\t0\ta\thunter2\x01\n", "line 1"),
        (b"\xff\xfe\x00", "UTF-8"),
    ],
)
def test_a_malformed_file_is_an_error_before_the_start(content: bytes, line: str, tmp_path: Path) -> None:
    path = tmp_path / "jar.txt"
    path.write_bytes(content)
    with pytest.raises(OptionError) as caught:
        Config.from_options({"url_list": "-", "cookies": str(path)})
    assert str(path) in str(caught.value)
    assert line in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_missing_file_is_one_too(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.txt", tmp_path):
        with pytest.raises(OptionError, match=path.name):
            Config.from_options({"url_list": "-", "cookies": str(path)})
