"""Writes `docs/failure-codes.md`, the page on why rows fail, from the closed list in `any2ds/core/failures.py`.

python tools/failure_codes.py          write it
python tools/failure_codes.py --check  fail if it is not current
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from any2ds.core.failures import FAILURE_CODES, NO_FAILURES

PAGE = Path(__file__).parents[1] / "docs" / "failure-codes.md"
_HEAD = """\
# Failure codes

```bash
any2ds help codes       # this list
any2ds help http_404    # one of them
any2ds retry dataset --codes=timeout_total,http_5xx
```

<!-- Made by tools/failure_codes.py from any2ds/core/failures.py: make stubs. -->

Each row of a list ends with one code: `success`, or why it is not in the dataset. The codes are in the column
`error_code` of the metadata, in `status_dict` of the statistics, and in `--codes` of `any2ds retry`, which by default
takes those that another attempt can help (transient).

| code | transient | what it means | what to do |
|---|---|---|---|"""


def page() -> str:
    return "\n".join([_HEAD, *_rows(), ""])


def _rows() -> Iterator[str]:
    for code, known in FAILURE_CODES.items():
        yield f"| `{code}` | {'yes' if known.transient else ''} | {_cell(known.meaning)} | {_cell(known.advice)} |"
    yield "| `http_<status>` | 408, 425, 429, 5xx | the server answered with that status | `any2ds help http_403` |"
    yield "\nOutcomes that are no failures:\n\n| code | what it means |\n|---|---|"
    for code, meaning in NO_FAILURES.items():
        yield f"| `{code}` | {_cell(meaning)} |"


def _cell(text: str) -> str:
    escaped = text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
    return re.sub(r"(?<![\w`-])--[a-z]\w*(?:=[\w.]*\w)?", r"`\g<0>`", escaped)  # options, which then do not break


def main() -> int:
    if "--check" in sys.argv[1:]:
        return 0 if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page() else 1
    PAGE.write_text(page(), encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
