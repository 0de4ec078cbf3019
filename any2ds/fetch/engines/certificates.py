"""The certificate authorities that are trusted."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import certifi


def certificate_bundle() -> str:
    """A file with the authorities to trust: the user's own, else the system's, else certifi's."""
    names = ("SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE")
    candidates = [*map(os.environ.get, names), ssl.get_default_verify_paths().cafile]
    found = next((path for path in candidates if path and Path(path).exists()), None)
    return found or certifi.where()  # which loads zipfile and more to find it
