"""The handlers of Ray's proxies in a real gRPC server. A function takes the place of Ray's, which calls a replica."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc import StatusCode

from tpuserve_server.hosts.ray.ingress import TIMEOUT, IngressHandler, add_tpuserve_services
from tpuserve_server.protocols.grpc_methods import IN_RAY

_PATH, _STREAM = "/service/Method", "/service/Stream"
# grpcio leaves the contexts of calls untyped.
_Unary = Callable[[bytes, Any], Awaitable[bytes]]


async def _stream(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:  # noqa: ANN401 - as above
    async for request in requests:
        yield request
    context.set_code(StatusCode.INTERNAL)
    context.set_details("Traceback")


async def _call(unary: _Unary, timeout_s: float | None = None) -> bytes:
    """Return the response of `unary` behind the handler, or those of a stream for `_never`."""
    handler = IngressHandler(
        {
            _PATH: grpc.unary_unary_rpc_method_handler(unary),
            _STREAM: grpc.stream_stream_rpc_method_handler(_stream),
        }
    )
    server = grpc.aio.server(handlers=[handler])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            if unary is _never:
                streams: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(_STREAM)
                return b"".join([message async for message in streams(iter([b"a", b"b"]))])
            calls: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(_PATH)
            return await calls(b"request", timeout=timeout_s)
    finally:
        await server.stop(None)


async def _never(request: bytes, context: Any) -> bytes:  # noqa: ANN401 - as above
    raise AssertionError


async def test_the_replica_gets_the_remaining_time() -> None:
    async def unary(request: bytes, context: Any) -> bytes:  # noqa: ANN401 - as above
        return str(dict(context.invocation_metadata()).get(TIMEOUT)).encode()

    assert await _call(unary) == b"None"
    timeout = (await _call(unary, 50.0)).decode()
    assert timeout.endswith("m")
    # gRPC rounds up to three digits on the wire.
    assert 0 < int(timeout[:-1]) <= 51_000
    assert await _call(unary, 1e6) == b"99999999m"


@pytest.mark.parametrize("code", [StatusCode.INTERNAL, StatusCode.NOT_FOUND])
async def test_a_replicas_status_passes_unchanged(code: StatusCode) -> None:
    async def unary(request: bytes, context: Any) -> bytes:  # noqa: ANN401 - as above
        # Ray's order (RayServegRPCContext._set_on_grpc_context).
        context.set_code(code)
        context.set_details("of the replica")
        context.set_trailing_metadata([("request_id", "1"), ("grpc-retry-pushback-ms", "7")])
        return b""

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _call(unary)
    assert (caught.value.code(), caught.value.details()) == (code, "of the replica")
    assert dict(caught.value.trailing_metadata() or ())["grpc-retry-pushback-ms"] == "7"


@pytest.mark.parametrize(
    ("code", "shown", "details"),
    [
        (StatusCode.INTERNAL, StatusCode.UNAVAILABLE, "The replica of Ray Serve that had this request failed"),
        (StatusCode.RESOURCE_EXHAUSTED, StatusCode.RESOURCE_EXHAUSTED, "of Ray"),
    ],
)
async def test_a_lost_replica_is_unavailable(code: StatusCode, shown: StatusCode, details: str) -> None:
    async def unary(request: bytes, context: Any) -> bytes:  # noqa: ANN401 - as above
        assert (context.code(), context.details(), context.trailing_metadata()) == (None, "", ())
        context.set_code(code)
        context.set_details("of Ray: Traceback")
        return b""

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _call(unary)
    assert caught.value.code() is shown
    assert (caught.value.details() or "").startswith(details)


async def test_a_stream_of_a_lost_replica_is_unavailable() -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _call(_never)
    assert caught.value.code() is StatusCode.UNAVAILABLE


async def test_an_unknown_method_is_left_to_other_handlers() -> None:
    class Details:
        method = "/service/Unknown"

    assert IngressHandler({}).service(Details()) is None  # type: ignore[arg-type]  # the field that it reads


def test_every_method_of_every_service_is_registered() -> None:
    class Servicer:
        def __getattr__(self, name: str) -> str:
            return name

    class Server:
        def __init__(self) -> None:
            self.paths: set[str] = set()

        def add_generic_rpc_handlers(self, handlers: tuple[IngressHandler]) -> None:
            self.paths.update(handlers[0]._method_handlers)

    server = Server()
    add_tpuserve_services(Servicer(), server)  # type: ignore[arg-type]  # the method that it calls
    assert server.paths == {method.path for method in IN_RAY}
    # Ray finds the replica's method by its name alone.
    assert len({method.name for method in IN_RAY}) == len(IN_RAY)
