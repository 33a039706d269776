"""A Keras model as a server sees it: one signature of named tensors in, named tensors out, written as a SavedModel."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tpuserve_exporter.errors import BuilderFailed, OptionConflict
from tpuserve_exporter.keras_inputs import check_distinct, input_specs, path_names
from tpuserve_exporter.normalization import renew_constants
from tpuserve_exporter.options import ComputeDtype, ModelOptions
from tpuserve_exporter.signature import Signature, Tensors

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

# Google's TPU inference converter looks the part to run on the device up by this alias.
_DEVICE_FUNCTION_ALIAS = "tpu_func"


class KerasServing:
    """The served function of one Keras model.

    Inputs are named after the model's (a dictionary's keys, `keras.Input(name=...)`), outputs after a dictionary's keys
    or the layers that make them; --input and --output rename them in order.
    """

    def __init__(self, model: "keras.Model", options: ModelOptions) -> None:
        self.model = model
        self._signature_name = options.signature_name
        self._structure, self._specs = input_specs(model, options)
        self._output_names = options.outputs
        self._reference: tf.types.experimental.ConcreteFunction | None = None

    def run(self, signature: Signature, inputs: Tensors) -> Tensors:
        """The source model's own answer. `signature` is the one there is.

        Traced, as in training on a TPU, and apart from what is written: layer by layer, bfloat16 would round between
        operations that a graph computes as one, by as much as a wrong weight might show.
        """
        import tensorflow as tf

        if self._reference is None:
            self._reference = self._trace()[1]
        tensors = {name: tf.constant(inputs[name], dtype=spec.dtype) for name, spec in self._specs.items()}
        return {name: value.numpy() for name, value in self._reference(**tensors).items()}

    def write(self, path: Path) -> None:
        """Write a SavedModel that loads in a session too.

        A tf.Module that holds a Keras 3 model loads in Python only (its variables get names no session finds);
        ExportArchive tracks the variables and lookup tables themselves.
        """
        import keras
        import tensorflow as tf

        function, _ = self._trace()
        archive = keras.export.ExportArchive()
        archive.track(self.model)
        archive.add_endpoint(self._signature_name, function)
        aliases = tf.saved_model.SaveOptions(function_aliases={_DEVICE_FUNCTION_ALIAS: function})
        archive.write_out(str(path), options=aliases, verbose=False)

    def _trace(self) -> "tuple[tf.types.experimental.PolymorphicFunction, tf.types.experimental.ConcreteFunction]":
        """A new function, and its graph for the specs. Each trace runs the model's Python again."""
        import tensorflow as tf

        function = tf.function(self._call, autograph=False)
        try:
            return function, function.get_concrete_function(**self._specs)
        except (TypeError, ValueError, tf.errors.OpError) as error:
            raise BuilderFailed(f"the model cannot be traced for {self._describe()}: {error}") from error

    def _call(self, **inputs: "tf.Tensor") -> "dict[str, tf.Tensor]":
        import keras

        flat = [inputs[name] for name in self._specs]
        outputs = self.model(keras.tree.pack_sequence_as(self._structure, flat), training=False)
        names = self._output_names or _output_names(self.model, outputs)
        tensors = keras.tree.flatten(outputs)
        if len(names) != len(tensors):
            raise OptionConflict(f"--output is given {len(names)} time(s), the model has {len(tensors)} output(s)")
        check_distinct("output", names)
        return dict(zip(names, tensors, strict=True))

    def _describe(self) -> str:
        return ", ".join(f"{name}: {spec.dtype.name}{spec.shape}" for name, spec in self._specs.items())


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
    return ["outputs"] if count == 1 else [f"output_{index}" for index in range(count)]


def described_dtype(model: "keras.Model") -> str:
    """The policy of the layers that compute: `mixed_bfloat16` if any does so in bfloat16, else the model's own."""
    names = {layer.dtype_policy.name for layer in model._flatten_layers(include_self=False)}
    if any("bfloat16" in name for name in names):
        return "bfloat16" if names == {"bfloat16"} else "mixed_bfloat16"
    return str(model.dtype_policy.name)


def with_compute_dtype(model: "keras.Model", dtype: ComputeDtype) -> "keras.Model":
    """The same model computing in `dtype`. Variables keep theirs.

    For bfloat16 the layers that make the outputs stay as they are, so that what is served keeps its dtype and a softmax
    its precision.
    """
    import keras

    keep = {output._keras_history.operation for output in getattr(model, "outputs", None) or ()}
    policy = keras.dtype_policies.get("mixed_bfloat16" if dtype == "bfloat16" else "float32")
    for layer in model._flatten_layers(include_self=True):
        if layer.variable_dtype == "float32" and not (dtype == "bfloat16" and layer in keep):
            layer.dtype_policy = policy
    renew_constants(model)
    return model
