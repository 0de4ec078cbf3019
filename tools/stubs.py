"""Writes `any2ds/__init__.pyi`: the public functions with the types of their options, for type checkers and editors.

python tools/stubs.py          write it
python tools/stubs.py --check  fail if it is not current
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import any2ds
from any2ds.config import presets
from any2ds.config.commands import COMMANDS
from any2ds.config.declare import Option, declared
from any2ds.config.options import makes_datasets
from any2ds.core.reports import RunReport

_CLASSES = (
    *("Audio", "Bytes", "ClassLabel", "Image", "Optional", "Scalar", "Tensor", "Text", "Video", "parse_bool"),
    *("Info", "Recipe", "RecipeConfig", "UrlRows", "collate", "split"),
)
STUB = Path(__file__).parents[1] / "any2ds" / "__init__.pyi"
_HEAD = '''"""{doc}"""

# Made by tools/stubs.py from the declared options: make stubs.

from collections.abc import Callable, Mapping
from collections.abc import Sequence as _Sequence
from pathlib import Path
from typing import Any, Literal

from any2ds import beam as beam
from any2ds.core.declaration import transform as transform
from any2ds.core.errors import Any2dsError as Any2dsError
from any2ds.core.errors import RunError as RunError
from any2ds.core.errors import UsageError as UsageError
from any2ds.core.reports import IncompleteRun as IncompleteRun
from any2ds.core.reports import RunReport as RunReport
from any2ds.core.samples import Sample as Sample
{imports}
from any2ds.writers.example_records import parse_example as parse_example

__all__ = {names!r}
__version__: str
'''


def main() -> int:
    made = _formatted(stub())
    if "--check" not in sys.argv:
        STUB.write_text(made, encoding="utf-8")
        return 0
    if STUB.read_text(encoding="utf-8") == made:
        return 0
    print(f"{STUB.name} is not current: make stubs", file=sys.stderr)
    return 1


def stub() -> str:
    names = (name.replace("-", "_") for name in COMMANDS)
    functions = [getattr(any2ds, name) for name in names if name in any2ds.__all__]
    kinds = {getattr(sys.modules[function.run.__module__], _returned(function)) for function in functions}
    own = sorted(f"from {kind.__module__} import {kind.__name__} as {kind.__name__}" for kind in kinds - {RunReport})
    own += ["from any2ds.load.load import load as load"]
    own += ["from any2ds.dataset.features import Sequence_ as Sequence", *map(_import_of, _CLASSES)]
    own = sorted(own)
    head = _HEAD.format(doc=any2ds.__doc__, imports="\n".join(own), names=sorted(any2ds.__all__))
    made = "\n".join(_function(function) for function in functions)
    return head + re.sub(r"\bSequence\[", "_Sequence[", made)  # the other one is a feature


def _import_of(name: str) -> str:
    return f"from {getattr(any2ds, name).__module__} import {name} as {name}"


def _returned(function: Callable[..., Any]) -> str:
    return str(inspect.signature(function).return_annotation)


def _function(function: Callable[..., Any]) -> str:
    name = function.__name__
    groups = COMMANDS[name.replace("_", "-")].groups
    options = {each.name: each for each in declared(groups)}
    parameters, has_star = [], False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not has_star:
            parameters.append("*")
            has_star = True
        kind = "str | Path | None" if parameter.name == "config" else _type(options[parameter.name])
        default = "" if parameter.default is parameter.empty else f" = {_shown(parameter.default)}"
        parameters.append(f"{parameter.name}: {kind}{default}")
    if makes_datasets(groups):
        parameters += [f"{foreign}: Any = ..." for foreign in presets.foreign_options()]  # with that preset
    doc = textwrap.indent(inspect.getdoc(function) or "", "    ").strip().replace("\\", "\\\\")
    return f'def {name}({", ".join(parameters)},) -> {_returned(function)}:\n    """{doc}"""\n'


def _type(option: Option) -> str:
    """What an option may be given as, in Python."""
    kind, choices, accepted = option.type, option.choices, option.accepts
    text = f"Literal[{', '.join(map(repr, choices))}]" if choices else "str"
    if kind.startswith("tuple["):
        kind = kind.replace("tuple[str, ...]", f"str | Sequence[{text}]")  # a text: separated by commas
    elif kind.startswith("str"):
        kind = kind.replace("str", text, 1)
    elif kind.startswith("HashCheck") or (kind == "Any" and accepted):
        kind = "None"
    return " | ".join(_union([*kind.split(" | "), *([accepted] if accepted else [])]))


def _union(parts: Sequence[str]) -> list[str]:
    """Each once, None last."""
    return sorted(dict.fromkeys(parts), key=lambda part: part == "None")


def _shown(default: Any) -> str:
    return repr(default) if isinstance(default, (str, int, float, tuple, type(None))) else "..."


def _formatted(text: str) -> str:
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(STUB), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True, encoding="utf-8").stdout


if __name__ == "__main__":
    sys.exit(main())
