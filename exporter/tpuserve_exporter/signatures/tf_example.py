"""`tf_example` signatures: serialized tf.Examples with a feature for each of the model's inputs, parsed on the host."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tpuserve_exporter.errors import OptionConflict
from tpuserve_exporter.models.served_function import ServedFunction
from tpuserve_exporter.options.export_options import PadValue
from tpuserve_exporter.options.signature_request import SignatureRequest
from tpuserve_exporter.signatures.device_part import DevicePart
from tpuserve_exporter.signatures.served_signature import ServedSignature

if TYPE_CHECKING:
    import tensorflow as tf

INPUT = "examples"


def serve(request: SignatureRequest, device: DevicePart, pad_values: Mapping[str, PadValue]) -> ServedSignature:
    """Serve the model's outputs for tf.Examples. Raises OptionConflict if a feature cannot hold an input."""
    parser = ExampleParser(request, device, pad_values)
    return ServedSignature(
        request.name,
        request.kind,
        lambda call: ServedFunction(example_specs(INPUT), lambda **examples: call(**parser.parse(examples[INPUT])), []),
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
