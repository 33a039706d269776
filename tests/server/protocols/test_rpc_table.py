"""Tests for gRPC's methods, called through the table like by a host."""

import asyncio
import math
import threading
import tracemalloc
from collections.abc import AsyncIterator

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import Message
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse
from tensorflow_serving.apis import get_model_metadata_pb2, get_model_status_pb2, predict_pb2

from tests.server.hosts.asgi_client import Exchange
from tests.support.fakes import FakeClock, FakeMetrics, FakeService, Finished
from tests.support.open_gate import OPEN_GATE
from tpuserve_server.core.serving.receiving import ReceivingBudget
from tpuserve_server.core.serving.sending import SendingBudget
from tpuserve_server.core.terms.deadline import Deadline, SystemClock
from tpuserve_server.core.terms.errors import Code, InvalidArgument, NotFound, ServingError, Unavailable
from tpuserve_server.hosts.grpc_calls import GrpcOverAsgi
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.protocols.rpc import CallContext, RpcTable, StreamMethod, UnaryMethod, admit_every_call
from tpuserve_server.protocols.table import rpc_table

CONTEXT = CallContext(Deadline(1234.5), {})
PREDICT = "/tensorflow.serving.PredictionService/Predict"
METADATA = "/tensorflow.serving.PredictionService/GetModelMetadata"
STATUS = "/tensorflow.serving.ModelService/GetModelStatus"
CHECK = "/grpc.health.v1.Health/Check"
WATCH = "/grpc.health.v1.Health/Watch"
REFLECTION = ("/grpc.reflection.v1.ServerReflection/", "/grpc.reflection.v1alpha.ServerReflection/")
SERVICES = [
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
    "inference.GRPCInferenceService",
    "tensorflow.serving.ModelService",
    "tensorflow.serving.PredictionService",
]


class Caller:
    """The table over a fake service."""

    def __init__(self, *, serialize_as_content: bool = False, max_request_bytes: int = 64 << 20) -> None:
        self.service = FakeService()
        self.metrics = FakeMetrics()
        self.table: RpcTable = rpc_table(
            self.service,
            self.metrics,
            FakeClock(),
            serialize_as_content=serialize_as_content,
            max_request_bytes=max_request_bytes,
        )

    async def unary(self, path: str, request: Message | bytes) -> bytes:
        method = self.table[path]
        assert isinstance(method, UnaryMethod)
        return await method.handle(request if isinstance(request, bytes) else request.SerializeToString(), CONTEXT)

    async def refusal(self, path: str, request: Message | bytes) -> tuple[Code, str]:
        with pytest.raises(ServingError) as caught:
            await self.unary(path, request)
        return caught.value.code, caught.value.message

    def stream(self, path: str, *requests: Message | bytes) -> AsyncIterator[bytes]:
        method = self.table[path]
        assert isinstance(method, StreamMethod)
        return method.handle(one_by_one(*requests), CONTEXT)


async def one_by_one(*requests: Message | bytes) -> AsyncIterator[bytes]:
    for request in requests:
        yield request if isinstance(request, bytes) else request.SerializeToString()


@pytest.fixture
def caller() -> Caller:
    return Caller()


def predict_request(**spec: object) -> predict_pb2.PredictRequest:
    request = predict_pb2.PredictRequest(model_spec=spec or {"name": "m"})
    request.inputs["x"].CopyFrom(tf.make_tensor_proto(np.array([1, 3], np.float32)))
    return request


async def test_predict_answers_with_version_and_resolved_signature(caller: Caller) -> None:
    response = predict_pb2.PredictResponse.FromString(await caller.unary(PREDICT, predict_request()))
    assert tf.make_ndarray(response.outputs["y"]).tolist() == [2.5, 3.5]
    assert list(response.outputs["y"].float_val) == [2.5, 3.5]
    assert (response.model_spec.version.value, response.model_spec.signature_name) == (7, "serving_default")
    assert caller.service.requests[0].deadline == CONTEXT.deadline
    assert caller.metrics.finished == [Finished("m", "Predict", "grpc", Code.OK, 0.0)]


async def test_predict_can_answer_with_tensor_content() -> None:
    body = await Caller(serialize_as_content=True).unary(PREDICT, predict_request())
    content = predict_pb2.PredictResponse.FromString(body).outputs["y"].tensor_content
    assert content == np.array([2.5, 3.5], np.float32).tobytes()


