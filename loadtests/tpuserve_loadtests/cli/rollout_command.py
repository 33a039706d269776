"""`tpuserve rollout`: a new version takes the place of the live one if it passes, and gives it back if it fails."""

import json
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tpuserve_loadtests.cli.access import find_access
from tpuserve_loadtests.cli.addresses import find_addresses, with_address
from tpuserve_loadtests.cli.files import check_writable, try_to_write
from tpuserve_loadtests.cli.golden import tolerance_options
from tpuserve_loadtests.cli.loads import refuse_both
from tpuserve_loadtests.cli.options import (
    ADDRESS_VARIABLE,
    DEFAULT_GRPC,
    DEFAULT_REST,
    USERS_HELD_BESIDE,
    access_options,
    generator_options,
    html_option,
    junit_option,
    least_effect_option,
    open_options,
    request_options,
    time_options,
    unclear_option,
    users_or_rate_options,
)
from tpuserve_loadtests.cli.said import refuse_idle
from tpuserve_loadtests.cli.server_metrics import server_metrics_option
from tpuserve_loadtests.cli.settings import describe_command
from tpuserve_loadtests.cli.soak_command import LEAST_SEGMENTS, LEAST_SOAK_S, SEGMENTS
from tpuserve_loadtests.cli.target import (
    PROBE_TIMEOUT_S,
    Generators,
    end_unreachable,
    find_spec,
    refusal,
)
from tpuserve_loadtests.cli.thresholds import ThresholdCommand, thresholds
from tpuserve_loadtests.duration import Duration
from tpuserve_loadtests.report_page.units import seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuserve_loadtests.reports.rollout_report import Findings, RolloutReport
    from tpuserve_loadtests.rollout.labels import Labels
    from tpuserve_loadtests.rollout.model_service import ModelService
    from tpuserve_loadtests.rollout.procedure import Gate, Step

_APPLIED: Final = {"reload": "sent to the server", "poll": "which the server reads again by itself"}

EPILOG = """\b
Examples:
  tpuserve rollout digits --to 4 --model_config_file models.config                  says what it would do
  tpuserve rollout digits --to 4 --model_config_file models.config --execute --html rollout.html
  tpuserve rollout digits --to 4 --model_config_file models.config --no-parity --rate 200 --soak 30m \\
      --fail-if 'p99>20ms' 'error_rate>0.1%' --execute

Exit codes: 0 it is live (or would be tried), 1 interrupted, or a label could not be moved, 2 usage, 3 no server,
98 the load generator was the limit, or it is unclear whether it is slower, 99 a gate failed. After
anything but 0 the labels are where they were; where they could not be moved back, the last line says so.
"""


