"""Locust's runs in this process: the server of `--host`, records of all requests, and the report when Locust ends.

Locust starts and stops the users, on this machine or others, and serves its web page. The process must call
give_process_to_gevent (gevent_setup) before it imports this module.
"""

import logging
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final

import click
from gevent import get_hub
from gevent.event import Event
from locust.exception import StopUser
from locust.runners import LocalRunner, MasterRunner, WorkerRunner

from tpuserve_client.errors import InvalidArgument
from tpuserve_formats.counted import counted
from tpuserve_loadtests.cli import files
from tpuserve_loadtests.cli.access import find_access
from tpuserve_loadtests.cli.command import refused
from tpuserve_loadtests.cli.loads import rules_of
from tpuserve_loadtests.cli.requested_traffic import RequestedTraffic
from tpuserve_loadtests.judgement.exit_codes import EXIT_USAGE
from tpuserve_loadtests.judgement.run import Rules, judge_run
from tpuserve_loadtests.judgement.threshold import Lines, Threshold
from tpuserve_loadtests.locustfiles.client import PredictClient, Service
from tpuserve_loadtests.locustfiles.options import add_options, check_certificates, parsed
from tpuserve_loadtests.locustfiles.records import Records
from tpuserve_loadtests.measurement.recorder import Delivery
from tpuserve_loadtests.reports.run import run_report
from tpuserve_loadtests.requests.protocols import Protocol, shown_address
from tpuserve_loadtests.traffic.target import Target

# Distance between the numbers of users in two processes.
_WORKERS_APART: Final = 1_000_000
_REPORT: Final = "tpuserve"
# Messages between the master and its workers at the end of a run. Locust itself waits half a second for the last
# reports of its workers, and counts nothing of a later one.
_FINISH: Final = "tpuserve_finish"
_FINAL_REPORT: Final = "tpuserve_final_report"
_FINAL_REPORT_S: Final = 15.0
_NOT_SENT: Final = "no requests sent"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Requested:
    """What a class of users sends: its addresses by protocol, in the client's form, gates, and encoded payloads.

    `title` names the payloads in the report, if the class has no others than those.
    """

    addresses: Mapping[Protocol, str]
    gates: tuple[Threshold, ...]
    traffic: RequestedTraffic | None = None
    title: str = ""

    def find_target(self) -> Target | None:
        """Build the payloads from the model's metadata. Blocks. On failure, exit with a message."""
        return None if self.traffic is None else self.traffic.find_target()


@dataclass(frozen=True, slots=True)
class Plan:
    """The traffic of a run: what each class of users sends, with the target of its payloads, and the rules."""

    title: str
    classes: Mapping[type[Any], tuple[Requested, Target | None]]
    rules: Rules = field(default_factory=Rules)

    @property
    def subject(self) -> str:
        titles = {requested.title for requested, _ in self.classes.values()}
        title = titles.pop() if len(titles) == 1 else ""
        shown = (shown_address(*item) for requested, _ in self.classes.values() for item in requested.addresses.items())
        addresses = ", ".join(dict.fromkeys(shown))
        return f"{title or self.title} at {addresses}" if addresses else self.title

    def selected(self) -> Lines:
        """Return the words that select payloads in a gate. A name also selects the requests of own tasks.

        Raises ValueError for a gate that selects nothing, if no class has own tasks.
        """
        lines = [line for _, target in self.classes.values() if target for line in target.workload.lines]
        found = Lines({line.name: line.words for line in lines})
        if all(requested.title for requested, _ in self.classes.values()):
            found.check(self.rules.gates)
        return found

    @property
    def lines(self) -> list[str]:
        """The first lines of the table, also without requests: those of classes that send nothing else."""
        found = [target for requested, target in self.classes.values() if target and requested.title]
        return [line.name for target in found for line in target.workload.lines]


