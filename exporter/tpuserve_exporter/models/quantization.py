"""Weights of 8 bits: what Keras makes of a model's dense layers, einsum layers and embeddings."""

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuserve_exporter.errors import OptionConflict

if TYPE_CHECKING:
    import keras

_INT8 = "int8"
# Of the layers that stay as they are, enough to know which kinds.
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Quantized:
    """How many layers have weights of 8 bits now, and the bytes of all the model's variables before and after."""

    layers: int
    bytes_before: int
    bytes_after: int


def quantize(model: "keras.Model") -> Quantized:
    """Change the model, which is restored. Raises OptionConflict where there is nothing that Keras quantises.

    Such a layer's kernel is of integers with a scale for each channel, and at each request its inputs are made integers
    with a scale for each row: the product is of integers. All else stays as it is.
    """
    before = _count_bytes(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one for each layer that stays
        model.quantize(_INT8)
    layers = sum(1 for layer in model._flatten_layers() if getattr(layer, "quantization_mode", None) == _INT8)
    if not layers:
        kinds = sorted({type(layer).__name__ for layer in model._flatten_layers(include_self=False) if layer.weights})
        raise OptionConflict(
            "--int8: Keras quantises Dense, EinsumDense and Embedding, and the model has none of these, but "
            f"{', '.join(kinds[:_MOST_NAMED]) or 'no layer with weights'}: leave --int8 out"
        )
    return Quantized(layers, before, _count_bytes(model))


def _count_bytes(model: "keras.Model") -> int:
    return sum(variable.value.shape.num_elements() * variable.value.dtype.size for variable in model.variables)
