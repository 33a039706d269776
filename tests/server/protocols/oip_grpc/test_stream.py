"""Tests for ModelStreamInfer."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator

import numpy as np
import pytest

from tests.support.fakes import FakeClock, FakeMetrics, FakeService, Finished, Prediction
from tpuserve_formats.messages.oip import ModelInferRequest, ModelStreamInferResponse
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import Cancelled, Code, NotFound, Unavailable
from tpuserve_server.core.terms.types import PredictResult
from tpuserve_server.protocols.oip_grpc.inference import MAX_PENDING
from tpuserve_server.protocols.rpc import CallContext, StreamMethod
from tpuserve_server.protocols.table import rpc_table


def request(number: float, model: str = "m", **parameters: bool) -> bytes:
    tensor = ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1])
    message = ModelInferRequest(
        model_name=model, id=str(number), inputs=[tensor], raw_input_contents=[np.float32(number).tobytes()]
    )
    for name, value in parameters.items():
        message.parameters[name].bool_param = value
    return message.SerializeToString()


async def one_by_one(*requests: bytes) -> AsyncIterator[bytes]:
    for each in requests:
        yield each


class Stream:
    """The method over a fake service."""

    def __init__(self, service: FakeService, max_request_bytes: int = 1 << 20) -> None:
        self.service = service
        self.metrics = FakeMetrics()
        self._table = rpc_table(service, self.metrics, FakeClock(), max_request_bytes=max_request_bytes)

    def open(self, requests: AsyncIterator[bytes], **metadata: str) -> AsyncGenerator[bytes, None]:
        method = self._table["/inference.GRPCInferenceService/ModelStreamInfer"]
        assert isinstance(method, StreamMethod)
        messages = method.handle(requests, CallContext(Deadline(1234.5), metadata))
        assert isinstance(messages, AsyncGenerator)
        return messages

    async def all(self, *requests: bytes, **metadata: str) -> list[ModelStreamInferResponse]:
        messages = self.open(one_by_one(*requests), **metadata)
        return [ModelStreamInferResponse.FromString(message) async for message in messages]


@pytest.fixture
def stream() -> Stream:
    return Stream(FakeService())


async def test_each_request_has_one_final_response_in_order(stream: Stream) -> None:
    responses = await stream.all(*(request(number, triton_enable_empty_final_response=True) for number in range(5)))
    assert [response.infer_response.id for response in responses] == ["0", "1", "2", "3", "4"]
    assert [np.frombuffer(r.infer_response.raw_output_contents[0], "f")[0] for r in responses] == [2, 2.5, 3, 3.5, 4]
    assert all(r.infer_response.parameters["triton_final_response"].bool_param for r in responses)
    assert stream.metrics.finished == [Finished("m", "ModelStreamInfer", "grpc", Code.OK, 0.0)] * 5


async def test_an_error_is_a_message_and_the_stream_goes_on(stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    responses = await stream.all(request(1), request(2, model="n"), b"\xff", request(3))
    assert [response.error_message for response in responses] == [
        "",
        "Request for unknown model: 'n' is not found",
        "Malformed ModelInferRequest",
        "",
    ]
    refused = responses[1].infer_response
    assert (refused.id, refused.model_name) == ("2", "n")
    assert refused.parameters["triton_final_response"].bool_param
    stream.service.fault = ZeroDivisionError("secret")
    with caplog.at_level(logging.ERROR):
        assert [response.error_message for response in await stream.all(request(4))] == ["Internal error"]
    assert "secret" in caplog.text


@pytest.mark.parametrize("fault", [Unavailable("full"), ZeroDivisionError()])
async def test_a_client_can_request_a_status_instead(stream: Stream, fault: Exception) -> None:
    stream.service.fault = fault
    with pytest.raises(type(fault)):
        await stream.all(request(1), request(2), triton_grpc_error="true")


async def test_requests_of_a_stream_run_at_the_same_time_and_keep_their_order() -> None:
    class Backwards(FakeService):
        """Completes requests in the opposite order of their arrival."""

        def __init__(self) -> None:
            super().__init__()
            self.events: list[asyncio.Event] = []

        async def run_prediction(self, request: Prediction) -> PredictResult:
            self.events.append(mine := asyncio.Event())
            if len(self.events) == 4:
                mine.set()
            await mine.wait()
            index = self.events.index(mine)
            if index:
                self.events[index - 1].set()
            return await super().run_prediction(request)

    service = Backwards()
    responses = await Stream(service).all(*(request(number) for number in range(4)))
    assert [response.infer_response.id for response in responses] == ["0", "1", "2", "3"]
    assert [float(done.inputs["x"][0]) for done in service.requests] == [3, 2, 1, 0]


async def test_a_client_that_reads_nothing_has_a_bounded_number_of_requests(stream: Stream) -> None:
    read = 0

    async def requests() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 1
            yield request(read)

    messages = stream.open(requests())
    await anext(messages)
    for _ in range(1000):
        await asyncio.sleep(0)
    assert MAX_PENDING <= read <= MAX_PENDING + 2
    await messages.aclose()
    for _ in range(10):
        await asyncio.sleep(0)
    assert read <= MAX_PENDING + 2


@pytest.mark.parametrize("is_answered", [True, False])
async def test_a_stream_has_a_bounded_number_of_bytes_in_flight(is_answered: bool) -> None:
    service, read = FakeService(), 0

    async def requests() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 1
            yield request(1)

    async def wait() -> None:
        for _ in range(1000):
            await asyncio.sleep(0)

    messages = Stream(service, max_request_bytes=3 * len(request(1))).open(requests())
    if is_answered:
        await anext(messages)
        await wait()
        # Responses that the client has not read count with their own size.
        assert 2 <= read < 8
    else:
        service.gate.clear()
        first = asyncio.ensure_future(anext(messages))
        await wait()
        assert read == 3
        service.gate.set()
        await first
    before = read
    for _ in range(20):
        await anext(messages)
    assert before < 20 <= read < 30
    await messages.aclose()


async def test_a_request_larger_than_the_limit_of_a_stream_runs_alone() -> None:
    messages = Stream(FakeService(), max_request_bytes=1).open(one_by_one(request(1), request(2), request(3)))
    assert [ModelStreamInferResponse.FromString(each).infer_response.id async for each in messages] == ["1", "2", "3"]


@pytest.mark.parametrize("by_closing", [True, False])
async def test_a_cancelled_stream_frees_its_requests(stream: Stream, by_closing: bool) -> None:
    read, never = asyncio.Event(), asyncio.Event()

    async def requests() -> AsyncIterator[bytes]:
        for number in range(3):
            yield request(number)
        read.set()
        await never.wait()

    messages = stream.open(requests())
    if by_closing:
        await anext(messages)
    stream.service.gate.clear()
    if by_closing:
        await messages.aclose()
    else:
        task = asyncio.ensure_future(anext(messages))
        await read.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert stream.service.cancelled == 3
    assert all(acquired.released for acquired in stream.service.acquired)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_error_of_reading_ends_the_stream_after_the_earlier_responses(stream: Stream) -> None:
    async def requests() -> AsyncIterator[bytes]:
        yield request(1)
        raise Cancelled("The client disconnected")

    messages = stream.open(requests())
    assert ModelStreamInferResponse.FromString(await anext(messages)).infer_response.id == "1"
    with pytest.raises(Cancelled):
        await anext(messages)


async def test_an_empty_stream_ends(stream: Stream) -> None:
    assert await stream.all() == []


async def test_the_end_of_a_stream_with_a_status_takes_every_error(stream: Stream) -> None:
    with pytest.raises(NotFound):
        await stream.all(*[request(1, model="n")] * 3, triton_grpc_error="true")
