"""`--device`: whether a version runs its device programs, fails to load, or is left to the next executor.

Imports no JAX before a version has programs: it is an extra, and of no use to a server without them.
"""

import functools
import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from tpuserve_server.core.deadline import Clock
from tpuserve_server.core.device_metrics import DeviceMetrics
from tpuserve_server.core.errors import DataLoss, FailedPrecondition, Internal, ResourceExhausted, ServingError
from tpuserve_server.core.garbage import settle_garbage_collector
from tpuserve_server.core.servable import Executor, Servable, VersionFiles
from tpuserve_server.core.tracer import Tracer
from tpuserve_server.core.types import ServableId
from tpuserve_server.executors.candidate import Refusal
from tpuserve_server.executors.chosen_servable import ChosenServable
from tpuserve_server.executors.pjrt.manifest import ProgramManifest
from tpuserve_server.executors.pjrt.options import Device, PjrtOptions

if TYPE_CHECKING:
    from tpuserve_server.executors.pjrt.executor import PjrtExecutor

_log = logging.getLogger(__name__)

_NEEDS_JAX = "device programs need JAX, which is not installed: pip install 'tpuserve-server[pjrt]'"


class DevicePrograms:
    """executors.candidate.Candidate: versions with device programs, on the device that the operator allows.

    `auto` leaves to the next candidate whatever keeps a version from the device. Only where another version of the
    model is on the device does its load fail instead, and that one goes on. A device asked for by its name is a
    promise: whatever keeps a version from it fails the load. `cpu` leaves
    versions without programs, and all versions where there is no JAX.

    `_lock` guards the executor, which is made when the first version needs it, and the number of each model's versions
    on the device.
    """

    name = "device programs"

    def __init__(self, wanted: Device, make: Callable[[], "PjrtExecutor"]) -> None:
        """`wanted` is `--device`. `make` raises ModuleNotFoundError without JAX, ServingError without a device."""
        self._wanted = wanted
        self._make = make
        self._lock = threading.Lock()
        self._pjrt: PjrtExecutor | None = None
        self._on_device: Counter[str] = Counter()

    @classmethod
    def of(cls, options: PjrtOptions, host: Executor, metrics: DeviceMetrics, clock: Clock) -> Self:
        """`host` loads the SavedModels around device programs."""

        def make() -> "PjrtExecutor":
            from tpuserve_server.executors.pjrt.executor import PjrtExecutor

            executor = PjrtExecutor(options, lambda: host, metrics, clock)
            settle_garbage_collector()
            return executor

        return cls(options.device, make)

    @property
    def kind(self) -> str:
        """As the protocol."""
        return "cpu" if self._pjrt is None else self._pjrt.kind

    def load(self, servable_id: ServableId, version: VersionFiles) -> Servable | Refusal:
        """As the protocol."""
        loaded = self._load(servable_id, version)
        if isinstance(loaded, Refusal):
            self._check_allowed(servable_id, loaded)
            return loaded
        with self._lock:
            self._on_device[servable_id.name] += 1
        return ChosenServable(loaded, loaded.device, functools.partial(self._leave_device, servable_id.name))

    def tracer(self) -> Tracer | None:
        """Return JAX's, once a version has come so far that PJRT was started."""
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
            return Refusal(FailedPrecondition(_NEEDS_JAX), "no_jax", level=logging.WARNING)
        except ServingError as error:
            return Refusal(error, "no_device")
        except Exception as error:  # a plugin of another JAX, a driver that is not there: they raise what they like
            return Refusal(_unforeseen("PJRT cannot start", error), "no_device")
        try:
            return pjrt.load(servable_id, version)
        except ServingError as error:
            return _failure(error, _word(error))
        except Exception as error:  # as above, and there is a way to serve without them
            return _failure(_unforeseen("its device programs cannot be loaded", error), "device_failed")

    def _executor(self) -> "PjrtExecutor":
        with self._lock:
            if self._pjrt is None:
                self._pjrt = self._make()
            return self._pjrt

    def _leave_device(self, model: str) -> None:
        with self._lock:
            self._on_device[model] -= 1

    def _check_allowed(self, servable_id: ServableId, refusal: Refusal) -> None:
        """Raise the reason where `--device` leaves the version to no other executor."""
        reason = refusal.error
        is_cpu_anyway = self._wanted == "cpu" and refusal.word in ("no_programs", "no_jax")
        if self._wanted != "auto" and not is_cpu_anyway:
            raise type(reason)(f"--device={self._wanted}: {reason.message}") from reason
        with self._lock:
            is_beside = self._on_device[servable_id.name] > 0
        if is_beside and refusal.failed:
            # On the CPU it would become available, and the other, which is many times faster, would go for it.
            raise type(reason)(f"{reason.message}; another version of {servable_id.name} is on the device, and goes on")


def _failure(error: ServingError, word: str) -> Refusal:
    """Refuse a version that was to run on a device that is there, and did not come so far."""
    return Refusal(error, word, failed="its device programs", level=logging.WARNING)


def _word(error: ServingError) -> str:
    """What to do about it differs: export it again, make room, or look at device and driver."""
    if isinstance(error, ResourceExhausted):
        return "no_memory"
    return "programs_refused" if isinstance(error, FailedPrecondition | DataLoss) else "device_failed"


def _unforeseen(what: str, error: Exception) -> ServingError:
    """One line for people; the rest, which may be a fault of ours, is in the log."""
    _log.warning("%s", what, exc_info=error)
    first_line = str(error).strip().partition("\n")[0]
    return Internal(f"{what}: {type(error).__name__}: {first_line}")
