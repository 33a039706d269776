"""SPDX licence expressions (SPDX 2.3, annex D): whether a set of licences permits one."""

import re
from collections.abc import Collection, Iterator
from typing import Final

_TOKEN: Final = re.compile(r"\s*(\(|\)|[A-Za-z0-9.+:-]+)")


class ExpressionError(ValueError):
    """The text is not an expression of identifiers, AND, OR, WITH and parentheses."""


def is_permitted(expression: str, licences: Collection[str]) -> bool:
    """Return whether `licences` permit an expression: all parts of AND, one part of OR. WITH binds to its licence.

    Raises:
        ExpressionError: the text is not an expression.
    """
    parser = _Parser(expression, licences)
    permitted = parser.alternatives()
    parser.end()
    return permitted


class _Parser:
    def __init__(self, expression: str, licences: Collection[str]) -> None:
        self._licences = licences
        self._expression = expression
        self._tokens = [*_split(expression), ""]

    def alternatives(self) -> bool:
        permitted = self._parts()
        while self._took("OR"):
            permitted |= self._parts()
        return permitted

    def end(self) -> None:
        if self._tokens[0]:
            raise self._error()

    def _parts(self) -> bool:
        permitted = self._part()
        while self._took("AND"):
            permitted &= self._part()
        return permitted

    def _part(self) -> bool:
        if self._took("("):
            permitted = self.alternatives()
            if not self._took(")"):
                raise self._error()
            return permitted
        name = self._tokens.pop(0)
        if name in ("", ")", "AND", "OR", "WITH"):
            raise self._error()
        if self._took("WITH"):
            name = f"{name} WITH {self._tokens.pop(0)}"
        return name in self._licences

    def _took(self, token: str) -> bool:
        if self._tokens[0] != token:
            return False
        del self._tokens[0]
        return True

    def _error(self) -> ExpressionError:
        return ExpressionError(f"{self._expression!r} is not a licence expression")


def _split(expression: str) -> Iterator[str]:
    position = 0
    while position < len(expression.rstrip()):
        found = _TOKEN.match(expression, position)
        if found is None:
            raise ExpressionError(f"{expression!r} is not a licence expression")
        yield found[1]
        position = found.end()
