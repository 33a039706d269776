"""Positions in a text proto, for changes to single values that keep all other text and comments.

The reader accepts only text that protobuf has already parsed, and does not interpret it.
"""

import re
from dataclasses import dataclass
from typing import Final

from google.protobuf.text_encoding import CUnescape

_SKIPPED: Final = re.compile(r"(?:\s|#[^\n]*)*")
_TOKEN: Final = re.compile(
    r""""(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|[{}<>\[\]:,;]|[^\s{}<>\[\]:,;"'#]+""",
)
_CLOSING: Final = {"{": "}", "<": ">"}


@dataclass(frozen=True, slots=True)
class Field:
    """A field from `start` to `end` of the text, with its value from `value_start`.

    The value is `scalar` or the `fields` of a message. A field with `in_list` is an element of a list in brackets, and
    cannot be removed alone.
    """

    name: str
    start: int
    value_start: int
    end: int
    scalar: str = ""
    fields: tuple["Field", ...] = ()
    in_list: bool = False

    def find(self, name: str) -> "list[Field]":
        """Return the subfields with a name."""
        return [field for field in self.fields if field.name == name]


def read_fields(text: str) -> tuple[Field, ...]:
    """Return the fields of a message. Raises ValueError for text that protobuf would reject."""
    reader = _Reader(text)
    fields = reader.fields("")
    return tuple(fields)


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def fields(self, closing: str) -> list[Field]:
        found: list[Field] = []
        while (token := self._peek()) != closing:
            if not token:
                raise ValueError(f"expected {closing!r}, reached the end of the text")
            if token in (",", ";"):
                self._take()
                continue
            found += self._field()
        return found

    def _field(self) -> list[Field]:
        name, start, _ = self._take()
        if name == "[":  # an extension or an Any
            name = "["
            while name[-1] != "]":
                name += self._take()[0]
        if self._peek() == ":":
            self._take()
        if self._peek() != "[":
            return [self._value(name, start, in_list=False)]
        self._take()
        values: list[Field] = []
        while self._peek() != "]":
            if self._peek() == ",":
                self._take()
                continue
            values.append(self._value(name, start, in_list=True))
        self._take()
        return values

    def _value(self, name: str, start: int, *, in_list: bool) -> Field:
        token, value_start, end = self._take()
        if token in _CLOSING:
            fields = tuple(self.fields(_CLOSING[token]))
            _, _, end = self._take()
            return Field(name, start, value_start, end, fields=fields, in_list=in_list)
        scalar = _unquoted(token)
        while token[0] in "\"'" and self._peek()[:1] in ('"', "'"):  # adjacent strings are concatenated
            more, _, end = self._take()
            scalar += _unquoted(more)
        return Field(name, start, value_start, end, scalar=scalar, in_list=in_list)

    def _peek(self) -> str:
        skipped = _SKIPPED.match(self._text, self._at)
        assert skipped is not None  # the pattern also matches an empty string
        token = _TOKEN.match(self._text, skipped.end())
        if token is None and skipped.end() < len(self._text):
            raise ValueError(f"not a text proto: {self._text[skipped.end() : skipped.end() + 20]!r}")
        return token.group() if token else ""

    def _take(self) -> tuple[str, int, int]:
        token = self._peek()
        if not token:
            raise ValueError("unexpected end of the text")
        start = self._text.index(token, _end_of_skipped(self._text, self._at))
        self._at = start + len(token)
        return token, start, self._at


def _end_of_skipped(text: str, at: int) -> int:
    skipped = _SKIPPED.match(text, at)
    assert skipped is not None  # the pattern also matches an empty string
    return skipped.end()


def _unquoted(token: str) -> str:
    return CUnescape(token[1:-1]).decode() if token[0] in "\"'" else token
