"""8-bit weights: Keras quantization of a model's dense layers, einsum layers and embeddings."""

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuserve_exporter.errors import OptionConflict

if TYPE_CHECKING:
    import keras

_INT8 = "int8"
# The number of unsupported layer kinds in an error message.
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Quantized:
    """The number of layers with 8-bit weights, and the bytes of all the model's variables before and after."""

    layers: int
    bytes_before: int
    bytes_after: int


def quantize(model: "keras.Model") -> Quantized:
    """Quantize a restored model in place. Raises OptionConflict if the model has no layer that Keras quantizes.

    A quantized layer has an integer kernel with a scale for each channel. Each request converts the layer's inputs to
    integers with a scale for each row and multiplies integers. Other layers stay unchanged.
    """
    before = _count_bytes(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras warns about each unsupported layer.
        model.quantize(_INT8)
    layers = sum(1 for layer in model._flatten_layers() if getattr(layer, "quantization_mode", None) == _INT8)
    if not layers:
        kinds = sorted({type(layer).__name__ for layer in model._flatten_layers(include_self=False) if layer.weights})
        raise OptionConflict(
            "--int8 does not apply: Keras quantizes Dense, EinsumDense and Embedding, but the model has only "
            f"{', '.join(kinds[:_MOST_NAMED]) or 'layers without weights'}. Omit --int8"
        )
    return Quantized(layers, before, _count_bytes(model))


def _count_bytes(model: "keras.Model") -> int:
    return sum(variable.value.shape.num_elements() * variable.value.dtype.size for variable in model.variables)
