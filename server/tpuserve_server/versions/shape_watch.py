"""ShapeWatch: a servable that reports runs of new shapes."""

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence

from tpuserve_server.core.servable import InFlight, Servable
from tpuserve_server.core.types import Tensors
from tpuserve_server.versions.manifest import SignatureEntry

_log = logging.getLogger(__name__)

# Maximum number of known shapes, because clients choose free dimensions. Other shapes are new at each run.
_MOST_SHAPES = 4096


class ShapeWatch:
    """Wrapper of a servable that it does not own. Thread-safe; two threads with one new shape may both report it.

    A device compiles for each combination of a signature, outputs and input shapes. Warm-up runs the expected
    combinations. A request with another one waits for the compiler.

    A shape with a size outside of the ranges that the exporter has run is untried: nothing shows that the model answers
    it as its source does.
    """

    def __init__(self, servable: Servable, entries: Mapping[str, SignatureEntry] | None = None) -> None:
        """Wrap `servable`, without known shapes. `entries` are the manifest's, by signature."""
        self._servable = servable
        self._entries = entries or {}
        self._known: set[Hashable] = set()
        self._on_new: Callable[[str, bool], object] | None = None
        # Signatures whose first untried shape is in the log.
        self._logged: set[str] = set()
        # Copied, because every batch reads them.
        self.signatures = servable.signatures
        self.device = servable.device
        self.max_in_flight = servable.max_in_flight
        self.unrepeatable = servable.unrepeatable
        self.never_blocks = servable.never_blocks

    def observe(self, on_new: Callable[[str, bool], object]) -> None:
        """Call `on_new` for each new shape from now on, on the thread that runs it.

        It gets the signature's name, and whether the exporter has run such a shape or may have.
        """
        self._on_new = on_new

    def dispatch(self, signature_name: str, inputs: Tensors, output_names: Sequence[str]) -> InFlight:
        """Implement Servable.dispatch."""
        shape = (signature_name, tuple(output_names), *[array.shape for array in inputs.values()])
        if shape not in self._known:
            self._record(signature_name, shape, inputs)
        return self._servable.dispatch(signature_name, inputs, output_names)

    def close(self) -> None:
        """Do nothing, because the servable has another owner."""

    def _record(self, signature_name: str, shape: Hashable, inputs: Tensors) -> None:
        if len(self._known) < _MOST_SHAPES:
            self._known.add(shape)
        if self._on_new is None:
            return
        entry = self._entries.get(signature_name)
        entries = {} if entry is None else entry.inputs
        untried = [name for name in inputs if name in entries and not entries[name].has_tried(inputs[name].shape)]
        if untried and signature_name not in self._logged:
            self._logged.add(signature_name)
            name, ranges = untried[0], entries[untried[0]].tried_sizes
            _log.warning(
                "Signature %r runs input %r with shape %s. The exporter has checked the sizes %s. The server counts "
                "such runs in tpuserve_untried_runs_total",
                *(signature_name, name, list(inputs[name].shape), [list(each) if each else None for each in ranges]),
            )
        self._on_new(signature_name, not untried)
