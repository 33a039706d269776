"""An ASGI application with prepared responses, for gRPC and REST: the client's side is the only work that varies."""

import json

from benchmarks.harness.echo_asgi import Message, Receive, Send, is_grpc, read_body, send_grpc, send_http
from benchmarks.harness.load_tools import framed
from benchmarks.harness.mlp_model import INPUT, OUTPUT
from benchmarks.harness.targets import MODEL_NAME
from benchmarks.loadgen.body import grpc_answer, rest_answer

SIGNATURE = {
    "inputs": {INPUT: {"dtype": "DT_FLOAT", "tensor_shape": {"dim": [{"size": "-1"}, {"size": "64"}]}}},
    "outputs": {OUTPUT: {"dtype": "DT_FLOAT", "tensor_shape": {"dim": [{"size": "-1"}, {"size": "64"}]}}},
    "method_name": "tensorflow/serving/predict",
}
METADATA = {
    "model_spec": {"name": MODEL_NAME, "version": "1"},
    "metadata": {"signature_def": {"signature_def": {"serving_default": SIGNATURE}}},
}
_GRPC_ANSWER = framed(grpc_answer())
# The model's metadata for GET, and one prediction for POST.
_REST_ANSWERS = {"GET": json.dumps(METADATA).encode(), "POST": rest_answer()}


async def app(scope: Message, receive: Receive, send: Send) -> None:
    """Respond after the request's body."""
    if scope["type"] != "http":
        return
    await read_body(receive)
    if is_grpc(scope):
        await send_grpc(_GRPC_ANSWER, send)
    else:
        await send_http(_REST_ANSWERS[scope["method"]], send, (b"x-tpuserve-model-version", b"1"))
