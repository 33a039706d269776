"""`tensor` signatures: the model's inputs and outputs with their names and dtypes."""

from tpuserve_exporter.models.served_function import ServedFunction
from tpuserve_exporter.options.signature_request import SignatureRequest
from tpuserve_exporter.signatures.device_part import DevicePart
from tpuserve_exporter.signatures.served_signature import ServedSignature


def serve(request: SignatureRequest, device: DevicePart) -> ServedSignature:
    """Serve the device part without a host part."""
    return ServedSignature(
        request.name, request.kind, lambda call: ServedFunction(device.inputs, call, [], device.ragged)
    )
