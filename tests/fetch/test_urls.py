import pytest

from any2ds.core.failures import Failure
from any2ds.fetch.urls import normalize


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("http://example.com/a.jpg", "http://example.com/a.jpg"),
        ("  https://example.com/a.jpg ", "https://example.com/a.jpg"),
        ("http://example.com/a b.jpg", "http://example.com/a%20b.jpg"),
        ("http://example.com/a%20b.jpg", "http://example.com/a%20b.jpg"),
        ("http://example.com/é?q=ü", "http://example.com/%C3%A9?q=%C3%BC"),
        ("http://bücher.example/x", "http://xn--bcher-kva.example/x"),
        ("HTTP://EXAMPLE.com/X", "http://example.com/X"),
        ("http://example.com/a,b;c?d={e}|f", "http://example.com/a,b;c?d={e}|f"),
        ('http://example.com/"x"<y>', "http://example.com/%22x%22%3Cy%3E"),
        ("http://user:secret@example.com:8080/x", "http://user:secret@example.com:8080/x"),
        ("http://a,b:c!d@example.com/x", "http://a,b:c!d@example.com/x"),
        ("http://a_b.example/,", "http://a_b.example/,"),
        ("http://[::1]:8080/x", "http://[::1]:8080/x"),
        ("http://example.com:65535/x", "http://example.com:65535/x"),
        ("ftp://example.com/a.jpg", "ftp://example.com/a.jpg"),
        ("http:\\\\example.com\\a", "http://example.com/a"),
        (" S3://Bucket/a b%20ü?c#d::e ", "s3://Bucket/a b%20ü?c#d::e"),
        ("file:///a b/%25", "file:///a b/%25"),
        ("hdfs:///a/b", "hdfs:///a/b"),
        ("data:,a b", "data:,a b"),
    ],
)
def test_urls_are_sent_as_a_browser_would(written: str, sent: str) -> None:
    assert normalize(written) == sent


@pytest.mark.parametrize(
    ("written", "code"),
    [
        (None, "bad_url"),
        ("", "bad_url"),
        ("   ", "bad_url"),
        ("not a url", "bad_url"),
        ("example.com/a.jpg", "bad_url"),
        ("example.com:8080/a.jpg", "bad_url"),
        ("//example.com/a.jpg", "bad_url"),
        ("http://", "bad_url"),
        ("http://exa mple.com/", "bad_url"),
        ("http://[::1/x", "bad_url"),
        ("http://a,b/", "bad_url"),
        ("http://me@a'b.example", "bad_url"),
        ("s3://bucket", "bad_url"),
        ("s3:///key", "bad_url"),
        ("file://host/etc/passwd", "bad_url"),
        ("simplecache::file:///etc/passwd", "unsupported_scheme"),
        ("zip://a::http://example.com/b.zip", "unsupported_scheme"),
        ("http://example.com:65536/x", "bad_url"),
        ("javascript:alert(1)", "unsupported_scheme"),
        ("gopher://example.com/", "unsupported_scheme"),
        ("http://example.com/" + "x" * 2**16, "bad_url"),
    ],
)
def test_what_cannot_be_fetched_is_a_failed_row(written: str | None, code: str) -> None:
    outcome = normalize(written)
    assert isinstance(outcome, Failure)
    assert outcome.code == code
    assert not outcome.transient
