"""Reports of a start: JSON lines in a named pipe for the process that waits for it, and a banner for people."""

import contextlib
import dataclasses
import json
import logging
import os
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import click

from tpuserve_server.core.serving.service import InferenceService
from tpuserve_server.core.terms.errors import NotFound
from tpuserve_server.core.terms.types import ModelSpec, State, VersionStatus
from tpuserve_server.hosts.application import Listening

logger = logging.getLogger(__name__)

# Path of the named pipe. If it is unset, the server sends no reports.
START_REPORT_VARIABLE = "TPUSERVE_START_REPORT"


@dataclass(frozen=True, slots=True)
class StartReport:
    """State of a start. `settled`: each model has an available version or has failed for good.

    `waiting` is a sentence for display. `failures` name the model, version and reason, for models without an available
    version.
    """

    settled: bool
    waiting: str
    failures: tuple[str, ...]
    listening: Listening

    @classmethod
    def take(cls, service: InferenceService, listening: Listening) -> Self:
        """Create a report of the service's state now."""
        settled = service.is_ready() or bool(service.start_failures()) or not service.models()
        failures = [failure for name in service.models() for failure in _failures(service, name)]
        return cls(settled, service.why_not_ready(), tuple(failures), listening)

    @classmethod
    def from_json(cls, line: str) -> Self:
        """Parse a line of the pipe."""
        fields = json.loads(line)
        listening = Listening(**fields.pop("listening"))
        return cls(failures=tuple(fields.pop("failures")), listening=listening, **fields)

    def to_json(self) -> str:
        """Return the report as one line of JSON."""
        return json.dumps(dataclasses.asdict(self))


def report_start(service: InferenceService, listening: Listening) -> None:
    """Write a report now and after each change, until the start is settled. Does nothing without the variable.

    Never raises: the reader may be gone.
    """
    path = os.environ.get(START_REPORT_VARIABLE)
    if not path:
        return
    try:
        # The reader opens its end before it starts the server. Without a reader this raises at once.
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return
    os.set_blocking(descriptor, True)
    _Reporter(service, listening, descriptor).write()


class _Reporter:
    """Writer of reports, one at a time, on the thread of each change. It closes the pipe after the last report."""

    def __init__(self, service: InferenceService, listening: Listening, descriptor: int) -> None:
        self._service = service
        self._listening = listening
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._last: StartReport | None = None
        self._ended = False
        with self._lock:  # A change on another thread waits until `_leave` is set.
            self._leave = service.subscribe(self.write)

    def write(self) -> None:
        with self._lock:
            if self._ended:
                return
            report = StartReport.take(self._service, self._listening)
            if report == self._last:
                return
            self._last, self._ended = report, report.settled
            try:
                os.write(self._descriptor, f"{report.to_json()}\n".encode())
            except OSError:
                self._ended = True
            if self._ended:
                self._leave()
                os.close(self._descriptor)


def _failures(service: InferenceService, name: str) -> Iterator[str]:
    # A model may have no version yet.
    with contextlib.suppress(NotFound):
        versions = service.status(ModelSpec(name))
        if not any(version.state is State.AVAILABLE for version in versions):
            yield from (f"{name} version {one.servable.version}: {one.error}" for one in versions if one.error)


# Upstream logs localhost for a REST port on every address. Browsers do not open 0.0.0.0 on every system.
_EVERYWHERE = re.compile(r"^(0\.0\.0\.0|\[::\])(?=:)")


def print_banner(service: InferenceService, listening: Listening, *, has_console: bool) -> None:
    """Print the banner once, when the service is ready: now, or on the thread whose change makes it ready."""
    addresses = _addresses(listening, has_console)
    lock = threading.Lock()
    printed = False

    def on_change() -> None:
        nonlocal printed
        with lock:
            if printed or not service.is_ready():
                return
            printed = True
        click.echo(_format_banner(_statuses(service), addresses))
        _log_addresses(listening)

    if not service.is_ready():
        waiting = f"tpuserve is listening, but not ready: {service.why_not_ready()}"
        click.echo("\n".join([waiting, *addresses]))
    service.subscribe(on_change)
    on_change()


def _format_banner(versions: Sequence[VersionStatus], addresses: Sequence[str]) -> str:
    """Return the banner: each version that serves, with notes, each version that has failed, then the addresses."""
    lines = ["", "tpuserve is ready"]
    for status in versions:
        name = f"{status.servable.name} version {status.servable.version}"
        if status.state is State.AVAILABLE:
            lines.append(f"  model    {name}")
            lines.extend(f"           {note}" for note in status.notes)
        elif status.error:
            lines.append(f"  failed   {name}: {status.error}")
    return "\n".join([*lines, *addresses])


def _log_addresses(listening: Listening) -> None:
    """Log upstream's lines (model_servers/server.cc). Scripts wait for them as a sign that the models are loaded."""
    if listening.grpc:
        logger.info("Running gRPC ModelServer at %s ...", listening.grpc)
    if listening.grpc_socket:
        logger.info("Running gRPC ModelServer at UNIX socket %s ...", listening.grpc_socket.removeprefix("unix:"))
    if listening.rest:
        logger.info("Exporting HTTP/REST API at:%s ...", _EVERYWHERE.sub("localhost", listening.rest))


def _statuses(service: InferenceService) -> list[VersionStatus]:
    found: list[VersionStatus] = []
    for name in service.models():
        # A new model may have no version yet.
        with contextlib.suppress(NotFound):
            found += service.status(ModelSpec(name))
    return found


def _addresses(listening: Listening, has_console: bool) -> list[str]:
    lines = [f"  gRPC     {address}" for address in (listening.grpc, listening.grpc_socket) if address]
    if listening.rest:
        scheme = "https" if listening.tls else "http"
        lines.append(f"  REST     {scheme}://{listening.rest}/v1/models")
        if has_console:
            lines.append(f"  console  {scheme}://{_EVERYWHERE.sub('localhost', listening.rest)}/console")
    return lines