@pytest.mark.parametrize(
    ("path", "request_", "model", "code", "text"),
    [
        (PREDICT, b"\xff", "", Code.INVALID_ARGUMENT, "Malformed PredictRequest"),
        (PREDICT, b"", "", Code.INVALID_ARGUMENT, "Missing ModelSpec"),
        (
            PREDICT,
            predict_request(name="n"),
            "",
            Code.NOT_FOUND,
            "Servable not found for request: Latest(n)",
        ),
        (
            PREDICT,
            predict_request(name="m", version={"value": 9}),
            "m",
            Code.NOT_FOUND,
            "Servable not found for request: Specific(m, 9)",
        ),
        (
            PREDICT,
            predict_request(name="m", signature_name="s"),
            "m",
            Code.FAILED_PRECONDITION,
            'Serving signature key "s" not found.',
        ),
        (METADATA, b"", "", Code.INVALID_ARGUMENT, "Missing ModelSpec"),
        (
            METADATA,
            get_model_metadata_pb2.GetModelMetadataRequest(model_spec={"name": "n"}, metadata_field=["signature_def"]),
            "",
            Code.NOT_FOUND,
            "Servable not found for request: Latest(n)",
        ),
        (STATUS, b"", "", Code.INVALID_ARGUMENT, "Missing ModelSpec"),
        (
            STATUS,
            get_model_status_pb2.GetModelStatusRequest(model_spec={"name": "n"}),
            "",
            Code.NOT_FOUND,
            "Could not find any versions of model n",
        ),
    ],
)
async def test_refusals_have_upstreams_code_and_text_and_are_counted(
    caller: Caller, path: str, request_: Message | bytes, model: str, code: Code, text: str
) -> None:
    assert await caller.refusal(path, request_) == (code, text)
    assert caller.metrics.finished == [Finished(model, path.rpartition("/")[2], "grpc", code, 0.0)]


def asking_for_zeros(*names: str, count: int, model: str = "m") -> predict_pb2.PredictRequest:
    request = predict_pb2.PredictRequest(model_spec={"name": model})
    for name in names:
        request.inputs[name].dtype = 1
        request.inputs[name].tensor_shape.dim.add(size=count)
    return request


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        (asking_for_zeros("x", count=1 << 23, model="n"), Code.NOT_FOUND, "Servable not found for request: Latest(n)"),
        (
            asking_for_zeros(*"uvxyz", count=1 << 23),
            Code.INVALID_ARGUMENT,
            "input size does not match signature: 5!=1 len({u,v,x,y,z}) != len({x}). Sent extra: {u,v,y,z}. "
            "Missing but required: {}.",
        ),
        (
            asking_for_zeros("x", count=1 << 25),
            Code.INVALID_ARGUMENT,
            f"tensor parsing error: x: shape [{1 << 25}] is too large for 0 values: repeating the last one takes "
            f"{1 << 27} bytes, and {1 << 26} bytes of max_request_bytes are left",
        ),
    ],
)
async def test_refused_requests_take_no_memory_that_they_did_not_send(
    caller: Caller, request_: predict_pb2.PredictRequest, code: Code, text: str
) -> None:
    tracemalloc.start()
    try:
        assert await caller.refusal(PREDICT, request_) == (code, text)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert caller.service.requests == []
    assert all(acquired.released for acquired in caller.service.acquired)


async def test_repeated_values_are_bounded_by_the_tables_option() -> None:
    caller = Caller(max_request_bytes=8)
    response = predict_pb2.PredictResponse.FromString(await caller.unary(PREDICT, asking_for_zeros("x", count=2)))
    assert list(response.outputs["y"].float_val) == [2, 2]
    code, text = await caller.refusal(PREDICT, asking_for_zeros("x", count=3))
    assert code == Code.INVALID_ARGUMENT
    assert text.startswith("tensor parsing error: x: shape [3] is too large for 0 values: repeating the last one takes")


async def test_the_model_is_held_from_before_decoding_until_the_answer(caller: Caller) -> None:
    caller.service.gate.clear()
    task = asyncio.create_task(caller.unary(PREDICT, predict_request()))
    await caller.service.waiting.wait()
    (acquired,) = caller.service.acquired
    assert not acquired.released
    caller.service.gate.set()
    await task
    assert all(acquired.released for acquired in caller.service.acquired)


async def test_output_filter_reaches_the_service(caller: Caller) -> None:
    request = predict_request()
    request.output_filter.extend(["b", "y"])
    await caller.unary(PREDICT, request)
    assert caller.service.requests[0].output_filter == ("b", "y")


async def test_overload_is_passed_on(caller: Caller) -> None:
    caller.service.fault = Unavailable("The batch scheduling queue is full")
    assert await caller.refusal(PREDICT, predict_request()) == (Code.UNAVAILABLE, caller.service.fault.message)


async def test_a_call_that_would_be_late_is_refused_before_it_is_decoded(caller: Caller) -> None:
    request = predict_request()
    request.inputs["x"].tensor_shape.dim[0].size = 9
    assert (await caller.refusal(PREDICT, request))[0] is Code.INVALID_ARGUMENT
    caller.service.busy_until_s = math.inf
    assert (await caller.refusal(PREDICT, request))[0] is Code.RESOURCE_EXHAUSTED


