"""Conditions on the metadata as people write them: `width >= 512 and (caption is not null or label in (1, 2))`.

They are Python expressions of comparisons, `and`, `or`, `not` and `in`, which `ast` reads and pyarrow evaluates with
the types of the columns: nothing is run as Python. SQL's `=`, `<>`, `is null`, `true` and upper-case words are taken
as well, and names in backquotes that have blanks or signs: "`captions[0]` = 'a cat'".
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from any2ds.core.errors import MissingColumns, UsageError
from any2ds.core.tables import scalar_of_text

_LONGEST = 20_000  # characters
_TOKEN = re.compile(
    r"""(?P<blank>\s+)
    |(?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    |`(?P<quoted>(?:[^`]|``)+)`
    |(?P<number>\.?\d(?:e[-+]|[\w.])*)
    |(?P<name>[^\W\d](?:[^\x00-\x7f\s]|\w)*(?:\.(?:[^\x00-\x7f\s]|\w)+)*)  # also accents that follow their letters
    |(?P<sign>==|!=|<>|<=|>=|=)
    |(?P<stray>[#'"`\\])""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_PYTHON = {word: word for word in ("and", "or", "not", "in", "is")} | {
    "=": "==", "<>": "!=", "null": "None", "none": "None", "true": "True", "false": "False",
}  # fmt: skip
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], pc.Expression]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_UNKNOWN = pc.scalar(pa.scalar(None, pa.bool_()))

Columns = Mapping[str, pa.DataType]


