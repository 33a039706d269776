"""A tf.Module as a served function: the inputs and outputs of its `__call__` by name."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tpuserve_exporter.errors import BuilderFailed, OptionConflict
from tpuserve_exporter.models.keras_inputs import check_distinct, check_names, option_spec, path_names
from tpuserve_exporter.models.ragged import dense_function
from tpuserve_exporter.models.served_function import ServedFunction
from tpuserve_exporter.options.export_options import InputNaming, ModelOptions

if TYPE_CHECKING:
    import tensorflow as tf

# Arguments that select training mode. A server sets them to False.
_TRAINING = ("training", "is_training")


def serve_module(module: "tf.Module", options: ModelOptions) -> ServedFunction:
    """Return the served function of a callable module.

    Inputs come from an `input_signature` or, in order, from --input. Outputs have the names of a dictionary's keys or
    of --output. Raises BuilderFailed for a module without `__call__`, and OptionConflict if the inputs are unknown.
    """
    function = getattr(module, "__call__", None)  # noqa: B004 - the method is wanted, with its signature
    if function is None:
        raise BuilderFailed(
            f"{options.builder} returned a {type(module).__name__} without __call__, so that there is nothing to serve"
        )
    parameters = _parameters(function)
    specs = _specs(function, parameters, options.inputs)
    fixed = {name: False for name in _TRAINING if name in parameters and name not in specs}
    by_name = all(name in parameters for name in specs)

    def call(**inputs: "tf.Tensor") -> "Mapping[str, tf.Tensor]":
        if by_name:
            return _name_outputs(function(**inputs, **fixed), options.outputs)
        return _name_outputs(function(*[inputs[name] for name in specs], **fixed), options.outputs)

    return dense_function(ServedFunction(specs, call, [module]))


def build_variables(function: ServedFunction) -> None:
    """Trace the function once, because many modules create their variables in their first call."""
    function.trace()


def _parameters(function: Callable[..., Any]) -> list[str]:
    """Return the names of the function's parameters."""
    return list(inspect.signature(getattr(function, "python_function", function)).parameters)


def _signature(function: Callable[..., Any]) -> "Sequence[tf.TensorSpec] | None":
    """Return the `input_signature` of a tf.function, or None if the callable has none."""
    signature: Sequence[tf.TensorSpec] | None = getattr(function, "input_signature", None)
    return signature


def _specs(
    function: Callable[..., Any], parameters: Sequence[str], namings: Sequence[InputNaming]
) -> "dict[str, tf.TensorSpec]":
    signature = _signature(function)
    if signature is None or any(one.dtype is not None for one in namings):
        if not namings or any(one.dtype is None for one in namings):
            raise OptionConflict(
                "the module's inputs are unknown, because its __call__ has no input_signature. Describe each with "
                "--input 'name:dtype[batch,...]'"
            )
        check_names([one.name for one in namings])
        return {one.name: option_spec(one) for one in namings}
    if namings and len(namings) != len(signature):
        raise OptionConflict(f"there are {len(namings)} --input options, but the module has {len(signature)} input(s)")
    own = [getattr(spec, "name", None) or parameters[index] for index, spec in enumerate(signature)]
    names = [one.name for one in namings] or own
    check_names(names)
    return {name: _named(name, spec) for name, spec in zip(names, signature, strict=True)}


def _named(name: str, spec: "tf.TypeSpec") -> "tf.TensorSpec | tf.RaggedTensorSpec":
    """Name the spec of an input. Raises OptionConflict for a tensor that signatures do not support."""
    import tensorflow as tf

    if isinstance(spec, tf.RaggedTensorSpec):
        return spec
    if not isinstance(spec, tf.TensorSpec):
        raise OptionConflict(
            f"input {name!r} is a {type(spec).__name__}, but signatures take only dense and ragged tensors. Let "
            "__call__ take the parts of a sparse tensor and build it with tf.sparse.SparseTensor"
        )
    return tf.TensorSpec(spec.shape, spec.dtype, name=name)


def _name_outputs(outputs: object, chosen: tuple[str, ...]) -> "dict[str, tf.Tensor]":
    import keras

    tensors = keras.tree.flatten(outputs)
    if chosen and len(chosen) != len(tensors):
        raise OptionConflict(f"there are {len(chosen)} --output options, but the module has {len(tensors)} output(s)")
    names = list(chosen) or (path_names(outputs) if isinstance(outputs, Mapping) else [])
    if not names:
        names = ["outputs"] if len(tensors) == 1 else [f"output_{index}" for index in range(len(tensors))]
    check_distinct("output", names)
    return dict(zip(names, tensors, strict=True))
