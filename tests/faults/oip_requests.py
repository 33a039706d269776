"""Bad requests of the Open Inference Protocol, over gRPC and REST (cases 1 to 9)."""

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

from tests.faults.bad_request import BadRequest
from tests.faults.faulted_server import OIP_GRPC, OIP_REST, VERTEX, good_body
from tests.faults.json_requests import DEPTH, nest
from tpuserve_formats.messages.oip import ModelInferRequest

INVALID: Final = ("INVALID_ARGUMENT",)
X: Final[dict[str, Any]] = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
TEXT: Final[dict[str, Any]] = {"name": "text", "datatype": "BYTES", "shape": [1]}
LENGTH: Final = "inference-header-content-length"
Edit = Callable[[ModelInferRequest], object]
_SERVICE: Final = "/inference.GRPCInferenceService/"


def _set_raw(raw: bytes) -> Edit:
    return lambda message: message.raw_input_contents.__setitem__(0, raw)


def _set_shape(*shape: int) -> Edit:
    return lambda message: message.inputs[0].shape.__setitem__(slice(None), shape)


def _set_datatype(datatype: str) -> Edit:
    return lambda message: setattr(message.inputs[0], "datatype", datatype)


def _repeat_input(message: ModelInferRequest) -> None:
    message.inputs.append(message.inputs[0])
    message.raw_input_contents.append(message.raw_input_contents[0])


def _remove_input(message: ModelInferRequest) -> None:
    del message.inputs[:], message.raw_input_contents[:]


def _request_outputs(*names: str) -> Edit:
    return lambda message: [message.outputs.add(name=name) for name in names]


def _take_shared_memory(size_bytes: int) -> Edit:
    """Return a change that takes the input from shared memory that is not registered."""

    def edit(message: ModelInferRequest) -> None:
        del message.raw_input_contents[:]
        message.inputs[0].parameters["shared_memory_region"].string_param = "none"
        message.inputs[0].parameters["shared_memory_byte_size"].int64_param = size_bytes

    return edit


_EDITS: Final[tuple[tuple[int, str, Edit, tuple[str, ...]], ...]] = (
    (4, "input twice", _repeat_input, INVALID),
    (4, "output twice", _request_outputs("y", "y"), (*INVALID, "OK")),
    (5, "no input", _remove_input, INVALID),
    (5, "unknown input", lambda message: setattr(message.inputs[0], "name", "z"), INVALID),
    (5, "unknown output", _request_outputs("z"), INVALID),
    (5, "unknown model", lambda message: setattr(message, "model_name", "z"), ("NOT_FOUND", *INVALID)),
    (6, "INT32 for FP32", _set_datatype("INT32"), INVALID),
    (6, "unknown datatype", _set_datatype("FLOAT"), INVALID),
    (6, "rank 1", _set_shape(4), INVALID),
    (7, "negative shape", _set_shape(-2, -2), INVALID),
    (7, "no rows", _set_shape(0, 2), INVALID),
    (7, "shape [2^62, 4]", _set_shape(2**62, 4), INVALID),
    (7, "shape [2^40, 2]", _set_shape(2**40, 2), INVALID),
    (7, "10,000 dimensions", _set_shape(*[1] * 10_000), INVALID),
    (8, "3 of 16 bytes", _set_raw(bytes(3)), INVALID),
    (8, "20 of 16 bytes", _set_raw(bytes(20)), INVALID),
    (8, "raw and typed contents", lambda message: message.inputs[0].contents.fp32_contents.append(1), INVALID),
    (8, "more raw contents than inputs", lambda message: message.raw_input_contents.append(b""), INVALID),
    (8, "shared memory of no region", _take_shared_memory(16), ("NOT_FOUND",)),
    (8, "shared memory of negative size", _take_shared_memory(-1), INVALID),
)  # fmt: skip

_STRINGS: Final = (
    ("a length cut short", b"\4\0\0"),
    ("a string cut short", b"\4\0\0\0tex"),
    ("a length of 2^32 - 1", b"\377" * 4),
    ("two strings for one", b"\0" * 8),
)


def _grpc_requests() -> Iterator[BadRequest]:
    for case, fault, edit, expected in _EDITS:
        message = ModelInferRequest.FromString(good_body(OIP_GRPC))
        edit(message)
        yield BadRequest(case, fault, OIP_GRPC, message.SerializeToString(), expected)
    for fault, raw in _STRINGS:
        item = ModelInferRequest.InferInputTensor(name="text", datatype="BYTES", shape=[1])
        message = ModelInferRequest(model_name="m", inputs=[item], raw_input_contents=[raw])
        message.parameters["signature_name"].string_param = "echo"
        yield BadRequest(8, f"BYTES: {fault}", OIP_GRPC, message.SerializeToString(), INVALID)
    for name in ("ModelInfer", "ModelMetadata", "ModelReady", "RepositoryIndex", "TraceSetting", "LogSettings"):
        yield BadRequest(1, f"{name}: no message", OIP_GRPC, b"\xff\xff\xff", INVALID, path=_SERVICE + name)
    yield BadRequest(1, "truncated message", OIP_GRPC, good_body(OIP_GRPC)[:-3], INVALID)
    yield BadRequest(2, "10,000 nested groups", OIP_GRPC, b"\x7b" * 10_000 + b"\x7c" * 10_000, INVALID)
    control = ModelInferRequest.FromString(good_body(OIP_GRPC))
    control.model_name = "m\n\x1b[31m"
    yield BadRequest(
        42, "control characters in the name", OIP_GRPC, control.SerializeToString(), ("NOT_FOUND", *INVALID)
    )


