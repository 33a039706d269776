"""A suite for plain Locust: users that send Predict requests, and a report when Locust ends.

Locust starts and stops the users, on this machine or others, and serves its web page. The process must call
give_process_to_gevent (gevent_setup) before it imports this module.
"""

import logging
import sys
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, ClassVar, Final

import click
from locust import User, constant, task
from locust.exception import StopUser
from locust.runners import LocalRunner, MasterRunner, WorkerRunner
from rich.console import Console

from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.cli.requested_traffic import find_traffic
from tpuserve_loadtests.golden.answers import AnswerChecks
from tpuserve_loadtests.judgement.exit_codes import EXIT_USAGE
from tpuserve_loadtests.judgement.run import judge_run
from tpuserve_loadtests.judgement.threshold import Threshold
from tpuserve_loadtests.locustfiles.options import add_options, explicit_names, suite_options
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.measurement.recorder import Recorder, Tally
from tpuserve_loadtests.rendering.terminal import print_report
from tpuserve_loadtests.reports.run import run_report
from tpuserve_loadtests.requests.protocols import TITLES, Port
from tpuserve_loadtests.requests.workload import Turns
from tpuserve_loadtests.traffic.senders import Connections, Sender
from tpuserve_loadtests.traffic.target import Target
from tpuserve_loadtests.traffic.traffic import MAX_IN_FLIGHT


class LineTallies:
    """Tallies of one process, or the merged tallies of several. Belongs to one thread."""

    def __init__(self) -> None:
        self.tallies: dict[str, Tally] = {}
        self._started_at = time.time()
        self._start_s, self._cpu_start_s = time.perf_counter(), time.process_time()
        self._end_s, self._cpu_end_s = 0.0, 0.0
        self._cpu_s_of_workers: dict[str, float] = {}

    def record(self, line: str, latency_s: float, failed: bool) -> None:
        tally = self.tallies.get(line)
        if tally is None:
            tally = self.tallies[line] = Tally()
        if failed:
            tally.record_failure()
        else:
            tally.record_success(latency_s * 1e6)

    def end(self) -> None:
        """Mark the end of the run. Later requests do not extend its time."""
        if not self._end_s:
            self._end_s, self._cpu_end_s = time.perf_counter(), time.process_time()

    def take_wire(self) -> dict[str, Any]:
        """Return a document for the coordinator's `add_wire` with all records since the previous call."""
        tallies, self.tallies = self.tallies, {}
        cpu_s = (self._cpu_end_s or time.process_time()) - self._cpu_start_s
        return {"tallies": {name: tally.to_wire() for name, tally in tallies.items()}, "cpu_s": cpu_s}

    def add_wire(self, worker: str, document: dict[str, Any]) -> None:
        self._cpu_s_of_workers[worker] = document["cpu_s"]
        for name, sent in document["tallies"].items():
            self.tallies.setdefault(name, Tally()).add(Tally.from_wire(sent))

    def measured(self, lines: tuple[str, ...], users: int) -> Measured:
        """Return the run as a single window, because only its totals are known."""
        self.end()
        span_s = max(self._end_s - self._start_s, 1e-3)
        load = Load(span_s, users=max(users, 1))
        recorder = Recorder(lines, load)
        recorder.windows[0].tallies.update(self.tallies)
        recorder.windows[0].completed.update(
            {name: tally.requests - tally.failures for name, tally in self.tallies.items()}
        )
        cpu_s = tuple(self._cpu_s_of_workers.values()) or (self._cpu_end_s - self._cpu_start_s,)
        return Measured(load, recorder, span_s, tuple(each / span_s for each in cpu_s), "", self._started_at)


# Distance between the first requests of two workers, so that each starts elsewhere in the sequence.
_WORKERS_APART: Final = 104_729
_REPORT: Final = "tpuserve"
_log = logging.getLogger(__name__)


