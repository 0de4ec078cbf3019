"""For tools that want a setup.py; all of it is in pyproject.toml."""

from setuptools import setup

setup()
