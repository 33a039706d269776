"""The gates of `tpuserve rollout`: parity, shadow, canary, soak and the final look at every replica."""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Final

from tpuserve_client.errors import TpuserveError
from tpuserve_client.exchange import Exchange, PredictCall
from tpuserve_client.grpc_wire import GrpcWire
from tpuserve_client.model import ModelSpec
from tpuserve_client.rest_wire import RestWire
from tpuserve_formats.counted import counted
from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.cli import access, loads, monitoring, targets
from tpuserve_loadtests.cli.command import refused
from tpuserve_loadtests.cli.compare_command import interleaved
from tpuserve_loadtests.cli.options import OFF, GoldenOptions, ToleranceOptions
from tpuserve_loadtests.cli.requested_traffic import RequestedTraffic
from tpuserve_loadtests.cli.rollout_command import RolloutOptions
from tpuserve_loadtests.cli.rollout_servers import Side, Stage, warn
from tpuserve_loadtests.cli.soak_command import run_segments, segment_load
from tpuserve_loadtests.golden.answers import CheckPlan
from tpuserve_loadtests.golden.difference import Answers, Parity, differences, signature_difference
from tpuserve_loadtests.golden.tolerance import Tolerance
from tpuserve_loadtests.judgement.comparison import ComparisonOutcome, failure_cells, judge_comparison
from tpuserve_loadtests.judgement.exit_codes import (
    EXIT_EVIDENCE,
    EXIT_FAILED,
    EXIT_GATE,
    EXIT_INTERRUPTED,
    EXIT_UNREACHABLE,
    first_of,
)
from tpuserve_loadtests.judgement.run import Rules, RunOutcome, judge_run
from tpuserve_loadtests.judgement.soak import SoakOutcome, judge_soak, verdict_cause, verdict_line
from tpuserve_loadtests.judgement.threshold import EACH, GateResult, Lines
from tpuserve_loadtests.measurement.measured import Measured, Segment, Segments
from tpuserve_loadtests.measurement.recorder import Recorder, Tally
from tpuserve_loadtests.monitoring.server_watch import ServerWatch
from tpuserve_loadtests.reports.figures import line_title
from tpuserve_loadtests.requests.protocols import TITLES, port_of, protocol_of
from tpuserve_loadtests.rollout.procedure import CannotJudge, Findings, Judged
from tpuserve_loadtests.rollout.replicas import MissingReplica
from tpuserve_loadtests.rollout.user_requests import UserTraffic
from tpuserve_loadtests.traffic.senders import NotRecorded, record
from tpuserve_loadtests.traffic.target import Target

# Responses whose versions the last gate counts. Each uses a new connection, so that a balancer may choose any replica.
_COUNTED_RESPONSES: Final = 32
# Limit of these requests for a version with a share of the traffic. Without 10 % of it, one in 10^11 rollouts fails.
_MOST_RESPONSES: Final = 256


_VERDICTS: Final = {
    "same": "the new version is the same",
    "unclear": "the new version is possibly worse",
    "failing": "requests failed",
}


