"""The device part: what the source's model computes, traced once, and called by every signature's host part."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from tpuserve_exporter.errors import BuilderFailed
from tpuserve_exporter.models.served_function import ServedFunction
from tpuserve_exporter.signature import Signature, TensorSpec

if TYPE_CHECKING:
    import tensorflow as tf

# The device part as host parts call it: tensors by its inputs' names, to tensors by its outputs' names.
Call: TypeAlias = "Callable[..., Mapping[str, tf.Tensor]]"


class DevicePart:
    """A function of its own in the SavedModel, so that it can be told from the host parts and lowered without them."""

    def __init__(self, function: ServedFunction) -> None:
        """Traces `function`. Raises BuilderFailed."""
        self.inputs = function.inputs
        self.trackables = function.trackables
        self.function, self.graph = function.trace()
        self.ragged = function.ragged
        self.outputs: Mapping[str, tf.TensorSpec] = self.graph.structured_outputs
        if not isinstance(self.outputs, Mapping):
            raise BuilderFailed("the model returns no tensors by name")

    def call(self, **inputs: "tf.Tensor") -> "Mapping[str, tf.Tensor]":
        """A call of the traced graph, whatever shape within its own the inputs are known to have."""
        outputs: Mapping[str, tf.Tensor] = self.graph(**inputs)
        return outputs

    @property
    def signature(self) -> Signature:
        """What it takes and returns, as a source's reference is asked."""
        return Signature("device", describe_specs(self.inputs), describe_specs(self.outputs)).with_row_splits(
            self.ragged.inputs, self.ragged.outputs
        )


def describe_specs(specs: "Mapping[str, tf.TensorSpec]") -> dict[str, TensorSpec]:
    """Specs as signatures state them."""
    return {
        name: TensorSpec(spec.dtype.name, None if spec.shape.rank is None else tuple(spec.shape.as_list()))
        for name, spec in specs.items()
    }