class Session:
    """The runs of one process. Locust's listeners and users call it in the thread of their greenlets."""

    def __init__(self, kind: type[Any]) -> None:
        """Set up the session for the users of class `kind`."""
        self._kind = kind
        # The hosts of the classes. Locust overwrites them with --host and does not restore them.
        self._declared: dict[type[Any], str] = {}
        self._services: dict[type[Any], Service] = {}
        self._users = count()
        self._records = Records()
        self._has_begun = self._is_refused = False
        # The workers whose final report the master waits for, and those that could send no requests.
        self._missing: set[str] = set()
        self._idle: set[str] = set()
        self._gathered = Event()
        self._plan = Plan("", {})
        # The plan of the first run, if a check found it before the start.
        self._checked: Plan | None = None

    def listen(self, events: Any) -> None:  # noqa: ANN401  Locust ships no annotations
        events.init_command_line_parser.add_listener(lambda parser, **_: add_options(parser))
        events.init.add_listener(lambda environment, **_: self._prepare(environment))
        events.test_start.add_listener(lambda environment, **_: self._start(environment))
        events.request.add_listener(self._record)
        events.reset_stats.add_listener(lambda **_: self._reset())
        events.test_stopping.add_listener(lambda environment, **_: self._records.end(environment.runner.user_count))
        events.test_stop.add_listener(lambda environment, **_: self._stop(environment.runner))
        events.report_to_master.add_listener(lambda data, **_: data.update({_REPORT: self._records.take_wire()}))
        events.worker_report.add_listener(lambda client_id, data, **_: self._merge_report(client_id, data))
        events.quitting.add_listener(lambda environment, **_: self._report(environment))

    def next_number(self, runner: Any) -> int:  # noqa: ANN401
        """Return the number of the next user, which no other user of the run has, in any process."""
        return max(getattr(runner, "worker_index", 0), 0) * _WORKERS_APART + next(self._users)

    def client(self, user: Any) -> PredictClient:  # noqa: ANN401
        """Return a client for a user. With two addresses, users take turns. Raises StopUser after a refusal.

        A task calls this, because Locust logs a traceback for StopUser in `on_start`.
        """
        if self._is_refused:
            raise StopUser
        return PredictClient(self._services[type(user)], user)

    def _prepare(self, environment: Any) -> None:  # noqa: ANN401
        kinds = {*environment.user_classes, *(environment.available_user_classes or {}).values()}
        self._declared = {kind: kind.host or "" for kind in kinds}
        if isinstance(environment.runner, MasterRunner):
            environment.runner.register_message(_FINAL_REPORT, self._merge_final_report)
        if isinstance(environment.runner, WorkerRunner):
            environment.runner.register_message(_FINISH, self._finish)
        # Locust then waits for requests in flight, which would otherwise be abandoned, and counted as failed.
        with suppress(click.UsageError):
            options, _ = parsed(environment.parsed_options)
            environment.stop_timeout = environment.stop_timeout or options.requests.timeout
        self._check(environment)
        # gevent starts a timer from the time that its loop read last: before the imports, if nothing has waited since.
        # Locust starts the timer of --run-time next, which would end a run early by seconds.
        get_hub().loop.update_now()

    def _check(self, environment: Any) -> None:  # noqa: ANN401
        """Check the run before Locust starts, and end the process with a message if it cannot begin.

        A process with a web page checks each run when it starts. A worker gets its options then.
        """
        options = environment.parsed_options
        if isinstance(environment.runner, WorkerRunner) or not (options.headless or options.autostart):
            return
        try:
            self._checked = self._find(environment)
        except (ValueError, click.UsageError) as error:
            click.echo(f"Error: {_message(error)}", err=True)
            sys.exit(EXIT_USAGE)

    def _start(self, environment: Any) -> None:  # noqa: ANN401
        self._reset()
        self._users = count()
        self._has_begun, self._is_refused = True, False
        try:
            checked, self._checked = self._checked, None
            self._plan = checked or self._find(environment)
            self._connect(environment)
            return
        except (ValueError, click.UsageError) as error:
            problem = _message(error)
        except SystemExit:
            problem = "the server cannot be reached"
        self._is_refused = True
        _log.error("Cannot send requests: %s", problem)
        # A failed request, because Locust's web page shows no other message.
        environment.events.request.fire(
            request_type="",
            name=_NOT_SENT,
            response_time=0,
            response_length=0,
            exception=RuntimeError(problem),
            context={},
        )

    def _find(self, environment: Any) -> Plan:  # noqa: ANN401
        values = environment.parsed_options
        options, _ = parsed(values)
        if not isinstance(environment.runner, WorkerRunner):
            options.files.clear()
            files.check_files(options.files)
        access = find_access(options.server.access)
        kinds = [kind for kind in environment.user_classes if issubclass(kind, self._kind)]
        found = {kind: kind.requested(environment.host or self._declared.get(kind, ""), values) for kind in kinds}
        rules = rules_of(options)
        gates = tuple(dict.fromkeys((*rules.gates, *(gate for each in found.values() for gate in each.gates))))
        for requested in found.values():
            check_certificates(options.server.access, requested.addresses)
            with refused(InvalidArgument):
                for address in requested.addresses.values():
                    access.check_key(address)
        classes = {kind: (requested, requested.find_target()) for kind, requested in found.items()}
        plan = Plan(environment.locustfile or "Locust", classes, replace(rules, gates=gates))
        return replace(plan, rules=replace(plan.rules, lines=plan.selected()))

    def _connect(self, environment: Any) -> None:  # noqa: ANN401
        if isinstance(environment.runner, MasterRunner):
            return
        worker = getattr(environment.runner, "worker_index", 0)
        options, _ = parsed(environment.parsed_options)
        access, requests = find_access(options.server.access), options.requests
        for kind, (requested, target) in self._plan.classes.items():
            timeout_s = target.timeout_s if target else requests.timeout
            self._services[kind] = Service(requested.addresses, access, timeout_s, requests.connections, target, worker)

    def _record(
        self,
        request_type: str,
        name: str,
        response_time: float,
        exception: Exception | None = None,
        delivery: Delivery | None = None,
        **_: object,
    ) -> None:
        if name != _NOT_SENT:
            self._records.record(request_type, name, response_time / 1000, exception, delivery or Delivery())

    def _reset(self) -> None:
        self._records = Records()

    def _stop(self, runner: Any) -> None:  # noqa: ANN401
        if isinstance(runner, MasterRunner):
            self._records.lost = self._gather(runner)
        services, self._services = self._services, {}
        for service in services.values():
            service.close()

    def _merge_report(self, worker: str, data: dict[str, Any]) -> None:
        if _REPORT in data:
            self._records.add_wire(worker, data[_REPORT])

    def _gather(self, runner: Any) -> tuple[str, ...]:  # noqa: ANN401
        """End the run on every worker and merge the final reports. Return the workers whose share is missing."""
        self._missing = {worker.id for worker in runner.clients.all}
        self._idle.clear()
        self._gathered.clear()
        runner.send_message(_FINISH)
        if self._missing:
            self._gathered.wait(_FINAL_REPORT_S)
        return tuple(sorted(self._missing | self._idle))

    def _finish(self, environment: Any, msg: Any) -> None:  # noqa: ANN401  Locust's own signature
        environment.runner.stop()
        report = {} if self._is_refused else self._records.take_wire()
        environment.runner.send_message(_FINAL_REPORT, report)

    def _merge_final_report(self, environment: Any, msg: Any) -> None:  # noqa: ANN401
        if msg.data:
            self._records.add_wire(msg.node_id, msg.data)
        else:
            self._idle.add(msg.node_id)
        self._missing.discard(msg.node_id)
        if not self._missing:
            self._gathered.set()

    def _report(self, environment: Any) -> None:  # noqa: ANN401
        if not self._has_begun or isinstance(environment.runner, WorkerRunner):
            return
        if isinstance(environment.runner, LocalRunner):
            # After a signal, Locust stops the users only later. Their requests until then would be counted nowhere.
            environment.runner.stop()
        values = environment.parsed_options
        options, _ = parsed(values)
        outcome = judge_run(
            self._records.measured(self._plan.lines, values.run_time or 0),
            self._plan.rules,
            model=self._plan.subject,
            rows=0,
            broken=_exceptions(environment.runner),
        )
        report = run_report(outcome, files.describe_command("locust"))
        environment.process_exit_code = files.output(report, options.files)


def _exceptions(runner: Any) -> str:  # noqa: ANN401
    """Return a sentence on the tasks that ended with an exception, or an empty string."""
    found = sum(each["count"] for each in runner.exceptions.values())
    messages = ", ".join(sorted({each["msg"] for each in runner.exceptions.values()}))
    return f"{counted(found, 'task')} ended with an exception: {messages}" if found else ""


def _message(error: Exception) -> str:
    return error.format_message() if isinstance(error, click.ClickException) else str(error)
