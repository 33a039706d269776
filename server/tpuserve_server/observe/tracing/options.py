"""TracingOptions: the flags of tracing. Cheap to import, because the command line is generated from it."""

import os
from dataclasses import dataclass, fields
from typing import Annotated, get_args

from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.setting import MAX_WAIT_S, Setting
from tpuserve_server.observe.tracing.target import find_target


@dataclass(frozen=True, slots=True)
class TracingOptions:
    """Receiver of the spans, and the choice of requests. Without an endpoint, the server traces no requests.

    Raises:
        InvalidArgument: the endpoint or a variable of OpenTelemetry cannot be used, or options conflict.
    """

    endpoint: Annotated[
        str | None,
        Setting(
            "Operations",
            "Base URL of an OTLP receiver for traces of requests, such as http://collector:4318.",
            name="trace_endpoint",
            shown_default="none",
        ),
    ] = None
    sample_ratio: Annotated[
        float,
        Setting(
            "Operations",
            "Share of the requests to trace. A trace context of the client decides instead.",
            name="trace_sample_ratio",
            at_least=0,
            at_most=1,
        ),
    ] = 0.01
    slow_ms: Annotated[
        float,
        Setting(
            "Operations",
            "Latency in milliseconds from which a request is always traced; 0: never.",
            name="trace_slow_ms",
            at_least=0,
            at_most=MAX_WAIT_S,
        ),
    ] = 1000.0
    max_per_s: Annotated[
        float,
        Setting(
            "Operations",
            "Maximum rate of traced requests, after a burst of one second. The server counts the others.",
            name="trace_max_per_second",
            at_least=1,
            at_most=1e6,
        ),
    ] = 200.0

    def __post_init__(self) -> None:
        if self.endpoint is not None:
            find_target(self.endpoint, os.environ)
            return
        for field in fields(self):
            if getattr(self, field.name) != field.default:
                name = get_args(field.type)[1].name
                raise InvalidArgument(
                    f"{name} is set without trace_endpoint, so the server would trace no requests: add "
                    "--trace_endpoint with the base URL of an OTLP receiver"
                )
