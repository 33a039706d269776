"""The device part: the source's model, traced once and called by the host part of every signature."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from tpuserve_exporter.errors import BuilderFailed
from tpuserve_exporter.models.served_function import ServedFunction
from tpuserve_exporter.terms.signature import Signature, TensorSpec

if TYPE_CHECKING:
    import tensorflow as tf

# A callable device part, which takes tensors by input name and returns tensors by output name.
Call: TypeAlias = "Callable[..., Mapping[str, tf.Tensor]]"


class DevicePart:
    """The model as a separate function in the SavedModel, so that it can be lowered without the host parts."""

    def __init__(self, function: ServedFunction) -> None:
        """Trace `function`. Raises BuilderFailed."""
        self.inputs = function.inputs
        self.trackables = function.trackables
        self.function, self.graph = function.trace()
        self.ragged = function.ragged
        self.outputs: Mapping[str, tf.TensorSpec] = self.graph.structured_outputs
        if not isinstance(self.outputs, Mapping):
            raise BuilderFailed("the model's result is not a dictionary of tensors")

    def call(self, **inputs: "tf.Tensor") -> "Mapping[str, tf.Tensor]":
        """Call the traced graph. The inputs may have more specific static shapes than its specs."""
        outputs: Mapping[str, tf.Tensor] = self.graph(**inputs)
        return outputs

    @property
    def signature(self) -> Signature:
        """The inputs and outputs of the part, as the signature for a source's reference."""
        return Signature("device", describe_specs(self.inputs), describe_specs(self.outputs)).with_row_splits(
            self.ragged.inputs, self.ragged.outputs
        )


def describe_specs(specs: "Mapping[str, tf.TensorSpec]") -> dict[str, TensorSpec]:
    """Convert TensorFlow's specs to a signature's specs."""
    return {
        name: TensorSpec(spec.dtype.name, None if spec.shape.rank is None else tuple(spec.shape.as_list()))
        for name, spec in specs.items()
    }
