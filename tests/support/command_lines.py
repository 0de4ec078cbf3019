"""Odd but valid-looking command lines, made by chance from the declared options, and run for real.

    python -m tests.support.command_lines --seed=1 --count=500

runs 500 against a server on loopback, and prints those that do not end in words: in a traceback, an `unexpected` error,
a shard that could not be written, or a hang. A command line is a function of a seed and a number (`--only=17`).
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from any2ds.config.commands import COMMANDS
from any2ds.config.declare import Option, declared
from any2ds.testing.pixel import png
from any2ds.testing.processes import LONG
from any2ds.testing.server import serve

SECONDS = LONG  # that a command line may take on a busy machine, where it needs less than one

_NUMBERS = (
    *("0", "1", "2", "3", "7", "100", "1.5", "0.001", "1e3", "65536", "1000000"),
    *("-1", "-0", "nan", "inf", "-inf", "1e400", "1e-300", "9" * 40, "1" + "0" * 30, "1e15", "999999999"),
    *(
        "2147483648",
        "4294967295",
        "9223372036854775807",
        "9223372036854775808",
        "0x10",
        "1_0",
        "\uff11\uff12",
        "\u00b2",
    ),
)
_SIZES = ("1KB", "1 MB", "0.5KiB", "1PB", "1024TiB", "1e400MB", "1B", "-1KB", "1gib", "1GiBit")
_TEXTS = (
    *(
        "",
        " ",
        "x",
        "é",
        "日本語",
        "a,b",
        "[a,b]",
        "(a",
        "a:b",
        ":",
        ",",
        "{}",
        "[]",
        "null",
        "no",
        "None",
        "auto",
        "True",
    ),
    *("-", "-x", "\u202e", "%s", "{url}", "x" * 5000, "\x1b[31m", "'", '"', "a=b", "*", "#", "$HOME", "a\nb", "\udcff"),
    *("url", "caption", "id", "url,caption", "image:url,mask:url", "image:url,mask:absent", "all", "image", "id:int"),
    *("json:dumps", "step.py:step", "step.py:absent", "absent.py:x", "a.b.c:d", "mask:encode_format=png", "id:sha256"),
    *('{"file": {}}', '{"file": {"auto_mkdir": 1}}', '{"s3": {"key": "abc"}}', '{"s3": 1}', "Referer: x", "--a=1,--b"),
    *(
        "http://127.0.0.1:9",
        "127.0.0.1:9",
        "socks5://127.0.0.1:9",
        "1%",
        "100%",
        "0.1%",
        "transient",
        "http_404",
        "png",
    ),
)
# Nothing outside of the folder at hand, and no store on a network.
_PATHS = (
    *("urls.txt", "list.csv", "absent.txt", "ds", "new", "a/b", "new folder", "é", "", " ", "-x", "x" * 300, "a\nb"),
    *(
        "urls.txt/x",
        "memory://m",
        "lakefs://x/y",
        "webdav://127.0.0.1:9/x",
        "nonsense://x/y",
        "zip://x",
        "s3:/x/y",
        "\udcff",
    ),
    *("step.py", "run.json", "[urls.txt,list.csv]", "*.txt", "*.absent"),
)
_LEFT_OUT = frozenset({"config", "enable_wandb", "open", "wandb_project"})
"""What goes to the network, or opens a window."""
_OWN = {
    "host_delay": ("0", "0.01", "-1", "nan", "1e400", "9" * 40),
    "retries": ("0", "1", "-1", "101", "1e9", "1e400", "x"),
    "reporters": ("jsonl", "prometheus", "jsonl,jsonl", "console", "", "x", "JSONL"),
    "nameservers": ("127.0.0.1:9", "os", "", "x", "127.0.0.1:99999", "[::1]:9"),
}
"""Option -> the values for it, where others would wait for as long as they ask for, or talk to others."""


@dataclass(frozen=True, slots=True)
class Line:
    arguments: tuple[str, ...]
    config: str  # of a file run.json; empty for none


def lines(seed: int, count: int) -> list[Line]:
    return [_line(random.Random(f"{seed} {number}")) for number in range(count)]


def _line(rng: random.Random) -> Line:
    name = rng.choice([*COMMANDS, *["download"] * 12, *["retry"] * 2, *["estimate"] * 2])
    command = COMMANDS[name]
    infos = [info for info in declared(command.groups) if info.name not in _LEFT_OUT]
    positional = [_positional(rng, place, name in ("download", "estimate")) for place in command.positional]
    chosen = [
        info for info in rng.sample(infos, min(len(infos), rng.randint(1, 5))) if info.name not in command.positional
    ]
    words: list[str] = []
    config: dict[str, object] = {}
    if rng.random() < 0.9:
        chosen += [each for info in chosen for each in infos if each.name in _needed(info)]
        words += [f"--{need}" for info in chosen for need in _needed(info) if "=" in need]
    for info in chosen:
        if rng.random() < 0.05:
            config[info.name] = rng.choice([_value(rng, info), True, False, None, 1, 1e300, [], {}, ["a", 1]])
        else:
            words += _words(rng, info)
    if name in ("download", "estimate", "retry") and rng.random() < 0.7 and "distributor" not in str(words):
        words.append("--distributor=inline")
    if config:
        words.append("--config=run.json")
    both = [*positional, *words] if rng.random() < 0.7 else [*words, *positional]
    if rng.random() < 0.05:
        both = [*words, "--", *positional]
    return Line((name, *both) if name != "download" or rng.random() < 0.2 else tuple(both), json.dumps(config))


def _positional(rng: random.Random, place: str, is_new: bool) -> str:
    usual = {"url_list": ("list.csv", "list.csv", "urls.txt"), "output_folder": ("ds",), "recipe": ("recipe.py",)}
    usual |= {"output_folder": ("new",)} if is_new else {}
    return rng.choice(usual.get(place, ("new",))) if rng.random() < 0.95 else rng.choice(_PATHS)


def _needed(info: Option) -> list[str]:
    """What the option has no effect without: names of options, some with a value."""
    needs = [re.split(r", | or ", need)[0] for need in info.needs.split(" and ") if not need.startswith("not ")]
    return [need.partition("|")[0] for need in needs if need and "*" not in need and "wandb" not in need]


def _words(rng: random.Random, info: Option) -> list[str]:
    name = rng.choice([info.name, info.name, info.name.replace("_", "-")])
    if info.is_flag:
        flag = [f"--{name}", f"--{name}", f"--no{name}", f"--no_{name}", f"--{name}=False", f"--{name}=off"]
        return [rng.choice(flag) if rng.random() < 0.97 else f"--{name}=x"]
    value = _value(rng, info)
    return rng.choice([[f"--{name}={value}"], [f"--{name}={value}"], [f"--{name}", value]])


def _value(rng: random.Random, info: Option) -> str:
    """A value that the option's own parser takes, at times one that it may not take."""
    values = _values(info)
    good = [value for value in values if _takes(info, value)] if rng.random() < 0.93 else []
    return rng.choice(good or values)