async def test_cancelling_the_call_cancels_the_prediction(caller: Caller) -> None:
    caller.service.gate.clear()
    task = asyncio.create_task(caller.unary(PREDICT, predict_request()))
    await caller.service.waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert caller.service.cancelled == 1
    assert caller.metrics.finished[0].code == Code.CANCELLED


async def test_a_call_that_its_host_cancels_at_the_deadline_is_counted_so() -> None:
    service, metrics, clock = FakeService(), FakeMetrics(), SystemClock()
    service.gate.clear()
    host = GrpcOverAsgi(
        admit_every_call(rpc_table(service, metrics, clock)),
        max_message_bytes=1 << 20,
        in_flight=InFlight(),
        receiving=ReceivingBudget(1 << 20, 1 << 20, clock),
        sending=SendingBudget(1 << 30, 1 << 30, 30, SystemClock()),
        gate=OPEN_GATE,
        clock=clock,
    )
    sent = predict_request().SerializeToString()
    exchange = await Exchange.unary(sent, (b"grpc-timeout", b"20m"), path=PREDICT).run(host)
    assert exchange.status[0] == Code.DEADLINE_EXCEEDED
    assert service.cancelled == 1
    assert [(finished.model, finished.code) for finished in metrics.finished] == [("m", Code.DEADLINE_EXCEEDED)]


async def test_metadata_and_status_answer(caller: Caller) -> None:
    request = get_model_metadata_pb2.GetModelMetadataRequest(model_spec={"name": "m"}, metadata_field=["signature_def"])
    metadata = get_model_metadata_pb2.GetModelMetadataResponse.FromString(await caller.unary(METADATA, request))
    assert metadata.model_spec.version.value == 7
    status_request = get_model_status_pb2.GetModelStatusRequest(model_spec={"name": "m"})
    status = get_model_status_pb2.GetModelStatusResponse.FromString(await caller.unary(STATUS, status_request))
    assert [version.version for version in status.model_version_status] == [7]


async def check(caller: Caller, name: str) -> int:
    return int(HealthCheckResponse.FromString(await caller.unary(CHECK, HealthCheckRequest(service=name))).status)


@pytest.mark.parametrize("name", ["", "ModelService", "PredictionService", *SERVICES])
async def test_health_tells_the_truth_for_every_known_name(caller: Caller, name: str) -> None:
    assert await check(caller, name) == HealthCheckResponse.SERVING
    caller.service.set_ready("draining")
    assert await check(caller, name) == HealthCheckResponse.NOT_SERVING


async def test_health_of_an_unknown_name_is_not_found(caller: Caller) -> None:
    with pytest.raises(NotFound, match="unknown service SessionService"):
        await check(caller, "SessionService")


async def test_malformed_health_requests_are_refused(caller: Caller) -> None:
    assert await caller.refusal(CHECK, b"\xff") == (Code.INVALID_ARGUMENT, "Malformed HealthCheckRequest")
    with pytest.raises(InvalidArgument, match="Malformed HealthCheckRequest"):
        await anext(caller.stream(WATCH, b"\xff"))


async def run_what_is_ready() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def watched(answers: AsyncIterator[bytes]) -> int:
    return int(HealthCheckResponse.FromString(await anext(answers)).status)


async def test_watch_tells_changes_from_any_thread_once_each(caller: Caller) -> None:
    answers = caller.stream(WATCH, HealthCheckRequest())
    assert await watched(answers) == HealthCheckResponse.SERVING
    for reason, status in (
        ("loading", HealthCheckResponse.NOT_SERVING),
        ("", HealthCheckResponse.SERVING),
        ("draining", HealthCheckResponse.NOT_SERVING),
    ):
        waiting = asyncio.ensure_future(watched(answers))
        # An update without a change wakes the watch, but sends no response.
        await run_what_is_ready()
        caller.service.set_ready(caller.service.not_ready)
        await run_what_is_ready()
        assert not waiting.done()
        thread = threading.Thread(target=caller.service.set_ready, args=(reason,))
        thread.start()
        assert await waiting == status
        thread.join()


async def test_watch_leaves_when_the_caller_does(caller: Caller) -> None:
    answers = caller.stream(WATCH, HealthCheckRequest())
    await watched(answers)
    assert len(caller.service.listeners) == 1
    waiting = asyncio.ensure_future(watched(answers))
    await run_what_is_ready()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert caller.service.listeners == []


