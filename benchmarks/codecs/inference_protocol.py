"""Cost of the Open Inference Protocol (OIP) next to TensorFlow Serving's, without transport, batcher and model.

A section of `python -m benchmarks codecs`: microseconds of CPU, the best of several rounds, in turn. The baseline
is the same work in TensorFlow Serving's protocol, except for binary HTTP, whose baseline is OIP's JSON.
"""

import asyncio
import math
import time
import timeit
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.codecs.report import CodecCost, CodecTable
from benchmarks.codecs.requests import ConstantService, asker
from benchmarks.harness.json_bodies import infer_body, instances_body
from tpuserve_client.exchange import Exchange, PredictCall
from tpuserve_client.grpc_wire import GrpcWire
from tpuserve_client.model import ModelSpec
from tpuserve_client.oip_grpc_wire import OipGrpcWire
from tpuserve_client.oip_rest_wire import OipRestWire
from tpuserve_server.core.terms.deadline import Deadline, SystemClock
from tpuserve_server.core.terms.types import (
    DEFAULT_SIGNATURE_NAME,
    Array,
    PredictResult,
    ServableId,
    Signature,
    TensorSpec,
)
from tpuserve_server.observe.metrics.prometheus import PrometheusMetrics
from tpuserve_server.protocols.rest import RestOptions, rest_app
from tpuserve_server.protocols.rpc import CallContext, UnaryMethod
from tpuserve_server.protocols.table import rpc_table
from tpuserve_server.wire.json.predict import decode_predict_inputs as decode_json_inputs
from tpuserve_server.wire.json.predict import parse_predict_body
from tpuserve_server.wire.json.response import encode_predictions
from tpuserve_server.wire.oip.decoding import decode_inputs
from tpuserve_server.wire.oip.infer_json import parse_infer_json
from tpuserve_server.wire.oip.infer_json_response import encode_infer_json
from tpuserve_server.wire.oip.infer_proto import encode_infer_response, parse_infer_request
from tpuserve_server.wire.oip.inference import InferenceResult
from tpuserve_server.wire.predict_proto import (
    decode_predict_inputs,
    decode_predict_spec,
    encode_predict_response,
    parse_predict_request,
)

ROUNDS: Final = 7
ROUND_S: Final = 0.1
MODEL: Final = "m"
PREDICT_PATH, INFER_PATH = f"/v1/models/{MODEL}:predict", f"/v2/models/{MODEL}/infer"
_FLOAT: Final = np.dtype(np.float32)

Act = Callable[[], object]
Ask = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Case:
    """A request of one size: its input, its output, and their signature. `label` names the size."""

    label: str
    x: Array
    y: Array

    @property
    def signature(self) -> Signature:
        """A signature with a batch dimension."""
        x, y = ((None, *array.shape[1:]) for array in (self.x, self.y))
        return Signature(DEFAULT_SIGNATURE_NAME, {"x": TensorSpec("x", _FLOAT, x)}, {"y": TensorSpec("y", _FLOAT, y)})

    @property
    def result(self) -> PredictResult:
        """The result of every request."""
        return PredictResult(ServableId(MODEL, 7), DEFAULT_SIGNATURE_NAME, {"y": self.y})

    @property
    def call(self) -> PredictCall:
        """The request for the client's encoders."""
        return PredictCall(ModelSpec(MODEL), {"x": self.x})

    @property
    def binary(self) -> Exchange:
        """The request over HTTP with a binary tensor."""
        return OipRestWire().predict(self.call)

    @property
    def rows(self) -> bytes:
        """The request as JSON of TensorFlow Serving, in row form."""
        return instances_body(self.x)

    @property
    def tensors(self) -> bytes:
        """The request as JSON of OIP, with the values in one list."""
        return infer_body(self.x)


_RANDOM: Final = np.random.default_rng(0)
SMALL: Final = Case("1 row", _RANDOM.random((1, 64), np.float32), _RANDOM.random((1, 10), np.float32))
IMAGE: Final = Case("602 KB", _RANDOM.random((1, 224, 224, 3), np.float32), SMALL.y)


def measure() -> CodecTable:
    """Time decoders, encoders, gRPC methods and REST requests. Takes half a minute."""
    costs = [*_parts(SMALL), *_whole(SMALL), *_whole(IMAGE)]
    return CodecTable("Open Inference Protocol (baseline: the protocol in parentheses)", "us", costs)


