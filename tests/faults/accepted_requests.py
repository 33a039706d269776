"""Valid twins of bad requests: each looks like a refused one, and must be answered (cases 1 to 9, 11, 24, 31)."""

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from tests.faults.faulted_server import OIP_GRPC, OIP_REST, TF_GRPC, TF_REST, VERTEX
from tests.faults.json_requests import GOOD, nest
from tests.faults.oip_requests import LENGTH, TEXT
from tests.faults.oip_requests import X as OIP_X
from tests.faults.proto_requests import X, predict_body, predict_message, repeated
from tpuserve_formats.messages.oip import ModelInferRequest

# The largest number of levels, without those of the document.
DEPTH: Final = 99


@dataclass(frozen=True, slots=True)
class Accepted:
    """A valid request, and bytes that its response holds. JSON is compared without spaces."""

    case: int
    name: str
    protocol: str
    body: bytes
    holds: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.case}-{self.protocol}-{self.name}".replace(" ", "_")


# case, name, body, part of the response.
_JSON: Final = (
    (1, "spaces and line ends around everything", '\r\n\t {\n "instances" : [ [ 1 , 2 ] ] } \r\n', "[[2.0,4.0]]"),
    (2, "99 levels in an unknown key", f'{{"other": {nest(DEPTH)}, "instances": [[1, 2]]}}', "[[2.0,4.0]]"),
    (3, "largest int32", '{"signature_name": "lookup", "instances": [2, 0]}', "[30,10]"),
    (3, "float32's largest value", '{"instances": [[1.7e38, 0]]}', "[[3.4"),
    (4, "an input in each of two rows", '{"instances": [{"x": [1, 2]}, {"x": [1, 2]}]}', "[[2.0,4.0],[2.0,4.0]]"),
    (5, "empty signature name", '{"signature_name": "", "instances": [[1, 2]]}', "[[2.0,4.0]]"),
    (6, "integers for floats", '{"instances": [[1, 2.0]]}', "[[2.0,4.0]]"),
    (6, "empty base64", '{"signature_name": "echo", "instances": [{"b64": ""}]}', '[""]'),
    (7, "columns of no rows", '{"signature_name": "add", "inputs": {"a": [], "b": []}}', "[]"),
    (24, "8 rows for batches of 8", json.dumps({"instances": [[1, 2]] * 8}), "[[2.0,4.0]" + ",[2.0,4.0]" * 7),
)  # fmt: skip


def accepted_requests() -> Iterator[Accepted]:
    """Yield the requests of every protocol."""
    for case, name, text, holds in _JSON:
        yield Accepted(case, name, TF_REST, text.encode(), holds.encode())
    yield from _encodings()
    yield from _protos()
    yield from _oip_protos()
    yield from _oip_documents()


def _encodings() -> Iterator[Accepted]:
    infer = json.dumps({"inputs": [OIP_X]}).encode()
    for protocol, body, holds in (
        (TF_REST, GOOD, b"[[2.0,4.0]]"),
        (VERTEX, GOOD, b"[[2.0,4.0]]"),
        (OIP_REST, infer, b"[2.0,4.0]"),
    ):
        # An inference request may have 1 MiB of JSON without its data.
        spaces = body + b" " * (1 << 19)
        for encoding, name, sent in (
            ("gzip", "gzip", gzip.compress(body)),
            ("deflate", "deflate", zlib.compress(body)),
            ("identity", "identity", body),
            ("gzip", "gzip of 512 KiB of spaces", gzip.compress(spaces)),
        ):
            yield Accepted(11, name, protocol, sent, holds, {"content-encoding": encoding})