def _values(info: Option) -> Sequence[str]:
    if info.name in _OWN:
        return _OWN[info.name]
    if "Path" in info.accepts or info.name in ("url_list", "recipe"):
        return _PATHS
    if info.choices:
        known = [choice for choice in info.choices if choice != "wandb"]
        return (
            *known,
            *(choice.upper() for choice in known),
            known[0][:2],
            f"{known[0]} ",
            ",".join(known),
            "",
            "é",
            "no",
            "1",
        )
    return (*_NUMBERS, *_SIZES, *_TEXTS)


def _takes(info: Option, text: str) -> bool:
    try:
        info.parse(text)
    except Exception:
        return False
    return True


def faults(given: Sequence[Line], numbers: Sequence[int]) -> Iterator[tuple[int, Line, str]]:
    """Runs the lines of these numbers in one process; yields those that did not end in words, with what they said."""
    with tempfile.TemporaryDirectory(prefix="any2ds-lines-") as name:
        folder = Path(name)
        media = folder / "media"
        media.mkdir()
        (media / "a.png").write_bytes(png())
        (media / "b.txt").write_text("hello")
        with serve(media) as server:
            urls = [server.url("a.png"), server.url("b.txt"), server.url("absent")]
            _fill(folder / "start", urls)
            for number in numbers:
                shutil.copytree(folder / "start", folder / str(number))
                (folder / str(number) / "run.json").write_text(given[number].config)
            started = [sys.executable, "-m", "tests.support.command_lines", "--run"]
            environment = {**os.environ, "HOME": name, "XDG_CACHE_HOME": name, "WANDB_MODE": "offline"}
            left = list(numbers)
            while left:
                asked = json.dumps([[number, given[number].arguments] for number in left])
                errors = folder / "errors"
                with (
                    errors.open("w") as file,
                    subprocess.Popen(
                        started, cwd=folder, env=environment | {"PYTHONPATH": str(_ROOT)}, text=True, stderr=file,
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8", errors="surrogateescape",
                    ) as child,
                ):  # fmt: skip
                    assert child.stdin is not None
                    assert child.stdout is not None
                    child.stdin.write(asked)
                    child.stdin.close()
                    for line in child.stdout:
                        if line.startswith("\0"):
                            number, code, said = json.loads(line[1:])
                            left.remove(number)
                            if fault := _fault(code, said):
                                yield number, given[number], f"{fault}: {said}"
                if left:
                    number = left.pop(0)
                    said = errors.read_text(errors="replace")[-6000:]
                    yield number, given[number], f"a hang, or a process that is gone: {said}"


