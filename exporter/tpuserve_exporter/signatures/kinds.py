"""The kinds of signatures, and the signatures of one export."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tpuserve_exporter.errors import OptionConflict
from tpuserve_exporter.options.export_options import PadValue
from tpuserve_exporter.options.signature_request import DEFAULT_SIGNATURE, SignatureRequest
from tpuserve_exporter.signatures import image_bytes, inference, own_function, tensors, tf_example
from tpuserve_exporter.signatures.device_part import DevicePart
from tpuserve_exporter.signatures.served_signature import ServedSignature


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
        "tensor": lambda request: tensors.serve(request, device),
        "image_bytes": lambda request: image_bytes.serve(request, device),
        "tf_example": lambda request: tf_example.serve(request, device, pad_values),
        "classify": lambda request: inference.classify(request, device, pad_values, labels),
        "regress": lambda request: inference.regress(request, device, pad_values),
    }
    served = {}
    for request in requests:
        serve = kinds.get(request.kind)
        if serve is not None and request.kind != "tensor" and device.ragged.inputs:
            raise OptionConflict(
                f"{request}: the model's input {next(iter(device.ragged.inputs))} is ragged, but only tensor "
                "signatures take ragged inputs. Use --signature NAME=tensor, or a function, pkg.module:function, "
                "that makes the values and row splits"
            )
        served[request.name] = own_function.serve(request, device) if serve is None else serve(request)
    if DEFAULT_SIGNATURE not in served:
        served[DEFAULT_SIGNATURE] = replace(next(iter(served.values())), name=DEFAULT_SIGNATURE)
    return served
