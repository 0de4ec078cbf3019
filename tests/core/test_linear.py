"""What strangers write is looked at in linear time: long inputs, in a process that may use some CPU and no more.

Where a quadratic expression meets them, it takes minutes.
"""

import resource
import subprocess
import sys

import pytest

SECONDS = 30  # of CPU; a case takes one or two
LENGTH = 1 << 18  # characters
CASES = {
    "credentials in a URL": """
        from any2ds.core.metadata import example_of, shown_urls, without_credentials
        import pyarrow as pa
        for url in repeated("@http://a:", *UNITS, end="/") + repeated("http:", *UNITS, end="@h") + repeated("", *UNITS):
            without_credentials(url)
            example_of(url)
            shown_urls(pa.chunked_array([[url]]))
    """,
    "messages": """
        from any2ds.core.errors import error_text, redacted
        for text in repeated("@=", *UNITS) + repeated("?sig=", *UNITS) + repeated("http://a:", *UNITS, end=" @"):
            redacted(text)
            error_text(ValueError(text))
    """,
    "URLs": """
        from any2ds.fetch.policy.robots import is_public, origin_of
        from any2ds.fetch.urls import LONGEST, normalize, parts
        for url in repeated("http://", *UNITS) + repeated("http://h/", *UNITS) + repeated("s3:", *UNITS):
            for each in (url, url[:LONGEST]):
                normalize(each)
                parts(each)
                origin_of(each)
                is_public(each)
    """,
    "types of files": """
        from any2ds.core.bodies.stored import StoredBody
        from any2ds.core.filetypes import recognize_file
        units = [*UNITS, "<!DOCTYPE ", "<?xml ", "<!-- ", "<svg ", "[[", '{"a":', "\\0<"]
        for text in repeated("", *units) + repeated("<", *units) + repeated("<!--", *units):
            for served in ("image/jpeg", "text/plain", None):
                recognize_file(StoredBody.of(text.encode()), served)
    """,
    "pages": """
        from any2ds.describe.preview import as_it_is
        from any2ds.transforms.steps._charset import decoded
        from any2ds.transforms.steps.text import _LONG_TAG
        for text in repeated("", *UNITS, "<a ", "<!DOCTYPE ", "charset ", "encoding = "):
            _LONG_TAG.sub("", decoded(text.encode()))
            as_it_is(b"<svg>" + text.encode())
    """,
    "rows of lists": """
        import tempfile
        from pathlib import Path
        from any2ds.config.options import InputOptions
        from any2ds.core.errors import Any2dsError
        from any2ds.readers.sources import Source
        folder = Path(tempfile.mkdtemp())
        for number, text in enumerate(repeated("", *UNITS, '"', "\\\\\\\\ud83d", "NaN,", "[", '{"url":')):
            for kind in ("txt", "csv", "jsonl", "json"):
                path = folder / f"{number}.{kind}"
                head = {"csv": "url\\n", "jsonl": '{"url": "', "json": '[{"url": "'}.get(kind, "")
                path.write_text(head + text)
                try:
                    list(Source(InputOptions(url_list=str(path))).batches())
                except Any2dsError:
                    pass
    """,
    "hashes and clips": """
        from any2ds.core.digests import digest_in
        from any2ds.core.failures import Failure
        for text in repeated("md5", *UNITS) + repeated("", *UNITS):
            digest_in(text, "md5")
    """,
    "robots.txt": """
        from any2ds.fetch.policy.robots import parse
        star = "Disallow: /"
        files = [
            star + "*a" * 200_000 + "b",
            "\\n".join(f"{star}*{n}*a" for n in range(40_000)),
            "\\n".join(f"{star}{'*a' * 200}b{n}" for n in range(1100)),
            "\\n".join(f"{star}*{'a' * 200}b{n}" for n in range(2000)),
            "\\n".join(["User-agent: *"] * 20_000 + ["Allow: /a"] * 20_000),
            *repeated("", *UNITS, "Disallow: ", "User-agent: *"),
        ]
        for file in files:
            rules = parse(b"User-agent: *\\n" + file.encode(), "any2ds")
            for url in ("http://h/a.jpg", "http://h/" + "a" * 60_000, "http://h/" + "%61" * 20_000):
                rules.allows(url)
    """,
}
SETUP = f"""
UNITS = ["a", "b1", "1", " ", "\\n", "@", ":", "/", "a:", "a@", "a://", "://", "/ "]
UNITS += ["?a=", "&sig=a", "-a", "a.", "<", "[", "é"]

def repeated(start, *units, end=""):
    return [start + unit * ({LENGTH} // len(unit)) + end for unit in units]
"""


def in_a_process(code: str) -> "subprocess.CompletedProcess[str]":
    """Run `code` in a process that is killed after some seconds of CPU."""

    def bounded() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))

    lines = "\n".join(line.removeprefix("        ") for line in code.split("\n"))
    return subprocess.run(
        [sys.executable, "-c", SETUP + lines], preexec_fn=bounded, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("what", CASES)
def test_what_strangers_write_takes_linear_time(what: str) -> None:
    done = in_a_process(CASES[what])
    assert done.returncode == 0, done.stderr[-2000:] or f"killed after {SECONDS} s of CPU"


def test_a_robots_txt_of_many_wildcards_costs_the_rows_of_its_host_little() -> None:
    done = in_a_process(
        """
        from any2ds.fetch.policy.robots import parse
        file = b"User-agent: *\\n" + b"".join(b"Disallow: /*%d*a\\n" % number for number in range(40_000))
        rules = parse(file, "any2ds")
        for number in range(20_000):
            rules.allows(f"http://h/{number}.jpg")
        """
    )
    assert done.returncode == 0, done.stderr[-2000:] or f"killed after {SECONDS} s of CPU"


def test_a_robots_txt_of_many_parts_between_wildcards_costs_the_rows_of_its_host_little() -> None:
    done = in_a_process(
        """
        import random
        from any2ds.fetch.policy.robots import parse
        rules = ("*".join(random.choice("ab") for _ in range(250)) for _ in range(1000))
        rules = parse("\\n".join(["User-agent: *", *(f"Disallow: /*{rule}*c$" for rule in rules)]).encode(), "any2ds")
        for number in range(4000):
            rules.allows("http://h/c" + "ab" * 250)
        """
    )
    assert done.returncode == 0, done.stderr[-2000:] or f"killed after {SECONDS} s of CPU"