@dataclass(slots=True)
class Gates:
    """The gates between both versions of the stage. `findings` receives each gate's report.

    Every load checks responses: against those of the live version with parity, and otherwise against those that each
    version gave to single requests. Values of a version that answers the same request differently are not compared.
    """

    stage: Stage
    rules: Rules
    options: RolloutOptions
    interrupted: Callable[[], bool]
    findings: Findings
    _golden: dict[ModelSpec, Answers] = field(default_factory=dict, init=False)
    _notes: list[str] = field(default_factory=list, init=False)

    def check(self) -> None:
        """Raise a usage error for a gate that selects no line of the loads."""
        workload, protocols = self._target(self.stage.live).workload, self.stage.users.protocols
        lines = tuple(line for line in workload.lines if line.protocol in protocols)
        self.rules = replace(self.rules, lines=Lines(replace(workload, lines=lines).words()))
        with refused(ValueError):
            self.rules.lines.check(self.rules.gates)

    def parity(self) -> Judged:
        """Send every request to both versions over each protocol, one at a time, and compare the responses."""
        name = self.options.requests.signature_name
        try:
            a, b = (side.service.signature(side.spec, name) for side in self._both)
        except TpuserveError as error:
            return Judged(EXIT_GATE, error.message)
        if problem := signature_difference(a, b):
            self.findings.parity = Parity((), problem)
            return Judged(EXIT_GATE, f"incompatible with clients of the live version: {problem}")
        mine, others = (self._recorded(side) for side in self._both)
        found = self.findings.parity = Parity(tuple(differences(mine, others, self._tolerance())))
        return Judged(EXIT_GATE if found.different else 0, "; ".join([found.summary, *self._notes]))

    def _recorded(self, side: Side) -> Answers:
        """Return the side's responses to single requests, without protocols whose responses to one request differ.

        Raises CannotJudge.
        """
        if side.spec not in self._golden:
            target = self._target(side)
            requests = sum(len(line.exchanges) for line in target.workload.lines)
            done = itertools.count(1)

            def go_on() -> None:
                number = next(done)
                if self.interrupted():
                    raise CannotJudge(EXIT_INTERRUPTED, f"stopped after {number} of {counted(requests, 'request')}")

            try:
                recorded, _, notes = record(target, CheckPlan(), go_on)
            except NotRecorded as error:
                code = EXIT_GATE if self.options.parity else EXIT_FAILED
                raise CannotJudge(code, f"{side.spec}: {error}") from None
            self._golden[side.spec] = {line.protocol: line.golden for line in recorded.workload.lines if line.golden}
            self._notes += [f"{side.spec}, {note}" for note in notes]
        return self._golden[side.spec]

    def _tolerance(self) -> Tolerance:
        limits = self.options.requests.golden.tolerance
        tolerance = Tolerance(limits.atol, limits.rtol)
        if tolerance.is_fixed:
            return tolerance
        return replace(tolerance, versions=tuple(side.service.precision(side.spec) for side in self._both))

    def shadow(self) -> Judged:
        """Send both versions the same load in turn, over each protocol, and compare responses and figures."""
        options = self.options
        both = [self._checked(side, side) for side in self._both]
        # A single failed request decides, so further rounds cannot change the result.
        until_failure = not any(gate.metric == "error_rate" for gate in self.rules.gates)
        with self._watch(self.stage.live) as of_live, self._watch(self.stage.new) as of_new:
            load, watches = self._load(both[0], options.time.duration), (of_live, of_new)
            rounds, sides = interleaved(both, watches, options, load, until_failure=until_failure)
        if rounds and rounds[0][0].load.is_open and not options.load.rate:  # the later loads have the same rate
            rate = f"{rounds[0][0].load.offered_per_s:.6g}"
            self.options = replace(options, load=replace(options.load, rate=rate))
        names = (f"version {self.stage.live.spec.version}", f"version {self.stage.new.spec.version}")
        outcome = judge_comparison(names, rounds, self.rules, sides=sides, interrupted=self.interrupted())
        self.findings.comparison = outcome
        line = f"over {protocols_of(self.stage.new)}: {_comparison_line(outcome)}"
        return Judged(outcome.exit_code, "; ".join([line, *self._usage_words(), *self._notes]))

    def _usage_words(self) -> list[str]:
        """Describe the APIs that users call, and those of the load that they do not."""
        usage = self.stage.usage
        if usage is None:
            return []
        if not usage:
            return ["users have sent no request"]
        used = [f"{counted(each.requests, 'request')} over {each.api}" for each in usage]
        unused = [TITLES[each] for each in self.stage.new.protocols if each not in {one.protocol for one in usage}]
        unloaded = [each.api for each in usage if each.protocol is None]
        words = [f"users have sent {', '.join(used)}{', none over ' * bool(unused)}{' and '.join(unused)}"]
        return words + [f"no load sends {', '.join(unloaded)}"] * bool(unloaded)

    def canary(self) -> Judged:
        """Load what the canary serves, and require responses and passed gates of every replica."""
        options, side = self.options, self.stage.canary
        # A share of the traffic reaches the live version, whose responses need not be those of the new one.
        golden = self.stage.new if options.parity or side is not self.stage.users else None
        target = self._checked(side, golden, every_replica=True)
        load = self._load(target, options.canary_duration)
        load, hopeless = self.rules.watched(load)
        with (
            targets.generating(target, options.generator) as runs,
            self._watch(side) as server,
            server.during(load) as seen,
        ):
            measured, users = self.stage.user_requests.during(
                options.new, lambda: loads.run_load(runs, load, hopeless.why, "Canary, for")
            )
        run = judge_run(measured, self.rules, model=str(side.spec), rows=target.workload.rows, seen=seen)
        self.findings.canary, self.findings.user_traffic = run, users
        verdicts = [Judged(run.exit_code, _run_line(run)), self._judged_users(users)]
        verdicts += [self._judged_replica(run, address) for address in _several(target.replicas)]
        code, line = first_of(each.exit_code for each in verdicts), "; ".join(each.detail for each in verdicts)
        if code:
            return Judged(code, line)
        proof = self._proof(side, self.stage.midway)
        return Judged(proof.exit_code, f"{line}; {proof.detail}")

    def _judged_replica(self, run: RunOutcome, address: str) -> Judged:
        # The requests to a replica are not counted by line.
        gates = [gate for gate in self.rules.gates if gate.selector in ("", EACH)]
        of_replica = _of_replica(run.measured, address)
        results = [each for each in Lines().results(gates, of_replica) if each.outcome != "passed"]
        is_short = any(each.shortfall for each in results) or not of_replica.total.requests
        code = EXIT_GATE if any(each.failed for each in results) else EXIT_EVIDENCE if is_short else 0
        return Judged(code, f"{address}: {', '.join(map(str, results)) or _figures(of_replica)}")

    def _judged_users(self, users: UserTraffic) -> Judged:
        """Judge the requests of users by the gates on `error_rate`. Without such a gate, none may fail."""
        gates = [gate for gate in self.rules.gates if gate.metric == "error_rate" and gate.selector in ("", EACH)]
        if not users.requests:
            return Judged(0, str(users))
        results = [GateResult.of(gate, users.failed / users.requests) for gate in gates]
        failed = [str(result) for result in results if result.failed]
        code = EXIT_GATE if failed else EXIT_FAILED if users.failed and not gates else 0
        return Judged(code, ", ".join([str(users), *failed]))

    def soak(self) -> Judged:
        """Put what users request under load for the soak's duration."""
        options, planned = self.options, self.options.segments
        target = self._checked(self.stage.users, self.stage.new)
        segments, lost = Segments(), ""
        with targets.generating(target, options.generator) as runs, self._watch(self.stage.users) as server:
            base = replace(loads.base_load(options), seconds=options.soak)
            load = segment_load(base, options.load, planned, len(target.addresses))
            try:
                run_segments(runs, load, planned, self.rules, segments, server, self._replica_check(), options.patience)
            except _ReplicasLost as error:
                lost = f"{error}; "
        assert segments.total is not None  # at least the first one began
        run = judge_run(segments.total, self.rules, model=str(self.stage.users.spec), rows=target.workload.rows)
        outcome = judge_soak(run, segments, planned, self.rules)
        self.findings.soak = outcome
        return Judged(EXIT_FAILED if lost else outcome.exit_code, f"{lost}{_soak_line(outcome)}")

    def answers(self) -> Judged:
        return self._proof(self.stage.users, self.stage.goal)

    def _proof(self, side: Side, values: Mapping[str, int | None]) -> Judged:
        """Wait until the servers have what was moved, and count the versions that every replica answers with."""
        look = self.stage.mover.wait(values)
        if not look.agrees:
            return Judged(EXIT_UNREACHABLE if look.is_gone else EXIT_FAILED, look.lacking)
        line, spec, new = self.stage.mover.summary(look), side.spec, self.stage.new.spec.version
        is_shared = side is self.stage.users and values != self.stage.goal
        try:
            versions = self._answering_versions(side, new if is_shared else None)
        except TpuserveError as error:
            return Judged(EXIT_GATE, f"{line}; {spec}: {error.code.name}: {error.message}")
        answers = ", ".join(f"{count} by version {version}" for version, count in sorted(versions.items()))
        is_proven = new in versions if is_shared else versions.keys() == {new}
        return Judged(
            0 if is_proven else EXIT_GATE,
            f"{line}; {counted(versions.total(), 'response')} of {asked(spec)}: {answers}",
        )

    def _answering_versions(self, side: Side, awaited: int | None) -> Counter[int]:
        """Count the versions that answer, over new connections to every replica. Raises TpuserveError.

        Sends more requests until the `awaited` version answers.
        """
        target = self._target(side, every_replica=True)
        exchanges = {line.protocol: itertools.cycle(line.exchanges) for line in target.workload.lines}
        places = dict.fromkeys([*target.replicas, *side.protocols.values()])
        addresses = itertools.cycle(places)
        found: Counter[int] = Counter()
        least = max(_COUNTED_RESPONSES, len(places))
        while found.total() < least or (awaited not in (None, *found) and found.total() < _MOST_RESPONSES):
            address = next(addresses)
            found[self._version_of(side, next(exchanges[protocol_of(address)]), address)] += 1
        return found

    def _version_of(self, side: Side, exchange: Exchange, address: str) -> int:
        credentials, protocol = access.find_access(self.options.server.access), protocol_of(address)
        with closing(credentials.transport(address)) as transport:
            reply = transport.send(exchange, self.options.requests.timeout)
        if protocol == "grpc":
            return GrpcWire().read_prediction(reply, PredictCall(side.spec, {}), None).version or 0
        found = RestWire().version(reply)
        if found is None:  # TensorFlow Serving's predictions over REST do not have it
            with credentials.client(address, self.options.requests.timeout) as client:
                found = client.metadata(side.spec.name, label=side.spec.label).version
        return found or 0

    @property
    def _both(self) -> tuple[Side, Side]:
        return self.stage.live, self.stage.new

    def _replica_check(self) -> Callable[[Segment], None]:
        """Return a check between segments. It raises _ReplicasLost for a replica that lacks the labels too long."""
        since_s: float | None = None
        said = ""

        def check(_: Segment) -> None:
            nonlocal since_s, said
            look = self.stage.mover.look(self.stage.goal)
            if look.agrees:
                since_s, said = None, ""
                return
            since_s = since_s or time.monotonic()
            if look.lacking != said:
                said = look.lacking
                warn(f"a replica does not follow: {look.lacking}")
            if time.monotonic() - since_s > self.options.patience:
                raise _ReplicasLost(look.lacking)

        return check

    def _watch(self, side: Side) -> ServerWatch:
        return monitoring.watch_server(self.options.server, self.options.metrics, [side.spec])

    def _load(self, target: Target, seconds: float) -> Load:
        base = replace(loads.base_load(self.options), seconds=seconds)
        return loads.users_or_rate(base, self.options.load, len(target.addresses))

    def _checked(self, side: Side, golden: Side | None, *, every_replica: bool = False) -> Target:
        """Return the target with responses checked against those of `golden`, or of the live version with parity.

        Raises CannotJudge for responses that cannot be recorded.
        """
        target = self._target(side, every_replica=every_replica)
        if golden is None:
            return target
        known = self._recorded(self.stage.live if self.options.parity else golden)
        lines = tuple(replace(line, golden=known.get(line.protocol, ())) for line in target.workload.lines)
        tolerance = self._tolerance()
        checks = CheckPlan(self.options.requests.golden.check_share, {line.name: tolerance for line in lines})
        return replace(target, workload=replace(target.workload, lines=lines), checks=checks)

    def _target(self, side: Side, *, every_replica: bool = False) -> Target:
        credentials = access.find_access(self.options.server.access)
        try:
            replicas = self.stage.replicas() if every_replica or self.stage.is_spread else ()
        except TpuserveError as error:
            address = error.replica if isinstance(error, MissingReplica) else side.address
            targets.end_unreachable(address, credentials, error.message)
        options = self.options.requests
        golden = GoldenOptions(options.golden.path or OFF, None, ToleranceOptions(None, None))
        requests = targets.Requests.of(replace(options, golden=golden), credentials)
        return RequestedTraffic.of_model(side.spec, side.protocols, requests).find_target(replicas=replicas)


