"""The command `tpuserve loadtest mlperf` and its options. An entry point registers it, so the core does not know it."""

from dataclasses import dataclass
from typing import Final

import click

from tpuserve_formats.price import Price
from tpuserve_loadtests.cli import options
from tpuserve_loadtests.cli.command import argument, command, group, option

QUICK_S = 10.0
FULL_S: Final = 600.0
OFFLINE_USERS: Final = 32


_MLPERF = """\b
Examples:
  tpuserve loadtest mlperf digits --scenario single-stream
  tpuserve loadtest mlperf digits --scenario multi-stream --quick
  tpuserve loadtest mlperf digits --scenario server --latency 15ms
  tpuserve loadtest mlperf digits --scenario server --latency 15ms --target-qps 800
  tpuserve loadtest mlperf digits --scenario offline --rows 64 --users 16 --html offline.html --junit offline.xml

Exit codes: 0 VALID (with --quick, except for the duration), 1 all requests failed, 2 usage error,
3 server unreachable, 98 the load generator was the limit, 99 INVALID, 130 interrupted.
"""


@dataclass(frozen=True, slots=True)
class MlperfOptions:
    model: str = argument()
    scenario: str = option(
        "--scenario",
        type=click.Choice(["single-stream", "multi-stream", "server", "offline"]),
        required=True,
        help="Single queries in sequence, queries of 8 samples, Poisson arrivals, or all samples at once.",
    )
    latency: float | None = option(
        "--latency",
        type=options.DURATION,
        help="Latency limit for 99 % of queries, from the benchmark's rules (server).",
    )
    target_qps: float | None = option(
        "--target-qps", type=click.FloatRange(0, min_open=True), help="Rate in queries/s, instead of a search (server)."
    )
    users: int | None = option(
        "--users", type=click.IntRange(1), help=f"Requests in flight (offline).  [default: {OFFLINE_USERS}]"
    )
    quick: bool = option(
        "--quick", is_flag=True, help=f"Run {QUICK_S:g} s instead of {FULL_S:g} s, too short for the rules."
    )
    duration: float | None = option(
        "--duration", type=options.DURATION, help=f"Measured time.  [default: {FULL_S:g} s, the minimum of the rules]"
    )
    warm_up: float = option(
        "--warm-up", type=options.DURATION_OR_ZERO, default="1s", help="Warm-up time, not measured."
    )
    server: options.MeasuredServerOptions = group(options.MeasuredServerOptions)
    version: options.VersionOptions = group(options.VersionOptions)
    requests: options.RequestOptions = group(options.RequestOptions)
    generator: options.GeneratorOptions = group(options.GeneratorOptions)
    metrics: str = options.metrics_option()
    price: Price | None = options.price_option()
    as_json: bool = options.json_option("instead of the summary")
    files: options.PageOptions = group(options.PageOptions)

    @property
    def is_searched(self) -> bool:
        return self.scenario == "server" and self.target_qps is None

    @property
    def protocol(self) -> str:
        """The protocol to measure: gRPC unless the options choose REST."""
        if self.server.protocol is not None:
            return self.server.protocol
        return "rest" if self.server.rest_url and not self.server.grpc_address else "grpc"


mlperf = command(
    ".mlperf.command:mlperf",
    MlperfOptions,
    epilog=_MLPERF,
    short_help="Run a scenario of MLPerf Inference, without a submission.",
    help="""Run a scenario of MLPerf Inference against MODEL and report whether the run is VALID by its rules.

    The metric is LoadGen's: the early-stopping estimate of a percentile (single-stream p90, multi-stream p99), the
    highest rate within --latency (server), or samples per second (offline). The result is neither a submission nor
    verified. The load uses gRPC unless --rest or --protocol selects REST.
    """,
)
