"""tritonclient's asyncio clients and its gRPC stream. tests/oip_clients/test_clients.py runs it."""

import queue
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException

from tests.oip_clients.checks import HALF, SIMPLE, TIMEOUT_S, Array, Server, refused, run_checks, same

FIRST, SECOND = np.arange(16, dtype=np.int32).reshape(1, 16), np.ones((1, 16), np.int32)


def pair(package: Any, first: Array = FIRST) -> list[Any]:  # noqa: ANN401 - tritonclient has no types
    return [
        package.InferInput(name, array.shape, "INT32").set_data_from_numpy(array)
        for name, array in (("INPUT0", first), ("INPUT1", SECOND))
    ]


async def check_http(server: Server) -> None:
    package = tritonclient.http.aio
    async with package.InferenceServerClient(server.rest) as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready(HALF)
        assert (await client.get_model_metadata(SIMPLE))["name"] == SIMPLE
        assert (await client.get_model_config(SIMPLE))["name"] == SIMPLE
        assert len((await client.get_inference_statistics(SIMPLE))["model_stats"]) == 1
        assert await client.get_model_repository_index()
        # This client accepts br and zstd, but cannot read them.
        same((await client.infer(SIMPLE, pair(package))).as_numpy("OUTPUT0"), FIRST + SECOND)
        for algorithm in ("gzip", "deflate"):
            result = await client.infer(
                SIMPLE,
                pair(package),
                request_compression_algorithm=algorithm,
                response_compression_algorithm=algorithm,
            )
            same(result.as_numpy("OUTPUT1"), FIRST - SECOND)
        with refused(InferenceServerException, "[404] Request for unknown model: 'nobody'"):
            await client.infer("nobody", pair(package))


async def check_grpc(server: Server) -> None:
    package = tritonclient.grpc.aio
    async with package.InferenceServerClient(server.grpc) as client:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert not await client.is_model_ready("nobody")
        assert (await client.get_model_metadata(SIMPLE)).name == SIMPLE
        assert (await client.get_model_config(SIMPLE)).config.name == SIMPLE
        same((await client.infer(SIMPLE, pair(package))).as_numpy("OUTPUT0"), FIRST + SECOND)
        with refused(InferenceServerException, "StatusCode.NOT_FOUND", "'nobody'"):
            await client.infer("nobody", pair(package))


async def check_grpc_stream_with_asyncio(server: Server) -> None:
    package = tritonclient.grpc.aio

    async def requests() -> AsyncIterator[dict[str, Any]]:
        for number in range(5):
            yield {"model_name": SIMPLE, "inputs": pair(package, FIRST + number), "request_id": str(number)}

    async with package.InferenceServerClient(server.grpc) as client:
        ids = []
        async for result, error in client.stream_infer(requests(), stream_timeout=TIMEOUT_S):
            assert error is None, error
            ids.append(result.get_response().id)
            same(result.as_numpy("OUTPUT0"), FIRST + int(ids[-1]) + SECOND)
        assert ids == ["0", "1", "2", "3", "4"]


def check_stream_keeps_the_order_and_survives_errors(server: Server) -> None:
    package = tritonclient.grpc
    responses: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with package.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: responses.put((result, error)), stream_timeout=TIMEOUT_S)
        client.async_stream_infer(SIMPLE, pair(package), request_id="first", enable_empty_final_response=True)
        client.async_stream_infer("nobody", pair(package), request_id="second")
        client.async_stream_infer(SIMPLE, pair(package)[:1], request_id="third")
        client.async_stream_infer(SIMPLE, pair(package), request_id="fourth", sequence_id=3, sequence_start=True)
        client.async_stream_infer(SIMPLE, pair(package), request_id="fifth")
        client.stop_stream()
    answers = [responses.get_nowait() for _ in range(5)]
    assert responses.empty()
    for (result, error), name in ((answers[0], "first"), (answers[4], "fifth")):
        assert error is None, error
        assert result.get_response().id == name
        assert result.get_response().parameters["triton_final_response"].bool_param
        same(result.as_numpy("OUTPUT0"), FIRST + SECOND)
    texts = [str(error) for _, error in answers[1:4]]
    assert "Request for unknown model: 'nobody' is not found" in texts[0], texts
    assert "expected 2 inputs but got 1 inputs" in texts[1], texts
    assert "parameter 'sequence_" in texts[2], texts


def check_cancelled_stream_ends(server: Server) -> None:
    package = tritonclient.grpc
    errors: queue.Queue[Any] = queue.Queue()
    with package.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: errors.put(error))
        client.async_stream_infer(SIMPLE, pair(package))
        assert errors.get(timeout=TIMEOUT_S) is None
        client.stop_stream(cancel_requests=True)
        assert "CANCELLED" in str(errors.get(timeout=TIMEOUT_S).status())
        same(client.infer(SIMPLE, pair(package)).as_numpy("OUTPUT0"), FIRST + SECOND)


if __name__ == "__main__":
    run_checks(globals())