def _several(replicas: Sequence[str]) -> list[str]:
    """Return the addresses of ports that several replicas have. A run counts those apart."""
    ports = Counter(port_of(protocol_of(address)) for address in replicas)
    return [address for address in replicas if ports[port_of(protocol_of(address))] > 1]


def _of_replica(measured: Measured, address: str) -> Measured:
    """Return the requests of a run to one replica, as a single window without the rate's course."""
    tally = measured.recorder.replicas.get(address, Tally())
    recorder = Recorder((address,), measured.load).condensed()
    recorder.windows[0].tallies[address] = tally
    recorder.windows[0].completed[address] = tally.requests - tally.failures
    return replace(measured, recorder=recorder)


def _figures(measured: Measured) -> str:
    p99_ms = measured.total.percentile_ms(99)
    p99 = "-" if p99_ms is None else f"{p99_ms:.2f} ms"
    return f"{counted(measured.total.requests, 'request')}, {measured.total.failures:,} failed, p99 {p99}"


def _run_line(run: RunOutcome) -> str:
    errors = run.measured.recorder.errors()
    parts = [_figures(run.measured), *(f"most frequent error: {error.message}" for error in errors[:1])]
    return "; ".join([*parts, *(str(result) for result in run.gates if result.outcome != "passed")])


