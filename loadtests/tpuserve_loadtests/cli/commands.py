"""The commands of `tpuserve loadtest` and their options. Each imports the module that runs it only then."""

import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from tpuserve_formats.price import Price
from tpuserve_loadtests.arrivals.duration import ThinkTime
from tpuserve_loadtests.cli import options
from tpuserve_loadtests.cli.command import argument, command, group, option
from tpuserve_loadtests.judgement.exit_codes import EXIT_FAILED

RUN_USERS: Final = 32
SWEEP_USERS: Final = "1,2,4,8,16,32,64,128"
# The smallest number of runs that has an interval with a confidence of 95 % (statistics.median_interval).
_LEAST_RUNS: Final = 6
# Defaults of a search.
HIGHEST: Final = 1e6
PRECISION: Final = 0.02
SEGMENTS: Final = 48
LEAST_SEGMENTS: Final = 20
LEAST_SOAK_S = 10.0


@dataclass(frozen=True, slots=True)
class RepetitionOptions:
    settling_figure: str | None = option(
        "--repeat-until-settled",
        type=click.Choice(["p50", "p90", "p99", "rate"]),
        help="Repeat the run until the 95 % interval of this figure's median is narrow enough.",
    )
    settled_within: float = option(
        "--settled-within",
        type=click.FloatRange(0, 1, min_open=True),
        default=0.05,
        help="Largest distance of the interval from the median, with --repeat-until-settled; 0.05 is 5 %.",
    )
    most_runs: int = option(
        "--most-runs", type=click.IntRange(_LEAST_RUNS), default=20, help="Limit of the runs of --repeat-until-settled."
    )


_RUN = """\b
Examples:
  tpuserve loadtest run digits
  tpuserve loadtest run digits --protocol grpc --users 64 --duration 1m
  tpuserve loadtest run digits --rest http://localhost:8501 --input images.npz --rows 4 --json
  tpuserve loadtest run digits --rate 500 --fail-if 'p99>20ms' 'error_rate>0.1%' 'rate<490' --junit load.xml
  tpuserve loadtest run digits --users 8 --requests 10000          exactly 10,000 requests after the warm-up
  tpuserve loadtest run digits --users 50 --think-time 'exponential(2s)'   interactive users
  tpuserve loadtest run digits --rate 200 --repeat-until-settled p99   median and interval of several runs
  tpuserve loadtest run digits --rate 200 --html report.html       a page with charts
  tpuserve loadtest run digits --rate 200 --baseline results       fails if it is slower than the last run
  tpuserve loadtest run digits --price-per-hour 1.20               cost of a million predictions
  tpuserve loadtest run digits --rate 100..1000 --duration 2m      a ramp; 100,200,400 are steps
  tpuserve loadtest run digits --rows 1:0.7,8:0.3                  70 % of requests have one row
  tpuserve loadtest run digits --recorded requests-digits.jsonl    at recorded times; --speed 2 doubles the rate
  tpuserve loadtest run digits --golden record --fail-if 'wrong>0'   compare responses under load
  tpuserve loadtest run digits --grpc grpcs://models.example:443 --header 'authorization: Bearer ${TOKEN}'
  tpuserve loadtest run --scenario mixed.yaml                      several models with weights
  tpuserve loadtest run digits --trace arrivals.txt --speed 2      arrival times in seconds, one per line

Exit codes: 0 success, 1 requests failed, 2 usage error, 3 server unreachable, 97 not enough evidence,
98 the load generator was the limit, 99 a gate failed, 130 interrupted.
"""


@dataclass(frozen=True, slots=True)
class RunOptions(options.LoadOptions):
    users: int | None = option(
        "--users", type=click.IntRange(1), help=f"Closed load: requests in flight.  [default: {RUN_USERS}]"
    )
    rate: str | None = option(
        "--rate",
        metavar="RATE",
        help="Open load: rate in requests/s, such as 500, steps (100,200) or a ramp (100..1000).",
    )
    trace_file: Path | None = option(
        "--trace", type=options.FILE, help="Open load: file of arrival times in seconds, one per line."
    )
    speed: float = option(
        "--speed",
        type=click.FloatRange(0, min_open=True),
        default=1.0,
        help="Speed factor of --trace and --recorded.",
        show_default=False,
    )
    think_time: ThinkTime | None = options.think_time_option()
    request_limit: int | None = option(
        "--requests",
        type=click.IntRange(1),
        help="Stop after this number of measured requests and their responses, without --duration or at its end.",
    )
    repetition: RepetitionOptions = group(RepetitionOptions)
    push: options.PushOptions = group(options.PushOptions)
    baseline: options.BaselineOptions = group(options.BaselineOptions)
    gates: tuple[str, ...] = options.gates_option()
    objectives: tuple[str, ...] = options.objectives_option()

    @property
    def ways(self) -> int:
        return sum(way is not None for way in (self.users, self.rate, self.trace_file))

    @property
    def is_timed(self) -> bool:
        """Whether requests arrive, or can arrive, at recorded times."""
        as_recorded = self.requests.recorded or self.models.scenario
        return bool(self.trace_file or (as_recorded and not (self.users or self.rate)))


