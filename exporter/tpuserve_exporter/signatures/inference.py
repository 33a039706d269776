"""Signatures of serialized tf.Examples, with a feature for each of the model's inputs, parsed on the host.

`tf_example` serves the model's outputs. `classify` and `regress` are for the Classify and Regress calls: they have one
input named `inputs`, and the outputs `classes` and `scores`, or `outputs` (tensorflow_serving/servables/tensorflow/
classifier.cc and regressor.cc).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tpuserve_exporter.errors import OptionConflict
from tpuserve_exporter.models.served_function import ServedFunction
from tpuserve_exporter.options.export_options import PadValue
from tpuserve_exporter.options.signature_request import SignatureRequest
from tpuserve_exporter.signatures.served_signature import CLASSIFY, REGRESS, Call, DevicePart, ServedSignature

if TYPE_CHECKING:
    import tensorflow as tf

EXAMPLES_INPUT = "examples"


def serve_examples(
    request: SignatureRequest, device: DevicePart, pad_values: Mapping[str, PadValue]
) -> ServedSignature:
    """Serve the model's outputs for tf.Examples. Raises OptionConflict if a feature cannot hold an input."""
    parser = ExampleParser(request, device, pad_values)
    return ServedSignature(
        request.name,
        request.kind,
        lambda call: ServedFunction(
            example_specs(EXAMPLES_INPUT), lambda **examples: call(**parser.parse(examples[EXAMPLES_INPUT])), []
        ),
    )


def example_specs(name: str) -> "dict[str, tf.TensorSpec]":
    """Return the spec of the one input, `name`, which takes a serialized tf.Example for each row."""
    import tensorflow as tf

    return {name: tf.TensorSpec([None], tf.string, name=name)}


class ExampleParser:
    """A parser of serialized tf.Examples to the device part's inputs.

    Each feature has the name of its input. Floats of any width are float lists, integers and booleans are int64 lists,
    and strings are byte lists. `pad_values` pad the sequences of a batch to the longest one.
    """

    def __init__(self, request: SignatureRequest, device: DevicePart, pad_values: Mapping[str, PadValue]) -> None:
        self._specs = device.inputs
        self._features = {
            name: _feature(request, name, spec, pad_values.get(name)) for name, spec in device.inputs.items()
        }

    def parse(self, examples: "tf.Tensor") -> "dict[str, tf.Tensor]":
        """Return the device part's inputs by name."""
        import tensorflow as tf

        with tf.device("/device:CPU:0"):
            parsed = tf.io.parse_example(examples, self._features)
            return {name: tf.cast(parsed[name], spec.dtype) for name, spec in self._specs.items()}


def _feature(
    request: SignatureRequest, name: str, spec: "tf.TensorSpec", pad: PadValue | None
) -> "tf.io.FixedLenFeature | tf.io.FixedLenSequenceFeature":
    import tensorflow as tf

    dims = spec.shape.as_list() if spec.shape.rank is not None else []
    if not dims or dims[0] is not None:
        raise OptionConflict(f"{request}: input {name!r} has no free dimension for the rows, which Examples need")
    if None in dims[2:]:
        raise OptionConflict(
            f"{request}: input {name!r} is {dims} (None is free), but only the length of a feature may be free. Set "
            "the other sizes with --input"
        )
    dtype = _stored_dtype(request, name, spec)
    if dims[1:2] != [None]:
        return tf.io.FixedLenFeature(dims[1:], dtype)
    padding = pad if pad is not None else "" if dtype == tf.string else 0
    return tf.io.FixedLenSequenceFeature(dims[2:], dtype, allow_missing=True, default_value=padding)


def _stored_dtype(request: SignatureRequest, name: str, spec: "tf.TensorSpec") -> "tf.DType":
    """Return the dtype of the feature's list that holds the input's values. Raises OptionConflict."""
    import tensorflow as tf

    if spec.dtype.is_floating:
        return tf.float32
    if spec.dtype.is_integer or spec.dtype.is_bool:
        return tf.int64
    if spec.dtype == tf.string:
        return tf.string
    raise OptionConflict(f"{request}: input {name!r} is {spec.dtype.name}, which no feature of an Example can hold")