def protocols_of(side: Side) -> str:
    *others, last = (TITLES[protocol] for protocol in side.protocols)
    return f"{', '.join(others)} and {last}" if others else last


def asked(spec: ModelSpec) -> str:
    """Return what users request, in words."""
    return f"label {spec.label}" if spec.label else f"model {spec.name}"


class _ReplicasLost(Exception):
    """Error for replicas that were without the configuration for too long. The message names them."""


def _comparison_line(outcome: ComparisonOutcome) -> str:
    if outcome.comparison is None:
        return "; ".join([*_problems(outcome), f"{outcome.too_few[:1].lower()}{outcome.too_few[1:]}"])
    ratios = [
        f"{figure.name} {figure.ratio.ratio:.3f} ({figure.ratio.low:.3f} to {figure.ratio.high:.3f})"
        for figure in outcome.comparison.figures
    ]
    verdict = outcome.comparison.verdict
    parts = [
        _VERDICTS.get(verdict, f"the new version is {verdict}"),
        *_problems(outcome),
        f"ratios to the live version: {', '.join(ratios)}",
        *outcome.unclear,
        outcome.difference,
    ]
    if outcome.problems and outcome.comparison.failures:
        _, _, _, difference, interval, _ = failure_cells(outcome.comparison.failures)
        parts.append(f"difference of the failure rates: {difference} ({interval})")
    line = "; ".join(part for part in parts if part)
    return f"{line}; the load generator was the limit: {outcome.limits[0]}" if outcome.limits else line


def _problems(outcome: ComparisonOutcome) -> list[str]:
    """Describe wrong answers of each version by protocol, other failures and failed gates."""
    found = []
    for side in reversed(outcome.totals):
        messages = {error.line: error.message for error in reversed(side.measured.recorder.errors())}
        for line in side.measured.lines():
            if line.wrong:
                share = f"{line.wrong:,} of {counted(line.requests, 'answer')} of {side.name} were wrong"
                found.append(f"{share} over {line_title(line.name)}: {messages[line.name]}")
        if side.problem and not side.total.wrong:
            found.append(side.problem)
    return [*found, *(str(result) for result in outcome.gates if result.outcome != "passed")]


def _soak_line(outcome: SoakOutcome) -> str:
    cause = [verdict_cause(outcome)] if outcome.verdict not in ("steady", "unknown") else []
    parts = [verdict_line(outcome).lower(), _run_line(outcome.run), *cause]
    return "; ".join([*parts, *(note for note in outcome.notes if "count from" not in note)])
