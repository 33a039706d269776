"""Administration: the parts of the protocol that need more than the service. Both protocols share one object.

Clients can read the trace and log settings, and cannot change them, because the server's operator sets them. Source:
Triton's extension_trace.md and extension_logging.md in server/docs/protocol.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final, TypeAlias

from tpuserve_server.core.models.configured_models import ConfiguredModels
from tpuserve_server.core.models.transition import describe_error
from tpuserve_server.core.serving.service import InferenceService
from tpuserve_server.core.terms.deadline import Clock, Deadline
from tpuserve_server.core.terms.errors import NotFound, Unavailable, Unimplemented
from tpuserve_server.core.terms.statistics import VersionStatistics
from tpuserve_server.core.terms.types import ModelSpec, ServableId, State, VersionStatus
from tpuserve_server.protocols.oip.models import (
    EXTENSIONS,
    StatisticsSource,
    describe_server,
    find_statistics,
    why_model_not_ready,
)
from tpuserve_server.protocols.oip.shared_memory import SharedMemoryRegions
from tpuserve_server.protocols.options import SERVER_NAME
from tpuserve_server.protocols.settling import settle
from tpuserve_server.wire.oip.control_messages import IndexEntry, read_load_parameters

_READY: Final = "READY"
_UNAVAILABLE: Final = "UNAVAILABLE"
_LOADING: Final = "LOADING"
_STATES: Final = {
    State.START: _LOADING,
    State.LOADING: _LOADING,
    State.AVAILABLE: _READY,
    State.UNLOADING: "UNLOADING",
    State.END: _UNAVAILABLE,
}
_UNLOADED: Final = "unloaded"


class Repository:
    """Answers the model repository extension for both protocols. Changes run one at a time."""

    def __init__(self, service: InferenceService, models: ConfiguredModels | None, clock: Clock) -> None:
        """Change `models`. None refuses all changes."""
        self._service = service
        self._models = models
        self._clock = clock
        # The lock keeps waiting changes from occupying worker threads.
        self._turn = asyncio.Lock()

    def index(self, *, only_ready: bool = False) -> list[IndexEntry]:
        """Return each version of each configured or unloaded model, by name and version."""
        unloaded = [] if self._models is None else filter(self._service.allows, self._models.unloaded())
        entries = [entry for name in sorted({*self._service.models(), *unloaded}) for entry in self._entries(name)]
        return [entry for entry in entries if entry.state == _READY] if only_ready else entries

    async def load(self, name: str, parameters: Mapping[str, str | bytes], deadline: Deadline) -> None:
        """Load a model, or poll its base path again, and wait until it serves.

        Raises:
            PermissionDenied: the client may not use the model.
            Unavailable: this server does not change its models, or is shutting down.
            DeadlineExceeded: `deadline` is near. The load continues.
            ServingError: a parameter is invalid, or the load failed, with Triton's messages.
        """
        models = self._changeable()
        self._service.check_access(name)
        batching = read_load_parameters(name, parameters)
        async with self._turn:
            # In a thread: it may wait for a change that reads base paths on slow remote storage.
            load = await asyncio.to_thread(models.load, name, batching)
        await settle(load, deadline, self._service, self._clock)

    async def unload(self, name: str, *, with_dependents: bool) -> None:
        """Unload a model when its requests have ended. Returns before. An unknown model is no error, as in Triton.

        `with_dependents` also unloads the models that the load of this ensemble put back.

        Raises:
            PermissionDenied: the client may not use the model.
            Unavailable: this server does not change its models.
        """
        models = self._changeable()
        self._service.check_access(name)
        async with self._turn:
            await asyncio.to_thread(models.unload, name, with_dependents=with_dependents)

    def _changeable(self) -> ConfiguredModels:
        if self._models is None:
            raise Unavailable("explicit model load / unload is not allowed if polling is enabled")
        return self._models

    def _entries(self, name: str) -> list[IndexEntry]:
        try:
            statuses = self._service.status(ModelSpec(name))
        except NotFound as error:
            is_configured = name in self._service.models()
            return [IndexEntry(name, state=_UNAVAILABLE, reason=error.message if is_configured else _UNLOADED)]
        return [self._entry(status) for status in reversed(statuses)]

    def _entry(self, status: VersionStatus) -> IndexEntry:
        name, number = status.servable.name, status.servable.version
        if status.state is State.AVAILABLE and (reason := why_model_not_ready(self._service, ModelSpec(name, number))):
            # An ensemble with a step that has no version.
            return IndexEntry(name, str(number), _UNAVAILABLE, reason)
        return _entry(status)


def _entry(status: VersionStatus) -> IndexEntry:
    state = _STATES[status.state]
    reason = describe_error(status)
    if status.state is State.START and reason:
        # Its files are not complete.
        state = _UNAVAILABLE
    if status.state is State.END and not reason:
        reason = _UNLOADED
    return IndexEntry(status.servable.name, str(status.servable.version), state, reason)


class Administration:
    """Changes of the models, statistics, and shared memory."""

    def __init__(
        self,
        service: InferenceService,
        clock: Clock,
        statistics: StatisticsSource,
        regions: SharedMemoryRegions,
        models: ConfiguredModels | None = None,
        server_name: str = SERVER_NAME,
    ) -> None:
        """`models` are what clients may load and unload. None refuses that."""
        self.service = service
        self.models = models
        self._statistics = statistics
        self.regions = regions
        self.repository = Repository(service, models, clock)
        self.server = describe_server(server_name, self._extensions())

    def statistics(self, spec: ModelSpec) -> dict[ServableId, VersionStatistics]:
        """Return the statistics that include every answered request. Raises the errors of `find_statistics`."""
        return find_statistics(self.service, self._statistics, spec)

    def _extensions(self) -> tuple[str, ...]:
        """Return Triton's names of all extensions of this server."""
        shared_memory = ("system_shared_memory",) if self.regions.are_enabled else ()
        return (
            *EXTENSIONS,
            "model_repository",
            "model_repository(unload_dependents)",
            "model_configuration",
            *shared_memory,
            "statistics",
            "trace",
            "logging",
        )


