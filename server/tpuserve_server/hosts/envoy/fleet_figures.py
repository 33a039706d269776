"""Figures of several Envoys of one server, as one page with the same names.

Counters of an Envoy that has ended stay in the sums, so that a sum never falls.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from tpuserve_server.hosts.envoy.figures import FIGURES

_COMBINED: Final[Mapping[str, Callable[[Iterable[float]], float]]] = {"sum": sum, "max": max, "min": min}
_TYPE: Final = "# TYPE "
_COMBINATIONS: Final = {figure.name: figure.combined for figure in FIGURES}

# The values of each series of each family, by the line of its TYPE.
_Families: TypeAlias = dict[str, dict[str, list[float]]]


class FigureError(Exception):
    """An Envoy of the server did not report its figures."""


class FleetFigures:
    """The last page of each Envoy, see EnvoyFigures. Thread-safe: `_lock` guards every field."""

    def __init__(self) -> None:
        """Start without pages."""
        self._lock = threading.Lock()
        self._pages: dict[int, str] = {}
        self._failures: dict[int, str] = {}
        self._ended = ""

    def put(self, source: int, page: str) -> None:
        """Replace the page of one Envoy. `source` identifies it, and is never used for another one."""
        with self._lock:
            self._pages[source] = page
            self._failures.pop(source, None)

    def fail(self, source: int, why: str) -> None:
        """Record that an Envoy did not report its figures."""
        with self._lock:
            self._failures[source] = why

    def end(self, source: int) -> None:
        """Keep only the counters of an Envoy that has ended."""
        with self._lock:
            self._failures.pop(source, None)
            self._ended = sum_pages((self._ended, _counters(self._pages.pop(source, ""))))

    def page(self) -> str:
        """Return the sums of all pages. Raises FigureError if an Envoy last reported a failure instead of its page."""
        with self._lock:
            for why in self._failures.values():
                raise FigureError(why)
            pages = (self._ended, *self._pages.values())
        return sum_pages(pages)


def sum_pages(pages: Sequence[str]) -> str:
    """Return one page with the series of all pages, in Prometheus' text format with TYPE lines and samples only.

    Series with the same labels become one. Its value is the sum, except for the figures that declare otherwise.
    """
    families: _Families = {}
    for page in pages:
        for line in _lines(page):
            if line.startswith(_TYPE):
                family = families.setdefault(line, {})
            else:
                series, _, value = line.rpartition(" ")
                family.setdefault(series, []).append(_number(value))
    return "".join(f"{line}\n" for line in _combined(families))


def _combined(families: _Families) -> Iterator[str]:
    for head, family in families.items():
        name = head.split(" ")[2]
        combine = _COMBINED[_COMBINATIONS.get(name, "sum")]
        yield head
        for series, values in family.items():
            yield f"{series} {combine(values)}"


def _counters(page: str) -> str:
    lines, is_counter = [], False
    for line in _lines(page):
        if line.startswith(_TYPE):
            is_counter = not line.endswith(" gauge")
        if is_counter:
            lines.append(line)
    return "".join(f"{line}\n" for line in lines)


def _lines(page: str) -> Iterator[str]:
    # Label values may contain other line separators, so `splitlines` would not do.
    return (line for line in page.split("\n") if line)


def _number(value: str) -> float:
    try:
        return int(value)
    except ValueError:
        return float(value)
