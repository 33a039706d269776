"""Inference responses over REST: JSON, and the binary data after it. Data in JSON are flat, as in Triton."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import orjson

from tpuserve_formats.dtypes import STRING, DType
from tpuserve_formats.errors import FormatError
from tpuserve_formats.oip.datatypes import datatype_of
from tpuserve_formats.oip.raw_tensor import Buffer, encode_raw
from tpuserve_server.core.serving.budgets import JSON, RAW, Part
from tpuserve_server.core.terms.errors import InvalidArgument, Unimplemented
from tpuserve_server.core.terms.types import Array, PredictResult, ServableId, Tensors
from tpuserve_server.wire.json.array_text import ListOutput, ListTemplate
from tpuserve_server.wire.oip.inference import InferenceRequest, InferenceResult, RequestedOutput
from tpuserve_server.wire.oip.tensor_json import values_text

_DATA: Final = b',"data":'
# Floats that orjson writes.
_FLOATS: Final = (np.dtype(np.float32), np.dtype(np.float64))


class EncodedResponse(NamedTuple):
    """A body, and the length of its JSON if binary data follow, else None."""

    body: bytes
    json_bytes: int | None


class ResponseForm(NamedTuple):
    """The parts of a request that the encoding of its response depends on. See InferenceRequest."""

    id: str
    requested: Mapping[str, RequestedOutput]
    is_binary: bool

    @classmethod
    def of(cls, request: InferenceRequest) -> "ResponseForm":
        """Return the form of the response to a request."""
        return cls(request.id, {output.name: output for output in request.outputs}, request.is_binary)

    def encode(self, result: PredictResult) -> EncodedResponse:
        """Encode a response. Raises as `encode_infer_json`."""
        return encode_infer_json(self._result(result))

    def parts(self, result: PredictResult) -> tuple[Part, ...]:
        """Return the outputs with their encodings."""
        return response_parts(self._result(result))

    def template(self, result: PredictResult) -> "InferJsonTemplate | InferListTemplate | None":
        """Return the template of a response, or None if it has strings, or binary data next to JSON or of no bytes."""
        mine, outputs = self._result(result), result.outputs
        if not outputs or any(array.dtype == STRING for array in outputs.values()):
            return None
        is_binary = [_is_binary(name, mine) for name in outputs]
        if not any(is_binary):
            return _list_template(mine)
        if not all(is_binary) or not all(array.size for array in outputs.values()):
            return None
        body, json_bytes = encode_infer_json(mine)
        described = tuple((name, array.dtype, array.shape) for name, array in outputs.items())
        return None if json_bytes is None else InferJsonTemplate(body[:json_bytes], described)

    def _result(self, result: PredictResult) -> InferenceResult:
        return InferenceResult(self.id, result.servable, result.outputs, self.requested, self.is_binary)


class InferJsonTemplate:
    """The responses of one form and one version whose outputs are binary and have the same names, dtypes and shapes.

    They differ only in the bytes of their arrays, so that their JSON is encoded once.
    """

    __slots__ = ("_outputs", "_text")

    def __init__(self, text: bytes, outputs: tuple[tuple[str, DType, tuple[int, ...]], ...]) -> None:
        """Create it with the JSON and the outputs that it describes."""
        self._text = text
        self._outputs = outputs

    def encode(self, outputs: Tensors) -> EncodedResponse | None:
        """Return the bytes of `encode_infer_json`, or None if the outputs are not those of the template."""
        if len(outputs) != len(self._outputs):
            return None
        parts = [self._text]
        for (name, array), (expected_name, dtype, shape) in zip(outputs.items(), self._outputs, strict=True):
            if array.shape != shape or array.dtype != dtype or name != expected_name:
                return None
            parts.append(array.tobytes())
        return EncodedResponse(b"".join(parts), len(self._text))


class InferListTemplate:
    """The responses of one form and one version whose outputs are JSON and have the same names, dtypes and shapes."""

    __slots__ = ("_template",)

    def __init__(self, template: ListTemplate) -> None:
        """Create it with the texts around the data."""
        self._template = template

    def encode(self, outputs: Tensors) -> EncodedResponse | None:
        """Return the bytes of `encode_infer_json`, or None if the outputs are not those of the template."""
        body = self._template.encode(outputs)
        return None if body is None else EncodedResponse(body, None)


def response_parts(result: InferenceResult) -> tuple[Part, ...]:
    """Return the outputs in the response with their encodings, without those in shared memory."""
    outputs = result.outputs
    if not result.requested:
        return ((outputs, RAW if result.is_binary else JSON),)
    sent = {name: _is_binary(name, result) for name in outputs if name not in result.in_regions}
    binary = {name: outputs[name] for name, is_binary in sent.items() if is_binary}
    texts = {name: outputs[name] for name, is_binary in sent.items() if not is_binary}
    return (binary, RAW), (texts, JSON)


def encode_infer_json(result: InferenceResult) -> EncodedResponse:
    """Encode a response with the outputs in the form that the request wants.

    Raises:
        InvalidArgument: an output has no JSON form.
        Unimplemented: the protocol has no datatype for the dtype of an output.
    """
    texts: list[bytes] = []
    binary: list[Buffer] = []
    for name, array in result.outputs.items():
        if name in result.in_regions:
            texts.append(_head_of(name, array) + b"}")
        elif _is_binary(name, result):
            contents = _raw(name, array)
            texts.append(b'%b,"parameters":{"binary_data_size":%d}}' % (_head_of(name, array), len(contents)))
            binary.append(contents)
        else:
            datatype, head = _output_head(name, array.dtype, array.shape)
            # Joining long parts releases the GIL, and formatting does not.
            texts.append(b"".join((head, _DATA, values_text(name, datatype, array), b"}")))
    text = b"".join((_start(result), b",".join(texts), b"]}"))
    if not any(map(len, binary)):
        return EncodedResponse(text, None)
    return EncodedResponse(b"".join((text, *binary)), len(text))


def _list_template(result: InferenceResult) -> InferListTemplate | None:
    """Return the template of a response whose outputs are JSON, or None if orjson cannot write one of their dtypes."""
    if not all(array.dtype.kind in "biu" or array.dtype in _FLOATS for array in result.outputs.values()):
        return None
    heads = [_head_of(name, array) + _DATA for name, array in result.outputs.items()]
    afters = [*(b"}," + head for head in heads[1:]), b"}]}"]
    outputs = [
        ListOutput(name, array.dtype, array.shape, after, is_flat=True)
        for (name, array), after in zip(result.outputs.items(), afters, strict=True)
    ]
    return InferListTemplate(ListTemplate(_start(result) + heads[0], outputs))


def _start(result: InferenceResult) -> bytes:
    """Return the JSON of a response up to its outputs."""
    request_id = b'"id":%b,' % orjson.dumps(result.id) if result.id else b""
    return b"".join((b"{", request_id, _head(result.servable), b',"outputs":['))


def _is_binary(name: str, result: InferenceResult) -> bool:
    requested = result.requested.get(name)
    return result.is_binary if requested is None else requested.is_binary


def _head_of(name: str, array: Array) -> bytes:
    return _output_head(name, array.dtype, array.shape)[1]


def _raw(name: str, array: Array) -> Buffer:
    try:
        return encode_raw(array)
    except FormatError as error:
        raise InvalidArgument(f"output '{name}': {error}") from None


@lru_cache(maxsize=1024)
def _head(servable: ServableId) -> bytes:
    return b'"model_name":%b,"model_version":"%d"' % (orjson.dumps(servable.name), servable.version)


@lru_cache(maxsize=4096)
def _output_head(name: str, dtype: DType, shape: tuple[int, ...]) -> tuple[str, bytes]:
    """Return an output's datatype, and the start of its object, up to its shape."""
    try:
        datatype = datatype_of(dtype)
    except FormatError as error:
        raise Unimplemented(f"output '{name}': {error}") from None
    head = b'{"name":%b,"datatype":"%b","shape":%b' % (orjson.dumps(name), datatype.encode(), orjson.dumps(shape))
    return datatype, head
