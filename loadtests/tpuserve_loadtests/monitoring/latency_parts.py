"""Time breakdown: the parts of a request's mean latency at the client, from the server's metrics."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tpuserve_formats.counted import counted
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.monitoring.server_side import ServerSide
from tpuserve_loadtests.statistics.histogram import LatencyHistogram

LATE: Final = "sent late by the generator"
NETWORK: Final = "network, connections and client"
QUEUE: Final = "queue wait"
EXECUTION: Final = "execution, with stacking and padding"
ELSEWHERE: Final = "elsewhere in the server"

# Relative tolerance for differences in request counts. Replicas may share an address, and other clients may send
# requests.
_TOLERANCE = 0.05
# Absolute tolerance per run, for instance for warm-up requests that the server answers after the warm-up.
_IN_FLIGHT = 100


@dataclass(frozen=True, slots=True)
class Part:
    """Milliseconds of a request's mean latency, and their share of it."""

    name: str
    mean_ms: float
    share: float


def latency_parts(runs: Sequence[Measured], server: ServerSide) -> tuple[Part, ...]:
    """Return the parts of the client's mean latency in chronological order, or none if they are unknown.

    The server's parts are means over the same periods. The function never compares the two clocks.
    """
    mean_us = _merged([measured.total.histogram for measured in runs]).mean_us()
    request = server.phase("request")
    if mean_us is None or request is None:
        return ()
    client_ms = mean_us / 1000
    late_us = _merged([measured.recorder.lag for measured in runs]).mean_us()
    late_ms = min(late_us / 1000, client_ms) if late_us is not None else 0.0
    queue = server.phase("queue wait")
    queue_ms = queue.mean_ms if queue is not None else 0.0
    execution_ms = server.execution_ms or 0.0
    named = [
        (LATE, late_ms),
        (NETWORK, client_ms - late_ms - request.mean_ms),
        (QUEUE, queue_ms),
        (EXECUTION, execution_ms),
        (ELSEWHERE, request.mean_ms - queue_ms - execution_ms),
    ]
    # Means over slightly different requests can differ a little, so omit parts that would be negative.
    return tuple(Part(name, ms, ms / client_ms) for name, ms in named if ms > 0)


def counts_differ(runs: Sequence[Measured], server: ServerSide) -> str:
    """Return a note if the server's request count differs from the client's, or an empty string."""
    sent, responses = sum(measured.total.requests for measured in runs), sum(server.answers.values())
    # A failed request may or may not have reached the server.
    least = sent - sum(measured.total.failures for measured in runs)
    tolerance = _TOLERANCE * sent + _IN_FLIGHT * len(runs)
    if responses > sent + tolerance:
        return (
            f"the server answered {counted(responses, 'request')}, but this run sent {sent:,}: other clients use the "
            "server, too"
        )
    if responses < least - tolerance:
        return (
            f"the server answered {responses:,} of {counted(least, 'request')}: the address may have several servers, "
            "and the metrics are from one of them"
        )
    return ""


def _merged(histograms: Sequence[LatencyHistogram]) -> LatencyHistogram:
    merged = LatencyHistogram()
    for histogram in histograms:
        merged.add(histogram)
    return merged
