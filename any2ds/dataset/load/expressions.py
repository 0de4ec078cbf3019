"""Conditions on the metadata as people write them: `width >= 512 and (caption is not null or label in (1, 2))`.

    condition   = all_of { "or" all_of }
    all_of      = one { "and" one }
    one         = "not" one | "(" condition ")" | value [ comparison ]
    comparison  = ( "=" | "==" | "!=" | "<>" | "<" | "<=" | ">" | ">=" ) value
                | "is" [ "not" ] "null" | [ "not" ] "in" "(" value { "," value } ")"
    value       = column | `column` | number | 'text' | "text" | "true" | "false"

They become expressions of pyarrow; nothing is evaluated as Python.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from any2ds.core.errors import MissingColumns, UsageError

_LONGEST = 20_000  # characters
_DEEPEST = 50  # parentheses and "not"
_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>-?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?))(?![\w.])
    |(?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    |`(?P<quoted>[^`]+)`
    |(?P<word>[^\W\d]\w*(?:\.\w+)*)
    |(?P<sign>==|!=|<>|<=|>=|[=<>(),])
    )""",
    re.VERBOSE,
)
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_WORDS = frozenset({"and", "or", "not", "in", "is", "null", "true", "false"})
_BOOLEAN, _NUMBER, _TEXT = "true or false", "a number", "text"


def parse(text: str, columns: Mapping[str, pa.DataType]) -> pc.Expression:
    """Raises UsageError for what is no condition, and for comparisons of different types; and MissingColumns."""
    return _Parser(text, columns).parsed()


@dataclass(frozen=True, slots=True)
class _Value:
    """A column or a literal."""

    expression: pc.Expression
    kind: str | None  # None: a type other than these three
    text: str  # for messages

    @classmethod
    def of_column(cls, name: str, type: pa.DataType) -> _Value:
        kind = _kind(type)
        return cls(
            pc.field(name), kind, f"column {name!r} is {kind} ({type})" if kind else f"column {name!r} is {type}"
        )

    @classmethod
    def of_literal(cls, literal: bool | float | str) -> _Value:
        kind = _BOOLEAN if isinstance(literal, bool) else _TEXT if isinstance(literal, str) else _NUMBER
        shown = str(literal).lower() if isinstance(literal, bool) else repr(literal)
        return cls(pc.scalar(literal), kind, f"{shown} is {kind}")

    def check(self, other: _Value) -> None:
        """Raises UsageError if the two cannot be compared."""
        if self.kind and other.kind and self.kind != other.kind:
            raise UsageError(f"where: {self.text}, and {other.text}: they cannot be compared")


def _kind(type: pa.DataType) -> str | None:
    of = pa.types
    if of.is_boolean(type):
        return _BOOLEAN
    if of.is_integer(type) or of.is_floating(type) or of.is_decimal(type):
        return _NUMBER
    return _TEXT if of.is_string(type) or of.is_large_string(type) else None


class _Parser:
    def __init__(self, text: str, columns: Mapping[str, pa.DataType]) -> None:
        self._text, self._columns = text, columns
        self._depth = 0
        self._tokens = self._split() if len(text) <= _LONGEST else []  # kind, value, place
        self._next = 0

    def parsed(self) -> pc.Expression:
        if not self._tokens:
            raise UsageError("where: the condition is empty" if len(self._text) <= _LONGEST else "where: too long")
        found = self._condition()
        if self._next < len(self._tokens):
            raise self._unexpected()
        return found

    def _split(self) -> list[tuple[str, Any, int]]:
        found, at, text = [], 0, self._text.rstrip()
        while at < len(text):
            if (match := _TOKEN.match(text, at)) is None:
                place = at + len(text[at:]) - len(text[at:].lstrip())
                raise UsageError(f"where: {text[place : place + 20]!r} at character {place + 1} cannot be understood")
            kind = str(match.lastgroup)
            value, place = match[kind], match.start(kind)
            if kind == "word" and value.lower() in _WORDS:
                kind, value = "keyword", value.lower()
            found.append((kind, value, place))
            at = match.end()
        return found

    def _condition(self) -> pc.Expression:
        found = self._all_of()
        while self._takes("keyword", "or"):
            found = found | self._all_of()
        return found

    def _all_of(self) -> pc.Expression:
        found = self._one()
        while self._takes("keyword", "and"):
            found = found & self._one()
        return found

    def _one(self) -> pc.Expression:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise UsageError("where: the condition is nested too deeply")
        try:
            if self._takes("keyword", "not"):
                return ~self._one()
            if self._takes("sign", "("):
                found = self._condition()
                self._expect("sign", ")")
                return found
            return self._comparison(self._value())
        finally:
            self._depth -= 1

    def _comparison(self, left: _Value) -> pc.Expression:
        kind, value, _ = self._peek()
        if kind == "sign" and value in _COMPARISONS:
            self._next += 1
            right = self._value()
            left.check(right)
            return _COMPARISONS[value](left.expression, right.expression)
        if self._takes("keyword", "is"):
            negated = self._takes("keyword", "not")
            self._expect("keyword", "null")
            return left.expression.is_valid() if negated else left.expression.is_null()
        negated = self._takes("keyword", "not")
        if negated or (kind, value) == ("keyword", "in"):
            self._expect("keyword", "in")
            self._expect("sign", "(")
            values = [self._literal()]
            while self._takes("sign", ","):
                values.append(self._literal())
            self._expect("sign", ")")
            for each in map(_Value.of_literal, values):
                left.check(each)
                _Value.of_literal(values[0]).check(each)
            value = left.expression
            # As in SQL, null is neither in a list nor not in it.
            found = pc.if_else(value.is_valid(), value.isin(values), pc.scalar(pa.scalar(None, pa.bool_())))
            return ~found if negated else found
        if left.kind not in (_BOOLEAN, None):
            raise UsageError(f"where: {left.text}: a condition compares it, as in `>= 2` or `is not null`")
        return left.expression

    def _value(self) -> _Value:
        kind, value, _ = self._peek()
        if kind in ("word", "quoted"):
            self._next += 1
            if value not in self._columns:
                raise MissingColumns([value], list(self._columns), "where")
            return _Value.of_column(value, self._columns[value])
        return _Value.of_literal(self._literal())

    def _literal(self) -> Any:
        kind, value, _ = self._peek()
        self._next += 1
        if kind == "number":
            return float(value) if set(value) & set(".eE") else int(value)
        if kind == "text":
            quote = value[0]
            return re.sub(r"\\(.)", r"\1", value[1:-1].replace(quote * 2, quote), flags=re.DOTALL)
        if kind == "keyword" and value in ("true", "false"):
            return value == "true"
        self._next -= 1
        raise self._unexpected()

    def _peek(self) -> tuple[str, Any, int]:
        return self._tokens[self._next] if self._next < len(self._tokens) else ("end", "", len(self._text))

    def _takes(self, kind: str, value: str) -> bool:
        if self._peek()[:2] != (kind, value):
            return False
        self._next += 1
        return True

    def _expect(self, kind: str, value: str) -> None:
        if not self._takes(kind, value):
            raise self._unexpected(f", where {value!r} was expected")

    def _unexpected(self, but: str = "") -> UsageError:
        kind, value, place = self._peek()
        what = "it ends" if kind == "end" else f"{value!r} at character {place + 1} is not expected"
        return UsageError(f"where: {what}{but}: {self._text!r}")
