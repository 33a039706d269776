"""Messages of each protocol of a load test."""

import json
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from tpuserve_client import tensor
from tpuserve_client.arrays import check_size, little_endian
from tpuserve_client.dtypes import STRING, Array
from tpuserve_client.errors import InvalidArgument
from tpuserve_client.exchange import Exchange, PredictCall, Reply, Wire
from tpuserve_client.grpc_wire import GrpcWire
from tpuserve_client.model import ModelSpec
from tpuserve_client.oip_grpc_wire import OipGrpcWire
from tpuserve_client.oip_rest_wire import OipRestWire
from tpuserve_client.oip_wire import input_datatype, request_parameters
from tpuserve_client.rest_wire import RestWire
from tpuserve_formats.messages import official
from tpuserve_loadtests.requests import openai
from tpuserve_loadtests.requests.protocols import Protocol, is_oip

# Bodies of the Open Inference Protocol over HTTP with JSON tensors, as clients without the binary extension send them.
#
# The Python client always sends binary tensors. A load test can compare both forms.

# Triton refuses these in JSON, and so does tpuserve.
_BINARY_ONLY: Final = ("FP16", "BF16")

_to_text = json.JSONEncoder(separators=(",", ":")).encode


class OipJsonWire(OipRestWire):
    """Wire over JSON alone. Without a request for binary outputs, the server returns JSON tensors, too."""

    def predict(self, call: PredictCall) -> Exchange:
        """Encode a prediction. Raises InvalidArgument for dtypes without a JSON form."""
        check_size(call.inputs)
        inputs = [_tensor(name, little_endian(array)) for name, array in call.inputs.items()]
        document: dict[str, Any] = {"inputs": inputs}
        if call.output_filter:
            document["outputs"] = [{"name": name} for name in call.output_filter]
        if parameters := request_parameters(call):
            document["parameters"] = parameters
        return Exchange(f"{self.metadata(call.spec).path}/infer", _to_text(document).encode())


def _tensor(name: str, array: Array) -> dict[str, Any]:
    datatype = input_datatype(name, array.dtype)
    if datatype in _BINARY_ONLY:
        raise InvalidArgument(f"Input {name} is {datatype}, which has no JSON form. Use oip+http:// or oip+grpc://.")
    return {"name": name, "datatype": datatype, "shape": array.shape, "data": _values(name, array)}


def _values(name: str, array: Array) -> list[Any]:
    flat = np.ravel(array)
    if array.dtype != STRING:
        values: list[Any] = flat.tolist()
        return values
    try:
        return [value.decode() for value in flat]
    except UnicodeDecodeError:
        raise InvalidArgument(
            f"Input {name} has a string that is not UTF-8, which has no JSON form. Use oip+http:// or oip+grpc://."
        ) from None


class OpenAiWire(OipRestWire):
    """Wire of completions, whose sender makes each stream a response of the Open Inference Protocol."""

    def predict(self, call: PredictCall) -> Exchange:
        return openai.completion_request(call)


WIRES: Final[Mapping[Protocol, Wire]] = {
    "grpc": GrpcWire(),
    "rest": RestWire(),
    "oip_grpc": OipGrpcWire(),
    "oip_http": OipRestWire(),
    "oip_json": OipJsonWire(),
    "openai": OpenAiWire(),
}


def predict_call(
    protocol: Protocol,
    spec: ModelSpec,
    inputs: Mapping[str, Array],
    signature_name: str | None,
    output_filter: tuple[str, ...] = (),
) -> PredictCall:
    """Return the call of a prediction. OIP requests omit the signature: OIP describes only the default one."""
    return PredictCall(spec, inputs, None if is_oip(protocol) else signature_name, output_filter)


def predict_exchange(
    protocol: Protocol,
    spec: ModelSpec,
    inputs: Mapping[str, Array],
    signature_name: str,
    output_filter: tuple[str, ...] = (),
) -> Exchange:
    """Return an encoded prediction. Raises InvalidArgument for arrays that the protocol lacks."""
    return WIRES[protocol].predict(predict_call(protocol, spec, inputs, signature_name, output_filter))


def encode_golden(outputs: Mapping[str, Array]) -> bytes:
    """Encode arrays by output name, with their dtypes."""
    response = official.PredictResponse()
    for name, array in outputs.items():
        response.outputs[name].CopyFrom(tensor.to_proto(array))
    return bytes(response.SerializeToString())


def decode_golden(encoded: bytes) -> Mapping[str, Array]:
    """Return the arrays of a PredictResponse by output name, as `encode_golden` encodes them, or a server."""
    return GrpcWire().read_prediction(Reply(encoded), PredictCall(ModelSpec("golden"), {}), None).outputs
