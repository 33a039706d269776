"""CPU of a request that is refused by its deadline before its body is read, next to that of an answered request."""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.load_tools import GRPC_HEADERS, JSON_HEADERS, Load, run_h2load, run_wrk
from benchmarks.harness.measurement import Bodies, WrongAnswer, samples
from benchmarks.harness.targets import GRPC_PATH, REST_PATH, Protocol, Target, http_get

# Deadlines in milliseconds: ample for a queue of IN_FLIGHT requests, and shorter than a batch.
AMPLE_MS, HOPELESS_MS = 10_000, 10
IN_FLIGHT = 64
_SECONDS = 3
# An idle device runs one request of those that would be late.
_LEAST_REFUSED = 0.95


@dataclass(frozen=True, slots=True)
class RefusalCost:
    """Microseconds of the server's CPU in each round, for an answered request and for a refused one."""

    protocol: Protocol
    request_us: tuple[float, ...]
    refusal_us: tuple[float, ...]

    @property
    def share(self) -> float:
        """Median over the rounds of the CPU of a refusal, relative to that of a request."""
        pairs = zip(self.refusal_us, self.request_us, strict=True)
        return statistics.median(refusal_us / request_us for refusal_us, request_us in pairs)

    def __str__(self) -> str:
        request_us, refusal_us = statistics.median(self.request_us), statistics.median(self.refusal_us)
        return (
            f"{self.protocol}: a refusal costs {refusal_us:.0f} us of CPU, {self.share:.2f} of a request "
            f"({request_us:.0f} us)"
        )


def turn(server: Mapping[Protocol, Target], protocol: Protocol, bodies: Bodies, scratch: Path) -> tuple[float, float]:
    """Return the microseconds of CPU of an answered request and of a refused one. Raises ToolFailed, WrongAnswer."""
    answered_us, _ = _load(server[protocol], AMPLE_MS, bodies, scratch)
    before = _refused(server)
    refused_us, load = _load(server[protocol], HOPELESS_MS, bodies, scratch)
    refused = _refused(server) - before
    if refused < _LEAST_REFUSED * load.requests:
        raise WrongAnswer(f"{protocol}: the server refused {refused:.0f} of {load.requests} requests before their body")
    return answered_us, refused_us


def _load(target: Target, timeout_ms: int, bodies: Bodies, scratch: Path) -> tuple[float, Load]:
    is_grpc = target.protocol == "grpc"
    run: Callable[..., Load] = run_h2load if is_grpc else run_wrk
    path, body = (GRPC_PATH, bodies.grpc) if is_grpc else (REST_PATH, bodies.rest)
    timeout = {"grpc-timeout": f"{timeout_ms}m"} if is_grpc else {"x-tpuserve-timeout-ms": str(timeout_ms)}
    headers = {**(GRPC_HEADERS if is_grpc else JSON_HEADERS), **timeout}
    before_s = target.tree.cpu_seconds()
    load = run(target.port, path, body, in_flight=IN_FLIGHT, duration_s=_SECONDS, scratch=scratch, headers=headers)
    return 1e6 * (target.tree.cpu_seconds() - before_s) / load.requests, load


def _refused(server: Mapping[Protocol, Target]) -> float:
    page = http_get(server["rest"].port, "/metrics").decode()
    return sum(value for _, value in samples(page, "tpuserve_refused_requests_total"))
