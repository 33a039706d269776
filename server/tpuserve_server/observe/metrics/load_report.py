"""LoadReports: the load of this server, in the encodings of ORCA, for clients and proxies that balance by it.

ORCA (Open Request Cost Aggregation) puts an OrcaLoadReport into a response: the message of
xds/data/orca/v3/orca_load_report.proto, read by gRPC (gRFC A51, A58) and by Envoy (source/common/orca/orca_parser.cc).
"""

import base64
import json
import os
import struct
from collections import deque
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

from tpuserve_server.core.system.memory import HostMemory
from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.observe.metrics.demand_measurements import WINDOW_S
from tpuserve_server.observe.metrics.live_measurements import cpu_s, resident_bytes
from tpuserve_server.observe.metrics.measurements import Measurements

# The forms of a header: names and values, JSON, and the message as base64.
LoadFormat: TypeAlias = Literal["text", "json", "bin"]
LOAD_FORMATS: Final[tuple[LoadFormat, ...]] = ("text", "json", "bin")

# A report is made at most this often. Clients change weights about once a second. Its rates cover the time of the
# demand, because clients divide the rate of requests by the utilization.
_INTERVAL_S: Final = 0.25
_DOUBLE: Final = struct.Struct("<d")
# Tags of the fields with wire type I64, and of the map with wire type LEN (protobuf.dev, encoding).
_TAGS: Final = {"cpu_utilization": 1, "mem_utilization": 2, "rps_fractional": 6, "eps": 7, "application_utilization": 9}
_NAMED_TAG: Final = 8 << 3 | 2
_NAMED: Final = "named_metrics"


class LoadFigures(NamedTuple):
    """The load of the server. Utilizations are shares, and may exceed 1. Rates are per second.

    `application_utilization` is `tpuserve_demand_ratio`: the work that arrived over what the server can do.

    `mem_utilization` is None if the system does not report it. `named_metrics` are counts at this moment.
    """

    application_utilization: float
    cpu_utilization: float
    mem_utilization: float | None
    rps_fractional: float
    eps: float
    named_metrics: Mapping[str, float]

    def fields(self) -> dict[str, float]:
        """Return the fields with a value, without the map."""
        return {name: value for name in _TAGS if (value := getattr(self, name)) is not None}


class _Moment(NamedTuple):
    at_s: float
    requests: int
    errors: float
    cpu_s: float


class LoadReports:
    """Makes reports from the measurements. The thread of the host's event loop owns it."""

    def __init__(
        self,
        measured: Measurements,
        clock: Clock,
        memory: HostMemory | None = None,
    ) -> None:
        """Read `measured`."""
        self._measured = measured
        self._clock = clock
        self._memory = memory or HostMemory()
        self._cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._moments = deque([self._measure()])
        self._encoded: dict[LoadFormat, str] = {}
        self._until_s = 0.0

    def header(self, form: LoadFormat) -> str:
        """Return the value of the header `endpoint-load-metrics`. Up to 0.25 s old."""
        encoded = self._current()
        value = encoded.get(form)
        if value is None:
            encoded.update(_encoded(self.figures()))
            value = encoded[form]
        return value

    def message(self) -> str:
        """Return the value of the trailer `endpoint-load-metrics-bin` as it is on the wire: the message as base64.

        gRPC sends no padding (grpc/grpc, doc/PROTOCOL-HTTP2.md).
        """
        return self.header("bin").partition(" ")[2].rstrip("=")

    def figures(self) -> LoadFigures:
        """Return the load now. The rates are those since the measurement about 30 s ago, or the latest before it."""
        now = self._measure()
        moments = self._moments
        moments.append(now)
        while len(moments) > 2 and now.at_s - moments[1].at_s >= WINDOW_S:
            moments.popleft()
        then = moments[0]
        duration_s = max(now.at_s - then.at_s, 1e-3)
        resident, free = resident_bytes(), self._memory.free_bytes()
        server = self._measured.server
        return LoadFigures(
            self._measured.demand.ratio(),
            max(now.cpu_s - then.cpu_s, 0.0) / duration_s / self._cores,
            None if resident is None or free is None else resident / (resident + free),
            (now.requests - then.requests) / duration_s,
            # The series of a version end with it, so the sum may fall.
            max(now.errors - then.errors, 0.0) / duration_s,
            {
                "queue_requests": float(sum(queue.requests for queue in server.queued().values())),
                "requests_in_flight": float(sum(server.in_flight().values())),
            },
        )

    def _current(self) -> dict[LoadFormat, str]:
        now_s = self._clock.monotonic_s()
        if now_s >= self._until_s:
            self._until_s = now_s + _INTERVAL_S
            self._encoded = {}
        return self._encoded

    def _measure(self) -> _Moment:
        server = self._measured.server
        errors = sum(count for key, count in self._measured.failed.all().items() if key[-1] == "server")
        requests = sum(server.requests().values())
        errors += server.refused().get("too_late", 0)
        return _Moment(self._clock.monotonic_s(), requests, errors, cpu_s())


def _encoded(figures: LoadFigures) -> dict[LoadFormat, str]:
    fields, named = figures.fields(), figures.named_metrics
    flat = {**fields, **{f"{_NAMED}.{name}": value for name, value in named.items()}}
    return {
        "text": "TEXT " + ", ".join(f"{name}={value:.6g}" for name, value in flat.items()),
        "json": "JSON " + json.dumps({**fields, _NAMED: dict(named)}),
        "bin": "BIN " + base64.b64encode(_message(fields, named)).decode(),
    }


def _message(fields: Mapping[str, float], named: Mapping[str, float]) -> bytes:
    """Return the OrcaLoadReport. It has few fields, so that a generated class would be more code to load."""
    parts = [bytes([_TAGS[name] << 3 | 1]) + _DOUBLE.pack(value) for name, value in fields.items()]
    for name, value in named.items():
        key = name.encode()
        entry = bytes([1 << 3 | 2, len(key)]) + key + bytes([2 << 3 | 1]) + _DOUBLE.pack(value)
        parts.append(bytes([_NAMED_TAG, len(entry)]) + entry)
    return b"".join(parts)
