"""ChosenServable: a servable with another description of its device, and a call when it has been closed."""

from collections.abc import Callable, Mapping, Sequence

from tpuserve_server.core.servable import InFlight, Servable
from tpuserve_server.core.types import Signature, Tensors


class ChosenServable:
    """core.servable.Servable, by another one."""

    def __init__(self, servable: Servable, device: str, closed: Callable[[], None] | None = None) -> None:
        """`closed` is called once, at the end of `close`, also of one that fails."""
        self._servable = servable
        # Copied: asked for with every batch.
        self.signatures: Mapping[str, Signature] = servable.signatures
        self.max_in_flight = servable.max_in_flight
        self.device = device
        self._closed = closed

    def dispatch(self, signature_name: str, inputs: Tensors, output_names: Sequence[str]) -> InFlight:
        """As the protocol."""
        return self._servable.dispatch(signature_name, inputs, output_names)

    def close(self) -> None:
        """As the protocol."""
        try:
            self._servable.close()
        finally:
            if self._closed is not None:
                self._closed()
