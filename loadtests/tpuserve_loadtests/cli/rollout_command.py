"""The command `tpuserve rollout`, which tests a new version, makes it live, and restores the old version on failure."""

import signal
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from tpuserve_loadtests.cli.access import find_access, find_control_access
from tpuserve_loadtests.cli.addresses import find_addresses, with_address
from tpuserve_loadtests.cli.command import command
from tpuserve_loadtests.cli.explicit_options import refuse_ineffective, refuse_ineffective_arrivals
from tpuserve_loadtests.cli.files import show, try_to_write
from tpuserve_loadtests.cli.loads import refuse_both
from tpuserve_loadtests.cli.options import DEFAULT_REST
from tpuserve_loadtests.cli.rollout_options import RolloutOptions
from tpuserve_loadtests.cli.settings import describe_command
from tpuserve_loadtests.cli.soak_command import LEAST_SOAK_S
from tpuserve_loadtests.cli.target import PROBE_TIMEOUT_S, check_prediction, end_unreachable, find_spec, refusal
from tpuserve_loadtests.cli.thresholds import ThresholdCommand, thresholds
from tpuserve_loadtests.rendering.scales import seconds
from tpuserve_loadtests.requests.protocols import is_oip

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from tpuserve_loadtests.rollout.labels import Labels
    from tpuserve_loadtests.rollout.model_service import ModelService
    from tpuserve_loadtests.rollout.procedure import Findings, Gate, RolloutOutcome, Step

_STYLES: Final = {"failed": "red", "passed": "green", "done": "green"}
_STATE_WIDTH: Final = len("planned")
_NAME_WIDTH: Final = 16
_APPLIED: Final = {"reload": "sent to the server", "poll": "polled by the server"}

EPILOG = """\b
Examples:
  tpuserve rollout digits --to 4 --model_config_file models.config                  print the plan
  tpuserve rollout digits --to 4 --model_config_file models.config --execute --html rollout.html
  tpuserve rollout digits --to 4 --model_config_file models.config --no-parity --rate 200 --soak 30m \\
      --fail-if 'p99>20ms' 'error_rate>0.1%' --execute

Exit codes: 0 the version is live, or the plan is possible, 1 interrupted, or a label could not be moved, 2 usage error,
3 server unreachable, also when the labels are moved back, 98 the load generator was the limit, or the comparison
or the soak is inconclusive, 99 a gate failed.
After every code except 0, the labels in the file are as before. If the server does not have them, the last line reports
it.
"""


@command(RolloutOptions, ThresholdCommand, epilog=EPILOG)
def rollout(options: RolloutOptions) -> None:
    """Make another version of MODEL live if it passes parity, comparison and soak.

    The rollout checks golden parity and compares the version with the live one under load. It then moves the labels
    canary and stable, and puts the new version under load (soak). A failure before the move changes nothing. After
    the move, a failure, Ctrl-C or SIGTERM moves the labels back. --users and --rate apply to the comparison and the
    soak, --duration to each run of the comparison.
    """
    from tpuserve_loadtests.traffic.gevent_setup import give_process_to_gevent

    give_process_to_gevent()
    from gevent.event import Event
    from rich.console import Console

    from tpuserve_loadtests.rollout.procedure import Findings, Rollout, RolloutOutcome
    from tpuserve_loadtests.traffic.engine import ctrl_c

    options, address = _with_addresses(options)
    refuse_ineffective_arrivals(options.arrivals, is_open=bool(options.load.rate))
    refuse_ineffective(options, options.metrics)
    _check(options)
    model, new = options.model, options.new
    console = Console(stderr=options.as_json)
    pressed, findings = Event(), Findings()
    with ExitStack() as stack:
        service = stack.enter_context(_service(address, options))
        labels, live = _labels(service, address, options)
        _check_credentials(service, address, live, options)
        stack.enter_context(ctrl_c(pressed))
        # CI systems end a job with SIGTERM, and a closed terminal sends SIGHUP, so handle both as Ctrl-C.
        for ending in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(ending, lambda number, frame: signal.raise_signal(signal.SIGINT))
        gates, soak = _gates(live, service, pressed.is_set, findings, options)
        now = labels.config.labels(model)
        before = {label: now.get(label) for label in (options.canary, options.stable)}
        moves = [(label, version, new) for label, version in before.items()]

        console.print(f"{model}: version {live} to {new}, at {address}", highlight=False)
        started_at = time.time()
        job = Rollout(gates, moves, soak, labels, pressed.is_set, partial(_print_step, console=console), time.monotonic)
        outcome = job.execute() if options.execute else job.plan()
        ended = RolloutOutcome(
            model,
            live,
            new,
            not options.execute,
            outcome,
            job.exit_code,
            job.steps,
            before,
            labels.standings(before),
            findings,
            started_at,
        )
        _publish(ended, job.planned, options)
    sys.exit(job.exit_code)


