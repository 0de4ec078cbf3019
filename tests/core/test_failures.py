"""Which failures are meant by the words that a person gives."""

import pytest

from any2ds.core.failures import FAILURE_CODES, FailureFilter, check_codes, failure_code

FAILED = "failed_to_download"


@pytest.mark.parametrize(
    "code",
    [
        *(code for code in FAILURE_CODES if code != "bad_row"),
        "http_403",
        "http_404",
        "http_429",
        "http_500",
        "http_503",
    ],
)
def test_a_failure_is_meant_by_its_code_and_by_its_classes(code: str) -> None:
    own_class = f"{code[:6]}xx" if code[:6] in ("http_4", "http_5") else None
    for word in ("all", "transient", "http_4xx", "http_5xx", *FAILURE_CODES, "http_403", "http_404", "http_429"):
        expected = word in ("all", code, own_class) or (word == "transient" and failure_code(code).transient)
        assert FailureFilter([word])(FAILED, code) is expected


def test_what_is_stored_or_stands_elsewhere_is_never_meant() -> None:
    for status in ("success", "duplicate", "dropped", "filtered"):
        assert not FailureFilter(["all"])(status, None)


def test_a_failure_without_a_known_code_may_have_passed() -> None:
    for code in (None, "", "a code of tomorrow"):
        assert FailureFilter(["transient"])(FAILED, code)
        assert FailureFilter(["all"])(FAILED, code)
        assert not FailureFilter(["dns", "http_4xx"])(FAILED, code)
    assert not FailureFilter(["transient"])("failed_to_resize", None)
    assert FailureFilter(["all"])("failed_to_resize", None)
    assert not FailureFilter([])(FAILED, None)


def test_a_row_that_could_not_be_read_is_never_meant() -> None:
    assert not FailureFilter(["all", "transient"])(FAILED, "bad_row")
    with pytest.raises(ValueError, match="there is none in a row that could not be read"):
        check_codes(["bad_row"])


def test_words_are_checked() -> None:
    assert check_codes(["dns", "http_418", "http_5xx", "dns"]) == ("dns", "http_418", "http_5xx")
    for wrong, right in (("timeout", "timeout_"), ("http_5x", "http_5xx"), ("trancated", "truncated"), ("al", "all")):
        with pytest.raises(ValueError, match=f"did you mean {right}"):
            check_codes([wrong])
    with pytest.raises(ValueError, match="such as timeout_total"):
        check_codes([])