run = command(
    "run_command:run",
    RunOptions,
    epilog=_RUN,
    short_help="Run one load and report rates, failures and latencies.",
    help="""Load a running server with predict requests for MODEL and print rates, failures and latencies.

    Closed load (--users): each user sends its next request after the response to the previous one. Open load (--rate,
    --trace): requests arrive on a schedule, and latencies count from the scheduled times. Latencies exclude failed
    requests.
    """,
)


# The options of `run`, by the name of their value.
RUN_OPTIONS: Final = {option.name or "": option for option in run.params if isinstance(option, click.Option)}


_DIFF = """\b
Examples:
  tpuserve loadtest diff monday.json today.json
  tpuserve loadtest diff monday.json today.json --least-effect 0.2 --html diff.html --junit diff.xml

Exit codes: 0 NEW is the same or better, 1 requests of NEW failed, 2 usage error, 97 not comparable or inconclusive,
99 NEW is worse.
"""


@dataclass(frozen=True, slots=True)
class DiffOptions:
    old: Path = argument(type=options.FILE)
    new: Path = argument(type=options.FILE)
    difference: options.DifferenceOptions = group(options.DifferenceOptions)
    as_json: bool = options.json_option()
    files: options.PageOptions = group(options.PageOptions)


diff = command(
    "diff_command:diff",
    DiffOptions,
    epilog=_DIFF,
    short_help="Compare two result files of `run`, `soak`, `sweep` or `search`.",
    help="""Compare the results NEW and OLD, which --json-file of `run`, `soak`, `sweep` or `search` wrote.

    Runs and soaks are compared by the rules of `compare`, sweeps by load, and searches by the rate that they found.

    The results are comparable if model, requests, load and machine of the load generator are the same. Runs at
    different times differ by more than the runs of `compare`, which alternate.
    """,
)


_SWEEP = """\b
Examples:
  tpuserve loadtest sweep digits                             1 to 128 users
  tpuserve loadtest sweep digits --rate 100,200,400,800 --duration 30s
  tpuserve loadtest sweep digits --rate 100,200,400,800,1600 --until 'p99>100ms'

Exit codes: as in `run`. The first code in the order 98, 99, 1, 130, 97 counts.
"""


@dataclass(frozen=True, slots=True)
class SweepOptions(options.LoadOptions):
    users: str | None = option(
        "--users", metavar="N,N,...", help=f"Closed loads: numbers of users.  [default: {SWEEP_USERS}]"
    )
    rate: str | None = option("--rate", metavar="R,R,...", help="Open loads: rates in requests/s.")
    think_time: ThinkTime | None = options.think_time_option()
    until: tuple[str, ...] = option(
        "--until",
        multiple=True,
        metavar="GATE...",
        help="Stop after the first load for which a gate is true: 'p99>100ms' 'error_rate>1%'. Accepts several gates.",
    )
    gates: tuple[str, ...] = options.gates_option(" of a step")
    objectives: tuple[str, ...] = options.objectives_option()


sweep = command(
    "sweep_command:sweep",
    SweepOptions,
    epilog=_SWEEP,
    short_help="Run increasing loads and report latency over throughput.",
    help="""Load a running server with predict requests for MODEL in steps, and print rate and latencies of each step.

    Ctrl-C ends the sweep and prints the steps so far. --until ends the sweep after the first load that meets a gate.
    """,
)


@dataclass(frozen=True, slots=True)
class RangeOptions:
    start: float | None = option(
        "--from", type=click.FloatRange(0.1), help="First rate to try.  [default: half of a single user's rate]"
    )
    highest: float = option(
        "--to", type=click.FloatRange(0.1), default=HIGHEST, help="Highest rate to try.", show_default=False
    )
    precision: float = option(
        "--precision",
        type=click.FloatRange(0.001, 1),
        default=PRECISION,
        help="Largest distance between the rate that holds and the rate that does not; 0.02 is 2 %.",
    )


