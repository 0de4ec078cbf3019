"""Programs of the system that tests start, such as a server or a browser, and what happens where one is not installed.

A test asks for one with `program("nginx")`. Where it is missing, the test is skipped, and the last line of the run says
what to install; with the variable REQUIRED in the environment, as CI has it, the test fails instead.

`python3 tests/support/programs.py` prints the Debian packages of those that are missing here.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable

REQUIRED = "ANY2DS_REQUIRE_PROGRAMS"

# Program -> the Debian package that brings it.
PACKAGES = {
    "chromium": "chromium",
    "fish": "fish",
    "java": "default-jre-headless",
    "nginx": "nginx-light",
    "npm": "npm",
    "ps": "procps",
    "sshd": "openssh-server",
    "zsh": "zsh",
}
_OTHER_NAMES = {"chromium": ("chromium-browser", "google-chrome", "chrome")}
_MISSING = "needs a program: "


def program(name: str) -> str:
    """The absolute path of one of PACKAGES. Skips the test that asks if it is not installed.

    Raises FileNotFoundError instead if the environment has REQUIRED.
    """
    found = _path_of(name)
    if found is None and os.environ.get(REQUIRED):
        raise FileNotFoundError(f"this test needs {name}, which is not installed: apt-get install {PACKAGES[name]}")
    if found is None:
        import pytest  # here, since the packages are printed without it

        pytest.skip(_MISSING + name)
    return os.path.abspath(found)


def summary(skip_reasons: Iterable[str]) -> str:
    """One line about tests that were skipped for want of a program: how many, which programs, and what to type."""
    missing = [reason.partition(_MISSING)[2] for reason in skip_reasons if _MISSING in reason]
    if not missing:
        return ""
    names = sorted(set(missing))
    verb = "tests need" if len(missing) > 1 else "test needs"
    packages = " ".join(PACKAGES[name] for name in names)
    return f"{len(missing)} {verb} {', '.join(names)}: apt-get install {packages}"


def _path_of(name: str) -> str | None:
    path = os.pathsep.join(_folders())
    return next(filter(None, (shutil.which(each, path=path) for each in (name, *_OTHER_NAMES.get(name, ())))), None)


def _folders() -> list[str]:
    """The folders of PATH, and the sbin beside each bin: servers lie there, and not everybody's PATH has it."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    if java_home := os.environ.get("JAVA_HOME"):
        folders.insert(0, os.path.join(java_home, "bin"))
    bins = [folder for folder in folders if os.path.basename(folder) == "bin"]
    return folders + [os.path.join(os.path.dirname(folder), "sbin") for folder in bins]


if __name__ == "__main__":
    print(*(package for name, package in PACKAGES.items() if _path_of(name) is None))  # noqa: T201