_DOCUMENTS: Final[tuple[tuple[int, str, object], ...]] = (
    (1, "a list, no object", []),
    (4, "input twice", {"inputs": [X, X]}),
    (5, "no inputs", {}),
    (5, "inputs: null", {"inputs": None}),
    (5, "unknown input", {"inputs": [{**X, "name": "z"}]}),
    (5, "unknown output", {"inputs": [X], "outputs": [{"name": "z"}]}),
    (5, "an input without a name", {"inputs": [{key: X[key] for key in ("datatype", "shape", "data")}]}),
    (6, "unknown datatype", {"inputs": [{**X, "datatype": "FLOAT"}]}),
    (6, "strings for floats", {"inputs": [{**X, "data": ["a", "b"]}]}),
    (6, "ragged data", {"inputs": [{**X, "shape": [2, 2], "data": [[1, 2], [3]]}]}),
    (6, "rank 1", {"inputs": [{**X, "shape": [2]}]}),
    (7, "negative shape", {"inputs": [{**X, "shape": [-1, 2]}]}),
    (7, "shape [2^62, 4]", {"inputs": [{**X, "shape": [2**62, 4]}]}),
    (7, "shape [2^70, 1]", {"inputs": [{**X, "shape": [2**70, 1]}]}),
    (7, "a float in the shape", {"inputs": [{**X, "shape": [1.5, 2]}]}),
    (7, "10,000 dimensions", {"inputs": [{**X, "shape": [1] * 10_000}]}),
    (8, "1 value for 2", {"inputs": [{**X, "data": [1]}]}),
    (8, "3 values for 2", {"inputs": [{**X, "data": [1, 2, 3]}]}),
    (8, "data and a binary size", {"inputs": [{**X, "parameters": {"binary_data_size": 8}}]}),
    (8, "shared memory of no region", {"inputs": [{**X, "data": [], "parameters": {"shared_memory_region": "none"}}]}),
)  # fmt: skip


def _rest_requests() -> Iterator[BadRequest]:
    for protocol in (OIP_REST, VERTEX):
        for case, fault, document in _DOCUMENTS:
            if protocol == VERTEX and "inputs" not in json.dumps(document):
                continue
            yield BadRequest(case, fault, protocol, json.dumps(document).encode(), ("400",))
    good = json.dumps({"inputs": [X]})
    for case, fault, body in (
        (1, "empty body", ""),
        (1, "truncated JSON", good[:-4]),
        (2, "101 levels of data", json.dumps({"inputs": [{**X, "data": "D"}]}).replace('"D"', nest(DEPTH))),
        (2, "100,000 levels in an unknown key", f'{{"other": {nest(100_000)}, "inputs": [{json.dumps(X)}]}}'),
        (4, "inputs twice", f'{{"inputs": [{json.dumps(X)}], "inputs": [{json.dumps(X)}]}}'),
        (4, "data twice", good.replace('"data"', '"data": [3, 4], "data"')),
    ):
        yield BadRequest(case, fault, OIP_REST, body.encode(), ("400",))


def _binary_requests() -> Iterator[BadRequest]:
    """Yield bodies whose binary part and its lengths do not fit (cases 8 and 9)."""
    good = json.dumps({"inputs": [X]}).encode()
    for length in ("-1", "x", "1.5", "100000", "99999999999999999999", "1", "0x10", "", "+5", "1e2"):
        yield BadRequest(9, f"header length {length!r}", OIP_REST, good, ("400",), headers={LENGTH: length})
    for size in (-8, 5, 2**62, 2**70, "8", None, 8.5):
        item = {"name": "x", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": size}}
        text = json.dumps({"inputs": [item]}).encode()
        headers = {LENGTH: str(len(text))}
        yield BadRequest(9, f"binary_data_size {size!r}", OIP_REST, text + bytes(8), ("400",), headers=headers)
        media = {"content-type": f"application/vnd.vertex-ai-triton.binary+json;json-header-size={len(text)}"}
        yield BadRequest(9, f"binary_data_size {size!r}", VERTEX, text + bytes(8), ("400",), headers=media)
    for size in ("-1", "x", "99999999999999999999"):
        media = {"content-type": f"application/vnd.vertex-ai-triton.binary+json;json-header-size={size}"}
        yield BadRequest(9, f"json-header-size {size}", VERTEX, good, ("400",), headers=media)
    for fault, raw in _STRINGS:
        item = {**TEXT, "parameters": {"binary_data_size": len(raw)}}
        text = json.dumps({"inputs": [item], "parameters": {"signature_name": "echo"}}).encode()
        yield BadRequest(8, f"BYTES: {fault}", OIP_REST, text + raw, ("400",), headers={LENGTH: str(len(text))})


def oip_requests() -> Iterator[BadRequest]:
    """Yield the requests of the Open Inference Protocol."""
    yield from _grpc_requests()
    yield from _rest_requests()
    yield from _binary_requests()
