"""The kinds of signatures, and the signatures of one export.

The kind `pkg.module:function` is a host part from the user's code:

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tpuserve_exporter.errors import BuilderFailed, OptionConflict
from tpuserve_exporter.models.builder import builder_failure, find_builder
from tpuserve_exporter.models.served_function import ServedFunction
from tpuserve_exporter.options.export_options import PadValue
from tpuserve_exporter.options.signature_request import DEFAULT_SIGNATURE, TENSOR_KIND, SignatureRequest
from tpuserve_exporter.signatures import image_bytes, inference
from tpuserve_exporter.signatures.served_signature import Call, DevicePart, ServedSignature

if TYPE_CHECKING:
    import tensorflow as tf


def serve_signatures(
    requests: Sequence[SignatureRequest],
    device: DevicePart,
    pad_values: Mapping[str, PadValue],
    labels: Sequence[str] = (),
) -> dict[str, ServedSignature]:
    """Return a signature for each --signature, by name. If none has the default name, the first also gets that name.

    Servers use the default signature if a client's request names none. Raises OptionConflict or BuilderFailed with the
    text of the --signature.
    """
    kinds: dict[str, Callable[[SignatureRequest], ServedSignature]] = {
        TENSOR_KIND: lambda request: _serve_tensors(request, device),
        "image_bytes": lambda request: image_bytes.serve(request, device),
        "tf_example": lambda request: inference.serve_examples(request, device, pad_values),
        "classify": lambda request: inference.classify(request, device, pad_values, labels),
        "regress": lambda request: inference.regress(request, device, pad_values),
    }
    served = {}
    for request in requests:
        serve = kinds.get(request.kind)
        if serve is not None and request.kind != TENSOR_KIND and device.ragged.inputs:
            raise OptionConflict(
                f"{request}: the model's input {next(iter(device.ragged.inputs))} is ragged, but only tensor "
                "signatures take ragged inputs. Use --signature NAME=tensor, or a function, pkg.module:function, "
                "that makes the values and row splits"
            )
        served[request.name] = _serve_own(request, device) if serve is None else serve(request)
    if DEFAULT_SIGNATURE not in served:
        served[DEFAULT_SIGNATURE] = replace(next(iter(served.values())), name=DEFAULT_SIGNATURE)
    return served


def _serve_tensors(request: SignatureRequest, device: DevicePart) -> ServedSignature:
    """Serve the model's inputs and outputs with their names and dtypes, without a host part."""
    return ServedSignature(
        request.name, request.kind, lambda call: ServedFunction(device.inputs, call, [], device.ragged)
    )


def _serve_own(request: SignatureRequest, device: DevicePart) -> ServedSignature:
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
