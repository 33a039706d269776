"""Where the time went: a request's mean latency as the client saw it, in the parts that the server tells."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.server_side.server_side import ServerSide
from tpuserve_loadtests.statistics.histogram import LatencyHistogram

LATE: Final = "sent late by the generator"
NETWORK: Final = "network, connections and client"
QUEUE: Final = "queue wait"
EXECUTION: Final = "execution, with stacking and padding"
ELSEWHERE: Final = "elsewhere in the server"

# Replicas behind one address answer a part each, and other clients may ask, too.
_TOLERANCE = 0.05
# Requests of the warm-up that were answered after it, for one.
_IN_FLIGHT = 100


@dataclass(frozen=True, slots=True)
class Part:
    """Milliseconds of a request's mean latency, and their share of it."""

    name: str
    mean_ms: float
    share: float


def latency_parts(runs: Sequence[Measured], server: ServerSide) -> tuple[Part, ...]:
    """Parts that add up to the client's mean latency, in the order in which they happen; none where nothing is known.

    What is the server's is its mean over the same stretches of time; the two clocks are never compared.
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
    # Means over requests that are not quite the same may differ by a hair: nothing takes less than no time.
    return tuple(Part(name, ms, ms / client_ms) for name, ms in named if ms > 0)


def counts_differ(runs: Sequence[Measured], server: ServerSide) -> str:
    """What it means if the server answered other requests than the client counted; empty if it did not."""
    sent, answered = sum(measured.total.requests for measured in runs), sum(server.answers.values())
    # One that failed may have reached the server or not.
    least = sent - sum(measured.total.failures for measured in runs)
    tolerance = _TOLERANCE * sent + _IN_FLIGHT * len(runs)
    if answered > sent + tolerance:
        return f"the server answered {answered:,} such requests, this run made {sent:,}: others ask it, too"
    if answered < least - tolerance:
        return (
            f"the server answered {answered:,} of {least:,} requests: there may be several behind the address, "
            "and its figures are of one of them"
        )
    return ""


def _merged(histograms: Sequence[LatencyHistogram]) -> LatencyHistogram:
    merged = LatencyHistogram()
    for histogram in histograms:
        merged.add(histogram)
    return merged