def parse(text: str, columns: Columns) -> pc.Expression:
    """Raises UsageError for what is no condition, and for comparisons of different types; and MissingColumns."""
    if not text.strip():
        raise UsageError("where: the condition is empty")
    if len(text) > _LONGEST:
        raise UsageError(f"where: the condition is too long: {len(text):,} characters, at most {_LONGEST:,}")
    try:
        return _condition(_parsed(text), columns)
    except (RecursionError, MemoryError) as error:  # of the parser, which has no other word for it
        raise UsageError("where: the condition is nested too deeply") from error
    except (SyntaxError, ValueError, OverflowError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UsageError(f"where: {text!r} cannot be understood: {reason}") from error


def _parsed(text: str) -> ast.expr:
    """The condition as Python's grammar has it. Raises SyntaxError and ValueError.

    Python sees placeholders of the names of columns, since these may be keywords (`class`) or no identifiers (in
    backquotes), and it takes compatible characters of names for the same.
    """
    names: dict[str, str] = {}  # placeholder -> column

    def as_python(token: re.Match[str]) -> str:
        if token["stray"]:
            raise ValueError(f"{token[0]} outside of a text, or the end of a text is missing")
        if token["blank"]:
            return " "
        if written := token["text"]:
            inside = written[1:-1].replace(written[0] * 2, written[0])
            unescaped = re.sub(r"\\(.)", r"\1", inside, flags=re.DOTALL)
            return f"({unescaped!r})"  # Python would join two texts in a row
        if not token["quoted"] and (word := _PYTHON.get(token[0].lower())):
            return word
        if not (token["name"] or token["quoted"]):
            return token[0]
        placeholder = f"_{len(names)}"
        names[placeholder] = token["name"] or token["quoted"].replace("``", "`")
        return f" {placeholder} "

    condition = ast.parse(_TOKEN.sub(as_python, text).strip(), mode="eval").body
    for node in ast.walk(condition):
        if isinstance(node, ast.Name):
            node.id = names.get(node.id, node.id)
    return condition


def _condition(node: ast.expr, columns: Columns) -> pc.Expression:
    """Raises ValueError for what is no condition."""
    match node:
        case ast.BoolOp(op, values):
            join = operator.and_ if isinstance(op, ast.And) else operator.or_
            return reduce(join, [_condition(value, columns) for value in values])
        case ast.UnaryOp(ast.Not(), operand):
            return ~_condition(operand, columns)
        case ast.Compare(left, ops, others):
            sides = zip([left, *others], ops, others, strict=False)  # of `1 < a < 5` both comparisons
            return reduce(operator.and_, [_comparison(*each, columns) for each in sides])
        case ast.Name():
            name, field, kind = _column(node, columns)
            if not pa.types.is_boolean(kind):
                raise UsageError(f"where: column {name!r} is {kind}: a condition compares it, as in `>= 2`")
            return field
    raise ValueError(f"{ast.unparse(node)!r} is neither true nor false")


def _column(node: ast.Name, columns: Columns) -> tuple[str, pc.Expression, pa.DataType]:
    """Name, values and type of a column; those of a dictionary (categories of pandas) are decoded. Raises
    MissingColumns."""
    name = node.id
    if name not in columns:
        raise MissingColumns([name], list(columns), "where")
    field, kind = pc.field(name), columns[name]
    if pa.types.is_dictionary(kind):  # which Arrow neither looks up in lists nor compares with all types
        field, kind = field.cast(kind.value_type), kind.value_type
    if pa.types.is_float16(kind):  # which Arrow does not compare
        field, kind = field.cast(pa.float32()), pa.float32()
    return name, field, kind


def _comparison(left: ast.expr, op: ast.cmpop, right: ast.expr, columns: Columns) -> pc.Expression:
    """Raises ValueError for what cannot be compared."""
    if not isinstance(left, ast.Name):
        if not isinstance(right, ast.Name) or type(op) not in _COMPARISONS:
            raise ValueError(f"{ast.unparse(left)!r} is no column")
        name, field, kind = _column(right, columns)
        literal = _literal(ast.literal_eval(left), name, kind)
        return _COMPARISONS[type(op)](pc.scalar(literal), _beside(field, kind, literal.type))
    name, field, kind = _column(left, columns)
    match op:
        case ast.Is() | ast.IsNot():
            if ast.literal_eval(right) is not None:
                raise ValueError("`is` takes null, or not null")
            return field.is_null() if isinstance(op, ast.Is) else field.is_valid()
        case ast.In() | ast.NotIn():
            return _among(name, kind, field, right, isinstance(op, ast.NotIn))
    if isinstance(right, ast.Name):
        other_name, other, other_kind = _column(right, columns)
        if _family(kind) != _family(other_kind):
            raise UsageError(f"where: {name!r} is {kind}, {other_name!r} is {other_kind}: they cannot be compared")
        return _COMPARISONS[type(op)](field, other)
    literal = _literal(ast.literal_eval(right), name, kind)
    return _COMPARISONS[type(op)](_beside(field, kind, literal.type), pc.scalar(literal))


def _beside(field: pc.Expression, kind: pa.DataType, literal: pa.DataType) -> pc.Expression:
    """A column as it is compared with a literal: Arrow would refuse great integers beside a float."""
    is_mixed = pa.types.is_integer(kind) and pa.types.is_floating(literal)
    return field.cast(pa.float64(), safe=False) if is_mixed else field


def _among(name: str, kind: pa.DataType, field: pc.Expression, values: ast.expr, is_negated: bool) -> pc.Expression:
    """Whether a value is in a list, or not; as in SQL, that is unknown of null."""
    found = []
    if not (elements := getattr(values, "elts", [values])):
        raise ValueError("an empty list")
    for each in elements:
        literal = _literal(ast.literal_eval(each), name, kind)
        with suppress(pa.ArrowException):  # the type of the column has no such value
            found.append(literal.cast(kind))
    is_among = field.isin(pa.array(found, kind))
    return pc.if_else(field.is_valid(), ~is_among if is_negated else is_among, _UNKNOWN)


def _family(kind: pa.DataType) -> str:
    of = pa.types
    if of.is_integer(kind) or of.is_floating(kind) or of.is_decimal(kind):
        return "number"
    if of.is_string(kind) or of.is_large_string(kind):
        return "text"
    return "moment" if of.is_temporal(kind) else str(kind)


def _literal(value: Any, name: str, kind: pa.DataType) -> pa.Scalar:
    """A value as the type of its column has it, or as one that can be compared with it exactly. Raises UsageError."""
    if pa.types.is_null(kind):
        return pa.scalar(None)
    family = _family(kind)
    if type(value) in (int, float) and family == "number":
        return _number(value, kind)
    if isinstance(value, str) and family == "moment":
        return _moment(value, name, kind)
    if (isinstance(value, bool) and pa.types.is_boolean(kind)) or (isinstance(value, str) and family == "text"):
        return pa.scalar(value, kind)
    raise UsageError(f"where: column {name!r} is {kind}, and {value!r} cannot be compared with it")


def _number(value: float, kind: pa.DataType) -> pa.Scalar:
    """In the type of a column of numbers: the float32 nearest to what was typed, say. For integers and decimals that
    it does not have, an exact decimal, or at last a float."""
    if not pa.types.is_floating(kind):
        if isinstance(value, int) and pa.types.is_integer(kind):
            with suppress(pa.ArrowException, OverflowError):
                return pa.scalar(value, kind)
        with suppress(pa.ArrowException, TypeError):  # no decimal is infinite
            exact = pa.scalar(Decimal(repr(value)))
            pc.equal(pa.array([], kind), exact)  # whether the two have a common type
            return exact
    found = pa.scalar(float(value))
    return found.cast(kind) if pa.types.is_floating(kind) else found


def _moment(text: str, name: str, kind: pa.DataType) -> pa.Scalar:
    """The date or time that a text says, in the type of the column if that can be. Raises UsageError."""
    example = "2026-01-31T12:00:00"
    if pa.types.is_time(kind):
        with suppress(ValueError, pa.ArrowException):
            return scalar_of_text(text, kind)
        example = "12:00:00"
    elif pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        zone = kind.tz if pa.types.is_timestamp(kind) else None
        for candidate in (kind, pa.timestamp("us", zone), pa.timestamp("ns", zone)):
            with suppress(pa.ArrowException):
                return pa.scalar(text).cast(candidate)
        example += "Z" if zone else ""
    raise UsageError(f"where: column {name!r} is {kind}, and {text!r} is no such value, as {example!r} is")