def _print_step(step: "Step", console: "Console") -> None:
    """Print a finished step as one line."""
    from rich.markup import escape

    style = _STYLES.get(step.state, "default")
    state = f"[{style}]{step.state:{_STATE_WIDTH}}[/{style}]"
    console.print(f"  {state}  {step.name:{_NAME_WIDTH}}  {escape(step.detail)}", highlight=False, soft_wrap=True)


def _publish(outcome: "RolloutOutcome", planned: "list[str]", options: RolloutOptions) -> None:
    """Print the outcome and write the files.

    A failed write does not change the exit code, which describes the labels.
    """
    from tpuserve_loadtests.reports.rollout import rollout_report

    report = rollout_report(outcome, planned, _settings(options))
    show(report, as_json=options.as_json)
    for path, content in options.files.forms(report):
        if path is not None:
            try_to_write(path, content())


def _settings(options: RolloutOptions) -> dict[str, str]:
    """Return the requested settings by name."""
    return {
        "Server": options.server.grpc_address or "",
        "Configuration": f"{options.config_file}, {_APPLIED[options.apply]}",
        "Load": options.load_words,
        "Comparison": f"{options.rounds} rounds of {seconds(options.time.duration)} each; {_effect(options)}",
        "Soak": f"{seconds(options.soak)}; {_effect(options)}" if options.soak else "none",
        "Soak gates": ", ".join(options.gates),
        **describe_command("tpuserve", "rollout"),
    }


def _effect(options: RolloutOptions) -> str:
    return f"differences below {100 * options.least_effect:g} % do not count"


def main() -> None:
    """Run the `tpuserve-rollout` executable, which users start as `tpuserve rollout`."""
    rollout(prog_name="tpuserve rollout")


def _with_addresses(options: RolloutOptions) -> tuple[RolloutOptions, str]:
    """Fill in the server's addresses, and return its gRPC address. By default, use both protocols on localhost.

    --rest serves only to measure the server's memory. TPUSERVE_ADDRESS still names the server whose labels move.
    """
    named = with_address(replace(options.server, rest_url=None), "grpc").grpc_address
    ((protocol, address),) = find_addresses("grpc", named, None).items()
    if is_oip(protocol):
        raise click.UsageError(
            f"{address} selects the Open Inference Protocol, which has no labels to move. Set --grpc HOST:PORT."
        )
    rest_url = options.server.rest_url or (DEFAULT_REST if named is None else None)
    return replace(options, server=replace(options.server, grpc_address=address, rest_url=rest_url)), address


def _check(options: RolloutOptions) -> None:
    """Raise usage errors for options that are invalid on any server."""
    if options.canary == options.stable:
        raise click.UsageError(f"--canary and --stable are both {options.stable}. Set different labels.")
    options.generator.check()
    if options.generator.remote:
        raise click.UsageError("rollout does not support --remote. Use --processes for more load.")
    refuse_both(options.load.users, options.load.rate)
    if 0 < options.soak < LEAST_SOAK_S:
        raise click.BadParameter(f"A soak needs at least {LEAST_SOAK_S:g} s to show a trend.", param_hint="--soak")
    thresholds(options.gates, "--fail-if")
    options.files.check()


