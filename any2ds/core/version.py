"""The one place where the version stands; `pyproject.toml` reads it too."""

__version__ = "0.1.0"

HOMEPAGE = "https://github.com/any2ds/any2ds"
DOCUMENTATION = f"{HOMEPAGE}#readme"
# An honest name with a page behind it: webmasters can look up who is asking, and address us in robots.txt.
USER_AGENT = f"any2ds/{__version__} (+{HOMEPAGE})"