INPUT = "inputs"
# Common names of class scores, to choose from several fitting outputs.
_USUAL_SCORES = ("scores", "probabilities", "predictions", "logits")


def classify(
    request: SignatureRequest, device: DevicePart, pad_values: Mapping[str, PadValue], labels: Sequence[str]
) -> ServedSignature:
    """Serve every class with its score, in the model's order. Without `labels`, the classes have numbers as names.

    Raises OptionConflict if there is not exactly one output of class scores, or if the number of labels differs.
    """
    name = _find_output(request, device, "scores", _are_scores, "floats of [batch, classes]")
    count = device.outputs[name].shape[1]
    if labels and count is not None and count != len(labels):
        raise OptionConflict(f"{request}: output {name!r} has {count} classes, but --labels has {len(labels)}")
    if count is None and not labels:
        raise OptionConflict(f"{request}: the number of classes of output {name!r} is unknown. Use --labels FILE")
    names = list(labels) or [str(index) for index in range(count or 0)]

    def read(outputs: "Mapping[str, tf.Tensor]") -> "dict[str, tf.Tensor]":
        import tensorflow as tf

        scores = tf.cast(outputs[name], tf.float32)
        classes = tf.tile(tf.constant([names]), [tf.shape(scores)[0], 1])
        return {"classes": classes, "scores": tf.ensure_shape(scores, [None, len(names)])}

    return _serve(request, ExampleParser(request, device, pad_values), read, CLASSIFY)


def regress(request: SignatureRequest, device: DevicePart, pad_values: Mapping[str, PadValue]) -> ServedSignature:
    """Serve one number a row. Raises OptionConflict if there is not exactly one output of this kind."""
    name = _find_output(request, device, "value", _is_value, "floats of [batch] or [batch, 1]")

    def read(outputs: "Mapping[str, tf.Tensor]") -> "dict[str, tf.Tensor]":
        import tensorflow as tf

        return {"outputs": tf.reshape(tf.cast(outputs[name], tf.float32), [-1])}

    return _serve(request, ExampleParser(request, device, pad_values), read, REGRESS)


def _serve(
    request: SignatureRequest,
    parser: ExampleParser,
    read: "Callable[[Mapping[str, tf.Tensor]], dict[str, tf.Tensor]]",
    method_name: str,
) -> ServedSignature:
    import tensorflow as tf

    def wrap(call: Call) -> ServedFunction:
        def run(**examples: "tf.Tensor") -> "dict[str, tf.Tensor]":
            outputs = call(**parser.parse(examples[INPUT]))
            with tf.device("/device:CPU:0"):
                return read(outputs)

        return ServedFunction(example_specs(INPUT), run, [])

    return ServedSignature(request.name, request.kind, wrap, method_name)


def _find_output(
    request: SignatureRequest, device: DevicePart, option: str, fits: "Callable[[tf.TensorSpec], bool]", wanted: str
) -> str:
    """Return the output named by the option, or else one with a common name of scores, or else the only output.

    With several outputs, a fitting shape is not enough, because an embedding has the shape of scores. Raises
    OptionConflict.
    """
    described = ", ".join(f"{name}: {spec.dtype.name}{spec.shape}" for name, spec in device.outputs.items())
    named = request.options.get(option)
    if named is not None and named not in device.outputs:
        raise OptionConflict(f"{request}: the model has no output {named!r}. Its outputs are {described}")
    fitting = [name for name, spec in device.outputs.items() if named in (None, name) and fits(spec)]
    usual = [name for name in _USUAL_SCORES if option == "scores" and name in fitting]
    if usual or fitting == [named] or (fitting and len(device.outputs) == 1):
        return (usual or fitting)[0]
    if fitting:
        raise OptionConflict(f"{request}: choose the output with {option}=NAME. Outputs that fit: {', '.join(fitting)}")
    raise OptionConflict(f"{request} needs {wanted}, but the model's outputs are {described}")


def _are_scores(spec: "tf.TensorSpec") -> bool:
    return spec.dtype.is_floating and spec.shape.rank == 2 and spec.shape[0] is None and spec.shape[1] != 1


def _is_value(spec: "tf.TensorSpec") -> bool:
    return spec.dtype.is_floating and spec.shape.as_list() in ([None], [None, 1]) if spec.shape.rank else False