class Suite:
    """Suite of a locustfile, which calls `listen` and `user_class`. Belongs to the thread of Locust's greenlets."""

    def __init__(self, ports: Sequence[Port]) -> None:
        self._ports = tuple(ports)
        self._target: Target | None = None
        self._title = ""
        self._gates: tuple[Threshold, ...] = ()
        self._sending: Sending | None = None
        self._tallies: LineTallies | None = None

    def listen(self, events: Any) -> None:  # noqa: ANN401  Locust ships no annotations
        events.init_command_line_parser.add_listener(lambda parser, **_: add_options(parser, self._ports))
        events.init.add_listener(lambda environment, **_: self._prepare(environment))
        events.test_start.add_listener(lambda environment, **_: self._start(environment))
        events.reset_stats.add_listener(lambda **_: self._reset())
        events.test_stop.add_listener(lambda **_: self._stop())
        events.report_to_master.add_listener(lambda data, **_: self._add_report(data))
        events.worker_report.add_listener(lambda client_id, data, **_: self._merge_report(client_id, data))
        events.quitting.add_listener(lambda environment, **_: self._report(environment))

    def user_class(self) -> type[Any]:
        """Return a user class that sends one request after another."""
        suite = self

        class PredictUser(User):  # type: ignore[misc]  # Locust ships no annotations
            wait_time: ClassVar = constant(0)

            def on_start(self) -> None:
                sending = suite._sending
                self._send_next_request = _stop_user if sending is None else sending.new_user(self.environment)

            @task  # type: ignore[untyped-decorator]  # Locust ships no annotations
            def predict(self) -> None:
                """Send one request."""
                self._send_next_request()

        return PredictUser

    def _prepare(self, environment: Any) -> None:  # noqa: ANN401
        options = environment.parsed_options
        try:
            if isinstance(environment.runner, WorkerRunner) or not (
                options.headless or options.autostart or options.model or options.scenario
            ):
                return
            self._target = self._find(environment)
        except (ValueError, click.UsageError) as error:
            click.echo(f"Error: {_message(error)}", err=True)
            sys.exit(EXIT_USAGE)

    def _find(self, environment: Any) -> Target:  # noqa: ANN401
        options = environment.parsed_options
        chosen = suite_options(options, self._ports)
        traffic, chosen = find_traffic(chosen, own_load=True, explicit=explicit_names(options, chosen))
        self._title, self._gates = traffic.title, tuple(Threshold.parse(text) for text in chosen.gates)
        return traffic.find_target()

    def _start(self, environment: Any) -> None:  # noqa: ANN401
        self._reset()
        try:
            self._target = self._find(environment)
        except (ValueError, click.UsageError) as error:
            self._refuse(environment, _message(error))
        except SystemExit:
            self._refuse(environment, "the server cannot be reached")
        else:
            if not isinstance(environment.runner, MasterRunner):
                self._sending = Sending(self._target, getattr(environment.runner, "worker_index", 0), self._record)

    def _refuse(self, environment: Any, problem: str) -> None:  # noqa: ANN401
        """Report the problem as a failed request, because Locust's web page shows only those."""
        self._target = None
        _log.error("Cannot send requests: %s", problem)
        environment.events.request.fire(
            request_type="",
            name="no requests sent",
            response_time=0,
            response_length=0,
            exception=RuntimeError(problem),
            context={},
        )

    def _record(self, line: str, latency_s: float, failed: bool) -> None:
        if self._tallies is not None:
            self._tallies.record(line, latency_s, failed)

    def _reset(self) -> None:
        self._tallies = LineTallies()

    def _stop(self) -> None:
        if self._tallies is not None:
            self._tallies.end()
        if self._sending is not None:
            self._sending.close()
            self._sending = None

    def _add_report(self, data: dict[str, Any]) -> None:
        if self._tallies is not None:
            data[_REPORT] = self._tallies.take_wire()

    def _merge_report(self, worker: str, data: dict[str, Any]) -> None:
        if self._tallies is not None and _REPORT in data:
            self._tallies.add_wire(worker, data[_REPORT])

    def _report(self, environment: Any) -> None:  # noqa: ANN401
        if self._tallies is None or isinstance(environment.runner, WorkerRunner):
            return
        if isinstance(environment.runner, LocalRunner):
            # After a signal, Locust stops the users only later. Their requests until then would be counted nowhere.
            environment.runner.stop()
        options = environment.parsed_options
        lines = () if self._target is None else tuple(line.name for line in self._target.workload.lines)
        outcome = judge_run(
            self._tallies.measured(lines, int(options.num_users or 1)),
            model=self._title,
            rows=1 if self._target is None else self._target.workload.rows,
            gates=self._gates,
            strict=options.generator_limit == "fail",
        )
        print_report(run_report(outcome, {}), Console())
        environment.process_exit_code = outcome.exit_code


class Sending:
    """Connections to the server, and the sequence of requests. Belongs to one thread and one run."""

    def __init__(self, target: Target, worker: int, record: Callable[[str, float, bool], None]) -> None:
        """Connect to the target. For each request, call `record` with its line, latency in seconds, and failure."""
        lines = target.workload.lines
        self._connections = Connections(target.addresses, target.access, MAX_IN_FLIGHT, target.timeout_s)
        self._senders = tuple(self._connections.sender(line) for line in lines)
        self._checks = AnswerChecks(lines, target.checks, worker)
        self._turns = Turns(target.workload.order) if target.workload.order else None
        self._users = count()
        self._numbers = count(max(worker, 0) * _WORKERS_APART)
        self._record = record

    def close(self) -> None:
        self._connections.close()

    def new_user(self, environment: Any) -> Callable[[], None]:  # noqa: ANN401
        """Return a function that sends the user's next request. Without an order, the user stays on one line."""
        if self._turns is not None:
            turns = self._turns
            return lambda: self._send_next(environment, turns)
        sender = self._senders[next(self._users) % len(self._senders)]
        return lambda: self._send(environment, sender, next(self._numbers))

    def _send_next(self, environment: Any, turns: Turns) -> None:  # noqa: ANN401
        line, turn = turns.at(next(self._numbers))
        self._send(environment, self._senders[line], turn)

    def _send(self, environment: Any, sender: Sender, turn: int) -> None:  # noqa: ANN401
        length, failure = 0, None
        start_s = time.perf_counter()
        try:
            reply = sender.send(turn)
            latency_s = time.perf_counter() - start_s
            length = len(reply.body)
            if self._checks.is_due():
                self._checks.check(sender.line, turn, reply)
        except Exception as error:  # any error is the outcome of this request and must not end the user
            latency_s, failure = time.perf_counter() - start_s, error
        self._record(sender.line.name, latency_s, failure is not None)
        environment.events.request.fire(
            request_type=TITLES[sender.line.protocol],
            name=sender.line.name,
            response_time=latency_s * 1000,
            response_length=length,
            exception=failure,
            context={},
        )


def _stop_user() -> None:
    """Stop a user of a suite that cannot send requests.

    A task raises the exception, because Locust logs a traceback for an exception in `on_start`.
    """
    raise StopUser


def _message(error: Exception) -> str:
    return error.format_message() if isinstance(error, click.ClickException) else str(error)
