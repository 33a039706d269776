"""Tests for traces: a real server exports spans to a real receiver."""

import contextlib
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

import grpc
import httpx
import numpy as np
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from tensorflow_serving.apis import prediction_service_pb2_grpc

from tests.e2e.running_server import EXECUTABLE, RunningServer, run_in_environment
from tests.support.descriptors import is_readable
from tests.support.free_ports import free_ports
from tests.support.otlp_receiver import Receiver, attributes_of, http_receiver
from tests.support.saved_models import predict_request

pytestmark = pytest.mark.xdist_group(__name__)

# A request of one row waits for another one, for so long that it counts as slow.
PARAMETERS = """
max_batch_size { value: 2 }
batch_timeout_micros { value: 1000000 }
max_enqueued_batches { value: 100 }
num_batch_threads { value: 1 }
"""
SLOW_MS = 900
PREDICT = "/v1/models/calculator:predict"
# Identifier of the client's span.
PARENT = "b7ad6b7169203331"
STAGES = ["decode", "queue", "batch", "execute", "resume", "encode"]


@dataclass(frozen=True)
class Traced:
    """A server, and the receiver of its spans."""

    server: RunningServer
    receiver: Receiver

    def server_span(self, trace_id: str) -> Span:
        """Wait for the span of the request of a trace, and return it."""
        found = self.receiver.wait_for(lambda spans: any(is_request(span, trace_id) for span in spans))
        [span] = [span for span in found if is_request(span, trace_id)]
        return span

    def children(self, parent: Span) -> list[Span]:
        """Return the stages of a request whose span has arrived."""
        return [span for span in self.receiver.spans() if span.parent_span_id == parent.span_id]


@contextlib.contextmanager
def run_traced(base: Path, folder: Path, url: str, *flags: str, **variables: str) -> Iterator[RunningServer]:
    """Start a server of the calculator that exports traces to `url`."""
    parameters = folder / "batching.config"
    parameters.write_text(PARAMETERS)
    ports = free_ports(2)
    environment = {f"OTEL_EXPORTER_OTLP_{name}": value for name, value in variables.items()}
    flags = (
        f"--rest_api_port={ports[1]}",
        "--model_name=calculator",
        f"--model_base_path={base}",
        "--enable_batching",
        f"--batching_parameters_file={parameters}",
        f"--trace_endpoint={url}",
        *flags,
    )
    with run_in_environment(folder / "log", ports, environment, *flags, model="calculator") as server:
        yield server


@pytest.fixture(scope="module")
def traced(calculator: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    """Serve with traces of slow requests, and of those whose client samples them."""
    flags = ("--trace_sample_ratio=0", f"--trace_slow_ms={SLOW_MS}")
    folder = tmp_path_factory.mktemp("traces")
    with (
        http_receiver() as receiver,
        run_traced(calculator, folder, receiver.url, *flags) as server,
    ):
        yield Traced(server, receiver)


def is_request(span: Span, trace_id: str) -> bool:
    return span.trace_id.hex() == trace_id and span.name == "Predict"


def sampled(trace_id: str) -> str:
    return f"00-{trace_id}-{PARENT}-01"


def in_several_headers(trace_id: str) -> list[tuple[str, str]]:
    return [("traceparent", sampled(trace_id)), ("tracestate", "a=1"), ("tracestate", "b=2")]


def post(server: RunningServer, rows: int, **headers: str) -> httpx.Response:
    body = {"instances": [[1.0, 2.0]] * rows}
    return httpx.post(server.rest + PREDICT, json=body, headers=headers, timeout=60)


def call(server: RunningServer, rows: int, *metadata: tuple[str, str], timeout_s: float = 60.0) -> dict[str, str]:
    """Call Predict, and return the trailers. Raises grpc.RpcError."""
    request = predict_request(x=np.ones((rows, 2), np.float32))
    request.model_spec.name = "calculator"
    with grpc.insecure_channel(server.grpc) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        _, call = stub.Predict.with_call(request, timeout_s, metadata=metadata)
        return {key: str(value) for key, value in call.trailing_metadata() or ()}


def leave_grpc(server: RunningServer, traceparent: str) -> None:
    """Begin a call of one row, which waits for another one, and cancel it."""
    request = predict_request(x=np.ones((1, 2), np.float32))
    request.model_spec.name = "calculator"
    with grpc.insecure_channel(server.grpc) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        call = stub.Predict.future(request, 60.0, metadata=[("traceparent", traceparent)])
        wait_until(lambda: counter(server, 'tpuserve_requests_in_flight{protocol="grpc"}') > 0 or call.done())
        call.cancel()


def leave_rest(server: RunningServer, traceparent: str) -> None:
    """Begin a request like `leave_grpc`, and close the connection."""
    body = b'{"instances": [[1.0, 2.0]]}'
    head = f"POST {PREDICT} HTTP/1.1\r\nhost: x\r\ntraceparent: {traceparent}\r\ncontent-length: {len(body)}\r\n\r\n"
    host, port = server.rest.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60.0) as client:
        client.sendall(head.encode() + body)
        wait_until(
            lambda: counter(server, 'tpuserve_requests_in_flight{protocol="rest"}') > 0 or is_readable(client, 0.0)
        )


