"""The steps of `tpuserve rollout`: checks before any load, the gates (parity, comparison, soak) and the report."""

import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import click
from gevent.event import Event
from rich.console import Console
from rich.markup import escape

from tpuserve_client.errors import (
    DeadlineExceeded,
    InvalidArgument,
    PermissionDenied,
    TpuserveError,
    Unauthenticated,
    Unavailable,
)
from tpuserve_client.model import ModelSpec
from tpuserve_formats.counted import counted
from tpuserve_loadtests.cli import access, commands, files, loads, monitoring, targets
from tpuserve_loadtests.cli.command import refused
from tpuserve_loadtests.cli.compare_command import interleaved
from tpuserve_loadtests.cli.options import DEFAULT_REST
from tpuserve_loadtests.cli.rollout_command import RolloutOptions
from tpuserve_loadtests.cli.soak_command import run_segments, segment_load
from tpuserve_loadtests.golden.tolerance import Tolerance
from tpuserve_loadtests.judgement.comparison import ComparisonOutcome, failure_cells, judge_comparison
from tpuserve_loadtests.judgement.exit_codes import EXIT_FAILED, EXIT_GATE
from tpuserve_loadtests.judgement.run import judge_run
from tpuserve_loadtests.judgement.soak import SoakOutcome, judge_soak, verdict_cause, verdict_line
from tpuserve_loadtests.judgement.threshold import Threshold
from tpuserve_loadtests.measurement.measured import Segments
from tpuserve_loadtests.monitoring.server_watch import ServerWatch
from tpuserve_loadtests.rendering.scales import seconds
from tpuserve_loadtests.reports.rollout import rollout_report
from tpuserve_loadtests.requests.protocols import is_oip, protocol_of
from tpuserve_loadtests.rollout.evaluations import compare_evaluations
from tpuserve_loadtests.rollout.labels import Labels
from tpuserve_loadtests.rollout.model_config_text import BadConfig
from tpuserve_loadtests.rollout.model_service import ModelService
from tpuserve_loadtests.rollout.parity import Parity, differences, signature_difference
from tpuserve_loadtests.rollout.parity import Requests as Encoded
from tpuserve_loadtests.rollout.procedure import Findings, Gate, Judged, Rollout, RolloutOutcome, Step
from tpuserve_loadtests.traffic.ctrl_c import ctrl_c
from tpuserve_loadtests.traffic.target import Target

_STYLES: Final = {"failed": "red", "passed": "green", "done": "green"}
_STATE_WIDTH: Final = len("planned")
_NAME_WIDTH: Final = 16
_APPLIED: Final = {"reload": "sent to the server", "poll": "polled by the server"}


def rollout(options: RolloutOptions) -> None:
    options, address = _with_addresses(options)
    access.refuse_ineffective_arrivals(options.arrivals, is_open=bool(options.load.rate))
    access.refuse_ineffective(options, options.metrics)
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

        specs = (targets.find_spec(model, version, None) for version in (live, new))
        findings.metrics = tuple(compare_evaluations(*map(service.evaluation, specs)))
        console.print(f"{model}: version {live} to {new}, at {address}", highlight=False)
        for metric in findings.metrics:
            console.print(f"  {escape(str(metric))}", highlight=False, soft_wrap=True)
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


def _print_step(step: Step, console: Console) -> None:
    style = _STYLES.get(step.state, "default")
    state = f"[{style}]{step.state:{_STATE_WIDTH}}[/{style}]"
    console.print(f"  {state}  {step.name:{_NAME_WIDTH}}  {escape(step.detail)}", highlight=False, soft_wrap=True)


def _publish(outcome: RolloutOutcome, planned: list[str], options: RolloutOptions) -> None:
    """Print the outcome and write the files.

    A failed write does not change the exit code, which describes the labels.
    """
    report = rollout_report(outcome, planned, _settings(options))
    files.show(report, as_json=options.as_json)
    for path, content in files.forms(report, options.files):
        if path is not None:
            files.try_to_write(path, content())


def _settings(options: RolloutOptions) -> dict[str, str]:
    return {
        "Server": options.server.grpc_address or "",
        "Configuration": f"{options.config_file}, {_APPLIED[options.apply]}",
        "Load": options.load_words,
        "Comparison": f"{options.rounds} rounds of {seconds(options.time.duration)} each; {_effect(options)}",
        "Soak": f"{seconds(options.soak)}; {_effect(options)}" if options.soak else "none",
        "Soak gates": ", ".join(options.gates),
        **files.describe_command("tpuserve", "rollout"),
    }


def _effect(options: RolloutOptions) -> str:
    return f"differences below {100 * options.least_effect:g} % do not count"


