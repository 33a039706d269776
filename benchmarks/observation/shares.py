"""Rows of the observation benchmark for the shares that front-end processes send to the engine each second."""

import pickle
import time
from typing import Final

from tpuserve_server.core.errors import Code
from tpuserve_server.core.types import ServableId, State
from tpuserve_server.metrics.prometheus import PrometheusMetrics
from tpuserve_server.telemetry.slow_requests import SlowRequests

SERIES: Final = 20
_ID: Final = ServableId("m", 7)
# Requests of each series that has new ones.
_REQUESTS: Final = 50
_SHARES: Final = 200


def sent_cpu_us(changed: int) -> float:
    """Return the CPU of a front-end for a share in microseconds, where `changed` of the SERIES have new requests."""
    metrics, slow = _metrics(), SlowRequests()
    spent_s = 0.0
    for _ in range(_SHARES):
        _measure(metrics, changed)
        before_s = time.process_time()
        pickle.dumps((metrics.take(), slow.take_new()), pickle.HIGHEST_PROTOCOL)
        spent_s += time.process_time() - before_s
    return 1e6 * spent_s / _SHARES


def added_cpu_us(changed: int) -> float:
    """Return the CPU of the engine for such a share, in microseconds."""
    metrics, engine = _metrics(), _metrics()
    _measure(metrics, changed)
    message = pickle.dumps((metrics.take(), []), pickle.HIGHEST_PROTOCOL)
    before_s = time.process_time()
    for _ in range(_SHARES):
        share, _slow = pickle.loads(message)
        engine.add(share, 1)
    return 1e6 * (time.process_time() - before_s) / _SHARES


def _metrics() -> PrometheusMetrics:
    """Return metrics with SERIES series, whose requests have been taken."""
    metrics = PrometheusMetrics()
    metrics.version_changed(servable=_ID, state=State.AVAILABLE)
    for protocol in ("grpc", "rest"):
        metrics.protocol_served(protocol=protocol, in_flight=lambda: 0)
    _measure(metrics, SERIES)
    metrics.take()
    return metrics


def _measure(metrics: PrometheusMetrics, changed: int) -> None:
    for number in range(changed):
        for _ in range(_REQUESTS):
            metrics.request_finished(
                model=_ID.name,
                version=_ID.version,
                signature=f"s{number}",
                method="Predict",
                protocol="grpc",
                code=Code.OK,
                latency_s=0.002,
            )
    metrics.stages_sampled(protocol="grpc", model=_ID.name, stages=(("decode", 1e-5), ("queue", 1e-4)), requests=127)
