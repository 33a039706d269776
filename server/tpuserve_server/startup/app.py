"""The object graph of the server: its parts, what each is built from, and the order in which they start and stop.

`startup/parts.py` has the parts. A replica of Ray Serve (`startup/ray_serve.py`) is built from the same graph.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Self

from tpuserve_server.access.caller import CallerModels
from tpuserve_server.access.files import CredentialFiles
from tpuserve_server.core.models.change_record import ChangeRecord
from tpuserve_server.core.models.journal import Journal
from tpuserve_server.core.models.transition import describe_failures
from tpuserve_server.core.system.changes import wait_until
from tpuserve_server.core.system.memory import HostMemory, release_library_pages, settle_garbage_collector
from tpuserve_server.core.terms.deadline import Clock, SystemClock, WaitingClock
from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.core.terms.servable import DeviceMetrics
from tpuserve_server.core.terms.server_state import CertificateStatus, Replacement
from tpuserve_server.executors.choice import ExecutorChoice
from tpuserve_server.executors.plugin import ExecutorContext
from tpuserve_server.hosts.application import HostError, Listening
from tpuserve_server.protocols.guard import Rule
from tpuserve_server.startup import config_files
from tpuserve_server.startup.config_files import ConfigError, open_credentials
from tpuserve_server.startup.options import user_cache_dir
from tpuserve_server.startup.parts import Edge, FrontEnds, Loading, Models, Observation
from tpuserve_server.startup.settings import Settings
from tpuserve_server.startup.start_report import print_banner, report_start

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Backend:
    """The parts behind the protocols."""

    settings: Settings
    clock: WaitingClock
    credentials: CredentialFiles | None
    observation: Observation
    loading: Loading
    models: Models

    @classmethod
    def build(cls, settings: Settings, journal: Journal | None = None, record: ChangeRecord | None = None) -> Self:
        """Build the parts from validated settings, without loading a model.

        `journal` and `record` keep loads, runs and changes of clients for the process after this one, if any.

        Raises:
            ConfigError: a file that the settings name cannot be used.
        """
        clock = SystemClock()
        credentials = open_credentials(settings)
        observation = Observation.build(settings, clock)
        memory = HostMemory()
        executor = _executor(settings, observation.metrics.devices, clock, memory)
        loading = Loading.build(settings, clock, observation.metrics, executor, journal, memory)
        access = None if credentials is None else CallerModels()
        models = Models.build(settings, clock, observation, loading, access, record)
        return cls(settings, clock, credentials, observation, loading, models)


def _executor(settings: Settings, metrics: DeviceMetrics, clock: Clock, memory: HostMemory) -> ExecutorChoice:
    return ExecutorChoice.of(
        ExecutorContext(settings.executors, metrics, clock, memory, user_cache_dir(), config_files.read)
    )


def build(
    settings: Settings,
    journal: Journal | None = None,
    record: ChangeRecord | None = None,
    rule: Rule | None = None,
) -> "Server":
    """Build the whole server. `Backend.build` and `Server` describe the arguments."""
    return Server(Backend.build(settings, journal, record), rule)


@contextlib.contextmanager
def building() -> Iterator[None]:
    """Settle the process's garbage collector and memory after a block that builds its only server.

    Raises:
        HostError: a configuration file cannot be used.
    """
    try:
        yield
    except ConfigError as error:  # The file was valid when the flags were read.
        raise HostError(str(error)) from error
    settle_garbage_collector()
    release_library_pages()


class Server:
    """Application that a host carries. All its parts run in the process that calls `start`."""

    def __init__(self, backend: Backend, rule: Rule | None = None) -> None:
        """Build the protocols over `backend`, without starting a part.

        `rule` is one more rule for every request, which a request meets after the check of its client.
        """
        settings, clock, credentials = backend.settings, backend.clock, backend.credentials
        observation, models, tracer = backend.observation, backend.models, backend.loading.tracer
        self._edge = edge = Edge.build(settings, clock, observation.metrics, models, backend.loading.device)
        protocols = FrontEnds.build(settings, clock, credentials, observation, tracer, models, edge, rule)
        self.rpc = protocols.rpc
        self.rest = protocols.rest
        self.rest_exchanges = protocols.rest_exchanges
        self.receiving = edge.budgets.receiving
        self.sending = edge.budgets.sending
        self.overload_gate = edge.overload_gate
        self.traffic = edge.traffic
        self.load_reports = edge.load_reports
        self._has_console = settings.console.enable_console
        self._credentials = credentials
        self._observation = observation
        self._loading = backend.loading
        self._models = models
        self._service = models.service

    async def start(self) -> None:
        """Start to watch for models and load them. Returns at once; `ready` waits for the models."""
        models, start = self._models, self._models.start
        try:
            models.configured.start(start.configs, start.changes, start.reloaded, start.sha256)
        except ServingError as error:
            raise HostError(error.message) from None
        # Before the log of requests, so that its last records do not wait for a stuck receiver of traces at the stop.
        if self._observation.tracing is not None:
            self._observation.tracing.start()
        self._observation.log_writer.start()
        self._observation.loop_watch.start()
        self._loading.watchdog.start()
        models.residency.start(models.manager)
        models.source.start()
        models.ensembles.start()
        if self._credentials is not None:
            self._credentials.start()
        if models.config_file is not None:
            models.config_file.watch(models.configured.begin)

    async def stop(self) -> None:
        """Stop watching and unload every model. Call this after the last request."""
        self._edge.certificates.stop()
        await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        """Stop the parts in the reverse order of `start`. Each one blocks until its thread has ended."""
        if self._models.config_file is not None:
            self._models.config_file.stop_watching()
        if self._credentials is not None:
            self._credentials.stop()
        self._models.ensembles.stop()
        self._models.source.stop()
        # Stop the copies first: `manager.stop` waits for the loading threads, and a copy may take long.
        self._loading.remote.close()
        self._models.residency.stop()
        self._models.manager.stop()
        self._loading.watchdog.stop()
        self._observation.loop_watch.stop()
        self._observation.log_writer.stop()
        if self._observation.tracing is not None:
            self._observation.tracing.stop()

    async def ready(self) -> None:
        """Wait until every model of the start has loaded or failed for good, and at least one serves.

        Return at once without models: a client can only configure some when the ports are open.
        """
        logger.info("Ports open once every model has loaded or failed")
        await wait_until(self._service.subscribe, lambda: self._service.is_ready() or not self._service.models())

    async def failure(self) -> str:
        """Wait until every model of the start has failed for good, and return upstream's message."""
        await wait_until(self._service.subscribe, lambda: bool(self._service.start_failures()))
        return describe_failures(self._service.start_failures(), "servable(s)")

    async def replacement(self) -> Replacement:
        """Wait until another process should take the place of this one, and return the reason."""
        await wait_until(self._loading.watchdog.subscribe, lambda: self._loading.watchdog.replacement() is not None)
        replacement = self._loading.watchdog.replacement()
        # The run that hung may have ended in this moment.
        return replacement or await self.replacement()

    def announce(self, listening: Listening) -> None:
        """Log the control rule, print the banner now or when every model is ready, and send reports of the start.

        The console shows the addresses from now on.
        """
        self._edge.addresses.announce(**asdict(listening))
        logger.info(self._edge.control.description)
        print_banner(self._service, listening, has_console=self._has_console)
        report_start(self._service, listening)

    def show_certificates(self, status: CertificateStatus) -> None:
        """Show the certificates in metrics and in the status, and warn in the log before they expire."""
        self._edge.certificates.show(status)

    def reload(self) -> None:
        """Poll the files of models and credentials soon. Flags that configure the only model cannot change."""
        if self._credentials is not None:
            self._credentials.poll_soon()
        if self._models.config_file is None:
            logger.info("Nothing to read again: flags configure the model")
        else:
            self._models.config_file.poll_soon()

    def drain(self) -> None:
        """Report that the server is not ready. The server still answers requests."""
        self._service.drain()
