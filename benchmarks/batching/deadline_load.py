"""One process of `tpuserve loadtest`'s open load, with a deadline for each request and retries of failed ones.

overload_live.py runs it: `python benchmarks/batching/deadline_load.py grpc|rest PORT RATE SECONDS TIMEOUT_S RETRIES`.
It prints a line of JSON at its end.
"""

import json
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

if TYPE_CHECKING:
    from tpuserve_client.exchange import Reply
    from tpuserve_loadtests.measurement.measured import Measured
    from tpuserve_loadtests.measurement.recorder import Delivery
    from tpuserve_loadtests.requests.protocols import Protocol
    from tpuserve_loadtests.requests.workload import Line
    from tpuserve_loadtests.traffic.senders import Sender

WARM_UP_S = 2.0
# The client library's policy (tpuserve_client/retry.py): full jitter, doubled after each attempt.
_FIRST_BACKOFF_S = 0.1


@dataclass(frozen=True, slots=True)
class Sent:
    """Results of a load. A request fails when its last attempt has failed.

    `limits` are the reasons why the load generator was the limit.
    """

    goodput_per_s: float
    requests: int
    refused: int
    late: int
    p50_ms: float
    p99_ms: float
    lag_p99_ms: float
    limits: list[str]


def joined(parts: Sequence[Sent]) -> Sent:
    """Return the results of processes that sent at the same time. Of latencies and lags, the longest counts."""
    return Sent(
        goodput_per_s=sum(part.goodput_per_s for part in parts),
        requests=sum(part.requests for part in parts),
        refused=sum(part.refused for part in parts),
        late=sum(part.late for part in parts),
        p50_ms=max(part.p50_ms for part in parts),
        p99_ms=max(part.p99_ms for part in parts),
        lag_p99_ms=max(part.lag_p99_ms for part in parts),
        limits=[limit for part in parts for limit in part.limits],
    )


@dataclass(slots=True)
class RetryingSender:
    """A sender that sends a failed request again, each attempt with a new deadline."""

    line: "Line"
    sender: "Sender"
    retries: int

    def send(self, number: int, delivery: "Delivery") -> "Reply":
        """Send a request until it succeeds or no retry is left. Raises the last error."""
        from gevent import sleep

        for attempt in range(self.retries):
            try:
                return self.sender.send(number, delivery)
            except Exception:  # Every error leads to a retry, whatever the transport raises.
                sleep(random.random() * _FIRST_BACKOFF_S * 2**attempt)
        return self.sender.send(number, delivery)


def main() -> None:
    """Run one load."""
    from tpuserve_loadtests.traffic.gevent_setup import give_process_to_gevent

    give_process_to_gevent()
    from tpuserve_loadtests.arrivals.load import Load, RateProfile
    from tpuserve_loadtests.requests.workload import Workload
    from tpuserve_loadtests.traffic.engine import Engine
    from tpuserve_loadtests.traffic.target import Target

    protocol: Protocol = "grpc" if sys.argv[1] == "grpc" else "rest"
    port, retries = int(sys.argv[2]), int(sys.argv[6])
    rate, seconds, timeout_s = map(float, sys.argv[3:6])
    address = f"{'grpc' if protocol == 'grpc' else 'http'}://127.0.0.1:{port}"
    load = Load(seconds, WARM_UP_S, profile=RateProfile.parse(str(rate), seconds))
    workload = Workload((_line(protocol, timeout_s),))
    with Engine(Target(workload, {protocol: address}, timeout_s)) as engine:
        engine._senders = tuple(RetryingSender(sender.line, sender, retries) for sender in engine._senders)
        measured = engine.run(load, lambda elapsed_s, counts: "")
    print("RESULT", json.dumps(asdict(summary(measured))))


def summary(measured: "Measured") -> Sent:
    """Return the results of a run."""
    from tpuserve_loadtests.judgement.run import judge_generator

    total, verdict = measured.total, judge_generator(measured)
    failures = measured.recorder.errors()
    refused = sum(each.count for each in failures if each.message.startswith(("RESOURCE_EXHAUSTED", "HTTP 429")))
    return Sent(
        goodput_per_s=measured.rate_per_s,
        requests=total.requests,
        refused=refused,
        late=total.failures - refused,
        p50_ms=total.percentile_ms(50) or 0.0,
        p99_ms=total.percentile_ms(99) or 0.0,
        lag_p99_ms=verdict.lag_p99_ms or 0.0,
        limits=list(verdict.limits),
    )


def _line(protocol: "Protocol", timeout_s: float) -> "Line":
    from benchmarks.harness import mlp_model
    from benchmarks.harness.measurement import predict_request
    from benchmarks.harness.targets import GRPC_PATH, MODEL_NAME, REST_PATH
    from tpuserve_client.exchange import Exchange
    from tpuserve_client.model import ModelSpec, Signature
    from tpuserve_loadtests.requests.workload import Line

    x = mlp_model.example()
    if protocol == "grpc":
        sent = Exchange(GRPC_PATH, predict_request(MODEL_NAME, {mlp_model.INPUT: x}))
    else:
        headers = {"x-tpuserve-timeout-ms": f"{1000 * timeout_s:g}"}
        sent = Exchange(REST_PATH, json.dumps({"instances": x.tolist()}).encode(), headers=headers)
    return Line(protocol, protocol, ModelSpec(MODEL_NAME), Signature("serving_default", {}, {}), (sent,), (1,))


if __name__ == "__main__":
    main()
