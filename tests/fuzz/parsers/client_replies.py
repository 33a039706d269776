"""The client library's readers of replies: a broken server must cause a TpuserveError, and nothing else."""

import json
import math
from collections.abc import Callable, Mapping

import numpy as np

from tests.fuzz.parsers.header_lines import read_lines
from tests.fuzz.parsers.json_words import REPLY_WORDS
from tests.fuzz.target import Target
from tpuserve_client import rest_transport
from tpuserve_client.errors import TpuserveError
from tpuserve_client.exchange import ExampleCall, PredictCall, Reply, Wire
from tpuserve_client.grpc_wire import GrpcWire
from tpuserve_client.model import ModelSpec, Prediction, Signature, TensorSpec
from tpuserve_client.oip_grpc_wire import OipGrpcWire
from tpuserve_client.oip_rest_wire import OipRestWire
from tpuserve_client.rest_wire import RestWire

_SPEC = ModelSpec("m")
_PREDICT = PredictCall(_SPEC, {"x": np.zeros(1, np.float32)})
_EXAMPLES = ExampleCall(_SPEC, [{}])
_OUTPUTS = {
    "y": TensorSpec("y", np.dtype(np.float32), None),
    "s": TensorSpec("s", np.dtype(np.object_), (None, 2)),
    "h": TensorSpec("h", np.dtype(np.float16), (None,)),
}
_ONE = Signature("serving_default", {}, {"y": _OUTPUTS["y"]})
_TEXT = Signature("serving_default", {}, {"s": _OUTPUTS["s"]})
_ALL = Signature("serving_default", {}, _OUTPUTS)
_MOST_LISTED = 10_000
# By the first byte of an input.
_WIRES: Mapping[bytes, Wire] = {b"g": GrpcWire(), b"r": RestWire(), b"G": OipGrpcWire(), b"R": OipRestWire()}
_IN_ORDER = tuple(_WIRES.values())


def run(data: bytes) -> bool:
    """Read a reply as every kind. The first byte selects the protocol; header lines and an empty line may follow."""
    wire = _WIRES.get(data[:1]) or _IN_ORDER[ord(data[:1] or b"0") % len(_IN_ORDER)]
    headers, body = read_lines(data[1:]) if b"\n\n" in data else ([], data[1:])
    reply = Reply(body, {name.decode("latin-1"): value.decode("latin-1") for name, value in headers})
    reads: list[Callable[[], object]] = [
        lambda: _read_prediction(wire, reply, _ONE),
        lambda: _read_prediction(wire, reply, _TEXT),
        lambda: _read_prediction(wire, reply, _ALL),
        lambda: wire.read_metadata(reply, _SPEC),
        lambda: wire.read_status(reply),
        lambda: wire.read_model_ready(reply),
        lambda: wire.read_classifications(reply, _EXAMPLES),
        lambda: wire.read_regressions(reply, _EXAMPLES),
    ]
    # These succeed for nearly every reply.
    _succeeds(lambda: rest_transport._retry_after_s(reply.headers.get("retry-after")))
    _succeeds(lambda: wire.version(reply))
    _succeeds(lambda: wire.read_ready(reply))
    succeeded = [_succeeds(read) for read in reads]
    return any(succeeded)


def _read_prediction(wire: Wire, reply: Reply, signature: Signature) -> None:
    prediction: Prediction = wire.read_prediction(reply, _PREDICT, signature)
    # Nested lists of an empty array have its other sizes.
    if all(math.prod(size or 1 for size in array.shape) <= _MOST_LISTED for array in prediction.values()):
        json.dumps(prediction.to_dict())


def _succeeds(read: Callable[[], object]) -> bool:
    try:
        read()
    except TpuserveError:
        return False
    return True


TARGET = Target(run, max_bytes=6000, words=(*REPLY_WORDS, b"inference-header-content-length: 10\n\n", b"retry-after: "))
