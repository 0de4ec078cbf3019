"""The metadata are in pyproject.toml. Here is what they cannot say: links of the README that work on PyPI, too."""

import re
from pathlib import Path

from setuptools import setup

REPOSITORY = "any2ds/any2ds"

readme = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
readme = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\1https://raw.githubusercontent.com/{REPOSITORY}/main/", readme)
readme = re.sub(r"(\]\()(?!https?:)", rf"\1https://github.com/{REPOSITORY}/blob/main/", readme)
setup(long_description=readme, long_description_content_type="text/markdown")
