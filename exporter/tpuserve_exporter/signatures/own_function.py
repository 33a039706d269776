"""`pkg.module:function` signatures: a host part from the user's code.

    def serve_text(call, inputs, **options):
        table = tf.lookup.StaticHashTable(...)

        def run(text):
            return call(ids=table.lookup(tf.strings.split(text)).to_tensor())

        return run, {"text": tf.TensorSpec([None], tf.string)}, [table]

`call` is the device part, and `inputs` has its tf.TensorSpecs by name. The exporter calls the function at least twice:
for the written model and for the source. The function returns the signature's function, the specs of its inputs, and
optionally a list of its tables and variables. The signature's function takes tensors by name and returns a dictionary
of tensors.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tpuserve_exporter.errors import BuilderFailed
from tpuserve_exporter.models.builder import builder_failure, find_builder
from tpuserve_exporter.models.served_function import ServedFunction
from tpuserve_exporter.options.signature_request import SignatureRequest
from tpuserve_exporter.signatures.device_part import Call, DevicePart
from tpuserve_exporter.signatures.served_signature import ServedSignature

if TYPE_CHECKING:
    import tensorflow as tf


def serve(request: SignatureRequest, device: DevicePart) -> ServedSignature:
    """Serve a signature with the user's function. Raises BuilderFailed.

    The options in --signature are the function's arguments, parsed as JSON if they are valid JSON, or else text.
    """
    function = find_builder(request.kind, "--signature")
    arguments = {name: _read(value) for name, value in request.options.items()}

    def wrap(call: Call) -> ServedFunction:
        try:
            return _check(request, function(call, dict(device.inputs), **arguments))
        except BuilderFailed:
            raise
        except Exception as error:  # the user's code
            raise builder_failure(str(request), error) from error

    return ServedSignature(request.name, request.kind, wrap)


def _read(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _check(request: SignatureRequest, made: object) -> ServedFunction:
    """Check that `made` is a function, specs by name, and optionally trackables. Raises BuilderFailed."""
    import tensorflow as tf

    wanted = "expected a function, a dictionary of tf.TensorSpec, and optionally a list of objects to track"
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not callable(made[0]):
        raise BuilderFailed(f"{request} returned {type(made).__name__}; {wanted}")
    function, specs, *tracked = made
    if not isinstance(specs, Mapping) or not all(isinstance(spec, tf.TensorSpec) for spec in specs.values()):
        raise BuilderFailed(f"{request} returned {type(specs).__name__} for its inputs; {wanted}")
    named = {name: tf.TensorSpec(spec.shape, spec.dtype, name=name) for name, spec in specs.items()}

    def run(**inputs: "tf.Tensor") -> "Mapping[str, tf.Tensor]":
        try:
            outputs = function(**inputs)
        except Exception as error:  # the user's code
            if isinstance(error, tf.errors.OpError):
                raise
            raise builder_failure(str(request), error) from error
        if not isinstance(outputs, Mapping):
            raise BuilderFailed(f"{request} returned {type(outputs).__name__} instead of a dictionary of tensors")
        return outputs

    return ServedFunction(named, run, tracked[0] if tracked else [])