def _with_addresses(options: RolloutOptions) -> tuple[RolloutOptions, str]:
    """Fill in the server's addresses, and return its gRPC address. By default, use both protocols on localhost.

    --rest serves only to measure the server's memory. TPUSERVE_ADDRESS still names the server whose labels move.
    """
    named = access.with_address(replace(options.server, rest_url=None), "grpc").grpc_address
    ((protocol, address),) = access.find_addresses("grpc", named, None).items()
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
    loads.refuse_both(options.load.users, options.load.rate)
    if 0 < options.soak < commands.LEAST_SOAK_S:
        raise click.BadParameter(
            f"A soak needs at least {commands.LEAST_SOAK_S:g} s to show a trend.", param_hint="--soak"
        )
    loads.thresholds(options.gates, "--fail-if")
    files.check_files(options.files)


def _service(address: str, options: RolloutOptions) -> ModelService:
    """Return the client of the server. Raises a usage error for keys that would cross the network in plaintext."""
    credentials = access.find_access(options.server.access)
    control = access.find_control_access(options.server.access, options.control_api_key_file)
    with refused(InvalidArgument):
        return ModelService(address, credentials, targets.PROBE_TIMEOUT_S, options.patience, control)


def _check_credentials(service: ModelService, address: str, live: int, options: RolloutOptions) -> None:
    """Raise a usage error if the server refuses predictions or reloads, before a load runs for nothing."""
    try:
        if options.apply == "reload":
            service.check_control()
    except (PermissionDenied, Unauthenticated) as error:
        raise click.UsageError(targets.refusal(address, error, "control")) from None
    credentials = access.find_access(options.server.access)
    targets.check_prediction(targets.find_spec(options.model, live, None), protocol_of(address), address, credentials)


