"""`--device`: whether a version runs its device programs through PJRT, or as a SavedModel by TensorFlow on the CPU."""

import functools
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tpuserve_server.core.device_metrics import DeviceMetrics
from tpuserve_server.core.errors import DataLoss, FailedPrecondition, Internal, ResourceExhausted, ServingError
from tpuserve_server.core.servable import Executor, InFlight, Servable
from tpuserve_server.core.types import ServableId, Signature, Tensors
from tpuserve_server.executors.pjrt.manifest import ProgramManifest

if TYPE_CHECKING:
    from tpuserve_server.executors.pjrt.executor import PjrtExecutor

_log = logging.getLogger(__name__)

_NEEDS_JAX = "device programs need JAX, which is not installed: pip install 'tpuserve-server[pjrt]'"
# The metric's words for a version that was to run on a device that is there, and did not come so far.
_FAILED = ("programs_refused", "no_memory", "device_failed")


class DeviceChoice:
    """Loads a version onto the best device that the operator allows. Safe to use from several loading threads.

    `auto` serves what it can: whatever keeps a version with programs from the device, it runs on the CPU. Only where
    another version of the model is on the device does its load fail instead, and that one goes on. A device asked for
    by its name is a promise: whatever keeps a version from it fails the load.

    `_lock` guards the executor of device programs, which is made when the first version needs it: JAX is not imported
    before, nor is TensorFlow where no version falls back to it. So it does the number of each model's versions on the
    device.
    """

    def __init__(
        self,
        wanted: str,
        pjrt: Callable[[], "PjrtExecutor"],
        saved_model: Executor,
        metrics: DeviceMetrics,
    ) -> None:
        """`wanted`: `auto` falls back to `saved_model`; `tpu` and `gpu` never do; `cpu` for want of programs or JAX."""
        self._wanted = wanted
        self._make_pjrt = pjrt
        self._saved_model = saved_model
        self._metrics = metrics
        self._lock = threading.Lock()
        self._pjrt: PjrtExecutor | None = None
        self._on_device: Counter[str] = Counter()

    @property
    def runs_programs(self) -> bool:
        """Whether a version has come so far that PJRT was started."""
        return self._pjrt is not None

    def load(self, servable_id: ServableId, path: Path, *, allow_bfloat16: bool) -> Servable:
        """Load the version; slow.

        Raises:
            ServingError: as the executor that was taken, or why the device was not had.
        """
        fall_back = functools.partial(self._fall_back, servable_id, path, allow_bfloat16=allow_bfloat16)
        try:
            has_programs = ProgramManifest.read(path) is not None
        except ServingError as error:
            return fall_back(error, "programs_refused")
        if not has_programs:
            return fall_back(FailedPrecondition("the version has no device programs"), "no_programs")
        try:
            pjrt = self._executor()
        except ModuleNotFoundError:
            return fall_back(FailedPrecondition(_NEEDS_JAX), "no_jax")
        except ServingError as error:
            return fall_back(error, "no_device")
        except Exception as error:  # a plugin of another JAX, a driver that is not there: they raise what they like
            return fall_back(_unforeseen("PJRT cannot start", error), "no_device")
        try:
            servable = pjrt.load(servable_id, path, allow_bfloat16=allow_bfloat16)
        except ServingError as error:
            return fall_back(error, _word(error))
        except Exception as error:  # as above, and there is a way to serve without them
            return fall_back(_unforeseen("its device programs cannot be loaded", error), "device_failed")
        with self._lock:
            self._on_device[servable_id.name] += 1
        return _Chosen(servable, servable.device, functools.partial(self._leave_device, servable_id.name))

    def _executor(self) -> "PjrtExecutor":
        with self._lock:
            if self._pjrt is None:
                self._pjrt = self._make_pjrt()
            return self._pjrt

    def _leave_device(self, model: str) -> None:
        with self._lock:
            self._on_device[model] -= 1

    def _fall_back(
        self, servable_id: ServableId, path: Path, reason: ServingError, word: str, *, allow_bfloat16: bool
    ) -> Servable:
        """Load it as a SavedModel, where that is allowed for this reason; else raise it."""
        self._check_allowed(servable_id, reason, word)
        level = logging.WARNING if word in (*_FAILED, "no_jax") else logging.INFO
        _log.log(level, "%s runs by TensorFlow on the CPU: %s", servable_id, reason.message)
        try:
            servable = self._saved_model.load(servable_id, path, allow_bfloat16=allow_bfloat16)
        except ServingError as error:
            if word not in _FAILED:
                raise
            raise type(error)(f"{error.message} (and its device programs: {reason.message})") from error
        self._metrics.device_chosen(servable=servable_id, device="cpu", fallback=word)
        return _Chosen(servable, f"{servable.device}: {reason.message}")

    def _check_allowed(self, servable_id: ServableId, reason: ServingError, word: str) -> None:
        is_cpu_anyway = self._wanted == "cpu" and word in ("no_programs", "no_jax")
        if self._wanted != "auto" and not is_cpu_anyway:
            raise type(reason)(f"--device={self._wanted}: {reason.message}") from reason
        with self._lock:
            is_beside = self._on_device[servable_id.name] > 0
        if is_beside and word in _FAILED:
            # On the CPU it would become available, and the other, which is many times faster, would go for it.
            raise type(reason)(f"{reason.message}; another version of {servable_id.name} is on the device, and goes on")


class _Chosen:
    """A servable, what is said of its device, and who is to know when it has been closed."""

    def __init__(self, servable: Servable, device: str, closed: Callable[[], None] | None = None) -> None:
        self._servable = servable
        # Copied: asked for with every batch.
        self.signatures: Mapping[str, Signature] = servable.signatures
        self.max_in_flight = servable.max_in_flight
        self.device = device
        self._closed = closed

    def dispatch(self, signature_name: str, inputs: Tensors, output_names: Sequence[str]) -> InFlight:
        return self._servable.dispatch(signature_name, inputs, output_names)

    def close(self) -> None:
        try:
            self._servable.close()
        finally:
            if self._closed is not None:
                self._closed()


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
