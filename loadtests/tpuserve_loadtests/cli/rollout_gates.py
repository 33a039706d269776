"""The gates of a rollout: parity, comparison and soak. Each returns a result line and keeps its report."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tpuserve_formats.counted import counted
from tpuserve_loadtests.cli.access import find_access
from tpuserve_loadtests.cli.addresses import find_addresses
from tpuserve_loadtests.cli.compare_command import interleaved
from tpuserve_loadtests.cli.rollout_options import RolloutOptions
from tpuserve_loadtests.cli.server_metrics import watch_server
from tpuserve_loadtests.cli.soak_command import run_segments, segment_load
from tpuserve_loadtests.cli.target import Requests, find_target, generating
from tpuserve_loadtests.judgement.exit_codes import EXIT_FAILED, EXIT_GATE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuserve_client.model import ModelSpec
    from tpuserve_loadtests.golden.tolerance import Tolerance
    from tpuserve_loadtests.judgement.comparison import ComparisonOutcome
    from tpuserve_loadtests.judgement.soak import SoakOutcome
    from tpuserve_loadtests.judgement.threshold import Threshold
    from tpuserve_loadtests.monitoring.server_watch import ServerWatch
    from tpuserve_loadtests.rollout.model_service import ModelService
    from tpuserve_loadtests.rollout.procedure import Findings, Judged
    from tpuserve_loadtests.traffic.target import Target

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

    live: "ModelSpec"
    new: "ModelSpec"
    stable: "ModelSpec"
    service: "ModelService"
    thresholds: "tuple[Threshold, ...]"
    options: RolloutOptions
    interrupted: "Callable[[], bool]"
    findings: "Findings"

    def parity(self) -> "Judged":
        """Send every request to both versions and compare the responses."""
        from tpuserve_client.errors import TpuserveError
        from tpuserve_loadtests.rollout.parity import Parity, differences, signature_difference
        from tpuserve_loadtests.rollout.parity import Requests as Encoded
        from tpuserve_loadtests.rollout.procedure import Judged

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

    def _tolerance(self) -> "Tolerance":
        """Return the options' values, else the wider tolerance of both versions' manifests."""
        from tpuserve_loadtests.golden.tolerance import Tolerance

        tolerance = Tolerance(self.options.tolerance.atol, self.options.tolerance.rtol)
        if tolerance.is_fixed:
            return tolerance
        return replace(tolerance, versions=tuple(map(self.service.precision, (self.live, self.new))))

    def compare(self) -> "Judged":
        """Compare interleaved runs of both versions."""
        from tpuserve_loadtests.judgement.comparison import judge_comparison
        from tpuserve_loadtests.rollout.procedure import Judged

        targets = [self._target(spec) for spec in (self.live, self.new)]
        options = self.options
        load = options.terms.users_or_rate(options.load, len(targets[0].addresses))
        with self._watch(self.live) as of_live, self._watch(self.new) as of_new:
            watches = (of_live, of_new)
            # A single failed request decides the gate, so further rounds cannot change the result.
            rounds, sides = interleaved(targets, watches, options.generator, load, options.rounds, until_failure=True)
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

    def soak(self) -> "Judged":
        """Put the label of users' requests under load for the soak's duration."""
        from tpuserve_loadtests.judgement.run import judge_run
        from tpuserve_loadtests.judgement.soak import judge_soak
        from tpuserve_loadtests.measurement.measured import Segments
        from tpuserve_loadtests.rollout.procedure import Judged

        options, planned = self.options, self.options.segments
        target = self._target(self.stable)
        segments = Segments()
        with generating(target, options.generator) as runs, self._watch(self.stable) as server:
            load = segment_load(replace(options.terms, seconds=options.soak), options.load, planned, 1)
            run_segments(runs, load, planned, self.thresholds, segments, server, lambda segment: None)
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

    def _watch(self, spec: "ModelSpec") -> "ServerWatch":
        return watch_server(self.options.server, self.options.metrics, [spec])

    def _target(self, spec: "ModelSpec") -> "Target":
        server = self.options.server
        addresses = find_addresses("grpc", server.grpc_address, None)
        return find_target(spec, addresses, Requests.of(self.options.requests, find_access(server.access)))


def _comparison_line(outcome: "ComparisonOutcome") -> str:
    from tpuserve_loadtests.judgement.comparison import failure_cells

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


def _soak_line(outcome: "SoakOutcome") -> str:
    from tpuserve_loadtests.judgement.soak import verdict_cause, verdict_line

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
