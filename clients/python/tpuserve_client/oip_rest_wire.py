"""Bodies of the Open Inference Protocol over HTTP: bytes in, bytes out, without an HTTP client.

Tensors are binary data after the JSON object, in requests and in responses. A response may also contain JSON data.
Source: Triton's "Binary Tensor Data Extension" (server/docs/protocol/extension_binary_data.md).
"""

import json
from functools import lru_cache
from typing import Any, ClassVar, Final, TypeAlias
from urllib.parse import quote

from tpuserve_client.dtypes import Array
from tpuserve_client.errors import Internal, InvalidArgument, TpuserveError, Unavailable
from tpuserve_client.exchange import Exchange, PredictCall, Reply
from tpuserve_client.json_reply import parse_object
from tpuserve_client.model import Metadata, ModelSpec, Prediction, Signature, VersionStatus
from tpuserve_client.names import shown
from tpuserve_client.oip_json_tensor import from_json
from tpuserve_client.oip_wire import (
    NOT_READY,
    InputTensor,
    OipWire,
    TensorMetadata,
    input_tensors,
    metadata,
    prediction,
    refuse_labels,
    request_parameters,
    statuses,
    version_text,
)
from tpuserve_formats.oip.raw_tensor import decode_raw

# Length of the JSON object in bytes, of a body with binary data.
HEADER_LENGTH: Final = "inference-header-content-length"

# Spaces fill the JSON object, so that the first tensor begins at a multiple of the largest element.
_ALIGNMENT_BYTES: Final = 8
_LONGEST_NUMBER: Final = 19

_to_text = json.JSONEncoder(separators=(",", ":")).encode
_Json: TypeAlias = Any  # any result of json.loads; read defensively below


class OipRestWire(OipWire):
    """Wire over JSON with binary tensors. Replies contain their version and their datatypes."""

    # Triton answers 400 if the server or the model is not ready. A readiness request has no arguments to refuse.
    not_ready: ClassVar[tuple[type[TpuserveError], ...]] = (Unavailable, InvalidArgument)

    def predict(self, call: PredictCall) -> Exchange:
        tensors = input_tensors(call)
        text = _to_text(_document(call, tensors)).encode()
        text += b" " * (-len(text) % _ALIGNMENT_BYTES)
        headers = {
            HEADER_LENGTH: str(len(text)),
            # KServe parses a body of type application/json as a whole.
            "content-type": "application/octet-stream",
            # Triton would compress the tensors, which takes longer than to send them.
            "accept-encoding": "identity",
        }
        body = b"".join([text, *(tensor.data for tensor in tensors)])
        return Exchange(f"{_model_path(call.spec)}/infer", body, headers=headers)

    def read_prediction(self, reply: Reply, call: PredictCall, signature: Signature | None) -> Prediction:
        try:
            document, binary = _split(reply)
            outputs = _outputs(document.get("outputs"), binary)
        except (ValueError, RecursionError) as error:  # the latter for deeply nested data
            raise Internal(f"Model {call.spec} returned an invalid response: {error}") from None
        return prediction(call, outputs, call.spec.name, document.get("model_version"))

    def metadata(self, spec: ModelSpec, *, with_labels: bool = False) -> Exchange:
        refuse_labels(with_labels=with_labels)
        return Exchange(_model_path(spec), method="GET")

    def read_metadata(self, reply: Reply, spec: ModelSpec) -> Metadata:
        try:
            document = parse_object(reply.body)
            inputs, outputs = (_tensors(document.get(key), key) for key in ("inputs", "outputs"))
            return metadata(spec, spec.name, _versions(document), inputs, outputs)
        except ValueError as error:
            raise Internal(f"The server's metadata of model {spec} is invalid: {error}") from None

    def status(self, spec: ModelSpec) -> Exchange:
        return self.metadata(spec)

    def read_status(self, reply: Reply) -> tuple[VersionStatus, ...]:
        try:
            return statuses(_versions(parse_object(reply.body)))
        except ValueError as error:
            raise Internal(f"The server's metadata is invalid: {error}") from None

    def ready(self) -> Exchange:
        return Exchange("/v2/health/ready", method="GET")

    def read_ready(self, reply: Reply) -> bool:
        return not _denies_ready(reply.body)

    def model_ready(self, spec: ModelSpec) -> Exchange:
        return Exchange(f"{_model_path(spec)}/ready", method="GET")

    def read_model_ready(self, reply: Reply) -> str | None:
        return NOT_READY if _denies_ready(reply.body) else None


