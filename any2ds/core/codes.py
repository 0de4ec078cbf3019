"""Says which failures are meant by codes and classes of codes: what `--codes` takes, and `ShardJob.redo`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable

from any2ds.core.failures import BAD_ROW, FAILURE_CODES, NO_FAILURES, STATUS_OF_STAGE, failure_code

TRANSIENT, ALL = "transient", "all"
CLASSES = (TRANSIENT, ALL, "http_4xx", "http_5xx")


def checked(codes: Iterable[str]) -> tuple[str, ...]:
    """`codes`, each once. Raises ValueError, with the nearest that there is, for what is neither code nor class."""
    found = tuple(dict.fromkeys(codes))
    known = [*CLASSES, *FAILURE_CODES]
    if BAD_ROW in found:
        raise ValueError(f"failure codes of rows with a URL; there is none in a row that could not be read ({BAD_ROW})")
    for code in found:
        if code not in known and not re.fullmatch(r"http_[1-9]\d\d", code):
            near = difflib.get_close_matches(code, [*known, "http_404", "http_503"], n=1)
            hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(known)}"
            raise ValueError(f"failure codes, http_<status>, or {', '.join(CLASSES)}; {code!r} is none: {hint}")
    if not found:
        raise ValueError(f"failure codes such as timeout_total,http_503, or {', '.join(CLASSES)}")
    return found


class Meant:
    """Whether a row with some `status` and `error_code` in the metadata is a failure that `codes` mean; a bad row is
    never meant.

    Where the code is not known, as in shards of other tools that keep words only, it was a failure to download that may
    have passed.
    """

    def __init__(self, codes: Collection[str]) -> None:
        self._codes = frozenset(codes)
        self._known: dict[tuple[str | None, str | None], bool] = {}  # rows are many, and their outcomes few

    def __call__(self, status: str | None, code: str | None) -> bool:
        if (known := self._known.get((status, code))) is None:
            known = self._known[status, code] = self._decide(status, code)
        return known

    def _decide(self, status: str | None, code: str | None) -> bool:
        if status in NO_FAILURES or code == BAD_ROW:  # of which there is no URL
            return False
        if ALL in self._codes:
            return True
        try:
            is_transient = failure_code(code or "").transient
        except KeyError:
            return TRANSIENT in self._codes and status == STATUS_OF_STAGE["fetch"]
        classes = {code, TRANSIENT if is_transient else None, re.sub(r"^(http_[45])\d\d$", r"\1xx", code or "")}
        return not self._codes.isdisjoint(classes)
