"""Tests for traces and timing of every kind of request: the stages fit, and the header agrees with them.

The client samples each request with `traceparent` and requests its stages.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, Final, TypeAlias

import grpc
import httpx
import numpy as np
import pytest
import tensorflow as tf
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_status_pb2,
    inference_pb2,
    regression_pb2,
)

from tests.contract.serving_models import save_half_plus_two
from tests.e2e.running_server import RunningServer, run_in_environment
from tests.support.free_ports import free_ports
from tests.support.otlp_receiver import Receiver, attributes_of, http_receiver
from tests.support.saved_models import predict_request, save_function, write_manifest
from tpuserve_formats.messages.oip import ModelInferRequest

pytestmark = pytest.mark.xdist_group(__name__)

TIMEOUT_S: Final = 60.0
# Identifier of the client's span.
PARENT: Final = "b7ad6b7169203331"
RUN: Final = ["decode", "queue", "batch", "execute", "resume", "encode"]
TWO_RUNS: Final = ["decode", *(f"step{step}.{stage}" for step in (1, 2) for stage in RUN[1:-1]), "encode"]
SHORT: Final = ["decode"]
VERTEX: Final = "/vertex/predict"
CONFIG: Final = """\
model_config_list {{
  config {{ name: "half" base_path: "{0}/half" model_platform: "tensorflow" }}
  config {{ name: "double" base_path: "{0}/double" model_platform: "tensorflow" }}
  config {{
    name: "both" model_platform: "ensemble"
    ensemble_scheduling {{
      step {{
        model_name: "double" input_map {{ key: "x" value: "x" }} output_map {{ key: "y" value: "twice" }}
      }}
      step {{
        model_name: "double" input_map {{ key: "x" value: "twice" }} output_map {{ key: "y" value: "y" }}
      }}
    }}
  }}
}}
"""
# PAD_UP: the parts of a large request do not depend on measured costs.
PARAMETERS: Final = """\
batch_padding_policy: PAD_UP
max_batch_size { value: 16 }
max_execution_batch_size { value: 4 }
enable_large_batch_splitting { value: true }
"""

Metadata: TypeAlias = list[tuple[str, str]]
# Sends a request and returns the response's headers or trailers. They are empty for a message of a stream.
Send: TypeAlias = "Callable[[RunningServer, Metadata], Mapping[str, str]]"


@dataclass(frozen=True)
class Traced:
    """A server and the receiver of its spans."""

    server: RunningServer
    receiver: Receiver

    def request(self, trace_id: str) -> tuple[Span, list[Span]]:
        """Wait for the span of the only request of a trace, and return it and its children in their order."""
        spans = self.receiver.wait_for(lambda spans: bool(requests_of(spans, trace_id)))
        [request] = requests_of(spans, trace_id)
        children = [span for span in spans if span.parent_span_id == request.span_id]
        return request, sorted(children, key=lambda span: span.start_time_unix_nano)


def requests_of(spans: Any, trace_id: str) -> list[Span]:  # noqa: ANN401 - any sequence of spans
    return [span for span in spans if span.trace_id.hex() == trace_id and span.kind == Span.SPAN_KIND_SERVER]


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    folder = tmp_path_factory.mktemp("kinds")
    save_half_plus_two(folder / "half/1")
    write_manifest(
        save_function(folder / "double/1", lambda x: {"y": 2 * x}, tf.TensorSpec([None, 2], tf.float32, "x"))
    )
    (folder / "models.config").write_text(CONFIG.format(folder))
    (folder / "batching.config").write_text(PARAMETERS)
    ports = free_ports(2)
    environment = {"AIP_PREDICT_ROUTE": VERTEX, "AIP_HEALTH_ROUTE": "/vertex/health", "MODEL_NAME": "double"}
    with http_receiver() as receiver:
        flags = (
            f"--rest_api_port={ports[1]}", f"--model_config_file={folder / 'models.config'}", "--enable_batching",
            f"--batching_parameters_file={folder / 'batching.config'}",
            "--response_cache_max_bytes=1000000", f"--trace_endpoint={receiver.url}", "--trace_sample_ratio=0",
        )  # fmt: skip
        with run_in_environment(folder / "log", ports, environment, *flags, model="both") as server:
            yield Traced(server, receiver)


def post(path: str, **document: object) -> Send:
    def send(server: RunningServer, headers: Metadata) -> Mapping[str, str]:
        response = httpx.post(server.rest + path, json=document, headers=headers, timeout=TIMEOUT_S)
        assert response.status_code == 200, response.text
        return response.headers

    return send


def get(path: str) -> Send:
    def send(server: RunningServer, headers: Metadata) -> Mapping[str, str]:
        response = httpx.get(server.rest + path, headers=headers, timeout=TIMEOUT_S)
        assert response.status_code == 200, response.text
        return response.headers

    return send


def call(service: str, method: str, request: Any) -> Send:  # noqa: ANN401 - any protobuf message
    """Call a unary method without its stub, because only the trailers matter."""

    def send(server: RunningServer, metadata: Metadata) -> Mapping[str, str]:
        with grpc.insecure_channel(server.grpc) as channel:
            rpc: Any = channel.unary_unary(f"/{service}/{method}")
            _, call = rpc.with_call(request.SerializeToString(), timeout=TIMEOUT_S, metadata=metadata)
            return dict(call.trailing_metadata())

    return send


def predict(model: str, rows: object) -> Send:
    request = predict_request(x=np.array(rows, np.float32))
    request.model_spec.name = model
    return call("tensorflow.serving.PredictionService", "Predict", request)


def examples(kind: Any, method: str, signature: str, x: float) -> Send:  # noqa: ANN401 - a class of messages
    request = kind(model_spec={"name": "half", "signature_name": signature})
    fill(request, x)
    return call("tensorflow.serving.PredictionService", method, request)


def fill(request: Any, x: float) -> None:  # noqa: ANN401 - a message with `input`
    request.input.example_list.examples.add().features.feature["x"].float_list.value.append(x)


def multi_inference() -> Send:
    request = inference_pb2.MultiInferenceRequest()
    fill(request, 3.0)
    for method, signature in (("classify", "classify_x_to_y"), ("regress", "regress_x_to_y")):
        task = request.tasks.add(method_name=f"tensorflow/serving/{method}")
        task.model_spec.name, task.model_spec.signature_name = "half", signature
    return call("tensorflow.serving.PredictionService", "MultiInference", request)


def infer_request(rows: list[list[float]]) -> ModelInferRequest:
    request = ModelInferRequest(model_name="double")
    tensor = request.inputs.add(name="x", datatype="FP32", shape=[len(rows), 2])
    tensor.contents.fp32_contents.extend(value for row in rows for value in row)
    return request


def stream(server: RunningServer, metadata: Metadata) -> Mapping[str, str]:
    """Send one message over a stream, whose trailers have no timing."""
    with grpc.insecure_channel(server.grpc) as channel:
        rpc: Any = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        messages = [infer_request([[70.0, 1.0]]).SerializeToString()]
        call = rpc(iter(messages), timeout=TIMEOUT_S, metadata=metadata)
        assert len(list(call)) == 1
    return {}


def status_request() -> get_model_status_pb2.GetModelStatusRequest:
    return get_model_status_pb2.GetModelStatusRequest(model_spec={"name": "half"})


def infer_json(rows: list[list[float]]) -> dict[str, object]:
    return {"name": "x", "datatype": "FP32", "shape": [len(rows), 2], "data": rows}


# Values differ, because the response cache would answer equal requests.
KINDS: Final[dict[str, tuple[Send, str, list[str]]]] = {
    "grpc-predict": (predict("double", [[1.0, 1.0]]), "Predict", RUN),
    "grpc-large": (predict("double", [[1.0, row] for row in range(11)]), "Predict", RUN),
    "grpc-ensemble": (predict("both", [[2.0, 1.0]]), "Predict", TWO_RUNS),
    "grpc-classify": (
        examples(classification_pb2.ClassificationRequest, "Classify", "classify_x_to_y", 1.0), "Classify", RUN
    ),
    "grpc-regress": (examples(regression_pb2.RegressionRequest, "Regress", "regress_x_to_y", 1.0), "Regress", RUN),
    "grpc-multi": (multi_inference(), "MultiInference", TWO_RUNS),
    "grpc-status": (
        call("tensorflow.serving.ModelService", "GetModelStatus", status_request()), "GetModelStatus", SHORT
    ),
    "grpc-infer": (
        call("inference.GRPCInferenceService", "ModelInfer", infer_request([[3.0, 1.0]])), "ModelInfer", RUN
    ),
    "grpc-stream": (stream, "ModelStreamInfer", RUN),
    "rest-predict": (post("/v1/models/double:predict", instances=[[4.0, 1.0]]), "Predict", RUN),
    "rest-large": (post("/v1/models/double:predict", instances=[[5.0, row] for row in range(11)]), "Predict", RUN),
    "rest-ensemble": (post("/v1/models/both:predict", instances=[[6.0, 1.0]]), "Predict", TWO_RUNS),
    "rest-classify": (
        post("/v1/models/half:classify", signature_name="classify_x_to_y", examples=[{"x": 2.0}]), "Classify", RUN
    ),
    "rest-regress": (
        post("/v1/models/half:regress", signature_name="regress_x_to_y", examples=[{"x": 2.0}]), "Regress", RUN
    ),
    "rest-status": (get("/v1/models/half"), "GetModelStatus", SHORT),
    "rest-infer": (post("/v2/models/double/infer", inputs=[infer_json([[7.0, 1.0]])]), "ModelInfer", RUN),
    "rest-vertex": (post(VERTEX, instances=[[8.0, 1.0]]), "Predict", RUN),
}  # fmt: skip


def send_traced(traced: Traced, send: Send) -> tuple[Mapping[str, str], Span, list[Span]]:
    """Send a request that its client samples. Return the response's headers, the span and its children."""
    trace_id = token_hex(16)
    headers = send(traced.server, [("traceparent", f"00-{trace_id}-{PARENT}-01"), ("x-tpuserve-timing", "1")])
    request, children = traced.request(trace_id)
    return headers, request, children


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_of_each_kind_is_explained(traced: Traced, kind: str) -> None:
    send, method, stages = KINDS[kind]
    headers, request, children = send_traced(traced, send)
    assert request.name == method
    assert attributes_of(request.attributes)["tpuserve.code"] == "OK"
    assert attributes_of(request.attributes)["tpuserve.protocol"] == kind.partition("-")[0]
    check_spans(request, children)
    names = [span.name for span in children if span.name != "receive"]
    assert sorted(names) == sorted(stages)
    runs = [span for span in children if span.name.endswith("execute")]
    # A large request runs in three parts.
    assert [len(span.links) for span in runs] == [3 if kind.endswith("large") else 1] * len(runs)
    if send is not stream:
        assert headers["traceresponse"] == f"00-{request.trace_id.hex()}-{request.span_id.hex()}-01"
        check_header(headers["server-timing"], [span.name for span in children], adds_up=len(runs) <= 1)