@click.command(cls=ThresholdCommand, epilog=EPILOG)
@click.argument("model")
@click.option("--to", "new", type=click.IntRange(0), required=True, help="The version that is to be live.")
@click.option(
    "--model_config_file",
    "--model-config-file",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="The server's configuration: the labels are changed in it, and nothing else.",
)
@click.option("--execute", is_flag=True, help="Do it; without this, the plan is shown and nothing changed.")
@click.option(
    "--apply",
    type=click.Choice(["reload", "poll"]),
    default="reload",
    show_default=True,
    help="Send the file to the server, or wait until it reads it (--model_config_file_poll_wait_seconds).",
)
@click.option(
    "--grpc",
    "grpc_address",
    metavar="HOST:PORT",
    help=f"gRPC address; grpcs://HOST:PORT with TLS.  [env var: {ADDRESS_VARIABLE}; default: {DEFAULT_GRPC}]",
)
@click.option("--rest", "rest_url", metavar="URL", help="REST address, for the server's memory in the soak.")
@access_options
@server_metrics_option
@click.option("--stable", default="stable", show_default=True, help="The label that users ask for.")
@click.option("--canary", default="canary", show_default=True, help="The label that is moved first.")
@click.option("--parity/--no-parity", default=True, help="Whether both versions must give the same answers.")
@tolerance_options
@users_or_rate_options
@open_options
@click.option("--rounds", type=click.IntRange(3), default=6, show_default=True, help="Runs of each version, in turn.")
@least_effect_option("So much worse than the live version, and slower over the soak, it may be; 0.05 is 5 %.")
@unclear_option
@time_options("10s", "1s")
@click.option("--soak", type=Duration(zero=True), default="5m", show_default=True, help="Afterwards; 0 for none.")
@click.option("--segments", type=click.IntRange(LEAST_SEGMENTS, 1000), default=SEGMENTS, help="Of the soak.")
@click.option("--fail-if", "gates", multiple=True, metavar="GATE...", help="Of the soak: 'p99>20ms', 'error_rate>1%'.")
@click.option("--patience", type=Duration(), default="60s", show_default=True, help="Time for a label to be moved.")
@request_options
@generator_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document; steps go to standard error.")
@junit_option
@html_option
def rollout(model: str, **given: Any) -> None:  # noqa: ANN401  click's values
    """Make another version of MODEL the live one, if it is as good.

    Golden parity and a comparison with the live version come first; then the labels canary and stable are moved, and
    the new version stays under load for a while. What fails before changes nothing; what fails after, Ctrl-C and
    SIGTERM too, moves the labels back. --users and --rate are the comparison's and the soak's; --duration is that of
    each run of the comparison.
    """
    from tpuserve_loadtests.traffic.gevent_setup import give_process_to_gevent

    give_process_to_gevent()
    from gevent.event import Event
    from rich.console import Console

    from tpuserve_loadtests.reports.rollout_report import Findings, RolloutReport, print_step
    from tpuserve_loadtests.rollout.model_service import ModelService
    from tpuserve_loadtests.rollout.procedure import Rollout
    from tpuserve_loadtests.traffic.ctrl_c import ctrl_c

    given = _with_addresses(given)
    refuse_idle(given)
    _check(given)
    console = Console(stderr=given["as_json"])
    pressed, findings = Event(), Findings()
    with ExitStack() as stack:
        access = find_access(given)
        service = stack.enter_context(ModelService(given["grpc_address"], access, PROBE_TIMEOUT_S, given["patience"]))
        labels, live = _labels(model, service, given)
        stack.enter_context(ctrl_c(pressed))
        # Who ends a job in CI sends SIGTERM: it is taken as Ctrl-C, wherever that is heard.
        signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
        gates, soak = _gates(model, live, service, pressed.is_set, findings, given)
        now = labels.config.labels(model)
        before = {label: now.get(label) for label in (given["canary"], given["stable"])}
        moves = [(label, version, given["new"]) for label, version in before.items()]

        def tell(step: "Step") -> None:
            print_step(step, console)

        console.print(
            f"{model}: version {given['new']} in place of {live}, at {given['grpc_address']}", highlight=False
        )
        started_at = time.time()
        job = Rollout(gates, moves, soak, labels, pressed.is_set, tell, time.monotonic)
        outcome = job.execute() if given["execute"] else job.plan()
        report = RolloutReport(
            model,
            live,
            given["new"],
            not given["execute"],
            outcome,
            job.exit_code,
            job.steps,
            before,
            labels.standings(before),
            findings,
            started_at,
        )
        _tell(report, job.planned, given)
    sys.exit(job.exit_code)


def _tell(report: "RolloutReport", planned: "list[str]", given: dict[str, Any]) -> None:
    """The end, and the files. What became of that does not change the exit code, which says where the labels are."""
    from tpuserve_loadtests.report_page.rollout_page import rollout_page
    from tpuserve_loadtests.reports.junit import junit_xml
    from tpuserve_loadtests.reports.rollout_cases import rollout_cases
    from tpuserve_loadtests.reports.rollout_report import rollout_document

    click.echo(json.dumps(rollout_document(report), indent=2) if given["as_json"] else report.statement)
    if given["junit"] is not None:
        cases = rollout_cases(planned, report.steps)
        try_to_write(given["junit"], junit_xml("rollout", report.model, cases, report.statement))
    if given["html"] is not None:
        try_to_write(given["html"], rollout_page(report, _settings(given)))


def _settings(given: dict[str, Any]) -> dict[str, str]:
    """What was asked for, by name."""
    return {
        "Server": given["grpc_address"],
        "Configuration": f"{given['config_file']}, {_APPLIED[given['apply']]}",
        "Load": _load(given),
        "Comparison": f"{given['rounds']} rounds of {seconds(given['duration'])} each; {_effect(given)}",
        "Soak": f"{seconds(given['soak'])}; {_effect(given)}" if given["soak"] else "none",
        "Gates of the soak": ", ".join(given["gates"]),
        **describe_command("tpuserve", "rollout"),
    }