_SEARCH = """\b
Examples:
  tpuserve loadtest search digits --slo 'p99<=20ms'
  tpuserve loadtest search digits --protocol grpc --slo 'p99<=20ms' 'error_rate<=0.1%' --duration 30s --precision 0.01

Exit codes: 0 a rate was found, 1 all requests failed, 2 usage error, 3 server unreachable,
98 the load generator was the limit, 99 no rate holds, 130 interrupted.
"""


@dataclass(frozen=True, slots=True)
class SearchOptions(options.LoadOptions):
    objectives: tuple[str, ...] = options.objectives_option()
    gates: tuple[str, ...] = options.gates_option(" of a rate, as an objective of --slo")
    within: RangeOptions = group(RangeOptions)


search = command(
    "search_command:search",
    SearchOptions,
    epilog=_SEARCH,
    short_help="Find the highest rate that meets an objective.",
    help="""Find the highest rate of requests for MODEL that meets every --slo.

    The search doubles the rate until a rate does not hold, and then bisects. A trial lasts --duration, or longer if a
    percentile needs more requests for 99 % confidence. A second trial with other arrivals confirms the result.
    """,
)


_COMPARE = """\b
A and B are versions (3), labels (canary) or addresses (host:8500, http://host:8501), or an address with a version or
label (host:8500@canary). Addresses with oip+ use the Open Inference Protocol (OIP).

\b
Examples:
  tpuserve loadtest compare digits 3 4
  tpuserve loadtest compare digits stable canary --rate 200 --rounds 10
  tpuserve loadtest compare digits old:8500 new:8500 --users 16
  tpuserve loadtest compare digits oip+grpc://triton:8001 oip+grpc://tpuserve:8500
  tpuserve loadtest compare digits 3 4 --rate 200 --fail-if 'p99>20ms' 'error_rate>0.1%'
  tpuserve loadtest compare digits small:8500 large:8500 --price-per-hour 0.40,1.20

Exit codes: 0 B is the same or better, 1 requests failed, 2 usage error, 3 server unreachable,
97 inconclusive (see --unclear), 98 the load generator was the limit, 99 B is worse, or a gate of B failed,
130 interrupted.
"""


@dataclass(frozen=True, slots=True)
class CompareOptions:
    model: str = argument()
    a: str = argument()
    b: str = argument()
    server: options.MeasuredServerOptions = group(options.MeasuredServerOptions)
    b_api_key_file: Path | None = option(
        "--b-api-key-file", type=options.FILE, help="File of the API key for the server of B.  [default: the key for A]"
    )
    load: options.UsersOrRateOptions = group(options.UsersOrRateOptions)
    arrivals: options.ArrivalOptions = group(options.ArrivalOptions)
    rounds: int = option(
        "--rounds", type=click.IntRange(3), default=10, help="Number of interleaved runs of each side."
    )
    least_effect: float = options.least_effect_option("Smallest difference that counts; 0.05 is 5 %.")
    unclear: str = options.unclear_option("a figure that may be worse by three times --least-effect")
    gates: tuple[str, ...] = options.gates_option(" of B")
    objectives: tuple[str, ...] = options.objectives_option()
    time: options.TimeOptions = group(options.TimeOptions, duration={"default": "6s"})
    requests: options.RequestOptions = group(options.RequestOptions)
    generator: options.GeneratorOptions = group(options.GeneratorOptions)
    metrics: tuple[str, ...] = options.metrics_option(sides=True)
    prices: tuple[Price, ...] = options.price_option(sides=True)
    as_json: bool = options.json_option()
    files: options.FileOptions = group(options.FileOptions)


compare = command(
    "compare_command:compare",
    CompareOptions,
    epilog=_COMPARE,
    short_help="Test whether version B is worse than version A.",
    help="""Compare versions A and B of MODEL under the same load, in --rounds interleaved runs.

    The mean, p50, p90, p99, p99.9, the tenths of the distribution, the lines and the rate of a closed load are judged.
    Each differs if the 98 % interval of its ratio (t interval over rounds, for all figures together) excludes 1 and the
    ratio exceeds --least-effect. B is worse if any figure is worse. A figure without a difference is unclear if it may
    be worse by three times --least-effect. B is also worse if a larger share of its requests fails. If both sides fail
    a similar share, the exit code is 1, unless a gate on error_rate passes for both.
    """,
)


_SOAK = """\b
Examples:
  tpuserve loadtest soak digits --rate 200 --duration 4h --log soak.jsonl
  tpuserve loadtest soak digits --users 16 --duration 30m --fail-if 'p99>50ms' 'error_rate>0.1%'

Exit codes: 0 steady, 1 requests failed, 2 usage error, 3 server unreachable, 97 inconclusive (see --unclear) or too
short, 98 the load generator was the limit, 99 drifting, or a gate failed, 130 interrupted.
"""


