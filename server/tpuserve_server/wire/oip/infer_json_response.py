"""Inference responses over REST: JSON, and the binary data after it. Data in JSON are flat, as in Triton."""

from functools import lru_cache
from typing import NamedTuple

import orjson

from tpuserve_formats.dtypes import DType
from tpuserve_formats.errors import FormatError
from tpuserve_formats.oip.datatypes import datatype_of
from tpuserve_formats.oip.raw_tensor import Buffer, encode_raw
from tpuserve_server.core.errors import InvalidArgument, Unimplemented
from tpuserve_server.core.types import Array, ServableId
from tpuserve_server.wire.oip.inference import InferenceResult
from tpuserve_server.wire.oip.tensor_json import values_text


class EncodedResponse(NamedTuple):
    """A body, and the length of its JSON if binary data follow, else None."""

    body: bytes
    json_bytes: int | None


def encode_infer_json(result: InferenceResult) -> EncodedResponse:
    """Encode a response with the outputs in the form that the request wants.

    Raises:
        InvalidArgument: an output has no JSON form.
        Unimplemented: the protocol has no datatype for the dtype of an output.
    """
    texts: list[bytes] = []
    binary: list[Buffer] = []
    for name, array in result.outputs.items():
        requested = result.requested.get(name)
        if name in result.in_regions:
            texts.append(_head_of(name, array) + b"}")
        elif result.is_binary if requested is None else requested.is_binary:
            contents = _raw(name, array)
            texts.append(b'%b,"parameters":{"binary_data_size":%d}}' % (_head_of(name, array), len(contents)))
            binary.append(contents)
        else:
            datatype, head = _output_head(name, array.dtype, array.shape)
            # Joining long parts releases the GIL, and formatting does not.
            texts.append(b"".join((head, b',"data":', values_text(name, datatype, array), b"}")))
    request_id = b'"id":%b,' % orjson.dumps(result.id) if result.id else b""
    text = b"".join((b"{", request_id, _head(result.servable), b',"outputs":[', b",".join(texts), b"]}"))
    if not any(map(len, binary)):
        return EncodedResponse(text, None)
    return EncodedResponse(b"".join((text, *binary)), len(text))


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
