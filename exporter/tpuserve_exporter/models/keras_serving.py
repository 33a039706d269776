"""A Keras model as a served function, with changes of its compute dtype and 8-bit weights."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tpuserve_exporter.errors import OptionConflict
from tpuserve_exporter.models.layer_states import lookup_of
from tpuserve_exporter.models.naming import input_specs, name_outputs, number_outputs, path_names
from tpuserve_exporter.models.ragged import dense_function
from tpuserve_exporter.models.served_function import ServedFunction
from tpuserve_exporter.options.export_options import ComputeDtype, ModelOptions

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

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


def renew_constants(model: "keras.Model") -> None:
    """Recompute the layers' mean and variance from their variables, in the layers' compute dtype.

    Keras does so only in its own loading. This function does not call `finalize_state` of other layers: Discretization
    would compute its bins from statistics that no file stores.
    """
    import keras

    for layer in model._flatten_layers(include_self=True):
        if isinstance(layer, keras.layers.Normalization) and layer.built:
            layer.finalize_state()


def serve_keras(model: "keras.Model", options: ModelOptions) -> ServedFunction:
    """Return the served function of a Keras model.

    Inputs have the names of the model's inputs (a dictionary's keys, `keras.Input(name=...)`). Outputs have the names
    of a dictionary's keys, or of the layers that compute them. --input and --output rename them in order.
    """
    import keras

    structure, specs = input_specs(model, options)

    def call(**inputs: "tf.Tensor") -> "dict[str, tf.Tensor]":
        outputs = model(keras.tree.pack_sequence_as(structure, [inputs[name] for name in specs]), training=False)
        return name_outputs(options.outputs or _output_names(model, outputs), keras.tree.flatten(outputs))

    return dense_function(ServedFunction(specs, call, [model]))


def serve_keras_2(model: Any, options: ModelOptions) -> ServedFunction:  # noqa: ANN401 - a Keras 2 model is untyped
    """Return the served function of a Keras 2 model.

    It tracks the weights and the vocabularies instead of the model. Keras 2 traces all layers when TensorFlow lists the
    objects in a model.
    """
    import tensorflow as tf

    weights = [one for one in model.weights if isinstance(one, tf.Variable)]
    lookups = (lookup_of(layer) for layer in model._flatten_layers(include_self=False))
    tables = [one.lookup_table for one in lookups if one is not None]
    return replace(serve_keras(model, options), trackables=[*weights, *tables])


def _output_names(model: "keras.Model", outputs: object) -> list[str]:
    import keras

    if isinstance(outputs, Mapping):
        return path_names(outputs)
    count = len(keras.tree.flatten(outputs))
    layers = list(getattr(model, "output_names", ()))
    if not layers and isinstance(model, keras.Sequential):
        layers = [model.layers[-1].name]
    if len(layers) == count == len(set(layers)):
        return layers
    return number_outputs(count)


def described_dtype(model: "keras.Model") -> str:
    """Return the dtype policy of the model's layers, or of the model if no layer computes in bfloat16.

    Returns `bfloat16` if all layers have that policy, and `mixed_bfloat16` if some compute in bfloat16.
    """
    names = {layer.dtype_policy.name for layer in model._flatten_layers(include_self=False)}
    if any("bfloat16" in name for name in names):
        return "bfloat16" if names == {"bfloat16"} else "mixed_bfloat16"
    return str(model.dtype_policy.name)


def is_changed(options: ModelOptions) -> bool:
    """Return whether the options change the model after the restore."""
    return options.compute_dtype != "keep" or options.int8


def change(model: "keras.Model", options: ModelOptions) -> Quantized | None:
    """Apply the compute dtype and quantization from the options to a restored model.

    Raises OptionConflict if the model has no layer to quantize.
    """
    if options.compute_dtype != "keep":
        with_compute_dtype(model, options.compute_dtype)
    return quantize(model) if options.int8 else None


def with_compute_dtype(model: "keras.Model", dtype: ComputeDtype) -> "keras.Model":
    """Change the model's layers to compute in `dtype`, and return the model. Variables keep their dtypes.

    For bfloat16, the layers that compute the outputs stay unchanged. This preserves the dtype of the outputs and the
    precision of a softmax.
    """
    import keras

    keep = {output._keras_history.operation for output in getattr(model, "outputs", None) or ()}
    policy = keras.dtype_policies.get("mixed_bfloat16" if dtype == "bfloat16" else "float32")
    for layer in model._flatten_layers(include_self=True):
        if layer.variable_dtype == "float32" and not (dtype == "bfloat16" and layer in keep):
            layer.dtype_policy = policy
    renew_constants(model)
    return model
