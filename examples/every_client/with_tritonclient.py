"""Ask through tritonclient: HTTP and gRPC, both also with asyncio, and a gRPC stream.

.oip-clients/bin/python -m examples.every_client.with_tritonclient GRPC_ADDRESS REST_ADDRESS
"""

import asyncio
import queue
from types import ModuleType
from typing import Any

import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio

from examples.every_client.question import INPUT, MEASURES, MODEL, PROBABILITIES, SPECIES, Outputs, Server, ask_all

TIMEOUT_S = 60.0


def over_http(server: Server, *, binary: bool = True) -> Outputs:
    """Send the tensors in binary, or as JSON."""
    client = tritonclient.http.InferenceServerClient(server.rest)
    measures = tritonclient.http.InferInput(INPUT, MEASURES.shape, "FP32").set_data_from_numpy(MEASURES, binary)
    wanted = [tritonclient.http.InferRequestedOutput(name, binary_data=binary) for name in (PROBABILITIES, SPECIES)]
    try:
        return _outputs(client.infer(MODEL, [measures], outputs=wanted))
    finally:
        client.close()


def over_http_json(server: Server) -> Outputs:
    return over_http(server, binary=False)


def over_http_gzip(server: Server) -> Outputs:
    """Compress the request and the response."""
    client = tritonclient.http.InferenceServerClient(server.rest)
    compressed = {"request_compression_algorithm": "gzip", "response_compression_algorithm": "gzip"}
    try:
        return _outputs(client.infer(MODEL, _inputs(tritonclient.http), **compressed))
    finally:
        client.close()


def over_http_asyncio(server: Server) -> Outputs:
    async def ask() -> Outputs:
        async with tritonclient.http.aio.InferenceServerClient(server.rest) as client:
            return _outputs(await client.infer(MODEL, _inputs(tritonclient.http.aio)))

    return asyncio.run(ask())


def over_grpc(server: Server) -> Outputs:
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        return _outputs(client.infer(MODEL, _inputs(tritonclient.grpc), client_timeout=TIMEOUT_S))


def over_grpc_asyncio(server: Server) -> Outputs:
    async def ask() -> Outputs:
        async with tritonclient.grpc.aio.InferenceServerClient(server.grpc) as client:
            return _outputs(await client.infer(MODEL, _inputs(tritonclient.grpc.aio), client_timeout=TIMEOUT_S))

    return asyncio.run(ask())


def over_grpc_stream(server: Server) -> Outputs:
    """Send one request in a stream, and take its response from the callback."""
    responses: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: responses.put((result, error)), stream_timeout=TIMEOUT_S)
        client.async_stream_infer(MODEL, _inputs(tritonclient.grpc))
        result, error = responses.get(timeout=TIMEOUT_S)
        client.stop_stream()
    if error is not None:
        raise error
    return _outputs(result)


def _inputs(package: ModuleType) -> list[Any]:
    return [package.InferInput(INPUT, MEASURES.shape, "FP32").set_data_from_numpy(MEASURES)]


def _outputs(result: Any) -> Outputs:  # noqa: ANN401 - each package has its own InferResult
    return {name: result.as_numpy(name) for name in (PROBABILITIES, SPECIES)}


if __name__ == "__main__":
    ask_all(
        {
            "tritonclient.http, binary": over_http,
            "tritonclient.http, JSON": over_http_json,
            "tritonclient.http, gzip": over_http_gzip,
            "tritonclient.http.aio": over_http_asyncio,
            "tritonclient.grpc": over_grpc,
            "tritonclient.grpc.aio": over_grpc_asyncio,
            "tritonclient.grpc, stream": over_grpc_stream,
        }
    )
