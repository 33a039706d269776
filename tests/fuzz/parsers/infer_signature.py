"""The signature of a model that takes the inputs of a request: names and datatypes as in the request, any shape."""

import numpy as np

from tpuserve_formats.errors import FormatError
from tpuserve_formats.oip.datatypes import dtype_of
from tpuserve_server.core.terms.types import Signature, TensorSpec
from tpuserve_server.wire.oip.inference import InferenceRequest

_FLOAT = np.dtype(np.float32)


def signature_for(request: InferenceRequest) -> Signature:
    """Return the signature. A request without inputs gets the input `x`, FP32, as a raw request needs."""
    inputs = {tensor.name: _spec(tensor.name, tensor.datatype) for tensor in request.inputs}
    x = TensorSpec("x", _FLOAT, None)
    return Signature("serving_default", inputs or {"x": x}, {"x": x, "y": x})


def _spec(name: str, datatype: str) -> TensorSpec:
    try:
        return TensorSpec(name, dtype_of(datatype), None)
    except FormatError:
        return TensorSpec(name, _FLOAT, None)
