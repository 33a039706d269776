"""A server whose responses are prepared, for gRPC and REST: the client's side is the only work that varies.

Run: `python benchmarks/client/server.py GRPC_PORT REST_PORT`. SIGTERM stops it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


import grpc
import uvicorn
import uvloop

from benchmarks.harness.mlp_model import INPUT, OUTPUT
from benchmarks.harness.targets import MODEL_NAME
from benchmarks.loadgen.body import grpc_answer, rest_answer

if TYPE_CHECKING:
    from benchmarks.harness.echo_asgi import Message, Receive, Send

SIGNATURE = {
    "inputs": {INPUT: {"dtype": "DT_FLOAT", "tensor_shape": {"dim": [{"size": "-1"}, {"size": "64"}]}}},
    "outputs": {OUTPUT: {"dtype": "DT_FLOAT", "tensor_shape": {"dim": [{"size": "-1"}, {"size": "64"}]}}},
    "method_name": "tensorflow/serving/predict",
}
METADATA = {
    "model_spec": {"name": MODEL_NAME, "version": "1"},
    "metadata": {"signature_def": {"signature_def": {"serving_default": SIGNATURE}}},
}


class PreparedHandler(grpc.GenericRpcHandler):
    """A handler that returns the same PredictResponse for each request."""

    def __init__(self) -> None:
        """Prepare the response."""
        answer = grpc_answer()

        async def respond(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
            return answer

        self._method: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(respond)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Return the same handler for every method."""
        return self._method


class PreparedApp:
    """An ASGI application that returns the model's metadata for GET, and one prediction for POST."""

    def __init__(self) -> None:
        """Prepare the responses."""
        self._bodies = {"GET": json.dumps(METADATA).encode(), "POST": rest_answer()}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Respond after the request's body."""
        while (await receive()).get("more_body"):
            pass
        body = self._bodies[scope["method"]]
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"x-tpuserve-model-version", b"1"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def serve(grpc_port: int, rest_port: int) -> None:
    """Serve on loopback ports until SIGTERM or SIGINT."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((PreparedHandler(),))
    server.add_insecure_port(f"127.0.0.1:{grpc_port}")
    await server.start()
    # The backlog takes a burst of connections. Connections stay open between the turns of a client.
    config = uvicorn.Config(
        PreparedApp(),
        port=rest_port,
        http="httptools",
        lifespan="off",
        log_level="warning",
        timeout_keep_alive=600,
    )
    await uvicorn.Server(config).serve()
    await server.stop(grace=1)


if __name__ == "__main__":
    uvloop.run(serve(*map(int, sys.argv[1:])))
