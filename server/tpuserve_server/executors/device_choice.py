"""`--device`: whether a version runs its device programs through PJRT, or as a SavedModel by TensorFlow on the CPU."""

import functools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tpuserve_server.core.device_metrics import DeviceMetrics
from tpuserve_server.core.errors import DataLoss, FailedPrecondition, ServingError
from tpuserve_server.core.servable import Executor, InFlight, Servable
from tpuserve_server.core.types import ServableId, Signature, Tensors
from tpuserve_server.executors.pjrt.manifest import ProgramManifest

if TYPE_CHECKING:
    from tpuserve_server.executors.pjrt.executor import PjrtExecutor

_log = logging.getLogger(__name__)

_NEEDS_JAX = "device programs need JAX, which is not installed: pip install 'tpuserve-server[pjrt]'"


class DeviceChoice:
    """Loads a version onto the best device that the operator allows. Safe to use from several loading threads.

    `_lock` guards the executor of device programs, which is made when the first version needs it: JAX is not imported
    before, nor is TensorFlow where no version falls back to it.
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

    @property
    def runs_programs(self) -> bool:
        """Whether a version has come so far that PJRT was started."""
        return self._pjrt is not None

    def load(self, servable_id: ServableId, path: Path, *, allow_bfloat16: bool) -> Servable:
        """Load the version; slow.

        Raises:
            ServingError: as the executor that was taken; FailedPrecondition where a device was asked for by its name,
                and it or the version's programs cannot be had.
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
        except ImportError:
            return fall_back(FailedPrecondition(_NEEDS_JAX), "no_jax")
        except ServingError as error:
            return fall_back(error, "no_device")
        try:
            return pjrt.load(servable_id, path, allow_bfloat16=allow_bfloat16)
        except (FailedPrecondition, DataLoss) as error:
            # Not for want of memory: a version that is to replace one on the device would go to the CPU for it.
            return fall_back(error, "programs_refused")

    def _executor(self) -> "PjrtExecutor":
        with self._lock:
            if self._pjrt is None:
                self._pjrt = self._make_pjrt()
            return self._pjrt

    def _fall_back(
        self, servable_id: ServableId, path: Path, reason: ServingError, word: str, *, allow_bfloat16: bool
    ) -> Servable:
        """Load it as a SavedModel, where that is allowed for this reason; else raise it."""
        is_cpu_anyway = self._wanted == "cpu" and word in ("no_programs", "no_jax")
        if self._wanted != "auto" and not is_cpu_anyway:
            raise type(reason)(f"--device={self._wanted}: {reason.message}") from reason
        level = logging.WARNING if word in ("programs_refused", "no_jax") else logging.INFO
        _log.log(level, "%s runs by TensorFlow on the CPU: %s", servable_id, reason.message)
        servable = self._saved_model.load(servable_id, path, allow_bfloat16=allow_bfloat16)
        self._metrics.device_chosen(servable=servable_id, device="cpu", fallback=word)
        return _FallenBack(servable, reason.message)


class _FallenBack:
    """A servable that says why it is not on another device."""

    def __init__(self, servable: Servable, reason: str) -> None:
        self._servable = servable
        # Copied: asked for with every batch.
        self.signatures: Mapping[str, Signature] = servable.signatures
        self.max_in_flight = servable.max_in_flight
        self.device = f"{servable.device}: {reason}"

    def dispatch(self, signature_name: str, inputs: Tensors, output_names: Sequence[str]) -> InFlight:
        return self._servable.dispatch(signature_name, inputs, output_names)

    def close(self) -> None:
        self._servable.close()
