"""Signature of a SavedModel, compiled by OpenVINO for the CPU. Only this module imports OpenVINO.

It does not use `openvino.convert_model`, which reports each conversion to its makers over the network.
"""

import contextlib
import re
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from tpuserve_server.core.terms.errors import FailedPrecondition, Internal, InvalidArgument
from tpuserve_server.core.terms.types import Signature, Tensors

# Lines of OpenVINO's messages that name its source files, and links to its documentation.
_NOISE = re.compile(r"Exception from |Check '.*' failed at |To facilitate the conversion ")


def runtime_version() -> str:
    """Return the version of OpenVINO, such as 2026.4.1."""
    return str(ov.__version__).partition("-")[0]


class OpenVinoModel:
    """Compiled signature. Thread-safe: each run takes an idle request, or creates one if all are busy."""

    def __init__(self, version: Path, signature: Signature, *, bfloat16: bool, num_threads: int) -> None:
        """Convert and compile `serving_default` of the SavedModel in `version`. Slow; other threads may run Python.

        `num_threads` are the threads of one run; 0: all cores. The threads inherit the niceness of the caller's.

        Raises:
            FailedPrecondition: OpenVINO cannot convert or compile it. The message has no path.
        """
        self._signature = signature
        try:
            core = ov.Core()
            # Mapped files would change the loaded model when they are overwritten.
            core.set_property({"ENABLE_MMAP": False})
            read = core.read_model(version)
            self._output_names = _find_names(read, signature)
            self._compiled: Any = core.compile_model(read, "CPU", _configuration(bfloat16, num_threads))
        except RuntimeError as error:
            reason = _describe(error).replace(str(version), "the version directory")
            raise FailedPrecondition(f"it cannot convert the model: {reason}") from error
        self._idle: deque[Any] = deque()

    def run(self, inputs: Tensors, output_names: Sequence[str]) -> Tensors:
        """Run the signature. Blocks until done. The caller owns the outputs.

        Raises:
            InvalidArgument: an input has another shape than the signature.
            Internal: the run failed.
        """
        self._check_shapes(inputs)
        request = self._take()
        try:
            request.infer(
                {name: np.asarray(inputs[name], order="C") for name in self._signature.inputs}, share_inputs=True
            )
            # Copied, because the request's next run overwrites its tensors.
            return {name: request.get_tensor(self._output_names[name]).data.copy() for name in output_names}
        except RuntimeError as error:
            raise Internal(f"OpenVINO failed: {_describe(error)}") from error
        finally:
            self._idle.append(request)

    def close(self) -> None:
        """Release the model and its memory. No run may be active."""
        self._idle.clear()
        self._compiled = None

    def _take(self) -> Any:  # noqa: ANN401 - OpenVINO's InferRequest
        # The last one used, whose memory is in the caches.
        with contextlib.suppress(IndexError):
            return self._idle.pop()
        return self._compiled.create_infer_request()

    def _check_shapes(self, inputs: Tensors) -> None:
        for name, spec in self._signature.inputs.items():
            if not spec.accepts_shape(inputs[name].shape):
                raise InvalidArgument(
                    f"Input '{name}' has shape {list(inputs[name].shape)}, expected "
                    f"[{', '.join('?' if size is None else str(size) for size in spec.shape or ())}]"
                )


def _configuration(bfloat16: bool, num_threads: int) -> dict[str, object]:
    settings: dict[str, object] = {
        "PERFORMANCE_HINT": "LATENCY",
        # One batch at a time uses all threads, as in TensorFlow.
        "NUM_STREAMS": 1,
        # OpenVINO's default is bfloat16 wherever the CPU has it.
        "INFERENCE_PRECISION_HINT": "bf16" if bfloat16 else "f32",
        # A pinned thread would wait for other work on its core while another core is idle.
        "ENABLE_CPU_PINNING": False,
    }
    return settings | ({"INFERENCE_NUM_THREADS": num_threads} if num_threads else {})


def _find_names(read: Any, signature: Signature) -> dict[str, Any]:  # noqa: ANN401 - OpenVINO's Model
    """Return the converted model's output for each output of the signature.

    Raises:
        FailedPrecondition: the converted model has other inputs or outputs, or other dtypes.
    """
    for name, spec in signature.inputs.items():
        found = next((port for port in read.inputs if name in port.get_names()), None)
        if found is None or found.get_element_type().to_dtype() != spec.dtype:
            raise FailedPrecondition(f"its conversion of the model changes input '{name}'")
    if len(read.inputs) != len(signature.inputs):
        raise FailedPrecondition("its conversion of the model has other inputs than the signature")
    outputs = {}
    for name, spec in signature.outputs.items():
        found = next((port for port in read.outputs if name in port.get_names()), None)
        if found is None or found.get_element_type().to_dtype() != spec.dtype:
            raise FailedPrecondition(f"its conversion of the model changes output '{name}'")
        outputs[name] = found
    return outputs


def _describe(error: RuntimeError) -> str:
    """Return OpenVINO's reason in one line."""
    lines = [line.strip().removeprefix("-- ") for line in str(error).splitlines()]
    useful = [line for line in lines if line and not _NOISE.match(line)]
    return (useful or ["unknown error"])[-1].rstrip(".")