def _parts(case: Case) -> list[CodecCost]:
    """Compare the decoders and encoders of a request."""
    predict, infer = GrpcWire().predict(case.call).body, OipGrpcWire().predict(case.call).body
    signature, result, rows, tensors, binary = case.signature, case.result, case.rows, case.tensors, case.binary
    header_bytes = int(binary.headers["inference-header-content-length"])
    as_binary = InferenceResult("", result.servable, result.outputs, {}, True)
    as_json = as_binary._replace(is_binary=False)

    def decode_predict() -> object:
        proto = parse_predict_request(predict)
        decode_predict_spec(proto)
        return decode_predict_inputs(proto, len(predict))

    def decode_json(body: bytes, json_bytes: int | None) -> object:
        return decode_inputs(MODEL, signature, parse_infer_json(MODEL, body, json_bytes))

    def decode_rows() -> object:
        return decode_json_inputs(parse_predict_body(rows), signature)

    def encode_rows() -> object:
        return encode_predictions(result.outputs, is_row=True)

    pairs: Sequence[tuple[str, Act, Act]] = (
        (
            "decode ModelInferRequest (PredictRequest)",
            lambda: decode_inputs(MODEL, signature, parse_infer_request(infer).request),
            decode_predict,
        ),
        (
            "encode ModelInferResponse (PredictResponse)",
            lambda: encode_infer_response(as_binary),
            lambda: encode_predict_response(result),
        ),
        ("decode JSON (TensorFlow Serving's rows)", lambda: decode_json(tensors, None), decode_rows),
        ("encode JSON (TensorFlow Serving's rows)", lambda: encode_infer_json(as_json), encode_rows),
        (
            "decode binary HTTP (JSON)",
            lambda: decode_json(binary.body, header_bytes),
            lambda: decode_json(tensors, None),
        ),
        ("encode binary HTTP (JSON)", lambda: encode_infer_json(as_binary), lambda: encode_infer_json(as_json)),
    )
    return [_cost(f"{case.label}: {what}", _repeated(here), _repeated(there)) for what, here, there in pairs]


def _whole(case: Case) -> list[CodecCost]:
    """Compare gRPC methods, and REST requests through ASGI, with a model that responds at once."""
    service, metrics, clock = ConstantService(case.signature, case.result), PrometheusMetrics(), SystemClock()
    methods = rpc_table(service, metrics, clock)
    app = rest_app(service, metrics, clock, lambda: ([b""], ""), RestOptions())
    context = CallContext(Deadline(math.inf), {})

    def method(exchange: Exchange) -> Ask:
        found = methods[exchange.path]
        assert isinstance(found, UnaryMethod)
        return lambda: found.handle(exchange.body, context)

    infer = asker(app, INFER_PATH, case.tensors)
    pairs: Sequence[tuple[str, Ask, Ask]] = (
        ("gRPC ModelInfer (Predict)", method(OipGrpcWire().predict(case.call)), method(GrpcWire().predict(case.call))),
        ("HTTP JSON (TensorFlow Serving's REST)", infer, asker(app, PREDICT_PATH, case.rows)),
        ("HTTP binary (JSON)", asker(app, INFER_PATH, case.binary.body, case.binary.headers), infer),
    )
    return [_cost(f"{case.label}: {what}", _awaited(here), _awaited(there)) for what, here, there in pairs]


def _cost(what: str, here: Callable[[int], float], there: Callable[[int], float]) -> CodecCost:
    """Return the cost of both sides, which take turns. They take a number of calls and return their CPU seconds."""
    calls = [_calls(side) for side in (here, there)]
    rounds = [(here(calls[0]) / calls[0], there(calls[1]) / calls[1]) for _ in range(ROUNDS)]
    mine, other = (1e6 * min(column) for column in zip(*rounds, strict=True))
    return CodecCost(what, mine, other)


def _calls(side: Callable[[int], float]) -> int:
    """Return the number of calls in a round. The first calls fill caches."""
    calls = 1
    while (cpu_s := side(calls)) < ROUND_S / 2:
        calls *= 2
    return max(1, round(calls * ROUND_S / cpu_s))


def _repeated(act: Act) -> Callable[[int], float]:
    return lambda calls: timeit.timeit(act, number=calls, timer=time.process_time)


def _awaited(ask: Ask) -> Callable[[int], float]:
    async def round_s(calls: int) -> float:
        # CPU time includes the threads that parse large bodies.
        started_s = time.process_time()
        for _ in range(calls):
            await ask()
        return time.process_time() - started_s

    return lambda calls: asyncio.run(round_s(calls))