def counter(server: RunningServer, name: str) -> float:
    """Return a counter of the metrics page, or 0 without one."""
    page = httpx.get(server.rest + "/metrics", timeout=60).text
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(name))


def wait_until(is_reached: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 60.0
    changed = threading.Event()
    while not is_reached():
        assert time.monotonic() < end_s
        changed.wait(0.05)


def find_batch(spans: Sequence[Span], *requests: Span) -> Span | None:
    """Return the batch that links to the requests."""
    wanted = {(span.trace_id, span.span_id) for span in requests}
    batches = (span for span in spans if span.name == "batch" and not span.parent_span_id)
    return next((span for span in batches if wanted == {(one.trace_id, one.span_id) for one in span.links}), None)


def test_requests_over_both_protocols_share_a_batch_span(traced: Traced) -> None:
    for _ in range(20):
        over_rest, over_grpc = token_hex(16), token_hex(16)
        with ThreadPoolExecutor(2) as threads:
            rest = threads.submit(post, traced.server, 1, traceparent=sampled(over_rest), tracestate="a=1")
            rpc = threads.submit(call, traced.server, 1, *in_several_headers(over_grpc))
        first, second = traced.server_span(over_rest), traced.server_span(over_grpc)
        assert rest.result().status_code == 200
        assert rest.result().headers["traceresponse"] == f"00-{over_rest}-{first.span_id.hex()}-01"
        assert rpc.result()["traceresponse"] == f"00-{over_grpc}-{second.span_id.hex()}-01"
        numbers = [
            attributes_of(span.attributes).get("tpuserve.reason", "")
            for request in (first, second)
            for span in traced.children(request)
            if span.name == "batch"
        ]
        # On a busy machine, one of them may arrive a second later.
        if len(set(numbers)) == 1:
            break
    spans = traced.receiver.wait_for(lambda spans: find_batch(spans, first, second) is not None)
    batch = find_batch(spans, first, second)
    assert batch is not None
    assert attributes_of(batch.attributes)["tpuserve.batch.requests"] == 2
    assert (first.trace_state, second.trace_state) == ("a=1", "a=1,b=2")
    for request in (first, second):
        check_stages(traced, request, batch)


def check_stages(traced: Traced, request: Span, batch: Span) -> None:
    """Check that the stages fill the request, and that the run links to its batch."""
    children = sorted(traced.children(request), key=lambda span: span.start_time_unix_nano)
    names = [span.name for span in children]
    assert [name for name in names if name in STAGES] == STAGES
    assert set(names) - set(STAGES) <= {"receive"}
    # Each time is rounded to nanoseconds.
    assert abs(children[0].start_time_unix_nano - request.start_time_unix_nano) <= 1
    assert abs(children[-1].end_time_unix_nano - request.end_time_unix_nano) <= 1
    total = sum(span.end_time_unix_nano - span.start_time_unix_nano for span in children)
    assert abs(total - (request.end_time_unix_nano - request.start_time_unix_nano)) < 2 * len(children)
    [execute] = [span for span in children if span.name == "execute"]
    assert [(link.trace_id, link.span_id) for link in execute.links] == [(batch.trace_id, batch.span_id)]


def test_the_parent_is_the_clients_span(traced: Traced) -> None:
    over_rest, over_grpc = token_hex(16), token_hex(16)
    post(traced.server, 2, traceparent=sampled(over_rest))
    call(traced.server, 2, ("traceparent", sampled(over_grpc)))
    for trace_id in (over_rest, over_grpc):
        assert traced.server_span(trace_id).parent_span_id.hex() == PARENT


def is_traced(server: RunningServer, headers: dict[str, str]) -> bool:
    """Return whether one of two fast requests, over REST and gRPC, is traced."""
    fast = post(server, 2, **headers)
    assert fast.status_code == 200
    return "traceresponse" in fast.headers or "traceresponse" in call(server, 2, *headers.items())


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"traceparent": f"00-{'1' * 32}-{PARENT}-00"},
        {"traceparent": "garbage", "tracestate": "A" * 600},
        {"x-tpuserve-span": f"{'1' * 32}-{'2' * 16}"},
    ],
    ids=["none", "not sampled", "garbage", "forged"],
)
def test_other_requests_are_not_traced_unless_they_are_slow(traced: Traced, headers: dict[str, str]) -> None:
    assert not all(is_traced(traced.server, headers) for _ in range(10))  # a busy machine may make one request slow
    slow = post(traced.server, 1, **headers)
    assert slow.status_code == 200
    _, trace_id, span_id, _ = slow.headers["traceresponse"].split("-")
    span = traced.server_span(trace_id)
    assert span.span_id.hex() == span_id
    assert span.parent_span_id.hex() == (PARENT if PARENT in headers.get("traceparent", "") else "")


