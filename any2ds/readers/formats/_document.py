"""Cuts a JSON document into the texts of its values, each of which is parsed by itself.

So a value that cannot be parsed costs one row, nesting takes a byte for each level, and numbers are not looked at here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from any2ds.core.errors import ReadError
from any2ds.readers.bad_rows import one_line
from any2ds.readers.formats._objects import LONGEST_LINE, parsed

_BLANKS = re.compile(rb"[ \t\r\n]*")
_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*'  # without the closing quote, which a piece of the document may not have
_TOKEN = re.compile(_STRING + rb'("?)|[\[\]{}]', re.DOTALL)
_FLAT = re.compile(rb'\{[^"\[\]{}]*(?:' + _STRING + rb'"[^"\[\]{}]*)*\}', re.DOTALL)  # an object without nested values
_SCALAR = re.compile(rb'[^\s,:"\[\]{}]+')
_QUOTE = ord('"')
_CLOSES = {ord("]"): ord("["), ord("}"): ord("{")}


class Malformed(ReadError):
    """The document is no JSON from here on."""

    def __init__(self, reason: str) -> None:
        super().__init__("", f"not JSON ({reason})")


class Ended(Malformed):
    """The document ends too early."""

    def __init__(self) -> None:
        super().__init__("the document ends too early")


class Document:
    """A place in a JSON document that arrives in `pieces`. All methods raise Malformed, and what `pieces` raises."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._data, self._at = b"", 0

    def peek(self) -> bytes:
        """The next byte that is not blank; empty at the end."""
        while True:
            blanks = _BLANKS.match(self._data, self._at)
            self._at = blanks.end() if blanks else self._at
            if self._at < len(self._data):
                return self._data[self._at : self._at + 1]
            if not self._read():
                return b""

    def elements(self) -> Iterator[None]:
        """Stops before each element of the array that begins here; the caller reads it with `value` or the like."""
        yield from self._parts(b"[", b"]")

    def members(self) -> Iterator[str]:
        """The keys of the object that begins here; the caller reads the value of each."""
        for _ in self._parts(b"{", b"}"):
            text = self.value() if self.peek() == b'"' else None
            if text is None:
                raise self._unexpected("a key")
            try:
                key = parsed(text)
            except ValueError as error:
                raise Malformed(one_line(error)) from error
            self._skip(b":")
            yield str(key)

    def value(self, is_wanted: bool = True) -> bytes | None:
        """The text of the value that begins here; None if it is not wanted or has more than LONGEST_LINE bytes."""
        first = self.peek()
        if first == b"{" and (flat := _FLAT.match(self._data, self._at)):
            self._at = flat.end()
            return flat[0] if is_wanted and len(flat[0]) <= LONGEST_LINE else None
        return self._nested(is_wanted) if first and first in b'"[{' else self._scalar()

    def _parts(self, opening: bytes, closing: bytes) -> Iterator[None]:
        self._skip(opening)
        if self.peek() == closing:
            self._at += 1
            return
        while True:
            yield
            if self.peek() == closing:
                self._at += 1
                return
            self._skip(b",")

    def _nested(self, is_wanted: bool) -> bytes | None:
        """The text of a string, an array or an object; its brackets are checked."""
        open_brackets = bytearray()
        at = self._at
        while True:
            is_cut = False
            for token in _TOKEN.finditer(self._data, at):
                byte = self._data[token.start()]
                if byte == _QUOTE and not token[1]:
                    at, is_cut = token.start(), True
                    break
                if byte in b"[{":
                    open_brackets.append(byte)
                elif byte != _QUOTE and (not open_brackets or open_brackets.pop() != _CLOSES[byte]):
                    raise Malformed(f"{chr(byte)!r} closes nothing")
                if not open_brackets:
                    text, self._at = self._data[self._at : token.end()], token.end()
                    return text if is_wanted and len(text) <= LONGEST_LINE else None
            if not is_cut:
                at = len(self._data)
            if not is_wanted or len(self._data) - self._at > LONGEST_LINE:  # what was looked at is not held
                is_wanted = False
                if is_cut and (string := _TOKEN.match(self._data, at)):
                    self._data, at = b'"' + self._data[string.end() :], 0
                self._at = at
            at -= self._at
            if not self._read():
                raise Ended

    def _scalar(self) -> bytes:
        """The text of a number, true, false or null, or of what stands in its place."""
        while True:
            found = _SCALAR.match(self._data, self._at)
            if found is None:
                raise self._unexpected("a value")
            if found.end() < len(self._data) or len(found[0]) > LONGEST_LINE or not self._read():
                break
        self._at += len(found[0])
        return found[0]

    def _skip(self, wanted: bytes) -> None:
        if self.peek() != wanted:
            raise self._unexpected(wanted.decode())
        self._at += 1

    def _unexpected(self, wanted: str) -> Malformed:
        found = self.peek()
        return Malformed(f"{found.decode(errors='replace')!r} in place of {wanted}") if found else Ended()

    def _read(self) -> bool:
        """Whether there was another piece; what lies before the place is dropped."""
        piece = next(self._pieces, None)
        if piece is None:
            return False
        self._data, self._at = self._data[self._at :] + piece, 0
        return True
