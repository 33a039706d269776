"""Inference requests over REST: JSON, and the binary data after it.

Source: inference_rest.md of kserve/open-inference-protocol, Triton's binary tensor data extension and http_server.cc.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, NoReturn

from tpuserve_server.core.serving.budgets import DEFAULT_DECODED, DecodedBudget
from tpuserve_server.core.terms.errors import InvalidArgument, shown
from tpuserve_server.core.terms.types import Body
from tpuserve_server.wire.json.body import JsonObject, JsonValue, RepeatedKeys, parse_json
from tpuserve_server.wire.json.numbers import find_text, parse_quickly
from tpuserve_server.wire.oip.inference import (
    BYTE_SIZE,
    NO_PARAMETERS,
    OFFSET,
    REGION,
    InferenceRequest,
    InputTensor,
    RegionWindow,
    RequestedOutput,
    RequestParameters,
    check_only_region,
    read_parameters,
)
from tpuserve_server.wire.oip.tensor_json import ARRAYS, MAX_TENSORS, JsonArray, TakesLong, parse_large

_MAX_CACHED_BYTES: Final = 1 << 10
_DATA: Final = b'"data"'
_DATATYPE: Final = b'"datatype"'
_NO_DATA: Final = memoryview(b"")
_MAX_UINT64: Final = (1 << 64) - 1
# A message about more would be long.
_MOST_DIMENSIONS: Final = 1024
_MOST_MEMBERS: Final = 1024
_BOOLEAN: Final = "non-boolean as boolean"
_UNSIGNED: Final = "non-unsigned-integer as unsigned-integer"
_STRING: Final = "non-string as string"
_PARAMETER_KINDS: Final = {
    "sequence_start": _BOOLEAN,
    "sequence_end": _BOOLEAN,
    "binary_data_output": _BOOLEAN,
    "priority": _UNSIGNED,
    "timeout": _UNSIGNED,
    "signature_name": _STRING,
}


class _Document(NamedTuple):
    """A parsed document. The data of a tensor are JSON, the size of its binary data, or in shared memory."""

    id: str
    tensors: "Sequence[tuple[str, str, Sequence[int], JsonArray | RegionWindow | int]]"
    outputs: Sequence[RequestedOutput]
    parameters: RequestParameters
    windows: Mapping[int, RegionWindow] | None


def parse_infer_json(
    model: str, body: Body, json_bytes: int | None, budget: DecodedBudget = DEFAULT_DECODED, *, quickly: bool = False
) -> InferenceRequest:
    """Parse a request whose first `json_bytes` are JSON and whose rest is binary data. None means no binary data.

    No JSON (0 bytes) means that the whole body is the data of the model's only input. Binary data become views.

    The data of a large JSON document stay text, which is decoded in pieces. Without `quickly`, call it in a worker
    thread.

    Raises:
        TakesLong: with `quickly`, it would take more than a millisecond.
        InvalidArgument: with Triton's messages, or the decoded objects would take more than `budget`.
    """
    size_bytes = len(body)
    if json_bytes == 0:
        # Any size of numbers, in place.
        return InferenceRequest(is_binary=True, raw_input=memoryview(body).toreadonly(), size_bytes=size_bytes)
    if json_bytes is None or json_bytes == size_bytes:
        text, binary = bytes(body), _NO_DATA
    else:
        text, binary = bytes(body[:json_bytes]), memoryview(body).toreadonly()[json_bytes:]
    if len(text) <= _MAX_CACHED_BYTES and text is not body and _DATA not in text:
        return _with_data(model, _read_cached(text), binary, size_bytes)
    return _with_data(model, _read_document(_parse(text, budget, quickly=quickly)), binary, size_bytes)


def is_infer_json(body: bytes, budget: DecodedBudget = DEFAULT_DECODED, *, quickly: bool = False) -> bool:
    """Return whether `body` is a JSON document whose `inputs` are tensors of this protocol.

    No other request has objects with these members there. The check is cheap for a body without the word `datatype`.
    Raises TakesLong as `parse_infer_json` does.
    """
    if find_text(body, _DATATYPE) < 0:
        return False
    try:
        document = _parse(body, budget, quickly=quickly)
    except InvalidArgument:
        return False
    inputs = document.get("inputs")
    return type(inputs) is list and len(inputs) > 0 and all(map(_is_tensor, inputs))


def _is_tensor(item: JsonValue) -> bool:
    return isinstance(item, dict) and all(key in item for key in ("name", "shape", "datatype"))


def _parse(text: bytes, budget: DecodedBudget, *, quickly: bool) -> JsonObject:
    """Parse a document, in which long lists of numbers stay text. Raises TakesLong if `quickly` is impossible."""
    try:
        document: JsonObject | None = parse_quickly(text, _holders, _parse_small)
        if document is None:
            if quickly:
                raise TakesLong
            document = parse_large(text, budget)
        return document
    except InvalidArgument as error:
        if error.message.startswith("JSON"):
            raise InvalidArgument(f"failed to parse the request JSON buffer: {error.message}") from None
        raise


def _parse_small(text: bytes) -> JsonObject:
    document = parse_json(text, keeps_repeated=True)
    if not isinstance(document, dict):
        _fail("inputs", "existing object member 'inputs'", of="non-")
    return document


def _holders(document: JsonObject) -> Iterator[tuple[JsonObject, tuple[str]]]:
    inputs = document.get("inputs")
    if type(inputs) is list:
        for tensor in inputs:
            if isinstance(tensor, dict):
                yield tensor, ("data",)


def _with_data(model: str, document: _Document, binary: memoryview, size_bytes: int) -> InferenceRequest:
    """Give each tensor its binary data, in the order of the tensors."""
    inputs: list[InputTensor] = []
    position = 0
    for name, datatype, shape, data in document.tensors:
        if isinstance(data, int):
            stop = position + data
            if stop > len(binary):
                raise InvalidArgument(
                    f"unexpected size for input '{name}', expecting {stop - len(binary)} additional bytes for "
                    f"model '{model}'"
                )
            inputs.append(InputTensor(name, datatype, shape, binary[position:stop]))
            position = stop
        elif isinstance(data, RegionWindow):
            inputs.append(InputTensor(name, datatype, shape, _NO_DATA))
        else:
            inputs.append(InputTensor(name, datatype, shape, data))
    if position != len(binary):
        raise InvalidArgument(
            f"unexpected additional input data for model '{model}': {len(binary) - position} bytes remain after the "
            "binary data of all inputs"
        )
    parameters = document.parameters
    return InferenceRequest(
        document.id,
        inputs,
        document.outputs,
        parameters,
        parameters.binary_data_output,
        None,
        size_bytes,
        document.windows,
    )


def _read_document(document: JsonObject) -> _Document:
    _check_object(document)
    request_id = _string(document, "id") if "id" in document else ""
    parameters = _read_parameters(document["parameters"]) if "parameters" in document else NO_PARAMETERS
    tensors = [_read_input(item) for item in _tensors(document, "inputs")]
    outputs = tuple([_read_output(item) for item in _tensors(document, "outputs")]) if "outputs" in document else ()
    return _Document(request_id, tensors, outputs, parameters, _windows(tensors, outputs))


def _windows(
    tensors: Sequence[tuple[str, str, Sequence[int], JsonArray | RegionWindow | int]],
    outputs: Sequence[RequestedOutput],
) -> Mapping[int, RegionWindow] | None:
    windows = {index: data for index, (_, _, _, data) in enumerate(tensors) if isinstance(data, RegionWindow)}
    return windows if windows or any(output.region is not None for output in outputs) else None


@lru_cache(maxsize=1024)
def _read_cached(text: bytes) -> _Document:
    """Read a document without data, because each request has other data."""
    return _read_document(_parse(text, DEFAULT_DECODED, quickly=False))


def _read_input(item: JsonObject) -> tuple[str, str, Sequence[int], JsonArray | RegionWindow | int]:
    _check_object(item)
    name, datatype = shown(_string(item, "name")), shown(_string(item, "datatype"))
    shape = _read_shape(item)
    parameters = _object(item, "parameters") if "parameters" in item else {}
    # KServe's client sends null with the binary data of an empty tensor.
    has_data = item.get("data") is not None
    has_binary, has_region = "binary_data_size" in parameters, REGION in parameters
    if has_data + has_binary + has_region != 1:
        raise _wrong_source(name, has_data=has_data, has_binary=has_binary, has_region=has_region)
    if has_data:
        return name, datatype, shape, _array(item, "data", ARRAYS)
    if has_region:
        return name, datatype, shape, _read_window(parameters)
    return name, datatype, shape, _unsigned(parameters, "binary_data_size")


def _wrong_source(name: str, *, has_data: bool, has_binary: bool, has_region: bool) -> InvalidArgument:
    given = [
        f" '{source}'"
        for source, is_given in (("data", has_data), ("binary_data_size", has_binary), (REGION, has_region))
        if is_given
    ]
    return InvalidArgument(
        f"Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', '{REGION}' in "
        f"'parameters'. But {'set' + ''.join(given) if given else 'no field is set'}: input '{shown(name)}'"
    )


def _read_window(parameters: JsonObject) -> RegionWindow:
    return RegionWindow(
        shown(_string(parameters, REGION)),
        _unsigned(parameters, BYTE_SIZE) if BYTE_SIZE in parameters else 0,
        _unsigned(parameters, OFFSET) if OFFSET in parameters else 0,
    )


def _read_shape(item: JsonObject) -> tuple[int, ...]:
    sizes = _array(item, "shape")
    if len(sizes) > _MOST_DIMENSIONS:
        raise InvalidArgument(f"Unable to parse 'shape': it has {len(sizes)} dimensions")
    shape: tuple[int, ...] = tuple(sizes)
    for size in shape:
        if type(size) is not int or size < 0:
            _fail("shape", _UNSIGNED)
    return shape


def _read_output(item: JsonObject) -> RequestedOutput:
    _check_object(item)
    name = shown(_string(item, "name"))
    if "parameters" not in item:
        return RequestedOutput(name)
    parameters = _object(item, "parameters")
    classes = _unsigned(parameters, "classification") if "classification" in parameters else 0
    is_binary = _boolean(parameters, "binary_data") if "binary_data" in parameters else False
    if REGION not in parameters:
        return RequestedOutput(name, classes, is_binary)
    check_only_region(name, (*(["classification"] if classes else []), *(["binary_data"] if is_binary else [])))
    return RequestedOutput(name, 0, False, _read_window(parameters))


def _read_parameters(value: JsonObject) -> RequestParameters:
    if not isinstance(value, dict):
        raise InvalidArgument("failed to get request params.: attempt to get members for non-object")
    _check_object(value)
    for name, given in value.items():
        expected = _PARAMETER_KINDS.get(name)
        if name == "sequence_id" and not (type(given) is str or _is_unsigned(given)):
            _fail(name, _STRING)
        if expected is None:
            continue
        if not _has_kind(given, expected):
            _fail(name, expected)
    return read_parameters(value)


def _has_kind(value: object, expected: str) -> bool:
    if expected is _UNSIGNED:
        return _is_unsigned(value)
    return type(value) is (bool if expected is _BOOLEAN else str)


def _check_object(value: JsonValue) -> None:
    """Raise InvalidArgument for another value than an object, and for equal keys."""
    if not isinstance(value, dict):
        raise InvalidArgument("attempt to access JSON non-object as object: inputs and outputs are lists of objects")
    if len(value) > _MOST_MEMBERS:
        raise InvalidArgument(f"failed to parse the request JSON buffer: an object has more than {_MOST_MEMBERS} keys")
    if isinstance(value, RepeatedKeys):
        raise InvalidArgument(
            "failed to parse the request JSON buffer: an object repeats one of its keys "
            f"{[shown(key) for key in value.names[:16]]}"
        )


def _tensors(document: JsonObject, key: str) -> Any:  # noqa: ANN401 (a JSON array)
    items = _array(document, key)
    if len(items) > MAX_TENSORS:
        raise InvalidArgument(f"the request has more than {MAX_TENSORS} {key}")
    return items


def _array(item: JsonObject, key: str, kinds: tuple[type, ...] = (list,)) -> Any:  # noqa: ANN401 (a JSON array)
    value = _get(item, key)
    if type(value) not in kinds:
        _fail(key, "non-array as array")
    return value


def _object(item: JsonObject, key: str) -> JsonObject:
    value = item[key]
    if not isinstance(value, dict):
        _fail(key, "non-object as object")
    _check_object(value)
    return value


def _string(item: JsonObject, key: str) -> str:
    value = _get(item, key)
    if type(value) is not str:
        _fail(key, _STRING)
    return value


def _unsigned(item: JsonObject, key: str) -> int:
    value = item[key]
    if not _is_unsigned(value):
        _fail(key, _UNSIGNED)
    number: int = value
    return number


def _boolean(item: JsonObject, key: str) -> bool:
    value = item[key]
    if type(value) is not bool:
        _fail(key, _BOOLEAN)
    return value


def _is_unsigned(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MAX_UINT64


def _get(item: JsonObject, key: str) -> Any:  # noqa: ANN401 (a JSON value)
    try:
        return item[key]
    except KeyError:
        _fail(key, f"existing object member '{key}'", of="non-")


def _fail(key: str, what: str, of: str = "JSON ") -> NoReturn:
    """Raise Triton's error for the value of `key`."""
    raise InvalidArgument(f"Unable to parse '{key}': attempt to access {of}{what}")
