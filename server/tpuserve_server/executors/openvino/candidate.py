"""`--openvino`: loads a version with TensorFlow, tries OpenVINO, and keeps the faster one with the same outputs."""

import contextlib
import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tpuserve_server.core.background import run_in_background
from tpuserve_server.core.errors import FailedPrecondition, ServingError
from tpuserve_server.core.freed_memory import trim_memory
from tpuserve_server.core.host_memory import HostMemory, total_size
from tpuserve_server.core.servable import Servable, VersionFiles
from tpuserve_server.core.tracer import Tracer
from tpuserve_server.core.types import ServableId, Signature, Tensors
from tpuserve_server.executors.candidate import Candidate
from tpuserve_server.executors.chosen_servable import ChosenServable
from tpuserve_server.executors.openvino.options import OpenVinoOptions
from tpuserve_server.executors.openvino.trial import (
    LEAST_GAIN,
    Tolerance,
    check_outputs,
    generate_inputs,
    measure_gain,
    trial_sizes,
)
from tpuserve_server.executors.runtimes import OPENVINO, MissingRuntime
from tpuserve_server.executors.tensorflow.on_demand import TensorFlowOnDemand
from tpuserve_server.executors.tensorflow.session_config import cpu_has_bfloat16

if TYPE_CHECKING:
    from tpuserve_server.executors.openvino.model import OpenVinoModel

_log = logging.getLogger(__name__)

_FILES: Final = ("saved_model.pb", "variables")
# Tolerances of `tpuserve export` for float32, and for bfloat16 kernels.
_FLOAT32, _BFLOAT16 = Tolerance(1e-5, 1e-4), Tolerance(2e-2, 2e-2)


class TensorFlowOrOpenVino:
    """Candidate for every version. Both runtimes load it, and a trial chooses one. Thread-safe.

    TensorFlow serves a version that OpenVINO cannot run, or not with the same outputs in less time. Log and status then
    have the reason.
    """

    name = "TensorFlow or OpenVINO on the CPU"
    kind = "cpu"

    def __init__(
        self,
        tensorflow: TensorFlowOnDemand,
        options: OpenVinoOptions,
        memory: HostMemory,
        *,
        least_gain: float = LEAST_GAIN,
    ) -> None:
        """Take the candidate of TensorFlow. OpenVINO reserves the size of the version's files twice in `memory`.

        OpenVINO must be `least_gain` times as fast as TensorFlow.
        """
        self._tensorflow = tensorflow
        self._options = options
        self._memory = memory
        self._least_gain = least_gain
        self._has_bfloat16 = options.bfloat16_kernels and cpu_has_bfloat16(Path("/proc/cpuinfo"))

    @classmethod
    def of(cls, tensorflow: TensorFlowOnDemand, options: OpenVinoOptions, memory: HostMemory) -> Candidate:
        """Return the candidate that `options` want: TensorFlow alone if they are `off`."""
        return tensorflow if options.use == "off" else cls(tensorflow, options, memory)

    def load(self, servable_id: ServableId, version: VersionFiles) -> Servable:
        """Implement Candidate.load. The trial takes seconds.

        Raises:
            ServingError: TensorFlow cannot load the version.
        """
        # `is_cached` makes TensorFlow's executor look for state and random operations.
        loaded = self._tensorflow.load(servable_id, replace(version, is_cached=True))
        try:
            chosen = self._try(loaded, version)
        except ServingError as error:
            reason, level = error.message, logging.WARNING if isinstance(error, MissingRuntime) else logging.INFO
        except Exception as error:  # OpenVINO may raise any error, and TensorFlow can serve the version
            _log.warning("OpenVINO fails for %s", servable_id, exc_info=error)
            reason, level = f"it fails with {type(error).__name__}", logging.WARNING
        else:
            _log.info("%s uses %s", servable_id, chosen.device)
            return chosen
        trim_memory()
        _log.log(level, "%s uses TensorFlow, not OpenVINO: %s", servable_id, reason)
        return ChosenServable(loaded, f"{loaded.device}, not OpenVINO: {reason}")

    def tracer(self) -> Tracer | None:
        """Return TensorFlow's tracer, because OpenVINO has none."""
        return self._tensorflow.tracer()

    def _try(self, loaded: Servable, version: VersionFiles) -> Servable:
        """Return the version on OpenVINO. Raises ServingError with the reason against it."""
        if not OPENVINO.is_installed:
            raise OPENVINO.missing("--openvino=auto needs")
        # Imported here, because they import TensorFlow, which most servers do not need at the start.
        from tpuserve_server.executors.openvino.suitability import suitable_signature
        from tpuserve_server.executors.tensorflow.pinned_saved_model import PinnedSavedModel

        tags = self._options.tags
        with contextlib.closing(PinnedSavedModel(version.path)) as files:
            signature = run_in_background(lambda: suitable_signature(loaded, files.graph, tags), "openvino-check")
            with self._memory.reserve(2 * total_size(*(version.path / name for name in _FILES))):
                return self._compare(loaded, signature, version, files.path)

    def _compare(self, loaded: Servable, signature: Signature, version: VersionFiles, path: Path) -> Servable:
        # Imported here, because the runtime is an extra.
        from tpuserve_server.executors.openvino.model import OpenVinoModel, runtime_version
        from tpuserve_server.executors.openvino.servable import OpenVinoServable

        bfloat16 = self._options.mixed_precision or (version.allows_bfloat16 and self._has_bfloat16)
        # Not in the background: OpenVINO's threads would keep the niceness.
        model = OpenVinoModel(path, signature, bfloat16=bfloat16, num_threads=self._options.num_threads)
        try:
            gain = _try_inputs(loaded, model, signature, version.batch_sizes, self._tolerance(version))
            if gain < self._least_gain:
                raise FailedPrecondition(
                    f"it is {gain:.2f} times as fast as TensorFlow; {self._least_gain:g} is needed"
                )
        except BaseException:
            model.close()
            raise
        signatures, rest = loaded.signatures, loaded if len(loaded.signatures) > 1 else None
        if rest is None:
            loaded.close()
        kernels = ", bfloat16 kernels" if bfloat16 else ""
        device = f"CPU (OpenVINO {runtime_version()}{kernels}): {gain:.2f} times as fast as TensorFlow"
        return OpenVinoServable(model, signatures, rest, device)

    def _tolerance(self, version: VersionFiles) -> Tolerance:
        """Return the tolerance of the exporter's check, or a wider one if the operator wants bfloat16 without it."""
        found = _FLOAT32 if version.precision is None else Tolerance(version.precision.atol, version.precision.rtol)
        if self._options.mixed_precision:
            return Tolerance(max(found.atol, _BFLOAT16.atol), max(found.rtol, _BFLOAT16.rtol))
        return found


def _try_inputs(
    loaded: Servable,
    model: "OpenVinoModel",
    signature: Signature,
    batch_sizes: tuple[int, ...],
    tolerance: Tolerance,
) -> float:
    """Return how many times as fast OpenVINO is. Raises ServingError if a run fails or its outputs differ."""
    names = tuple(signature.outputs)

    def tensorflow(inputs: Tensors) -> Tensors:
        return loaded.dispatch(signature.name, inputs, names).result()

    def openvino(inputs: Tensors) -> Tensors:
        return model.run(inputs, names)

    samples = [(rows, generate_inputs(signature, rows)) for rows in trial_sizes(batch_sizes)]
    for rows, inputs in samples:
        check_outputs(tensorflow(inputs), openvino(inputs), tolerance, rows)
    return measure_gain(tensorflow, openvino, samples)
