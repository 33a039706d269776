"""Report of the protocol comparison: a table of calls, and the goals for the ratios between protocols."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.table import Table

from benchmarks.overhead.call_turns import CallPoint
from benchmarks.overhead.calls import IMAGE, OIP_BINARY, OIP_GRPC, OIP_JSON, PREDICT, REST, ROW


@dataclass(frozen=True, slots=True)
class RatioGoal:
    """A limit for the CPU of a call relative to the `base` call of the same size."""

    size: str
    name: str
    base: str
    limit: float
    is_minimum: bool = False


GOALS: Final = (
    RatioGoal(ROW, OIP_GRPC, PREDICT, 1.1),
    RatioGoal(IMAGE, OIP_GRPC, PREDICT, 1.1),
    RatioGoal(ROW, OIP_JSON, REST, 1.1),
    RatioGoal(IMAGE, OIP_JSON, REST, 1.1),
    RatioGoal(IMAGE, OIP_JSON, OIP_BINARY, 5.0, is_minimum=True),
)
# Base of the ratio in the table, by name of the call.
_BASES: Final = {OIP_GRPC: PREDICT, OIP_JSON: REST, OIP_BINARY: OIP_JSON}


def cpu_ratio(points: Iterable[CallPoint], size: str, name: str, base: str) -> float | None:
    """Return the median over the rounds of the ratio of CPU, or None if one of the calls was not measured."""
    found = {point.name: point for point in points if point.size == size}
    if name not in found or base not in found:
        return None
    pairs = zip(found[name].cpu_s_per_1000, found[base].cpu_s_per_1000, strict=True)
    return statistics.median(mine / other for mine, other in pairs)


def calls_table(points: Sequence[CallPoint]) -> Table:
    """Return a row for each call: medians over the rounds, and the ratio to the call that it replaces."""
    table = Table(
        title="The same prediction over TensorFlow Serving's protocols and the Open Inference Protocol (OIP)",
        title_justify="left",
        caption="Medians over the rounds, in which the calls take turns on one server. CPU as above. Ratio: CPU of "
        "OIP gRPC to Predict, of OIP JSON to REST, and of OIP binary to OIP JSON.",
        caption_justify="left",
    )
    for heading in ("size", "call"):
        table.add_column(heading)
    for heading in ("req/s", "p50 ms", "p99 ms", "CPU", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    for point in points:
        base = _BASES.get(point.name)
        ratio = cpu_ratio(points, point.size, point.name, base) if base else None
        table.add_row(
            point.size,
            point.name,
            f"{statistics.median(load.rate_per_s for load in point.loads):,.0f}",
            f"{statistics.median(load.p50_ms for load in point.loads):.2f}",
            f"{statistics.median(load.p99_ms for load in point.loads):.2f}",
            f"{statistics.median(point.cpu_s_per_1000):.3f}",
            "" if ratio is None else f"{ratio:.2f}",
        )
    return table