@pytest.mark.parametrize("protocol", ["grpc", "rest"])
def test_a_response_of_the_cache_is_explained(traced: Traced, protocol: str) -> None:
    rows = [[9.0, 1.0 if protocol == "grpc" else 2.0]]
    send = predict("double", rows) if protocol == "grpc" else post("/v1/models/double:predict", instances=rows)
    send_traced(traced, send)
    headers, request, children = send_traced(traced, send)
    assert attributes_of(request.attributes)["tpuserve.cached"] is True
    check_spans(request, children)
    assert [span.name for span in children if span.name != "receive"] == ["cache"]
    check_header(headers["server-timing"], [span.name for span in children], adds_up=True)


def check_spans(request: Span, children: list[Span]) -> None:
    """Check that the request has the client's span as its parent, and that its stages lie within it."""
    assert request.parent_span_id.hex() == PARENT
    assert request.start_time_unix_nano < request.end_time_unix_nano
    assert {span.trace_id for span in children} == {request.trace_id}
    for span in children:
        assert span.start_time_unix_nano <= span.end_time_unix_nano, span.name
        # Each time is rounded to nanoseconds.
        assert span.start_time_unix_nano >= request.start_time_unix_nano - 1, span.name
        assert span.end_time_unix_nano <= request.end_time_unix_nano + 1, span.name


def check_header(header: str, names: list[str], *, adds_up: bool) -> None:
    """Check that the header has the stages of the spans and their total. Steps may overlap or have pauses between."""
    found = re.findall(r'([a-z0-9.]+);dur=(-?[0-9.]+)(?:;desc="[^"]*")?', header)
    durations = {name: float(value) for name, value in found}
    total = durations.pop("total")
    assert sorted(durations) == sorted(names)
    assert all(value >= 0 for value in durations.values()), header
    assert all(value <= total + 0.001 for value in durations.values()), header
    if adds_up:
        assert total == pytest.approx(sum(durations.values()), abs=0.001 * len(found))
