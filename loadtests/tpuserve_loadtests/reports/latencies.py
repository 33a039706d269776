"""Table cells for latencies."""

from tpuserve_loadtests.measurement.tally import Summary
from tpuserve_loadtests.rendering.units import three_digits

LATENCIES = ("p50 ms", "p90 ms", "p95 ms", "p99 ms", "p99.9 ms", "max ms")
# Narrow terminals omit these.
SPARE_LATENCIES = ("p90 ms", "p95 ms")


def latency_cells(line: Summary) -> list[str]:
    """Format cells for LATENCIES with three significant digits."""
    return ["-" if value is None else three_digits(value) for value in _latencies(line)]


def exact_cells(line: Summary) -> list[str]:
    """Format cells for LATENCIES on a terminal, with two decimals."""
    return ["-" if value is None else f"{value:.2f}" for value in _latencies(line)]


def _latencies(line: Summary) -> tuple[float | None, ...]:
    return line.p50_ms, line.p90_ms, line.p95_ms, line.p99_ms, line.p99_9_ms, line.max_ms
