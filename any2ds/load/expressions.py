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
    |(?P<prefix>\b[bfrtu]{1,2})?(?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    |`(?P<quoted>(?:[^`]|``)+)`
    |(?P<number>\.?\d(?:e[-+]|[\w.])*)
    |(?P<name>[^\W\d](?:[^\x00-\x7f\s]|\w)*(?:\.(?:[^\x00-\x7f\s]|\w)+)*)  # also accents that follow their letters
    |(?P<sign>==|!=|<>|<=|>=|=)
    |(?P<other>.)""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_SIGNS = {"=": "==", "<>": "!="}
_WORDS = {word: word for word in ("and", "or", "not", "in", "is")} | {"null": "None", "true": "True", "false": "False"}
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
    except (SyntaxError, ValueError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UsageError(f"where: {text!r} cannot be understood: {reason}") from error


def _parsed(text: str) -> ast.expr:
    """The condition as Python's grammar has it. Raises SyntaxError and ValueError.

    Python sees placeholders of the names of columns, since these may be keywords (`class`) or no identifiers (in
    backquotes), and it takes compatible characters of names for the same.
    """
    names: dict[str, str] = {}  # placeholder -> column
    words: list[str] = []
    is_behind_text = False
    for token in _TOKEN.finditer(text):
        if token["blank"]:
            words.append(" ")
            continue
        if token["text"]:
            if is_behind_text:
                raise ValueError(f"two texts in a row, at {token[0]}")
            words.append(_text(token))
        elif name := _name(token):
            placeholder = f"_{len(names)}"
            names[placeholder] = name
            words.append(f" {placeholder} ")
        elif token[0] in ("#", "'", '"', "`", "\\"):
            raise ValueError(f"{token[0]} outside of a text, or the end of a text is missing")
        else:
            words.append(_SIGNS.get(token[0]) or _WORDS.get(token[0].lower(), token[0]))
        is_behind_text = token["text"] is not None
    condition = ast.parse("".join(words).strip(), mode="eval").body
    for node in ast.walk(condition):
        if isinstance(node, ast.Name):
            node.id = names.get(node.id, node.id)
        elif isinstance(node, ast.Attribute):  # `a . b`
            node.attr = names.get(node.attr, node.attr)
    return condition


def _name(token: re.Match[str]) -> str | None:
    """The column that a token names."""
    if token["quoted"]:
        return token["quoted"].replace("``", "`")
    name = token["name"]
    return None if name is None or name.lower() in _WORDS or name == "None" else name


def _text(token: re.Match[str]) -> str:
    """A text, or b'...', as Python writes it. Raises ValueError for other prefixes, and escapes in bytes."""
    prefix, written = (token["prefix"] or "").lower(), token["text"]
    if prefix not in ("", "b"):
        raise ValueError(f"{token[0]}: a text is written as '...'")
    if prefix and "\\" in written:
        raise ValueError(f"{token[0]}: bytes are written without backslashes")
    quote = written[0]
    return prefix + repr(re.sub(r"\\(.)", r"\1", written[1:-1].replace(quote * 2, quote), flags=re.DOTALL))


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
        case ast.Name() | ast.Attribute():
            name, field, kind = _column(node, columns)
            if not pa.types.is_boolean(kind):
                raise UsageError(f"where: column {name!r} is {kind}: a condition compares it, as in `>= 2`")
            return field
    raise ValueError(f"{ast.unparse(node)!r} is neither true nor false")


def _is_column(node: ast.expr) -> bool:
    return isinstance(node, (ast.Name, ast.Attribute))


def _column(node: ast.expr, columns: Columns) -> tuple[str, pc.Expression, pa.DataType]:
    """Name, values and type of a column; those of a dictionary (categories of pandas) are decoded. Raises
    MissingColumns."""
    if (name := ast.unparse(node)) not in columns:
        raise MissingColumns([name], list(columns), "where")
    field, kind = pc.field(name), columns[name]
    if pa.types.is_dictionary(kind):  # which Arrow neither looks up in lists nor compares with all types
        field, kind = field.cast(kind.value_type), kind.value_type
    if pa.types.is_float16(kind):  # which Arrow does not compare
        field, kind = field.cast(pa.float32()), pa.float32()
    return name, field, kind


def _comparison(left: ast.expr, op: ast.cmpop, right: ast.expr, columns: Columns) -> pc.Expression:
    """Raises ValueError for what cannot be compared."""
    if not _is_column(left):
        if not _is_column(right) or type(op) not in _COMPARISONS:
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
    if _is_column(right):
        other_name, other, other_kind = _column(right, columns)
        if _family(kind) != _family(other_kind):
            raise UsageError(f"where: {name!r} is {kind}, {other_name!r} is {other_kind}: they cannot be compared")
        return _COMPARISONS[type(op)](_beside(field, kind, other_kind), _beside(other, other_kind, kind))
    literal = _literal(ast.literal_eval(right), name, kind)
    return _COMPARISONS[type(op)](_beside(field, kind, literal.type), pc.scalar(literal))


def _beside(field: pc.Expression, kind: pa.DataType, other: pa.DataType) -> pc.Expression:
    """A column as one of another type of number is compared with it, where Arrow would refuse some values."""
    of = pa.types
    if of.is_integer(kind) and of.is_floating(other):
        return field.cast(pa.float64(), safe=False)
    if of.is_integer(kind) and of.is_integer(other) and of.is_uint64(kind) != of.is_uint64(other):
        return field.cast(pa.decimal128(20))
    return field


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
    of = pa.types
    if of.is_null(kind):
        return pa.scalar(None)
    family = _family(kind)
    if type(value) in (int, float) and family == "number":
        return _number(value, kind)
    if isinstance(value, str) and family == "moment":
        return _moment(value, name, kind)
    is_bytes = isinstance(value, bytes) and (of.is_binary(kind) or of.is_large_binary(kind))
    is_bool = isinstance(value, bool) and of.is_boolean(kind)
    if is_bool or is_bytes or (isinstance(value, str) and family == "text"):
        return pa.scalar(value, kind)
    raise UsageError(f"where: column {name!r} is {kind}, and {value!r} cannot be compared with it")


def _number(value: float, kind: pa.DataType) -> pa.Scalar:
    """In the type of a column of numbers: the float32 nearest to what was typed, say. For integers and decimals that
    it does not have, an exact decimal, or at last a float."""
    candidates: list[Callable[[], pa.Scalar]] = [lambda: pa.scalar(Decimal(repr(value)))]
    if isinstance(value, int) and pa.types.is_integer(kind):
        candidates.insert(0, lambda: pa.scalar(value, kind))
    for make in candidates if not pa.types.is_floating(kind) else ():
        with suppress(pa.ArrowException, OverflowError, TypeError):
            found = make()
            pc.equal(pa.array([], kind), found)  # whether the two have a common type
            return found
    try:
        typed = float(value)
    except OverflowError:
        typed = float("inf") if value > 0 else float("-inf")
    return pa.scalar(typed).cast(kind) if pa.types.is_floating(kind) else pa.scalar(typed)


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
