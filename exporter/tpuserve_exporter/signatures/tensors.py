"""`tensor`: the model's own inputs and outputs, names and dtypes kept."""

from tpuserve_exporter.models.served_function import ServedFunction
from tpuserve_exporter.options.signature_request import SignatureRequest
from tpuserve_exporter.signatures.device_part import DevicePart
from tpuserve_exporter.signatures.served_signature import ServedSignature


def serve(request: SignatureRequest, device: DevicePart) -> ServedSignature:
    """Nothing is left to the host."""
    return ServedSignature(
        request.name, request.kind, lambda call: ServedFunction(device.inputs, call, [], device.ragged)
    )
