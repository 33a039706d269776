"""Byte echo on grpc.aio with a generic handler and uvloop: a lower bound for gRPC on the Python host.

Run: `python benchmarks/harness/echo_grpc_aio.py PORT [CERTIFICATE KEY]`. The two files enable TLS. SIGTERM stops it.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import grpc
import uvloop


async def echo(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
    """Return the request's bytes."""
    return request


class EchoHandler(grpc.GenericRpcHandler):
    """A handler that echoes every method of every service."""

    def __init__(self) -> None:
        self._method: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(echo)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Return the same handler for every method."""
        return self._method


async def serve(port: int, pem: list[Path]) -> None:
    """Serve on a loopback port until SIGTERM or SIGINT."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((EchoHandler(),))
    address = f"127.0.0.1:{port}"
    if pem:
        cert, key = (path.read_bytes() for path in pem)
        server.add_secure_port(address, grpc.ssl_server_credentials([(key, cert)]))
    else:
        server.add_insecure_port(address)
    await server.start()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
    await server.stop(grace=1)


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), [Path(name) for name in sys.argv[2:]]))
