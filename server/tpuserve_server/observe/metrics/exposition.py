"""Text of metric families in Prometheus' text format 0.0.4, OpenMetrics 1.0.0, and TensorFlow Serving's form of both.

prometheus_client gives the same samples in ten times the time, because it makes several objects for each line.
"""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.utils import floatToGoString

from tpuserve_server.observe.metrics.families import Buckets, Collected, Family, shown_buckets
from tpuserve_server.observe.metrics.histogram import Histogram, TracedRequest

# Label values that occur on most lines: names of models, signatures, methods and codes.
_REMEMBERED: Final = 4096
_NO_EXEMPLARS: Final[Mapping[int, str]] = MappingProxyType({})
_PART_CHARACTERS: Final = 32 << 10


@dataclass(frozen=True, slots=True)
class TextFormat:
    """A text format. `end` is the last line of a page."""

    content_type: str
    is_open: bool
    end: str


PLAIN: Final = TextFormat(CONTENT_TYPE_PLAIN_0_0_4, is_open=False, end="")
OPEN_METRICS: Final = TextFormat(
    "application/openmetrics-text; version=1.0.0; charset=utf-8", is_open=True, end="# EOF\n"
)


def write_family(collected: Collected, form: TextFormat) -> Iterator[str]:
    """Yield the head of a family, then the lines of each series."""
    family, name = collected.family, collected.family.name
    yield _head(family, form)
    for values, value in collected.values:
        yield f"{name}{_braced(_own_labels(family.labels, values))} {_number(value)}\n"
    for values, histogram, exemplars in collected.histograms:
        yield _own_histogram(family, values, histogram, exemplars if form.is_open else {})


def _head(family: Family, form: TextFormat) -> str:
    name = family.name.removesuffix("_total") if form.is_open and family.kind == "counter" else family.name
    text = _escaped(family.text) if form.is_open else family.text.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {name} {text}\n# TYPE {name} {family.kind}\n"


def _own_histogram(
    family: Family, values: Sequence[str], histogram: Histogram, exemplars: Mapping[int, TracedRequest]
) -> str:
    buckets = family.buckets(histogram)
    total = None if buckets.total is None else _number(buckets.total)
    marks = {position - buckets.first: _exemplar(traced) for position, traced in exemplars.items()}
    return _histogram_lines(family.name, _own_labels(family.labels, values), buckets, total, marks)


def _histogram_lines(
    name: str, labels: str, buckets: Buckets, total: str | None, exemplars: Mapping[int, str] = _NO_EXEMPLARS
) -> str:
    """Return the lines of a histogram. `exemplars` are texts after the line of a bucket, by its position."""
    if not buckets.counts:
        return ""
    head = f'{name}_bucket{{{labels},le="' if labels else f'{name}_bucket{{le="'
    lines = [f'{head}{limit}"}} {count}' for limit, count in zip(buckets.limits, buckets.counts, strict=True)]
    for position, text in exemplars.items():
        lines[position] += text
    if total is not None:
        lines += [f"{name}_sum{{{labels}}} {total}", f"{name}_count{{{labels}}} {buckets.counts[-1]}"]
    return "\n".join(lines) + "\n"


def _own_labels(names: tuple[str, ...], values: Sequence[str]) -> str:
    """Return the labels, sorted by name."""
    template, order = _template(names)
    return template % tuple([_escaped(values[place]) for place in order])


@functools.cache
def _template(names: tuple[str, ...]) -> tuple[str, tuple[int, ...]]:
    order = tuple(sorted(range(len(names)), key=names.__getitem__))
    return ",".join(f'{names[place]}="%s"' for place in order), order


def _braced(labels: str) -> str:
    return f"{{{labels}}}" if labels else ""


def _exemplar(traced: TracedRequest) -> str:
    return f' # {{trace_id="{_escaped(traced.trace_id)}"}} {_number(traced.latency_s)} {round(traced.ended_s, 3)}'


def _number(value: float) -> str:
    text: str = floatToGoString(value)  # type: ignore[no-untyped-call]  # untyped library
    return text


@functools.lru_cache(maxsize=_REMEMBERED)
def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


# TensorFlow Serving's form (tensorflow_serving/util/prometheus_exporter.cc): names start with a colon for their first
# slash, a family has only a TYPE line, counters lack `_total`, and bounds have six digits. Upstream does not escape
# line feeds, which breaks the page.


@dataclass(frozen=True, slots=True)
class UpstreamLines:
    """Writes the series of one of upstream's metrics."""

    name: str
    form: TextFormat

    def counter(self, labels: Iterable[tuple[str, str]], value: int) -> str:
        """Return the line of a counter or a gauge."""
        return f"{self.name}{{{_upstream_labels(labels)}}} {value}\n"

    def histogram(
        self,
        labels: Iterable[tuple[str, str]],
        bounds: tuple[float, ...],
        counts: Sequence[int],
        total: float,
        omit_below: float = -math.inf,
    ) -> str:
        """Return the lines of a histogram. `counts` are cumulative. Sums have more digits than upstream's six.

        Buckets without a value are omitted if their bound is below `omit_below`.
        """
        limits = _upstream_limits(bounds, self.form.is_open)
        buckets = shown_buckets(bounds, limits, counts, total, omit_below)
        return _histogram_lines(self.name, _upstream_labels(labels), buckets, f"{total:.15g}")


def upstream_head(name: str, kind: str, form: TextFormat) -> str:
    """Return the TYPE line. OpenMetrics requires that counters end in `_total`, so others become `unknown`."""
    if form.is_open and kind == "counter":
        return f"# TYPE {name.removesuffix('_total')} {'counter' if name.endswith('_total') else 'unknown'}\n"
    return f"# TYPE {name} {kind}\n"


def _upstream_labels(labels: Iterable[tuple[str, str]]) -> str:
    return ",".join([f'{name}="{_escaped(value)}"' for name, value in labels])


@functools.cache
def _upstream_limits(bounds: tuple[float, ...], is_open: bool) -> tuple[str, ...]:
    # OpenMetrics writes whole bounds with a fraction.
    return (*(repr(float(f"{bound:g}")) if is_open else f"{bound:g}" for bound in bounds), "+Inf")


def parts_of(lines: Iterable[str], pause: Callable[[], None]) -> Iterator[bytes]:
    """Yield the lines in parts of about 32 KiB, encoded. Call `pause` after the lines of each series."""
    pending: list[str] = []
    size = 0
    for line in lines:
        pause()
        pending.append(line)
        size += len(line)
        if size >= _PART_CHARACTERS:
            yield "".join(pending).encode()
            pending, size = [], 0
    if pending:
        yield "".join(pending).encode()