async def test_watch_of_an_unknown_name_waits(caller: Caller) -> None:
    answers = caller.stream(WATCH, HealthCheckRequest(service="nobody"))
    assert await watched(answers) == HealthCheckResponse.SERVICE_UNKNOWN
    waiting = asyncio.ensure_future(watched(answers))
    await run_what_is_ready()
    caller.service.set_ready("draining")
    await run_what_is_ready()
    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


def test_a_change_after_the_loop_has_closed_harms_nobody() -> None:
    service = FakeService()
    table = rpc_table(service, FakeMetrics(), FakeClock())
    watch = table[WATCH]
    assert isinstance(watch, StreamMethod)

    async def look_once() -> AsyncIterator[bytes]:
        answers = watch.handle(one_by_one(HealthCheckRequest()), CONTEXT)
        await anext(answers)
        return answers

    loop = asyncio.new_event_loop()
    # Keep a reference: the generator must not be finalised before the loop closes.
    answers = loop.run_until_complete(look_once())
    listeners = list(service.listeners)
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    for listener in listeners:
        listener()
    assert answers is not None


@pytest.mark.parametrize("service", REFLECTION)
class TestReflection:
    async def ask(
        self, caller: Caller, service: str, *requests: ServerReflectionRequest
    ) -> list[ServerReflectionResponse]:
        answers = caller.stream(f"{service}ServerReflectionInfo", *requests)
        return [ServerReflectionResponse.FromString(answer) async for answer in answers]

    async def test_lists_exactly_the_services_in_the_table(self, caller: Caller, service: str) -> None:
        (answer,) = await self.ask(caller, service, ServerReflectionRequest(host="h", list_services=""))
        listed = [entry.name for entry in answer.list_services_response.service]
        assert listed == SERVICES
        assert set(listed) == {path.split("/")[1] for path in caller.table}
        assert answer.valid_host == answer.original_request.host == "h"

    @pytest.mark.parametrize(
        "symbol",
        [*SERVICES, "inference.ModelInferRequest", "tensorflow.serving.PredictRequest", "tensorflow.TensorProto"],
    )
    async def test_files_are_enough_to_rebuild_the_descriptor(self, caller: Caller, service: str, symbol: str) -> None:
        (answer,) = await self.ask(caller, service, ServerReflectionRequest(file_containing_symbol=symbol))
        files = {}
        for serialized in answer.file_descriptor_response.file_descriptor_proto:
            file = FileDescriptorProto.FromString(serialized)
            files[file.name] = file
        pool = descriptor_pool.DescriptorPool()

        def add(file: FileDescriptorProto) -> None:
            for dependency in file.dependency:
                if dependency in files:
                    add(files.pop(dependency))
            pool.Add(file)

        while files:
            add(files.pop(next(iter(files))))
        assert pool.FindFileContainingSymbol(symbol).package == symbol.rpartition(".")[0]

    async def test_one_stream_answers_many_requests(self, caller: Caller, service: str) -> None:
        answers = await self.ask(
            caller,
            service,
            ServerReflectionRequest(file_by_filename="tensorflow_serving/apis/model.proto"),
            ServerReflectionRequest(file_by_filename="no.proto"),
            ServerReflectionRequest(file_containing_symbol="no.Symbol"),
            ServerReflectionRequest(),
            ServerReflectionRequest(file_containing_extension={"containing_type": "no.Type", "extension_number": 1}),
            ServerReflectionRequest(all_extension_numbers_of_type="no.Type"),
        )
        assert len(answers[0].file_descriptor_response.file_descriptor_proto) == 2
        codes = [answer.error_response.error_code for answer in answers[1:]]
        assert codes == [Code.NOT_FOUND, Code.NOT_FOUND, Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.NOT_FOUND]

    async def test_extensions_are_found(self, caller: Caller, service: str) -> None:
        options = "google.protobuf.FileOptions"
        file = FileDescriptorProto(name="owner.proto", package="owner", dependency=["google/protobuf/descriptor.proto"])
        file.extension.add(name="owner", number=50123, label=1, type=9, extendee=f".{options}")
        descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
        (numbers,) = await self.ask(caller, service, ServerReflectionRequest(all_extension_numbers_of_type=options))
        answer = numbers.all_extension_numbers_response
        assert answer.base_type_name == options
        assert 50123 in answer.extension_number
        wanted = {"containing_type": options, "extension_number": 50123}
        (found,) = await self.ask(caller, service, ServerReflectionRequest(file_containing_extension=wanted))
        files = map(FileDescriptorProto.FromString, found.file_descriptor_response.file_descriptor_proto)
        assert next(files).name == "owner.proto"

    async def test_malformed_requests_are_refused(self, caller: Caller, service: str) -> None:
        with pytest.raises(InvalidArgument, match="Malformed ServerReflectionRequest"):
            await anext(caller.stream(f"{service}ServerReflectionInfo", b"\xff"))
