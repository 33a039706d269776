"""The ways of a large tensor into the server, as calls of one model with hardly any work."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.harness import mlp_model
from benchmarks.harness.mlp_model import Floats
from benchmarks.harness.targets import http_post, write_with
from benchmarks.large import edge_model
from benchmarks.overhead.calls import Call
from tpuserve_client.exchange import Exchange, PredictCall, Reply
from tpuserve_client.grpc_wire import GrpcWire
from tpuserve_client.model import ModelSpec
from tpuserve_client.oip_grpc_wire import OipGrpcWire
from tpuserve_client.oip_rest_wire import OipRestWire
from tpuserve_formats.messages.oip import ModelInferRequest, ModelInferResponse

PREDICT, OIP_GRPC, OIP_BINARY, REGION = "Predict", "OIP gRPC", "OIP binary", "shared memory"
# float32 values of a tensor, by the name of its size.
SIZES: Final = {"602 KB": 224 * 224 * 3, "8 MB": 1 << 21}
_PREFIX: Final = f"tpuserve-benchmark-{os.getpid()}-"
FLAG: Final = f"--shared_memory_prefix={_PREFIX}"
_INFER: Final = "/inference.GRPCInferenceService/ModelInfer"


@dataclass(frozen=True, slots=True)
class Way:
    """A call, and the bytes of its tensor."""

    call: Call
    tensor_bytes: int


def write_edge(scratch: Path) -> Path:
    """Write the model of the calls, and return its base path."""
    base = scratch / "models" / edge_model.NAME
    write_with(Path(edge_model.__file__), base, scratch)
    return base


@contextlib.contextmanager
def ways(rest_port: int) -> Iterator[list[Way]]:
    """Yield the ways of each size, for a server that runs with FLAG. Registers shared memory there."""
    with contextlib.ExitStack() as stack:
        yield [
            Way(call, x.nbytes)
            for size, values in SIZES.items()
            for x in (edge_model.example(values),)
            for call in (*_messages(size, x), stack.enter_context(_in_region(size, x, rest_port)))
        ]


def _messages(size: str, x: Floats) -> list[Call]:
    call = PredictCall(ModelSpec(edge_model.NAME), {mlp_model.INPUT: x})
    y = edge_model.expected(x)
    grpc, oip_grpc, oip_rest = GrpcWire(), OipGrpcWire(), OipRestWire()

    def read_with(wire: GrpcWire | OipGrpcWire | OipRestWire, reply: Reply) -> Floats:
        return np.asarray(wire.read_prediction(reply, call, None)[mlp_model.OUTPUT], np.float32)

    return [
        Call(PREDICT, size, "grpc", grpc.predict(call), lambda reply: read_with(grpc, reply), y),
        Call(OIP_GRPC, size, "grpc", oip_grpc.predict(call), lambda reply: read_with(oip_grpc, reply), y),
        Call(OIP_BINARY, size, "rest", oip_rest.predict(call), lambda reply: read_with(oip_rest, reply), y),
    ]


@contextlib.contextmanager
def _in_region(size: str, x: Floats, rest_port: int) -> Iterator[Call]:
    name = f"{_PREFIX}{x.nbytes}"
    path = Path("/dev/shm", name)
    path.write_bytes(x.tobytes())
    try:
        register = b'{"key": "/%b", "offset": 0, "byte_size": %d}' % (name.encode(), x.nbytes)
        http_post(rest_port, f"/v2/systemsharedmemory/region/{name}/register", register)
        request = ModelInferRequest(model_name=edge_model.NAME)
        tensor = request.inputs.add(name=mlp_model.INPUT, datatype="FP32", shape=x.shape)
        tensor.parameters["shared_memory_region"].string_param = name
        tensor.parameters["shared_memory_byte_size"].int64_param = x.nbytes
        exchange = Exchange(_INFER, request.SerializeToString())
        yield Call(REGION, size, "grpc", exchange, _read_raw, edge_model.expected(x))
    finally:
        path.unlink()


def _read_raw(reply: Reply) -> Floats:
    response = ModelInferResponse.FromString(reply.body)
    return np.frombuffer(response.raw_output_contents[0], np.float32)
