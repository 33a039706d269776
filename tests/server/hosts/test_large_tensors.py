"""Tests for large tensors through the ways of all protocols: right numbers, and contents that the model reads in place.

The chunks are those of h2corn: at most 16 KiB over HTTP/2, and 8 KiB over HTTP/1.1.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.server.hosts.asgi_client import Exchange, body
from tests.support.administered_server import AdministeredServer
from tests.support.configured_house import CLOCK
from tests.support.fake_device import DOUBLE_WIDE
from tests.support.shared_memory import PREFIX, SharedObject
from tpuserve_client.exchange import Exchange as Sent
from tpuserve_client.exchange import PredictCall, Reply
from tpuserve_client.grpc_wire import GrpcWire
from tpuserve_client.model import ModelSpec
from tpuserve_client.oip_grpc_wire import OipGrpcWire
from tpuserve_client.oip_rest_wire import OipRestWire
from tpuserve_formats.messages.oip import ModelInferRequest, ModelInferResponse
from tpuserve_server.core.serving.budgets import Budgets
from tpuserve_server.core.serving.options import BudgetOptions
from tpuserve_server.core.serving.receiving import ReceivingBudget
from tpuserve_server.core.serving.service import OverloadGate
from tpuserve_server.core.system.alignment import ALIGNMENT_BYTES
from tpuserve_server.core.terms.server_state import Traffic
from tpuserve_server.core.terms.types import Array, Tensors
from tpuserve_server.hosts.grpc_calls import GrpcOverAsgi
from tpuserve_server.hosts.grpc_frames import PREFIX_BYTES, frame
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.protocols.rpc import admit_every_call

if TYPE_CHECKING:
    from starlette.types import Message

MAX_BYTES = 16 << 20
VALUES = {"602 KB": 224 * 224 * 3, "8 MB": 1 << 21}
INFER = "/inference.GRPCInferenceService/ModelInfer"
Way = Callable[["Rig", Array], Awaitable[Array]]


class Rig:
    """A server with its hosts' applications, and the inputs of its runs."""

    def __init__(self, server: AdministeredServer) -> None:
        self.runs: list[Array] = []
        server.loader.on_inputs = self.record
        self.server = server
        self.receiving = ReceivingBudget(4 * MAX_BYTES, 4 * MAX_BYTES, CLOCK)
        self._grpc = GrpcOverAsgi(
            admit_every_call(server.rpc),
            max_message_bytes=MAX_BYTES,
            in_flight=InFlight(),
            receiving=self.receiving,
            sending=Budgets.of(BudgetOptions(), MAX_BYTES, CLOCK).sending,
            gate=OverloadGate(tuple, Traffic(), CLOCK),
        )

    def record(self, inputs: Tensors) -> None:
        self.runs.append(inputs["x"])

    async def call(self, path: str, message: bytes) -> bytes:
        call = await Exchange(chunks(frame(message), 16384), path).run(self._grpc)
        assert call.status == (0, "")
        return call.content[PREFIX_BYTES:]

    async def post(self, sent: Sent) -> Reply:
        headers = [(name.encode(), value.encode()) for name, value in sent.headers.items()]
        headers.append((b"content-length", str(len(sent.body)).encode()))
        post = await Exchange(chunks(sent.body, 8192), sent.path, headers).run(self.server.rest)
        assert post.http_status == 200, post.content
        return Reply(post.content, {name.decode(): value.decode() for name, value in post.sent[0]["headers"]})


def chunks(data: bytes, size: int) -> "list[Message]":
    return [*(body(data[at : at + size], more=True) for at in range(0, len(data), size)), body(b"")]


def call_of(x: Array) -> PredictCall:
    return PredictCall(ModelSpec("a"), {"x": x}, output_filter=("y",))


async def by_predict(rig: Rig, x: Array) -> Array:
    wire, call = GrpcWire(), call_of(x)
    sent = wire.predict(call)
    return wire.read_prediction(Reply(await rig.call(sent.path, sent.body)), call, None)["y"]


async def by_oip_grpc(rig: Rig, x: Array) -> Array:
    wire, call = OipGrpcWire(), call_of(x)
    sent = wire.predict(call)
    return wire.read_prediction(Reply(await rig.call(sent.path, sent.body)), call, None)["y"]


async def by_oip_rest(rig: Rig, x: Array) -> Array:
    wire, call = OipRestWire(), call_of(x)
    return wire.read_prediction(await rig.post(wire.predict(call)), call, None)["y"]


async def by_region(rig: Rig, x: Array) -> Array:
    with SharedObject("large", x.nbytes) as shared:
        shared.write(x.tobytes())
        rig.server.regions.register("r", shared.key, 0, x.nbytes)
        try:
            request = ModelInferRequest(model_name="a")
            request.outputs.add(name="y")
            tensor = request.inputs.add(name="x", datatype="FP32", shape=x.shape)
            tensor.parameters["shared_memory_region"].string_param = "r"
            tensor.parameters["shared_memory_byte_size"].int64_param = x.nbytes
            answer = ModelInferResponse.FromString(await rig.call(INFER, request.SerializeToString()))
            return np.frombuffer(answer.raw_output_contents[0], np.float32).reshape(x.shape)
        finally:
            rig.server.regions.unregister()


WAYS: dict[str, Way] = {
    "Predict": by_predict, "OIP gRPC": by_oip_grpc, "OIP binary": by_oip_rest, "shared memory": by_region
}  # fmt: skip


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    server = AdministeredServer(tmp_path_factory.mktemp("models"), prefixes=(PREFIX,), max_request_bytes=MAX_BYTES)
    server.loader.by_name = {"serving_default": DOUBLE_WIDE}
    rig = Rig(server)
    with server:
        yield rig


@pytest.mark.parametrize("size", VALUES)
@pytest.mark.parametrize("way", WAYS)
async def test_a_model_reads_a_large_tensor_where_it_arrived(rig: Rig, way: str, size: str) -> None:
    # Three times: later requests of the same layout take the lane.
    for seed in range(3):
        x = np.random.default_rng(seed).random((1, VALUES[size]), np.float32)
        rig.runs.clear()
        np.testing.assert_array_equal(await WAYS[way](rig, x), 2 * x)
        (read,) = rig.runs
        assert read.ctypes.data % ALIGNMENT_BYTES == 0
        # Memory of the batcher can be written to.
        assert not read.flags.writeable
    assert rig.receiving.held_bytes == 0


@pytest.mark.parametrize("way", ["Predict", "OIP gRPC", "OIP binary"])
async def test_large_tensors_share_batches(rig: Rig, way: str) -> None:
    xs = [np.random.default_rng(seed).random((1, VALUES["602 KB"]), np.float32) for seed in range(6)]
    for x, y in zip(xs, await asyncio.gather(*map(partial(WAYS[way], rig), xs)), strict=True):
        np.testing.assert_array_equal(y, 2 * x)
