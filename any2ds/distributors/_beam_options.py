"""Beam as a guest in our process, and its options. What the others need of Beam is imported from here."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from any2ds.core.errors import OptionError, error_text

_handler = logging.NullHandler()
logging.root.addHandler(_handler)  # else the import would set up the logging of the whole program
try:
    import apache_beam as _beam
    from apache_beam.options.pipeline_options import DebugOptions, DirectOptions, PipelineOptions, StandardOptions
    from apache_beam.runners.runner import PipelineState
finally:
    logging.root.removeHandler(_handler)

beam: Any = _beam
__all__ = ("DebugOptions", "DirectOptions", "PipelineOptions", "PipelineState", "StandardOptions", "beam")

DIRECT_RUNNER = "FnApiRunner"
_SAME = ("BundleBasedDirectRunner", "DirectRunner", "SwitchingDirectRunner")  # which would try to download another one
_WITH_OWN_OPTIONS = (DIRECT_RUNNER, "DataflowRunner")  # others have job servers, whose options Beam does not know


def pipeline_options(flags: Sequence[str]) -> PipelineOptions:
    """The options that Beam makes of flags. Raises OptionError for flags that it does not know, or a wrong value."""
    logging.getLogger("apache_beam").setLevel(logging.ERROR)
    with refusals():
        options = PipelineOptions(list(flags))
        standard = options.view_as(StandardOptions)
        if standard.runner is None or standard.runner in _SAME:
            standard.runner = DIRECT_RUNNER
        known = options.get_all_options(drop_default=True)
        unknown = options.get_all_options(drop_default=True, retain_unknown_options=True).keys() - known
    if unknown and standard.runner in _WITH_OWN_OPTIONS:
        raise OptionError(f"beam_options: Beam knows no {', '.join(f'--{name}' for name in sorted(unknown))}")
    return options


@contextmanager
def refusals() -> Iterator[None]:
    """Turns whatever Beam raises, or prints and ends the process with, into an OptionError."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    except (Exception, SystemExit) as error:
        cause = error.__context__ if isinstance(error, SystemExit) and error.__context__ else error
        raise OptionError(f"beam_options: {error_text(cause)}") from error