def _service(address: str, options: RolloutOptions) -> "ModelService":
    """Return the client of the server. Raises a usage error for keys that would cross the network in plaintext."""
    from tpuserve_client.errors import InvalidArgument
    from tpuserve_loadtests.rollout.model_service import ModelService

    access = find_access(options.server.access)
    control = find_control_access(options.server.access, options.control_api_key_file)
    try:
        return ModelService(address, access, PROBE_TIMEOUT_S, options.patience, control)
    except InvalidArgument as error:
        raise click.UsageError(error.message) from None


def _check_credentials(service: "ModelService", address: str, live: int, options: RolloutOptions) -> None:
    """Raise a usage error if the server refuses predictions or reloads, before a load runs for nothing."""
    from tpuserve_client.errors import PermissionDenied, Unauthenticated
    from tpuserve_loadtests.requests.protocols import protocol_of

    try:
        if options.apply == "reload":
            service.check_control()
    except (PermissionDenied, Unauthenticated) as error:
        raise click.UsageError(refusal(address, error, "control")) from None
    access = find_access(options.server.access)
    check_prediction(find_spec(options.model, live, None), protocol_of(address), address, access)


def _labels(service: "ModelService", address: str, options: RolloutOptions) -> "tuple[Labels, int]":
    """Return the labels and the live version.

    Raises usage errors if file and server disagree on the labels, or if a version is unavailable.
    """
    from tpuserve_client.errors import DeadlineExceeded, TpuserveError, Unavailable
    from tpuserve_loadtests.rollout.labels import Labels
    from tpuserve_loadtests.rollout.model_config_text import BadConfig

    model, stable, new, file = options.model, options.stable, options.new, options.config_file
    try:
        labels = Labels(file, model, service, options.apply, options.patience, _warn)
        there = labels.config.labels(model)
        available = service.available(model)
        labels.check()
    except BadConfig as error:
        raise click.BadParameter(f"{file}: {error}", param_hint="--model_config_file") from None
    except (Unavailable, DeadlineExceeded) as error:
        end_unreachable(address, find_access(options.server.access), error.message)
    except TpuserveError as error:
        raise click.UsageError(refusal(address, error, "read")) from None
    if stable not in there:
        has = ", ".join(sorted(there)) or "none"
        raise click.UsageError(f"{file}: Model {model} has no label {stable} to move. Its labels: {has}.")
    if there[stable] == new:
        raise click.UsageError(f"Version {new} is already live: label {stable} points to it.")
    if new not in available:
        versions = ", ".join(map(str, available))
        raise click.BadParameter(
            f"Version {new} of {model} is not available (available: {versions}). Add it to the model_version_policy.",
            param_hint="--to",
        )
    return labels, there[stable]


def _warn(words: str) -> None:
    """Print a warning. A closed terminal must not prevent the labels' return."""
    with suppress(OSError):
        click.echo(f"  {words[:1].upper()}{words[1:]}", err=True)


def _gates(
    live: int,
    service: "ModelService",
    interrupted: "Callable[[], bool]",
    findings: "Findings",
    options: RolloutOptions,
) -> "tuple[list[Gate], Gate | None]":
    from tpuserve_loadtests.cli.rollout_gates import Gates
    from tpuserve_loadtests.rollout.procedure import Gate

    checks = Gates(
        live=find_spec(options.model, live, None),
        new=find_spec(options.model, options.new, None),
        stable=find_spec(options.model, None, options.stable),
        service=service,
        thresholds=thresholds(options.gates, "--fail-if"),
        options=options,
        interrupted=interrupted,
        findings=findings,
    )
    load = options.load_words
    gates = []
    if options.parity:
        gates.append(Gate("parity", "send the same requests to both versions", checks.parity, cheap=True))
    rounds = f"{options.rounds} rounds of {options.time.duration:g} s each, {load}"
    gates.append(Gate("compare", f"load both versions in turn, {rounds}", checks.compare))
    plan = f"load label {options.stable} for {options.soak:g} s, {load}; on failure, move the labels back"
    soak = Gate("soak", plan, checks.soak)
    return gates, soak if options.soak else None