def _protos() -> Iterator[Accepted]:
    doubled = (2 * X).tobytes()
    # Groups (wire type 3) of the unknown field 15, one within another.
    groups = b"\x7b" * 90 + b"\x7c" * 90
    yield Accepted(1, "unknown fields", TF_GRPC, predict_body(x=X) + b"\xf8\x01\x00", doubled)
    yield Accepted(2, "90 nested groups", TF_GRPC, predict_body(x=X) + groups, doubled)
    filtered = predict_message(x=X)
    filtered.output_filter.append("y")
    yield Accepted(4, "an output once", TF_GRPC, filtered.SerializeToString(), doubled)
    yield Accepted(5, "the version", TF_GRPC, predict_body(x=X, version=3), doubled)
    yield Accepted(7, "no rows", TF_GRPC, predict_body(x=X[:0]), b"y")
    typed = repeated(1, (1, 2), float_val=[1, 1])
    yield Accepted(8, "as many values as elements", TF_GRPC, predict_body(x=typed), doubled)
    yield Accepted(
        8, "one value for every element", TF_GRPC, predict_body(x=repeated(1, (1, 2), float_val=[1])), doubled
    )
    yield Accepted(24, "8 rows for batches of 8", TF_GRPC, predict_body(x=np.repeat(X, 8, 0)), doubled * 8)
    texts = repeated(7, (8,), string_val=[b"same"])
    yield Accepted(31, "one string 8 times", TF_GRPC, predict_body("echo", text=texts), b"\x04same")


def _oip_protos() -> Iterator[Accepted]:
    doubled = (2 * X).tobytes()

    def infer(shape: tuple[int, ...], raw: bytes | None = None, typed: tuple[float, ...] = ()) -> ModelInferRequest:
        item = ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=shape)
        item.contents.fp32_contents.extend(typed)
        return ModelInferRequest(model_name="m", inputs=[item], raw_input_contents=[] if raw is None else [raw])

    plain = infer((1, 2), X.tobytes()).SerializeToString()
    yield Accepted(1, "unknown fields", OIP_GRPC, plain + b"\xf8\x01\x00", doubled)
    yield Accepted(2, "90 nested groups", OIP_GRPC, plain + b"\x7b" * 90 + b"\x7c" * 90, doubled)
    once = infer((1, 2), X.tobytes())
    once.outputs.add(name="y")
    yield Accepted(4, "an output once", OIP_GRPC, once.SerializeToString(), doubled)
    yield Accepted(7, "no rows", OIP_GRPC, infer((0, 2), b"").SerializeToString(), b"y")
    yield Accepted(8, "typed contents", OIP_GRPC, infer((1, 2), typed=(1, 1)).SerializeToString(), doubled)
    item = ModelInferRequest.InferInputTensor(name="text", datatype="BYTES", shape=[2])
    texts = ModelInferRequest(model_name="m", inputs=[item], raw_input_contents=[b"\0\0\0\0\1\0\0\0a"])
    texts.parameters["signature_name"].string_param = "echo"
    yield Accepted(8, "BYTES: an empty string", OIP_GRPC, texts.SerializeToString(), b"\0\0\0\0\1\0\0\0a")


def _oip_documents() -> Iterator[Accepted]:
    def document(**changes: Any) -> str:  # noqa: ANN401 - JSON
        return json.dumps({"inputs": [{**OIP_X, **changes}]})

    for case, name, text, holds in (
        (2, "99 levels in an unknown key", f'{{"other": {nest(DEPTH)}, {document()[1:]}', b"[2.0,4.0]"),
        (4, "an output once", document()[:-1] + ', "outputs": [{"name": "y"}]}', b"[2.0,4.0]"),
        (6, "nested data", document(data=[[1, 2]]), b"[2.0,4.0]"),
        (7, "no rows", document(shape=[0, 2], data=[]), b'"data":[]'),
    ):
        yield Accepted(case, name, OIP_REST, text.encode(), holds)
    whole = document().encode()
    yield Accepted(9, "a header of the whole body", OIP_REST, whole, b"[2.0,4.0]", {LENGTH: str(len(whole))})
    item = {"name": "x", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}
    header = json.dumps({"inputs": [item]}).encode()
    yield Accepted(9, "binary data", OIP_REST, header + X.tobytes(), b"[2.0,2.0]", {LENGTH: str(len(header))})
    empty = {**TEXT, "parameters": {"binary_data_size": 4}}
    header = json.dumps({"inputs": [empty], "parameters": {"signature_name": "echo"}}).encode()
    yield Accepted(8, "BYTES: an empty string", OIP_REST, header + bytes(4), b'[""]', {LENGTH: str(len(header))})
