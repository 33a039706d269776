"""Tests for the choice between a front-end and the engine, with the real tables and a real tunnel."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest
from tensorflow_serving.apis import classification_pb2, inference_pb2, regression_pb2

from tests.server.hosts.asgi_client import HEADERS, Exchange, body
from tests.server.tunnel.tunnel_house import tunnelled, until
from tests.support.lane_house import LaneHouse
from tests.support.lane_messages import INFER, PREDICT
from tpuserve_formats.messages.official import PredictRequest
from tpuserve_formats.messages.oip import ModelInferRequest
from tpuserve_server.core.errors import Code
from tpuserve_server.frontends.guarded import admit_every_call
from tpuserve_server.hosts.grpc.frames import frame
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.tunnel.messages import PIECE_BYTES
from tpuserve_server.tunnel.split import EngineOnly, SplitGrpc, SplitRest, find_model_name

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

SERVICE = "/tensorflow.serving.PredictionService"


@dataclass
class Recorder:
    """An application that reads a whole request and records it, as one of the two places."""

    place: str
    answered: list[tuple[str, bytes]]

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        data, more = b"", True
        while more:
            message = await receive()
            data += message.get("body", b"")
            more = message.get("more_body", False)
        self.answered.append((self.place, data))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


@dataclass
class Places:
    """Both splits of a front-end, and where each request was answered, with its body."""

    grpc: SplitGrpc
    rest: SplitRest
    in_flight: InFlight
    answered: list[tuple[str, bytes]] = field(default_factory=list)
    models: set[str] = field(default_factory=set)
    has_oip: bool = False

    async def of(self, exchange: Exchange) -> str:
        """Return the place that answers a request, whose whole body must arrive there."""
        whole = b"".join(message["body"] for message in exchange.messages)
        await exchange.run(self.grpc if exchange.headers is not REST else self.rest)
        place, data = self.answered.pop()
        assert data == whole
        return place


REST = [(b"content-type", b"application/json")]


@pytest.fixture
async def places() -> AsyncIterator[Places]:
    house, in_flight = LaneHouse(), InFlight()
    answered: list[tuple[str, bytes]] = []
    async with tunnelled(Recorder("engine", answered)) as ends:
        engine_only = EngineOnly(lambda: found.models, lambda: found.has_oip)
        local = Recorder("local", answered)
        found = Places(
            SplitGrpc(local, ends.tunnel, admit_every_call(house.table), engine_only, in_flight),
            SplitRest(local, ends.tunnel, house.app.facts_of, engine_only),
            in_flight,
            answered,
        )
        yield found
    await house.stop()


def predict(model: str, size: int = 0) -> bytes:
    request = PredictRequest()
    request.model_spec.name = model
    request.inputs["x"].tensor_content = bytes(size)
    serialized: bytes = request.SerializeToString()
    return serialized


def infer(model: str) -> bytes:
    return ModelInferRequest(model_name=model, raw_input_contents=[b"abc"]).SerializeToString()


def other(kind: type, model: str) -> bytes:
    request = kind()
    request.model_spec.name = model
    return bytes(request.SerializeToString())


def multi(model: str) -> bytes:
    request = inference_pb2.MultiInferenceRequest()
    request.tasks.add().model_spec.name = model
    return bytes(request.SerializeToString())


def rest(path: str, method: str = "POST") -> Exchange:
    return Exchange([body(b"{}")], path, REST, method)


def grpc(path: str, message: bytes) -> Callable[[], Exchange]:
    return lambda: Exchange.unary(message, path=path)


def pieces(path: str, message: bytes, size: int) -> Callable[[], Exchange]:
    whole = frame(message)
    parts = [body(whole[at : at + size], more=True) for at in range(0, len(whole), size)]
    return lambda: Exchange([*parts, body(b"")], path)


def compressed() -> Exchange:
    message = body(b"\1" + frame(gzip.compress(predict("m")))[1:])
    return Exchange([message], PREDICT, headers=[*HEADERS, (b"grpc-encoding", b"gzip")])


# Each request: where it is answered while no model is special, and while `special` is.
CHOICES = {
    "predict": (grpc(PREDICT, predict("m")), "local", "local"),
    "predict of a special model": (grpc(PREDICT, predict("special")), "local", "engine"),
    "predict without a model": (grpc(PREDICT, b""), "local", "engine"),
    "predict with two names": (grpc(PREDICT, predict("m") + predict("special")), "local", "engine"),
    "predict in pieces": (pieces(PREDICT, predict("m"), 9), "local", "engine"),
    "predict, special and large": (grpc(PREDICT, predict("special", 2 * PIECE_BYTES)), "local", "engine"),
    "predict, compressed": (compressed, "local", "engine"),
    "predict, malformed": (grpc(PREDICT, b"\x0a\x05\x0a"), "local", "engine"),
    "classify": (grpc(f"{SERVICE}/Classify", other(classification_pb2.ClassificationRequest, "m")), "local", "local"),
    "regress, special": (
        grpc(f"{SERVICE}/Regress", other(regression_pb2.RegressionRequest, "special")),
        "local",
        "engine",
    ),
    "multi-inference": (grpc(f"{SERVICE}/MultiInference", multi("special")), "local", "engine"),
    "infer": (grpc(INFER, infer("m")), "local", "local"),
    "infer of a special model": (grpc(INFER, infer("special")), "local", "engine"),
    "stream": (grpc("/inference.GRPCInferenceService/ModelStreamInfer", infer("m")), "engine", "engine"),
    "metadata": (grpc(f"{SERVICE}/GetModelMetadata", b""), "engine", "engine"),
    "health": (grpc("/grpc.health.v1.Health/Check", b""), "engine", "engine"),
    "unknown method": (grpc("/no.Such/Method", b""), "engine", "engine"),
    "REST predict": (lambda: rest("/v1/models/m:predict"), "local", "local"),
    "REST predict of a special model": (lambda: rest("/v1/models/special/versions/3:predict"), "local", "engine"),
    "REST infer": (lambda: rest("/v2/models/m/infer"), "local", "local"),
    "REST infer of a special model": (lambda: rest("/v2/models/special/infer"), "local", "engine"),
    "REST metadata": (lambda: rest("/v1/models/m/metadata", "GET"), "engine", "engine"),
    "REST repository": (lambda: rest("/v2/repository/index"), "engine", "engine"),
    "REST metrics": (lambda: rest("/metrics", "GET"), "engine", "engine"),
    "REST unknown": (lambda: rest("/nothing"), "engine", "engine"),
    "REST invalid": (lambda: rest("/v1/models/m:guess"), "engine", "engine"),
}


@pytest.mark.parametrize("name", CHOICES)
async def test_place_of_a_request(places: Places, name: str) -> None:
    make, ordinary, special = CHOICES[name]
    assert await places.of(make()) == ordinary
    places.models.add("special")
    assert await places.of(make()) == special


async def test_escaped_name_of_a_special_model_is_found(places: Places) -> None:
    places.models.add("special")
    exchange = rest("/v1/models/special:predict")
    for raw, place in ((b"/V1/models/%73pecial:predict", "engine"), (b"/v1/models/m:predict", "local")):
        path = unquote(raw.decode())
        scope = {"type": "http", "method": "POST", "path": path, "raw_path": raw, "headers": REST}
        await places.rest(scope, rest(path).receive, exchange.send)
        assert places.answered.pop() == (place, b"{}")


async def test_open_inference_protocol_moves_to_the_engine_alone(places: Places) -> None:
    places.has_oip = True
    assert await places.of(Exchange.unary(infer("m"), path=INFER)) == "engine"
    assert await places.of(rest("/v2/models/m/infer")) == "engine"
    assert await places.of(Exchange.unary(predict("m"), path=PREDICT)) == "local"
    assert await places.of(rest("/v1/models/m:predict")) == "local"


async def test_cut_answers_a_call_whose_message_has_not_arrived(places: Places) -> None:
    places.models.add("special")
    exchange = Exchange([], PREDICT)
    running = asyncio.create_task(exchange.run(places.grpc))
    await until(lambda: places.in_flight.count == 1)
    places.in_flight.cut()
    await running
    assert exchange.status == (Code.UNAVAILABLE, "The server is shutting down")


def test_name_is_certain_only_if_it_is_the_only_one() -> None:
    assert find_model_name(body(frame(infer("m"))), 1) == "m"
    assert find_model_name(body(frame(infer("m") + infer("n"))), 1) is None
    assert find_model_name(body(frame(ModelInferRequest(id="x").SerializeToString())), 1) is None
    assert find_model_name(body(frame(b"\x0a\x01\xff")), 1) is None
    assert find_model_name({"type": "http.disconnect"}, 1) is None
    many = b"".join(ModelInferRequest(raw_input_contents=[b""]).SerializeToString() for _ in range(100))
    assert find_model_name(body(frame(infer("m") + many)), 1) is None