@dataclass(frozen=True, slots=True)
class SoakOptions(options.LoadOptions):
    load: options.UsersOrRateOptions = group(options.UsersOrRateOptions)
    time: options.TimeOptions = group(options.TimeOptions, duration={"default": "1h"}, warm_up={"default": "10s"})
    segments: int = option(
        "--segments",
        type=click.IntRange(LEAST_SEGMENTS, 1000),
        default=SEGMENTS,
        help="Number of segments whose figures are compared.",
    )
    least_effect: float = options.least_effect_option(
        "Smallest change of latency or rate over the soak that counts; 0.05 is 5 %."
    )
    unclear: str = options.unclear_option("a figure that may be worse by ten times the smallest change that counts")
    push: options.PushOptions = group(options.PushOptions)
    gates: tuple[str, ...] = options.gates_option(" of the whole soak")
    objectives: tuple[str, ...] = options.objectives_option()
    log: Path | None = option(
        "--log", type=click.Path(dir_okay=False, path_type=Path), help="Write each segment as a line of JSON."
    )


soak = command(
    "soak_command:soak",
    SoakOptions,
    epilog=_SOAK,
    short_help="Load a server for hours and detect drifts.",
    help="""Load a running server for hours and report whether latencies, failures or its memory drift.

    The soak runs the load in segments and tests their figures for trends. Ctrl-C ends the soak and judges the segments
    so far. With --log, the segments of a killed soak remain, too.
    """,
)


_INIT = """\b
Examples:
  tpuserve loadtest init digits
  tpuserve loadtest init digits --rest http://server:8501 --output digits_users.py

Exit codes: 0 success, 2 usage error, 3 server unreachable.
"""


@dataclass(frozen=True, slots=True)
class InitOptions:
    model: str = argument()
    output: Path = option(
        "--output", metavar="FILE", type=click.Path(path_type=Path), default="locustfile.py", help="File to write."
    )
    server: options.MeasuredServerOptions = group(options.MeasuredServerOptions)
    version: options.VersionOptions = group(options.VersionOptions)
    signature_name: str | None = option("--signature", help="Signature to call.  [default: serving_default]")


init = command(
    "init_command:init",
    InitOptions,
    epilog=_INIT,
    short_help="Write a locustfile for a model, to begin an own scenario.",
    help="""Write a Locust scenario for MODEL with the names, dtypes and shapes of its inputs.

    The command reads the model's metadata from the server. It replaces no file.
    """,
)


@click.command(short_help="Print the path of the locustfile for `locust -f`.")
def locustfile() -> None:
    """Print the path of the locustfile that sends the requests of `tpuserve loadtest run` under plain Locust.

    Use it as `locust -f "$(tpuserve loadtest locustfile)" --host http://localhost:8501 --model digits`.
    """
    click.echo(Path(__file__).parents[1] / "locustfiles" / "predict.py")


_WORKER = """\b
Examples:
  tpuserve loadtest worker coordinator:5557        before or after `tpuserve loadtest run --remote 1` on coordinator

Exit codes: 0 the load test is over, 1 the coordinator disconnected or needs no more workers, or a file of --ca, --cert
or --key is missing on this machine, 2 usage error.
"""


@click.command(short_help="Send a share of a load test that runs on another machine.", epilog=_WORKER)
@click.argument("coordinator", metavar="HOST:PORT")
def worker(coordinator: str) -> None:
    """Send a share of the load of `tpuserve loadtest run --remote N`, whose coordinator listens at HOST:PORT.

    The worker waits for the coordinator, and ends with it. Ctrl-C ends the worker at once. The worker trusts the
    coordinator, which chooses the server and the requests.
    """
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit():
        raise click.BadParameter(f"{coordinator!r} is not HOST:PORT.", param_hint="HOST:PORT")

    from tpuserve_loadtests.traffic.gevent_setup import give_process_to_gevent

    give_process_to_gevent()
    from tpuserve_loadtests.traffic.worker import CannotTakePart, CoordinatorGone, Worker

    # A worker has no report, so Ctrl-C ends it immediately.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        Worker(host, int(port), lambda words: click.echo(f"{coordinator}: {words}", err=True)).serve()
    except (CoordinatorGone, CannotTakePart) as error:
        click.echo(f"Error: {coordinator}: {error}", err=True)
        sys.exit(EXIT_FAILED)
    click.echo(f"{coordinator}: the load test is over", err=True)
