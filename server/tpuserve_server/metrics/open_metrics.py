"""Pages in Prometheus' text format 0.0.4 as parts of an OpenMetrics page.

The page is upstream's, which has only TYPE lines and samples. OpenMetrics requires that counters end in `_total`, so
others become `unknown`, which keeps their names. Prometheus treats both alike.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
END: Final = "# EOF\n"
_TYPE: Final = re.compile(r"# TYPE (\S+) (\S+)")
_BOUND: Final = re.compile(r'\ble="(\d+(?:\.\d+)?(?:e[+-]?\d+)?)"')


def as_open_metrics(page: str) -> str:
    """Return a page of Prometheus' text format without HELP lines as OpenMetrics, without the end mark."""
    # Label values may contain other line separators, so `splitlines` would not do.
    return "".join(f"{line}\n" for line in _lines(page.removesuffix("\n").split("\n")) if line)


def _lines(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        found = _TYPE.fullmatch(line)
        if found is None:
            # OpenMetrics writes whole bounds with a fraction.
            yield _BOUND.sub(lambda bound: f'le="{float(bound[1])!r}"', line)
        elif found[2] != "counter":
            yield line
        elif found[1].endswith("_total"):
            yield f"# TYPE {found[1].removesuffix('_total')} counter"
        else:
            yield f"# TYPE {found[1]} unknown"