@lru_cache(maxsize=1024)
def _model_path(spec: ModelSpec) -> str:
    # HTTP clients and proxies remove these parts from a path. The request would then reach another model.
    if spec.name in (".", "..", ""):
        raise InvalidArgument(f"A URL cannot name the model {spec.name!r}. Use gRPC.")
    version = version_text(spec)
    return f"/v2/models/{quote(spec.name, safe='')}" + (f"/versions/{version}" if version else "")


def _document(call: PredictCall, tensors: list[InputTensor]) -> dict[str, _Json]:
    """Return the JSON object of a request."""
    inputs = [
        {
            "name": tensor.name,
            "shape": tensor.shape,
            "datatype": tensor.datatype,
            "parameters": {"binary_data_size": len(tensor.data)},
        }
        for tensor in tensors
    ]
    parameters = request_parameters(call)
    if not call.output_filter:
        return {"inputs": inputs, "parameters": {**parameters, "binary_data_output": True}}
    outputs = [{"name": name, "parameters": {"binary_data": True}} for name in call.output_filter]
    return {"inputs": inputs, "outputs": outputs, **({"parameters": parameters} if parameters else {})}


def _split(reply: Reply) -> tuple[dict[str, _Json], memoryview]:
    """Return the JSON object of a response, and a view of the binary data after it. Raises ValueError."""
    body = memoryview(reply.body)
    text = reply.headers.get(HEADER_LENGTH)
    if text is None:
        return parse_object(reply.body), body[len(body) :]
    is_number = text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER
    if not is_number or int(text) > len(body):
        raise ValueError(f"the header {HEADER_LENGTH} is {shown(text)}, but the body has {len(body)} bytes")
    length = int(text)
    return parse_object(bytes(body[:length])), body[length:]


def _outputs(items: _Json, binary: memoryview) -> dict[str, Array]:
    """Return the outputs: views of `binary`, where their address suits their dtype. Raises ValueError."""
    outputs: dict[str, Array] = {}
    position = 0
    for item in _list(items, "outputs"):
        name, datatype, shape = _tensor(item)
        if name in outputs:
            raise ValueError(f"output {shown(name)} appears twice")
        size = _binary_size(item)
        if size is not None and size > len(binary) - position:
            rest = len(binary) - position
            raise ValueError(f"output {shown(name)} has {size} bytes of binary data, but {rest} bytes remain")
        try:
            if size is None:
                outputs[name] = from_json(item.get("data"), datatype, shape)
            else:
                outputs[name] = _aligned(decode_raw(datatype, shape, binary[position : position + size]))
        except ValueError as error:
            raise ValueError(f"output {shown(name)}: {error}") from None
        position += size or 0
    if position != len(binary):
        raise ValueError(f"{len(binary) - position} bytes remain after the outputs")
    return outputs


def _aligned(array: Array) -> Array:
    # numpy reads unaligned elements slowly, and libraries in C may refuse them.
    return array if array.flags.aligned else array.copy()


def _binary_size(item: dict[str, _Json]) -> int | None:
    """Return the size of an output's binary data in bytes, or None if its data is JSON. Raises ValueError."""
    parameters = item.get("parameters") or {}
    size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
    if size is None:
        return None
    if type(size) is not int or size < 0:  # JSON's true is an int in Python
        raise ValueError(f"binary_data_size is {shown(size)}, expected a number of bytes")
    if item.get("data") is not None:
        raise ValueError(f"output {shown(item.get('name'))} has binary data and JSON data")
    return size


def _tensor(item: _Json) -> TensorMetadata:
    """Return a tensor's name, datatype and shape. Raises ValueError for other types."""
    if not isinstance(item, dict):
        raise ValueError(f"a tensor is {shown(item)}, expected an object")
    name, datatype, shape = (item.get(key) for key in ("name", "datatype", "shape"))
    if not isinstance(name, str) or not isinstance(datatype, str):
        raise ValueError(f"a tensor has name {shown(name)} and datatype {shown(datatype)}, expected texts")
    sizes = _list(shape, f"shape of {shown(name)}")
    if not all(type(size) is int for size in sizes):
        raise ValueError(f"the shape of {shown(name)} is {shown(shape)}, expected integers")
    return name, datatype, tuple(sizes)


def _tensors(items: _Json, key: str) -> list[TensorMetadata]:
    return [_tensor(item) for item in _list(items, key)]


def _versions(document: dict[str, _Json]) -> list[_Json]:
    versions = document.get("versions")
    return [] if versions is None else _list(versions, "versions")


def _list(value: _Json, what: str) -> list[_Json]:
    if not isinstance(value, list):
        raise ValueError(f"{what}: {shown(value)}, expected a list")
    return value


def _denies_ready(body: bytes) -> bool:
    """Return whether the body of a 2xx response is {"ready": false}, as of KServe. Triton's is empty."""
    try:
        return bool(body) and parse_object(body).get("ready") is False
    except ValueError:
        return False