def test_errors_have_their_code_and_faults_are_marked(traced: Traced) -> None:
    late, wrong = token_hex(16), token_hex(16)
    with pytest.raises(grpc.RpcError):
        call(traced.server, 1, ("traceparent", sampled(late)), timeout_s=0.8)
    assert post(traced.server, 3, traceparent=sampled(wrong)).status_code == 400
    refused = traced.server_span(wrong)
    assert attributes_of(refused.attributes)["tpuserve.code"] == "INVALID_ARGUMENT"
    assert refused.status.code == Status.STATUS_CODE_UNSET
    expired = traced.server_span(late)
    assert attributes_of(expired.attributes)["tpuserve.code"] == "DEADLINE_EXCEEDED"
    assert expired.status.code == Status.STATUS_CODE_ERROR


@pytest.mark.parametrize("leave", [leave_grpc, leave_rest], ids=["grpc", "rest"])
def test_a_request_whose_client_left_ends_in_its_queue(
    traced: Traced, leave: Callable[[RunningServer, str], None]
) -> None:
    for _ in range(20):
        trace_id = token_hex(16)
        leave(traced.server, sampled(trace_id))
        span = traced.server_span(trace_id)
        # On a busy machine, the batch may have left before the client.
        if attributes_of(span.attributes)["tpuserve.code"] == "CANCELLED":
            break
    assert attributes_of(span.attributes)["tpuserve.code"] == "CANCELLED"
    assert span.status.code == Status.STATUS_CODE_UNSET
    children = [child for child in traced.children(span) if child.name != "receive"]
    assert [child.name for child in children][:2] == ["decode", "queue"]
    assert "ended before it ran" in str(attributes_of(children[1].attributes)["tpuserve.reason"])
    assert all(child.start_time_unix_nano <= child.end_time_unix_nano for child in children)
    assert not any(child.links for child in children)


def test_exported_requests_are_counted(traced: Traced) -> None:
    trace_id = token_hex(16)
    post(traced.server, 2, traceparent=sampled(trace_id))
    traced.server_span(trace_id)
    wait_until(lambda: counter(traced.server, "tpuserve_traces_exported_total") >= 1)
    assert counter(traced.server, "tpuserve_traces_dropped_total") == 0


@pytest.mark.parametrize("is_silent", [True, False], ids=["silent", "away"])
def test_a_receiver_that_takes_nothing_disturbs_no_request(calculator: Path, tmp_path: Path, is_silent: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        if not is_silent:
            listener.close()
        flags = ("--trace_sample_ratio=1", "--trace_max_per_second=10")
        with run_traced(calculator, tmp_path, url, *flags, TIMEOUT="500") as server:
            for _ in range(30):
                assert post(server, 2).status_code == 200
            wait_until(lambda: counter(server, 'tpuserve_traces_dropped_total{reason="export_failed"}') >= 10)
            assert counter(server, "tpuserve_traces_exported_total") == 0
            assert server.terminate() == 0
    log = (tmp_path / "log").read_text()
    assert log.count(f"Cannot export traces to {url}") == 1


def test_a_certificate_that_cannot_be_read_is_an_error_at_the_start(tmp_path: Path) -> None:
    command = [str(EXECUTABLE), "--model_base_path=/m", "--trace_endpoint=https://127.0.0.1:1"]
    missing = str(tmp_path / "missing.pem")
    ended = subprocess.run(
        [*command, "--port=0"],
        env={"OTEL_EXPORTER_OTLP_CERTIFICATE": missing, "PATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 1
    assert "Cannot export traces to https://127.0.0.1:1: a certificate cannot be used: No such file" in ended.stderr