def _effect(given: dict[str, Any]) -> str:
    return f"less than {100 * given['least_effect']:g} % is no difference"


def _load(given: dict[str, Any]) -> str:
    return f"{given['rate']} requests/s" if given["rate"] else f"{given['users'] or USERS_HELD_BESIDE} users"


def main() -> None:
    """The `tpuserve-rollout` executable, which people reach as `tpuserve rollout`."""
    rollout(prog_name="tpuserve rollout")


def _with_addresses(given: dict[str, Any]) -> dict[str, Any]:
    """Fill in the server's addresses; without any, this machine's, whose REST address is known too.

    --rest is only for the server's memory: TPUSERVE_ADDRESS still names the server whose labels move.
    """
    grpc_address = with_address({**given, "rest_url": None}, needs="grpc")["grpc_address"]
    return {
        **given,
        "grpc_address": find_addresses("grpc", grpc_address, None)["grpc"],
        "rest_url": given["rest_url"] or (DEFAULT_REST if grpc_address is None else None),
    }


def _check(given: dict[str, Any]) -> None:
    """Usage errors that need no server."""
    if given["canary"] == given["stable"]:
        raise click.UsageError(f"--canary and --stable are the same label, {given['stable']}")
    if Generators.given(given).remote:
        raise click.UsageError("a rollout runs on this machine alone: --remote is for loadtest")
    refuse_both(given)
    if 0 < given["soak"] < LEAST_SOAK_S:
        raise click.BadParameter(f"a soak shorter than {LEAST_SOAK_S:g} s shows no trend", param_hint="--soak")
    thresholds(given["gates"], "--fail-if")
    for name in ("html", "junit"):
        check_writable(given[name], f"--{name}")


def _labels(model: str, service: "ModelService", given: dict[str, Any]) -> "tuple[Labels, int]":
    """The labels, and the live version: file and server agree on them, and both versions are there."""
    from tpuserve_client.errors import DeadlineExceeded, TpuserveError, Unavailable
    from tpuserve_loadtests.rollout.labels import Labels
    from tpuserve_loadtests.rollout.model_config_text import BadConfig

    stable, new, address = given["stable"], given["new"], given["grpc_address"]
    try:
        labels = Labels(given["config_file"], model, service, given["apply"], given["patience"])
        there = labels.config.labels(model)
        available = service.available(model)
        labels.check()
    except BadConfig as error:
        raise click.BadParameter(f"{given['config_file']}: {error}", param_hint="--model_config_file") from None
    except (Unavailable, DeadlineExceeded) as error:
        end_unreachable(address, find_access(given), error.message)
    except TpuserveError as error:
        raise click.UsageError(refusal(address, error)) from None
    if stable not in there:
        has = ", ".join(sorted(there)) or "none"
        raise click.UsageError(f"{given['config_file']}: {model} has no label {stable}, which is to be moved: {has}")
    if there[stable] == new:
        raise click.UsageError(f"version {new} is live already: label {stable} stands for it")
    if new not in available:
        versions = ", ".join(map(str, available))
        raise click.BadParameter(
            f"version {new} of {model} is not available, {versions} are: its model_version_policy must take it in",
            param_hint="--to",
        )
    return labels, there[stable]


def _gates(
    model: str,
    live: int,
    service: "ModelService",
    interrupted: "Callable[[], bool]",
    findings: "Findings",
    given: dict[str, Any],
) -> "tuple[list[Gate], Gate | None]":
    from tpuserve_loadtests.cli.rollout_gates import Gates
    from tpuserve_loadtests.rollout.procedure import Gate

    of_soak = thresholds(given["gates"], "--fail-if")
    ask = Gates(
        live=find_spec(model, live, None),
        new=find_spec(model, given["new"], None),
        stable=find_spec(model, None, given["stable"]),
        service=service,
        thresholds=of_soak,
        given=given,
        interrupted=interrupted,
        findings=findings,
    )
    load = _load(given)
    gates = []
    if given["parity"]:
        gates.append(Gate("parity", "the same requests to both", ask.parity, cheap=True))
    rounds = f"{given['rounds']} rounds of {given['duration']:g} s each, {load}"
    gates.append(Gate("compare", f"both under load in turn, {rounds}", ask.compare))
    soak = Gate("soak", f"label {given['stable']} for {given['soak']:g} s, {load}; moved back if it fails", ask.soak)
    return gates, soak if given["soak"] else None
