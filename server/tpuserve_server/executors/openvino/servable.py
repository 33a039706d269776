"""OpenVinoServable: a version whose `serving_default` runs on OpenVINO."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tpuserve_server.core.freed_memory import trim_memory
from tpuserve_server.core.servable import InFlight, Servable
from tpuserve_server.core.types import DEFAULT_SIGNATURE_NAME, Signature, Tensors
from tpuserve_server.executors.openvino.model import OpenVinoModel


class OpenVinoServable:
    """Version on OpenVINO. `dispatch` runs the model at once, on OpenVINO's threads.

    TensorFlow runs the other signatures: OpenVINO converts one signature of a SavedModel. If there is no other, the
    servable keeps nothing of TensorFlow.
    """

    def __init__(
        self, model: OpenVinoModel, signatures: Mapping[str, Signature], rest: Servable | None, device: str
    ) -> None:
        """Take ownership of `model`, and of `rest`, which runs all signatures except `serving_default`."""
        self._model = model
        self._rest = rest
        self.signatures: Mapping[str, Signature] = signatures
        self.device = device
        self.max_in_flight = 1
        # Only repeatable versions run on OpenVINO.
        self.unrepeatable = ""
        # OpenVINO compiles a program for each new shape in its first run, and its threads wait for each other.
        self.never_blocks = False

    def dispatch(self, signature_name: str, inputs: Tensors, output_names: Sequence[str]) -> InFlight:
        """Run the signature. Blocks until done.

        Raises:
            ServingError: as OpenVinoModel.run, or as the servable of the other signatures.
        """
        if self._rest is not None and signature_name != DEFAULT_SIGNATURE_NAME:
            return self._rest.dispatch(signature_name, inputs, output_names)
        return _Done(self._model.run(inputs, output_names))

    def close(self) -> None:
        """Release both runtimes' memory."""
        self._model.close()
        if self._rest is not None:
            self._rest.close()
        trim_memory()


@dataclass(frozen=True, slots=True)
class _Done:
    """Completed run."""

    outputs: Tensors

    def result(self) -> Tensors:
        return self.outputs
