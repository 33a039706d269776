"""A signature that a version offers: a host part around the device part."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuserve_exporter.models.served_function import ServedFunction
from tpuserve_exporter.runnable import Releasable, Runnable
from tpuserve_exporter.signature import Signature, Tensors
from tpuserve_exporter.signatures.device_part import Call, DevicePart
from tpuserve_exporter.signatures.raw_images import RawImages

if TYPE_CHECKING:
    import tensorflow as tf

PREDICT = "tensorflow/serving/predict"
CLASSIFY = "tensorflow/serving/classify"
REGRESS = "tensorflow/serving/regress"


@dataclass(frozen=True, slots=True)
class ServedSignature:
    """`wrap` puts the host part around a device part: around the one that is written, and around the source itself.

    What it returns tracks the host part's own tables and assets, and not the model's. `raw_images` are images of known
    pixels, for signatures that take image files. `note` states a choice that the exporter made, `warning` one that is
    likely wrong.
    """

    name: str
    kind: str
    wrap: Callable[[Call], ServedFunction]
    method_name: str = PREDICT
    raw_images: RawImages | None = None
    note: str = ""
    warning: str = ""


class WrappedReference:
    """The source's answers to any of the signatures: its host part, run operation by operation around the source."""

    def __init__(self, signatures: Mapping[str, ServedSignature], device: DevicePart, source: Runnable) -> None:
        self._signatures = signatures
        self._device = device.signature
        self._source = source
        self._wrapped: dict[str, ServedFunction] = {}

    def run(self, signature: Signature, inputs: Tensors) -> Tensors:
        """Outputs by name. Raises tf.errors.OpError where the host part does."""
        import tensorflow as tf

        if signature.name not in self._wrapped:
            self._wrapped[signature.name] = self._signatures[signature.name].wrap(self._ask)
        whole = self._wrapped[signature.name]
        tensors = {name: tf.constant(inputs[name], dtype=spec.dtype) for name, spec in whole.inputs.items()}
        return {name: value.numpy() for name, value in whole.call(**tensors).items()}

    @property
    def raw_images(self) -> dict[str, RawImages]:
        """Images of known pixels by signature, for those that take image files."""
        return {name: one.raw_images for name, one in self._signatures.items() if one.raw_images is not None}

    def run_device(self, inputs: Tensors) -> Tensors:
        """Ask the source itself, without any host part."""
        return self._source.run(self._device, inputs)

    def release(self) -> None:
        """Give the source's memory back, if it can; it cannot be asked any more."""
        if isinstance(self._source, Releasable):
            self._source.release()

    def _ask(self, **inputs: "tf.Tensor") -> "Mapping[str, tf.Tensor]":
        import tensorflow as tf

        outputs = self._source.run(self._device, {name: value.numpy() for name, value in inputs.items()})
        return {name: tf.constant(value) for name, value in outputs.items()}
