"""Loads libcurl before TensorFlow, whose own copy of it would take its place: these tests download in their process."""

import pycurl  # noqa: F401
