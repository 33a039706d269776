"""A signature of a version: a host part around the device part.

The device part is the source's model, traced once and called by the host part of every signature.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tpuserve_exporter.errors import BuilderFailed
from tpuserve_exporter.models.served_function import ServedFunction
from tpuserve_exporter.options.signature_request import TENSOR_KIND
from tpuserve_exporter.signatures.raw_images import RawImages
from tpuserve_exporter.terms.signature import Releasable, Runnable, Signature, Tensors, TensorSpec

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


PREDICT = "tensorflow/serving/predict"
CLASSIFY = "tensorflow/serving/classify"
REGRESS = "tensorflow/serving/regress"


@dataclass(frozen=True, slots=True)
class ServedSignature:
    """A signature. `wrap` puts its host part around a device part: the written one, or the source itself.

    The wrapped function tracks the tables and assets of the host part, and not those of the model. `raw_images` are
    images with known pixels, for signatures that take image files. `note` states a choice of the exporter, and
    `warning` a likely mistake of the user.
    """

    name: str
    kind: str
    wrap: Callable[[Call], ServedFunction]
    method_name: str = PREDICT
    raw_images: RawImages | None = None
    note: str = ""
    warning: str = ""


class WrappedReference:
    """The source behind every signature, to compare outputs with. Host parts run eagerly around the source."""

    def __init__(self, signatures: Mapping[str, ServedSignature], device: DevicePart, source: Runnable) -> None:
        self._signatures = signatures
        self._device = device.signature
        self._source = source
        self._wrapped: dict[str, ServedFunction] = {}

    def run(self, signature: Signature, inputs: Tensors) -> Tensors:
        """Return the outputs by name. Raises tf.errors.OpError if the host part fails."""
        import tensorflow as tf

        if self._signatures[signature.name].kind == TENSOR_KIND:  # no host part
            return self.run_device(inputs)
        if signature.name not in self._wrapped:
            self._wrapped[signature.name] = self._signatures[signature.name].wrap(self._call)
        function = self._wrapped[signature.name]
        tensors = {name: tf.constant(inputs[name], dtype=spec.dtype) for name, spec in function.inputs.items()}
        return {name: np.asarray(value) for name, value in function.call(**tensors).items()}

    @property
    def raw_images(self) -> dict[str, RawImages]:
        """Images with known pixels, by signature, for signatures that take image files."""
        return {name: one.raw_images for name, one in self._signatures.items() if one.raw_images is not None}

    def run_device(self, inputs: Tensors) -> Tensors:
        """Run the source without a host part."""
        return self._source.run(self._device, inputs)

    def release(self) -> None:
        """Release the source's memory if it supports this. The caller must not call `run` afterwards."""
        if isinstance(self._source, Releasable):
            self._source.release()

    def _call(self, **inputs: "tf.Tensor") -> "Mapping[str, tf.Tensor]":
        import tensorflow as tf

        outputs = self._source.run(self._device, {name: value.numpy() for name, value in inputs.items()})
        return {name: tf.constant(value) for name, value in outputs.items()}