def _labels(service: ModelService, address: str, options: RolloutOptions) -> tuple[Labels, int]:
    """Return the labels and the live version.

    Raises usage errors if file and server disagree on the labels, or if a version is unavailable.
    """
    model, stable, new, file = options.model, options.stable, options.new, options.config_file
    try:
        labels = Labels(file, model, service, options.apply, options.patience, _warn)
        there = labels.config.labels(model)
        available = service.available(model)
        labels.check()
    except BadConfig as error:
        raise click.BadParameter(f"{file}: {error}", param_hint="--model_config_file") from None
    except (Unavailable, DeadlineExceeded) as error:
        targets.end_unreachable(address, access.find_access(options.server.access), error.message)
    except TpuserveError as error:
        raise click.UsageError(targets.refusal(address, error, "read")) from None
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
    service: ModelService,
    interrupted: Callable[[], bool],
    findings: Findings,
    options: RolloutOptions,
) -> tuple[list[Gate], Gate | None]:
    checks = Gates(
        live=targets.find_spec(options.model, live, None),
        new=targets.find_spec(options.model, options.new, None),
        stable=targets.find_spec(options.model, None, options.stable),
        service=service,
        thresholds=loads.thresholds(options.gates, "--fail-if"),
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


_VERDICTS: Final = {
    "same": "the new version is the same",
    "unclear": "the new version is possibly worse",
    "failing": "requests failed",
}


@dataclass(frozen=True, slots=True)
class Gates:
    """The gates between two versions.

    `live` and `new` are versions, `stable` is the label of users' requests. `findings` receives each gate's report.
    """

    live: ModelSpec
    new: ModelSpec
    stable: ModelSpec
    service: ModelService
    thresholds: tuple[Threshold, ...]
    options: RolloutOptions
    interrupted: Callable[[], bool]
    findings: Findings

    def parity(self) -> Judged:
        """Send every request to both versions and compare the responses."""
        name, timeout_s = self.options.requests.signature_name, self.options.requests.timeout
        try:
            a, b = (self.service.signature(spec, name) for spec in (self.live, self.new))
        except TpuserveError as error:
            return Judged(EXIT_GATE, error.message)
        if problem := signature_difference(a, b):
            self.findings.parity = Parity((), problem)
            return Judged(EXIT_GATE, f"incompatible with clients of the live version: {problem}")
        tolerance = self._tolerance()
        mine, others = (Encoded(spec, self._target(spec).workload.lines[0].exchanges) for spec in (self.live, self.new))
        answers = []
        for difference in differences(lambda exchange: self.service.send(exchange, timeout_s), mine, others, tolerance):
            answers.append(difference)
            if self.interrupted():
                return Judged(EXIT_FAILED, f"stopped after {len(answers)} of {counted(len(mine.exchanges), 'request')}")
        found = self.findings.parity = Parity(tuple(answers))
        if found.different:
            return Judged(
                EXIT_GATE, f"{len(found.different)} of {counted(len(answers), 'response')} differ; {found.different[0]}"
            )
        return Judged(
            0, "; ".join(filter(None, [f"{len(answers)} of {counted(len(answers), 'response')} match", found.largest]))
        )

    def _tolerance(self) -> Tolerance:
        tolerance = Tolerance(self.options.tolerance.atol, self.options.tolerance.rtol)
        if tolerance.is_fixed:
            return tolerance
        return replace(tolerance, versions=tuple(map(self.service.precision, (self.live, self.new))))

    def compare(self) -> Judged:
        """Compare interleaved runs of both versions."""
        both = [self._target(spec) for spec in (self.live, self.new)]
        options = self.options
        load = loads.LoadTerms.of(options).users_or_rate(options.load, len(both[0].addresses))
        with self._watch(self.live) as of_live, self._watch(self.new) as of_new:
            watches = (of_live, of_new)
            # A single failed request decides the gate, so further rounds cannot change the result.
            rounds, sides = interleaved(both, watches, options.generator, load, options.rounds, until_failure=True)
        names = (f"version {self.live.version}", f"version {self.new.version}")
        outcome = judge_comparison(
            names,
            rounds,
            self.options.least_effect,
            strict=self.options.generator.strict,
            fail_if_unclear=self.options.unclear == "fail",
            sides=sides,
        )
        self.findings.comparison = outcome
        return Judged(outcome.exit_code, _comparison_line(outcome))

    def soak(self) -> Judged:
        """Put the label of users' requests under load for the soak's duration."""
        options, planned = self.options, self.options.segments
        target = self._target(self.stable)
        segments = Segments()
        with targets.generating(target, options.generator) as runs, self._watch(self.stable) as server:
            load = segment_load(replace(loads.LoadTerms.of(options), seconds=options.soak), options.load, planned, 1)
            run_segments(runs, load, planned, self.thresholds, segments, server, lambda segment: None, options.patience)
        assert segments.total is not None  # at least the first one began
        run = judge_run(
            segments.total,
            model=str(self.stable),
            rows=target.workload.rows,
            gates=self.thresholds,
            strict=self.options.generator.strict,
        )
        fail_if_unclear = options.unclear == "fail"
        outcome = judge_soak(run, segments, planned, options.least_effect, fail_if_unclear=fail_if_unclear)
        self.findings.soak = outcome
        return Judged(outcome.exit_code, _soak_line(outcome))

    def _watch(self, spec: ModelSpec) -> ServerWatch:
        return monitoring.watch_server(self.options.server, self.options.metrics, [spec])

    def _target(self, spec: ModelSpec) -> Target:
        server = self.options.server
        addresses = access.find_addresses("grpc", server.grpc_address, None)
        return targets.find_target(
            spec, addresses, targets.Requests.of(self.options.requests, access.find_access(server.access))
        )


def _comparison_line(outcome: ComparisonOutcome) -> str:
    if outcome.comparison is None:
        return "; ".join([*outcome.problems, f"{outcome.too_few[:1].lower()}{outcome.too_few[1:]}"])
    ratios = [
        f"{figure.name} {figure.ratio.ratio:.3f} ({figure.ratio.low:.3f} to {figure.ratio.high:.3f})"
        for figure in outcome.comparison.figures
    ]
    verdict = outcome.comparison.verdict
    parts = [
        _VERDICTS.get(verdict, f"the new version is {verdict}"),
        *outcome.problems,
        f"ratios to the live version: {', '.join(ratios)}",
        *outcome.unclear,
        outcome.difference,
    ]
    if outcome.problems and outcome.comparison.failures:
        _, _, _, difference, interval, _ = failure_cells(outcome.comparison.failures)
        parts.append(f"difference of the failure rates: {difference} ({interval})")
    line = "; ".join(part for part in parts if part)
    return f"{line}; the load generator was the limit: {outcome.limits[0]}" if outcome.limits else line


def _soak_line(outcome: SoakOutcome) -> str:
    total = outcome.run.total
    p99 = "-" if total.p99_ms is None else f"{total.p99_ms:.2f} ms"
    line = (
        f"{verdict_line(outcome).lower()}; {counted(total.requests, 'request')}, {total.failures:,} failed, p99 {p99}"
    )
    errors = outcome.run.measured.recorder.errors()
    cause = [verdict_cause(outcome)] if outcome.verdict in ("drifting", "unclear") else []
    parts = [line, *cause, *(f"most frequent error: {error.message}" for error in errors[:1])]
    parts += [str(result) for result in outcome.run.gates if result.failed]
    return "; ".join([*parts, *(note for note in outcome.notes if "count from" not in note)])
