"""`--device`: decides whether a version runs its device programs, fails to load, or goes to the next executor.

JAX is an extra, and is imported only for a version with device programs.
"""

import functools
import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from tpuserve_server.core.system.memory import release_library_pages, settle_garbage_collector
from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.core.terms.errors import DataLoss, FailedPrecondition, Internal, ResourceExhausted, ServingError
from tpuserve_server.core.terms.servable import DeviceMetrics, Executor, Servable, VersionFiles
from tpuserve_server.core.terms.tracer import Tracer
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.executors.candidate import ChosenServable, Refusal
from tpuserve_server.executors.pjrt import JAX, Device, PjrtOptions
from tpuserve_server.executors.pjrt.manifest import ProgramManifest

if TYPE_CHECKING:
    from tpuserve_server.executors.pjrt.executor import PjrtExecutor

_log = logging.getLogger(__name__)

_ON_CPU = "--device=cpu runs the device programs on the CPU"


class DevicePrograms:
    """Candidate for versions with device programs, on the device that the operator allows.

    `auto` leaves a version that cannot run on the device to the next candidate. The exception is a version whose
    programs fail while another version of its model is on the device. Its load fails, and the other version stays.

    A device requested by name is a promise: a version that cannot run on it fails to load. `cpu` leaves versions
    without programs to the next candidate, and all versions if JAX is not installed.

    `_lock` guards the executor, which is created for the first version that needs it, and the number of each model's
    versions on the device.
    """

    name = "device programs"

    def __init__(self, requested: Device, make: Callable[[], "PjrtExecutor"]) -> None:
        """Take `--device`. `make` raises ModuleNotFoundError without JAX, and ServingError without a device."""
        self._requested = requested
        self._make = make
        self._lock = threading.Lock()
        self._pjrt: PjrtExecutor | None = None
        self._on_device: Counter[str] = Counter()

    @classmethod
    def of(cls, options: PjrtOptions, host: Executor, metrics: DeviceMetrics, clock: Clock) -> Self:
        """Create the candidate. `host` loads the SavedModels that run around device programs."""

        def make() -> "PjrtExecutor":
            from tpuserve_server.executors.pjrt.executor import PjrtExecutor

            executor = PjrtExecutor(options, lambda: host, metrics, clock)
            settle_garbage_collector()
            release_library_pages()
            return executor

        return cls(options.device, make)

    @property
    def kind(self) -> str:
        """Kind of device; `cpu` before PJRT has started."""
        return "cpu" if self._pjrt is None else self._pjrt.kind

    def load(self, servable_id: ServableId, version: VersionFiles) -> Servable | Refusal:
        """Implement Candidate.load."""
        loaded = self._load(servable_id, version)
        if isinstance(loaded, Refusal):
            self._check_allowed(servable_id, loaded)
            return loaded
        with self._lock:
            self._on_device[servable_id.name] += 1
        return ChosenServable(loaded, loaded.device, functools.partial(self._remove_from_device, servable_id.name))

    def tracer(self) -> Tracer | None:
        """Return JAX's tracer, or None before PJRT has started for a version."""
        if self._pjrt is None:
            return None
        from tpuserve_server.executors.pjrt.tracer import JaxTracer

        return JaxTracer()

    def _load(self, servable_id: ServableId, version: VersionFiles) -> Servable | Refusal:
        try:
            has_programs = ProgramManifest.read(version.path) is not None
        except ServingError as error:
            return _failure(error, "programs_refused")
        if not has_programs:
            return Refusal(FailedPrecondition("the version has no device programs"), "no_programs")
        try:
            pjrt = self._executor()
        except ModuleNotFoundError:
            return Refusal(JAX.missing("device programs need"), "no_jax", level=logging.WARNING)
        except ServingError as error:
            return Refusal(error, "no_device", remedy=_ON_CPU)
        except Exception as error:  # a foreign plugin or a missing driver may raise any error
            return Refusal(_unexpected("PJRT cannot start", error), "no_device", remedy=_ON_CPU)
        try:
            return pjrt.load(servable_id, version)
        except ServingError as error:
            return _failure(error, _label(error))
        except Exception as error:  # as above; another executor may serve the version
            return _failure(_unexpected("the device programs cannot be loaded", error), "device_failed")

    def _executor(self) -> "PjrtExecutor":
        with self._lock:
            if self._pjrt is None:
                self._pjrt = self._make()
            return self._pjrt

    def _remove_from_device(self, model: str) -> None:
        with self._lock:
            self._on_device[model] -= 1

    def _check_allowed(self, servable_id: ServableId, refusal: Refusal) -> None:
        """Raise the reason if `--device` does not leave the version to another executor."""
        reason = refusal.error
        is_cpu_fallback = self._requested == "cpu" and refusal.label in ("no_programs", "no_jax")
        if self._requested != "auto" and not is_cpu_fallback:
            raise type(reason)(f"--device={self._requested}: {reason.message}") from reason
        with self._lock:
            has_other_version = self._on_device[servable_id.name] > 0
        if has_other_version and refusal.failed:
            # On the CPU, this version would become available and replace the other one, which is many times faster.
            raise type(reason)(
                f"{reason.message}; another version of {servable_id.name} is on the device and stays there"
            )


def _failure(error: ServingError, label: str) -> Refusal:
    """Return the refusal of a version whose device programs cannot be used."""
    return Refusal(error, label, failed="the device programs", level=logging.WARNING)


def _label(error: ServingError) -> str:
    """Return the metric's label, by the remedy: export again, free memory, or check the device and driver."""
    if isinstance(error, ResourceExhausted):
        return "no_memory"
    return "programs_refused" if isinstance(error, FailedPrecondition | DataLoss) else "device_failed"


def _unexpected(what: str, error: Exception) -> ServingError:
    """Return a one-line error, and log the traceback, which may show a bug of this server."""
    _log.warning("%s", what, exc_info=error)
    first_line = str(error).strip().partition("\n")[0]
    return Internal(f"{what}: {type(error).__name__}: {first_line}")
