"""A server under attack: its connections over every protocol, its memory, and the checks after a fault."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

import grpc
import httpx
import numpy as np
import psutil
from tensorflow_serving.apis import predict_pb2

from tests.e2e.running_server import RunningServer
from tests.faults.bystander import Bystander
from tests.faults.fault_row import FaultRow
from tpuserve_formats.messages.oip import ModelInferRequest, ModelInferResponse

TF_GRPC, TF_REST, OIP_GRPC, OIP_REST, VERTEX = "TF gRPC", "TF REST", "OIP gRPC", "OIP REST", "Vertex"
PROTOCOLS: Final = (TF_GRPC, TF_REST, OIP_GRPC, OIP_REST, VERTEX)
VERTEX_ROUTE: Final = "/v1/endpoints/12/deployedModels/34:predict"
PATHS: Final = {
    TF_GRPC: "/tensorflow.serving.PredictionService/Predict",
    TF_REST: "/v1/models/m:predict",
    OIP_GRPC: "/inference.GRPCInferenceService/ModelInfer",
    OIP_REST: "/v2/models/m/infer",
    VERTEX: VERTEX_ROUTE,
}
UNLIMITED: Final = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
PATIENCE_S = 60.0
# Resident memory that may remain after a fault: allocators keep freed pages, and caches fill with the first requests.
MEMORY_MB = 32.0
ROWS = np.array([[1, 2], [3, 4]], np.float32)


@dataclass(frozen=True, slots=True)
class Answer:
    """A response: the HTTP status or the name of the gRPC code, and the body or the details."""

    got: str
    content: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return self.content.decode(errors="replace")


@dataclass
class Attempt:
    """One fault while a test causes it. The test sets `got`."""

    got: str = ""
    # Counts that the table shows after `got`.
    detail: str = ""
    others: Bystander | None = None

    def shown(self) -> str:
        return f"{self.got} ({self.detail})" if self.detail else self.got


class FaultedServer:
    """A server with the models `m`, `kinds` and `slow`, and connections that stay open from fault to fault."""

    def __init__(self, running: RunningServer) -> None:
        self.running = running
        self.grpc = running.grpc
        self.rest = running.rest
        self.channel: Any = grpc.insecure_channel(self.grpc, UNLIMITED)  # Its stubs need serializers.
        self.http = httpx.Client(base_url=self.rest, timeout=PATIENCE_S)
        self._processes = self._family()
        # Statuses of the requests that were sent right after the server became ready.
        self.first_answers: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.channel.close()
        self.http.close()

    def send(
        self, protocol: str, body: bytes, headers: Mapping[str, str] | None = None, path: str | None = None
    ) -> Answer:
        """Send a request to the protocol's route of predictions, or to `path`."""
        if protocol in (TF_GRPC, OIP_GRPC):
            return self._call(path or PATHS[protocol], body, headers or {})
        answer = self.http.post(path or PATHS[protocol], content=body, headers=headers)
        return Answer(str(answer.status_code), answer.content, answer.headers)

    def _call(self, path: str, body: bytes, metadata: Mapping[str, str]) -> Answer:
        try:
            content = self.channel.unary_unary(path)(body, timeout=PATIENCE_S, metadata=tuple(metadata.items()))
        except grpc.RpcError as error:
            return Answer(error.code().name, (error.details() or "").encode())
        return Answer("OK", content)

    def bystander(self, pause_s: float = 0.005) -> Bystander:
        """Return another process that sends good requests."""
        body = json.dumps({"instances": ROWS.tolist()})
        expected = self.http.post(PATHS[TF_REST], content=body.encode(), headers={"accept-encoding": "identity"}).text
        return Bystander(self.rest.removeprefix("http://"), PATHS[TF_REST], body, expected, pause_s)

    def wait_until_ready(self, timeout_s: float) -> None:
        """Wait for the readiness of the whole server, and send a request to every model, version and label at once."""
        deadline = time.monotonic() + timeout_s
        while self.http.get("/readyz").status_code != 200:
            assert time.monotonic() < deadline
        for path in ("/versions/3", "/labels/stable"):
            answer = self.send(TF_REST, good_body(TF_REST), path=f"/v1/models/m{path}:predict")
            self.first_answers[path] = answer.got
        for model in ("kinds", "slow"):
            self.first_answers[model] = str(self.http.get(f"/v2/models/{model}/ready").status_code)

    def memory_mb(self) -> float:
        return sum(process.memory_info().rss for process in self._processes) / 1e6

    def check(self) -> None:
        """Check that the same processes live and that every protocol answers the next good request correctly."""
        assert self.running.process.poll() is None
        assert all(process.is_running() for process in self._processes), "a process of the server ended"
        for protocol in PROTOCOLS:
            np.testing.assert_array_equal(self.predict(protocol), 2 * ROWS, err_msg=protocol)

    def predict(self, protocol: str) -> "np.ndarray[Any, np.dtype[np.float32]]":
        """Return `m`'s prediction for ROWS."""
        answer = self.send(protocol, good_body(protocol))
        assert answer.got in ("OK", "200"), answer
        match protocol:
            case "TF gRPC":
                values = predict_pb2.PredictResponse.FromString(answer.content).outputs["y"].float_val
            case "OIP gRPC":
                values = np.frombuffer(ModelInferResponse.FromString(answer.content).raw_output_contents[0], np.float32)
            case "OIP REST":
                values = json.loads(answer.content)["outputs"][0]["data"]
            case _:
                values = json.loads(answer.content)["predictions"]
        return np.array(values, np.float32).reshape(ROWS.shape)

    def settled_mb(self, limit_mb: float) -> float:
        """Return the resident memory once it is under the limit, or after some patience."""
        deadline = time.monotonic() + PATIENCE_S / 2
        while (now_mb := self.memory_mb()) > limit_mb and time.monotonic() < deadline:
            time.sleep(0.1)
        return now_mb

    def _family(self) -> list[psutil.Process]:
        parent = psutil.Process(self.running.process.pid)
        return [parent, *parent.children(recursive=True)]


