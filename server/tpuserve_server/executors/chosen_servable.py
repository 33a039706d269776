"""ChosenServable: a servable with another description of its device, and a callback after its end."""

from collections.abc import Callable, Mapping, Sequence

from tpuserve_server.core.terms.servable import InFlight, Servable
from tpuserve_server.core.terms.types import Signature, Tensors


class ChosenServable:
    """Servable that wraps another one."""

    def __init__(self, servable: Servable, device: str, closed: Callable[[], None] | None = None) -> None:
        """Wrap `servable`. `close` calls `closed` at its end, even if it fails."""
        self._servable = servable
        # Copied, because every batch reads them.
        self.signatures: Mapping[str, Signature] = servable.signatures
        self.max_in_flight = servable.max_in_flight
        self.unrepeatable = servable.unrepeatable
        self.never_blocks = servable.never_blocks
        self.device = device
        self._closed = closed

    def dispatch(self, signature_name: str, inputs: Tensors, output_names: Sequence[str]) -> InFlight:
        """Implement Servable.dispatch."""
        return self._servable.dispatch(signature_name, inputs, output_names)

    def close(self) -> None:
        """Implement Servable.close."""
        try:
            self._servable.close()
        finally:
            if self._closed is not None:
                self._closed()
