"""ShapeWatch: a servable that notices runs of shapes which it has not run before."""

from collections.abc import Callable, Hashable, Sequence

from tpuserve_server.core.servable import InFlight, Servable
from tpuserve_server.core.types import Tensors

# Shapes remembered. Where dimensions are free, clients make them up; what is not remembered is new each time.
_MOST_SHAPES = 4096


class ShapeWatch:
    """Runs a servable, which it does not own. Safe from any thread: two that bring a shape at once may both be told.

    A device compiles for each combination of a signature, outputs and shapes of inputs: warm-up brings those that are
    expected, and whoever brings another waits for the compiler.
    """

    def __init__(self, servable: Servable) -> None:
        """No shape is known."""
        self._servable = servable
        self._known: set[Hashable] = set()
        self._on_new: Callable[[str], object] | None = None
        # Copied: asked for with every batch.
        self.signatures = servable.signatures
        self.device = servable.device
        self.max_in_flight = servable.max_in_flight

    def tell(self, on_new: Callable[[str], object]) -> None:
        """From now on call `on_new` with the signature's name when a shape is new, on the thread that brings it."""
        self._on_new = on_new

    def dispatch(self, signature_name: str, inputs: Tensors, output_names: Sequence[str]) -> InFlight:
        """As Servable.dispatch."""
        shape = (signature_name, tuple(output_names), *[array.shape for array in inputs.values()])
        if shape not in self._known:
            self._notice(signature_name, shape)
        return self._servable.dispatch(signature_name, inputs, output_names)

    def close(self) -> None:
        """Nothing is its own."""

    def _notice(self, signature_name: str, shape: Hashable) -> None:
        if len(self._known) < _MOST_SHAPES:
            self._known.add(shape)
        if self._on_new is not None:
            self._on_new(signature_name)
