"""ShapeWatch: a servable that reports runs of new shapes."""

from collections.abc import Callable, Hashable, Sequence

from tpuserve_server.core.servable import InFlight, Servable
from tpuserve_server.core.types import Tensors

# Maximum number of known shapes, because clients choose free dimensions. Other shapes are new at each run.
_MOST_SHAPES = 4096


class ShapeWatch:
    """Wrapper of a servable that it does not own. Thread-safe; two threads with one new shape may both report it.

    A device compiles for each combination of a signature, outputs and input shapes. Warm-up runs the expected
    combinations. A request with another one waits for the compiler.
    """

    def __init__(self, servable: Servable) -> None:
        """Wrap `servable`, without known shapes."""
        self._servable = servable
        self._known: set[Hashable] = set()
        self._on_new: Callable[[str], object] | None = None
        # Copied, because every batch reads them.
        self.signatures = servable.signatures
        self.device = servable.device
        self.max_in_flight = servable.max_in_flight
        self.unrepeatable = servable.unrepeatable
        self.never_blocks = servable.never_blocks

    def observe(self, on_new: Callable[[str], object]) -> None:
        """Call `on_new` with the signature's name for each new shape from now on, on the thread that runs it."""
        self._on_new = on_new

    def dispatch(self, signature_name: str, inputs: Tensors, output_names: Sequence[str]) -> InFlight:
        """Implement Servable.dispatch."""
        shape = (signature_name, tuple(output_names), *[array.shape for array in inputs.values()])
        if shape not in self._known:
            self._record(signature_name, shape)
        return self._servable.dispatch(signature_name, inputs, output_names)

    def close(self) -> None:
        """Do nothing, because the servable has another owner."""

    def _record(self, signature_name: str, shape: Hashable) -> None:
        if len(self._known) < _MOST_SHAPES:
            self._known.add(shape)
        if self._on_new is not None:
            self._on_new(signature_name)