Setting: TypeAlias = bool | int | str | list[str]

# Triton's defaults. The server records no traces in Triton's form.
_TRACE_SETTINGS: Final[Mapping[str, list[str] | str]] = {
    "trace_level": ["OFF"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "",
    "trace_mode": "triton",
}
_FILES: Final = {"trace_file": "trace file location", "log_file": "log file location"}


def trace_settings(service: InferenceService, model: str) -> Mapping[str, list[str] | str]:
    """Return the settings of a model, or of the server for an empty name.

    Raises:
        PermissionDenied: the client may not use the model.
        NotFound: the model is unknown.
    """
    if model:
        service.check_access(model)
    if model and model not in service.models():
        raise NotFound(f"Request for unknown model: '{model}' is not found")
    return _TRACE_SETTINGS


def log_settings() -> Mapping[str, bool | int | str]:
    """Return the levels that the server logs. It logs to stderr."""
    level = logging.getLogger().getEffectiveLevel()
    return {
        "log_file": "",
        "log_info": level <= logging.INFO,
        "log_warning": level <= logging.WARNING,
        "log_error": level <= logging.ERROR,
        "log_verbose_level": int(level <= logging.DEBUG),
        "log_format": "default",
    }


def check_unchanged(current: Mapping[str, Setting], wanted: Mapping[str, object]) -> None:
    """Check that a request changes no setting. None means no change, and unknown names are ignored, as in Triton.

    Raises:
        Unimplemented: the request sets a file, or would change a setting.
    """
    for name, value in wanted.items():
        if name in _FILES and value is not None and value != current.get(name):
            raise Unimplemented(f"{_FILES[name]} can not be updated through network protocol")
        if name in current and value is not None and value != current[name]:
            raise Unimplemented(
                f"setting '{name}' can not be updated through network protocol: it is {current[name]!r}, and the "
                "server's operator sets it at the start"
            )
