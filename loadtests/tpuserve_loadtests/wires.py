"""Messages of each protocol of a load test."""

from collections.abc import Mapping
from typing import Final

from tpuserve_client.dtypes import Array
from tpuserve_client.exchange import Exchange, PredictCall, Wire
from tpuserve_client.grpc_wire import GrpcWire
from tpuserve_client.model import ModelSpec
from tpuserve_client.oip_grpc_wire import OipGrpcWire
from tpuserve_client.oip_rest_wire import OipRestWire
from tpuserve_client.rest_wire import RestWire
from tpuserve_loadtests.oip_json_wire import OipJsonWire
from tpuserve_loadtests.protocols import Protocol, is_oip

WIRES: Final[Mapping[Protocol, Wire]] = {
    "grpc": GrpcWire(),
    "rest": RestWire(),
    "oip_grpc": OipGrpcWire(),
    "oip_http": OipRestWire(),
    "oip_json": OipJsonWire(),
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