_ROOT = Path(__file__).parents[2]


def _fault(code: int, said: str) -> str:
    said = said.replace("unexpected '", "")  # an argument
    for words in ("unexpected ", "could not be written", "FAILED", "Exception in thread"):
        if words in said:
            return words
    last = said.splitlines()[-1] if said else ""
    if "Traceback (most recent" in said and not last.startswith(("any2ds: ", "{")):  # --log_level=debug shows one
        return "a traceback"
    is_documented = code in (0, 1, 2, 3) or (code == 4 and "nothing was stored" in said)
    return "" if is_documented else f"exit code {code}"


def _fill(folder: Path, urls: Sequence[str]) -> None:
    folder.mkdir()
    (folder / "urls.txt").write_text("".join(f"{url}\n" for url in urls))
    (folder / "list.csv").write_text("url,caption,id\n" + "".join(f"{url},é,{n}\n" for n, url in enumerate(urls)))
    (folder / "step.py").write_text("def step(sample):\n    return sample\n")
    (folder / "recipe.py").write_text((_ROOT / "tests" / "support" / "tiny_recipe.py").read_text())
    (folder / "run.json").write_text("{}")
    command = [sys.executable, "-m", "any2ds", "list.csv", "ds", "--number_sample_per_shard=2", "--quiet"]
    subprocess.run(command, cwd=folder, check=True, env={**os.environ, "PYTHONPATH": str(_ROOT)})


def _run_all() -> None:
    """The child: runs what stands on standard input, and prints for each its number, exit code and words."""
    from any2ds.cli import run

    asked = json.load(sys.stdin)
    out, top = sys.stdout, os.getcwd()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, arguments in asked:
        os.chdir(f"{top}/{number}")
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                code: object = run(arguments)
            except BaseException as error:
                code = repr(error)
        faulthandler.cancel_dump_traceback_later()
        out.write("\0" + json.dumps([number, code, said.getvalue()[-4000:]]) + "\n")
        out.flush()
    os._exit(0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--only", type=int)
    parser.add_argument("--run", action="store_true")
    wanted = parser.parse_args()
    if wanted.run:
        _run_all()
    numbers = range(wanted.count) if wanted.only is None else [wanted.only]
    for number, line, said in faults(lines(wanted.seed, max(numbers) + 1), numbers):
        sys.stdout.write(f"--- {number}: {' '.join(map(ascii, line.arguments))} {line.config}\n{said}\n")
        sys.stdout.flush()