def good_body(protocol: str) -> bytes:
    """Return the request for `m` with ROWS."""
    if protocol == TF_GRPC:
        message = predict_pb2.PredictRequest()
        message.model_spec.name = "m"
        tensor = message.inputs["x"]
        tensor.dtype = 1
        tensor.tensor_shape.dim.add(size=2)
        tensor.tensor_shape.dim.add(size=2)
        tensor.tensor_content = ROWS.tobytes()
        return bytes(message.SerializeToString())
    if protocol == OIP_GRPC:
        item = ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=ROWS.shape)
        infer = ModelInferRequest(model_name="m", inputs=[item], raw_input_contents=[ROWS.tobytes()])
        return bytes(infer.SerializeToString())
    if protocol == OIP_REST:
        tensor_json = {"name": "x", "datatype": "FP32", "shape": ROWS.shape, "data": ROWS.ravel().tolist()}
        return json.dumps({"inputs": [tensor_json]}).encode()
    return json.dumps({"instances": ROWS.tolist()}).encode()


class Faults:
    """Runs faults on a server, checks it after each, and records the rows of the table."""

    def __init__(self, server: FaultedServer, record: Callable[[FaultRow], None]) -> None:
        self.server = server
        self._record = record

    @contextmanager
    def fault(
        self,
        case: int,
        fault: str,
        protocol: str,
        *expected: str,
        memory_mb: float = MEMORY_MB,
        beside: bool = False,
        pause_s: float = 0.005,
    ) -> Iterator[Attempt]:
        """Cause one fault in the block, which sets `got`. Then check it, the server and its memory.

        `got` must be one of `expected`. With `beside`, another client runs, whose requests, `pause_s` apart, must
        all succeed.
        """
        attempt = Attempt()
        before_mb = self.server.memory_mb()
        after_mb = None
        passed = False
        try:
            if beside:
                with self.server.bystander(pause_s) as attempt.others:
                    yield attempt
                assert attempt.others.wrong == (), attempt.others.wrong
            else:
                yield attempt
            self.server.check()
            after_mb = self.server.settled_mb(before_mb + memory_mb)
            assert attempt.got in expected, f"{fault}: expected {' or '.join(expected)}, got {attempt.got}"
            assert after_mb <= before_mb + memory_mb, f"{fault}: {before_mb:.0f} MB before, {after_mb:.0f} MB after"
            passed = True
        finally:
            self._record(
                FaultRow(
                    case, fault, protocol, " or ".join(expected), attempt.shown(), before_mb,
                    after_mb, attempt.others.worst_ms if attempt.others else None, passed,
                )
            )  # fmt: skip
