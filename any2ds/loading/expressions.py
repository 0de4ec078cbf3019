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

import datetime
import math
import operator
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
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
_MIRRORED: dict[Callable[[Any, Any], Any], Callable[[Any, Any], Any]] = {
    operator.lt: operator.gt,
    operator.le: operator.ge,
    operator.gt: operator.lt,
    operator.ge: operator.le,
}
_WHOLE = {operator.lt: operator.le, operator.ge: operator.gt}  # of integers and the integer below a fraction
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
    type: pa.DataType | None = None  # of a column
    literal: Any = None

    @classmethod
    def of_column(cls, name: str, type: pa.DataType) -> _Value:
        kind = _kind(type)
        return cls(
            pc.field(name), kind, f"column {name!r} is {kind} ({type})" if kind else f"column {name!r} is {type}", type
        )

    @classmethod
    def of_literal(cls, literal: bool | float | str) -> _Value:
        kind = _BOOLEAN if isinstance(literal, bool) else _TEXT if isinstance(literal, str) else _NUMBER
        shown = str(literal).lower() if isinstance(literal, bool) else repr(literal)
        is_large = isinstance(literal, int) and not -(1 << 63) <= literal < 1 << 63
        plain = _float(literal) if is_large and isinstance(literal, int) else literal
        return cls(pc.scalar(plain), kind, f"{shown} is {kind}", literal=literal)

    def check(self, other: _Value) -> None:
        """Raises UsageError if the two cannot be compared."""
        if self.kind and other.kind and self.kind != other.kind:
            raise UsageError(f"where: {self.text}, and {other.text}: they cannot be compared")


def _float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.copysign(math.inf, number)


def _compared(compare: Callable[[Any, Any], Any], left: _Value, right: _Value) -> pc.Expression:
    """A literal takes the type of the column that it is compared with. Raises UsageError."""
    left.check(right)
    if left.type is None and right.type is not None:
        return _compared(_MIRRORED.get(compare, compare), right, left)
    column, literal, of = left.expression, right.literal, pa.types
    if left.type is None or literal is None:
        return compare(column, right.expression)
    if right.kind == _NUMBER and of.is_integer(left.type):
        if not math.isfinite(_float(literal)):
            return _always(column, compare(0, literal))
        number = math.floor(literal)
        if number != literal and compare in (operator.eq, operator.ne):
            return _always(column, compare is operator.ne)
        if (typed := _exactly(number, left.type)) is None:  # beyond all values of the type
            return _always(column, compare(0, number))
        return (compare if number == literal else _WHOLE.get(compare, compare))(column, pc.scalar(typed))
    if right.kind == _NUMBER and of.is_decimal(left.type) and math.isfinite(_float(literal)):
        with suppress(pa.ArrowException):  # a number with too many digits is compared as a float
            return compare(column, pc.scalar(pa.scalar(Decimal(str(literal)))))
    if right.kind == _TEXT and of.is_temporal(left.type):
        return compare(column, pc.scalar(_moment(literal, left)))
    return compare(column, right.expression)


def _always(column: pc.Expression, value: bool) -> pc.Expression:
    """The same for each value, but for null."""
    return _unless_null(column, pc.scalar(value))


def _unless_null(column: pc.Expression, found: pc.Expression) -> pc.Expression:
    """Null where the column is."""
    return pc.if_else(column.is_valid(), found, pc.scalar(pa.scalar(None, pa.bool_())))


def _among(column: _Value, literals: list[Any]) -> pc.Expression:
    """Whether a value is in a list; as in SQL, null is neither in it nor not in it."""
    values: Any = [_float(each) if type(each) is int and each >= 1 << 63 else each for each in literals]
    if column.type is not None and (of := pa.types):
        is_number = all(isinstance(each, (int, float)) for each in literals)
        if column.kind == _NUMBER and is_number and not of.is_floating(column.type):
            exact = [_exactly(Decimal(str(each)), column.type) for each in literals]
            values = pa.array([each.as_py() for each in exact if each is not None], column.type)
        elif column.kind == _NUMBER and is_number:
            values = [_float(each) for each in literals]
        elif of.is_temporal(column.type) and isinstance(literals[0], str):
            moments = [_exactly(_moment(each, column), column.type) for each in literals]
            values = pa.array([each for each in moments if each is not None], column.type)
    return _unless_null(column.expression, column.expression.isin(values))


def _exactly(value: Any, type: pa.DataType) -> pa.Scalar | None:
    """As a value of a type; None if it has none that is equal."""
    try:
        if isinstance(value, pa.Scalar):
            return value.cast(type)
        if pa.types.is_integer(type):
            return pa.scalar(int(value), type) if value == int(value) else None
        return pa.scalar(value, type)
    except (pa.ArrowException, OverflowError, ValueError):
        return None


def _moment(text: str, column: _Value) -> pa.Scalar:
    """The date or time that a text says, in the type of the column if that can be. Raises UsageError."""
    type: Any = column.type
    example = "2026-01-31T12:00:00"
    if pa.types.is_time(type):
        try:
            return pa.scalar(datetime.time.fromisoformat(text), type)
        except (ValueError, pa.ArrowException):
            example = "12:00:00"
    elif pa.types.is_date(type) or pa.types.is_timestamp(type):
        zone = type.tz if pa.types.is_timestamp(type) else None
        for candidate in (type, pa.timestamp("us", zone), pa.timestamp("ns", zone)):
            try:
                return pa.scalar(text).cast(candidate)
            except pa.ArrowException:
                continue
        example += "Z" if zone else ""
    else:
        raise UsageError(f"where: {column.text}, and {text!r} is text: they cannot be compared")
    raise UsageError(f"where: {column.text}, and {text!r} is not what it can be compared with, such as {example!r}")


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
            return _compared(_COMPARISONS[value], left, self._value())
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
            found = _among(left, values)
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
