"""Inference requests over REST: JSON, and the binary data after it.

Source: inference_rest.md of kserve/open-inference-protocol, Triton's binary tensor data extension and http_server.cc.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple, NoReturn

import simdjson

from tpuserve_server.core.serving.budgets import DEFAULT_DECODED, DecodedBudget
from tpuserve_server.core.terms.errors import InvalidArgument, shown
from tpuserve_server.wire.json.body import parse_json
from tpuserve_server.wire.json.large import MEDIUM_BYTES, is_large, is_small
from tpuserve_server.wire.json.layout import find_text
from tpuserve_server.wire.json.numbers import REFUSALS, has_slow_numbers
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
from tpuserve_server.wire.oip.tensor_json import ARRAYS, MAX_TENSORS, JsonData, LargeArray, TakesLong, split_document

# simdjson's objects, and dicts from the slower parsers.
JsonObject = Any
_OBJECTS: Final = (simdjson.Object, dict)
_MAX_CACHED_BYTES: Final = 1 << 10
_DATA: Final = b'"data"'
_DATATYPE: Final = b'"datatype"'
_NO_DATA: Final = memoryview(b"")
_EMPTY: Final[Mapping[str, object]] = {}
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
    tensors: "Sequence[tuple[str, str, Sequence[int], JsonData | RegionWindow | int]]"
    outputs: Sequence[RequestedOutput]
    parameters: RequestParameters
    windows: Mapping[int, RegionWindow] | None


def parse_infer_json(
    model: str, body: bytes, json_bytes: int | None, budget: DecodedBudget = DEFAULT_DECODED, *, quickly: bool = False
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
        return InferenceRequest(is_binary=True, raw_input=body, size_bytes=size_bytes)
    if json_bytes is None or json_bytes == size_bytes:
        text, binary = body, _NO_DATA
    else:
        text, binary = body[:json_bytes], memoryview(body)[json_bytes:]
    if len(text) <= _MAX_CACHED_BYTES and text is not body and _DATA not in text:
        return _with_data(model, _read_cached(text), binary, size_bytes)
    try:
        document = _read_medium(text, budget)
    except TakesLong:
        if quickly:
            raise
        document = _read_large(text, budget)
    return _with_data(model, document, binary, size_bytes)


def is_infer_json(body: bytes, budget: DecodedBudget = DEFAULT_DECODED, *, quickly: bool = False) -> bool:
    """Return whether `body` is a JSON document whose `inputs` are tensors of this protocol.

    No other request has objects with these members there. The check is cheap for a body without the word `datatype`.
    Raises TakesLong as `parse_infer_json` does.
    """
    if find_text(body, _DATATYPE) < 0:
        return False
    try:
        if len(body) > MEDIUM_BYTES:
            raise TakesLong
        document = _parse(body)
    except TakesLong:
        if quickly:
            raise
        try:
            document = _parse(split_document(body, budget).text, slowly=True)
        except InvalidArgument:
            return False
    except InvalidArgument:
        return False
    inputs: Any = document.get("inputs") if type(document) in _OBJECTS else None  # a JSON value
    return type(inputs) in ARRAYS and len(inputs) > 0 and all(map(_is_tensor, inputs))


def _is_tensor(item: JsonObject) -> bool:
    return type(item) in _OBJECTS and all(key in item for key in ("name", "shape", "datatype"))


def _read_medium(text: bytes, budget: DecodedBudget) -> _Document:
    """Read a document whose numbers need no objects. Raises TakesLong for another."""
    if is_small(text):
        return _read_document(text)
    if len(text) > MEDIUM_BYTES:
        raise TakesLong
    document = _read_document(text)
    return document._replace(
        tensors=[
            (*tensor[:3], tensor[3]._replace(find_large=partial(_find_array, text, index, budget)))
            if isinstance(tensor[3], JsonData)
            else tensor
            for index, tensor in enumerate(document.tensors)
        ]
    )


def _find_array(text: bytes, index: int, budget: DecodedBudget) -> Callable[[], LargeArray] | None:
    return partial(_split, text, index, budget) if is_large(text) else None


def _split(text: bytes, index: int, budget: DecodedBudget) -> LargeArray:
    return split_document(text, budget).arrays[index]


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


def _read_document(text: bytes, *, slowly: bool = False) -> _Document:
    document = _parse(text, slowly=slowly)
    if type(document) not in _OBJECTS:
        _fail("inputs", "existing object member 'inputs'", of="non-")
    keys = _keys(document)
    request_id = _string(document, "id") if "id" in keys else ""
    parameters = _read_parameters(document["parameters"]) if "parameters" in keys else NO_PARAMETERS
    tensors = [_read_input(item) for item in _tensors(document, "inputs")]
    outputs = tuple([_read_output(item) for item in _tensors(document, "outputs")]) if "outputs" in keys else ()
    return _Document(request_id, tensors, outputs, parameters, _windows(tensors, outputs))


def _read_large(text: bytes, budget: DecodedBudget) -> _Document:
    try:
        large = split_document(text, budget)
    except InvalidArgument as error:
        if error.message.startswith("JSON"):
            raise _malformed(error) from None
        raise
    document = _read_document(large.text, slowly=True)
    tensors = [
        (*tensor[:3], JsonData(large.arrays[index])) if index in large.arrays else tensor
        for index, tensor in enumerate(document.tensors)
    ]
    return document._replace(tensors=tensors)


def _windows(
    tensors: Sequence[tuple[str, str, Sequence[int], JsonData | RegionWindow | int]], outputs: Sequence[RequestedOutput]
) -> Mapping[int, RegionWindow] | None:
    windows = {index: data for index, (_, _, _, data) in enumerate(tensors) if isinstance(data, RegionWindow)}
    return windows if windows or any(output.region is not None for output in outputs) else None


# For texts without data, because each request has other data.
_read_cached = lru_cache(maxsize=1024)(_read_document)


def _parse(text: bytes, *, slowly: bool = False) -> JsonObject:
    """Parse a document. Raises TakesLong if simdjson cannot, and without `slowly`."""
    if not has_slow_numbers(text):
        try:
            return simdjson.Parser().parse(text)
        except REFUSALS:
            # NaN and infinities, integers of more than 64 bits, and malformed documents.
            pass
    if not slowly and not is_small(text):
        raise TakesLong
    try:
        return parse_json(text)
    except InvalidArgument as error:
        raise _malformed(error) from None


def _malformed(error: InvalidArgument) -> InvalidArgument:
    return InvalidArgument(f"failed to parse the request JSON buffer: {error.message}")


def _read_input(item: JsonObject) -> tuple[str, str, Sequence[int], JsonData | RegionWindow | int]:
    keys = _keys(item)
    name, datatype = shown(_string(item, "name")), shown(_string(item, "datatype"))
    shape = _read_shape(item)
    parameters = _object(item, "parameters") if "parameters" in keys else _EMPTY
    # KServe's client sends null with the binary data of an empty tensor.
    has_data = "data" in keys and item["data"] is not None
    has_binary, has_region = "binary_data_size" in parameters, REGION in parameters
    if has_data + has_binary + has_region != 1:
        raise _wrong_source(name, has_data=has_data, has_binary=has_binary, has_region=has_region)
    if has_data:
        return name, datatype, shape, JsonData(_array(item, "data"))
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
    shape: tuple[int, ...] = tuple(sizes if type(sizes) is list else sizes.as_list())
    for size in shape:
        if type(size) is not int or size < 0:
            _fail("shape", _UNSIGNED)
    return shape


def _read_output(item: JsonObject) -> RequestedOutput:
    keys = _keys(item)
    name = shown(_string(item, "name"))
    if "parameters" not in keys:
        return RequestedOutput(name)
    parameters = _object(item, "parameters")
    classes = _unsigned(parameters, "classification") if "classification" in parameters else 0
    is_binary = _boolean(parameters, "binary_data") if "binary_data" in parameters else False
    if REGION not in parameters:
        return RequestedOutput(name, classes, is_binary)
    check_only_region(name, (*(["classification"] if classes else []), *(["binary_data"] if is_binary else [])))
    return RequestedOutput(name, 0, False, _read_window(parameters))


def _read_parameters(value: JsonObject) -> RequestParameters:
    if type(value) not in _OBJECTS:
        raise InvalidArgument("failed to get request params.: attempt to get members for non-object")
    # simdjson takes as long to find a member as it has members.
    _keys(value)
    values = dict(value.items())
    for name, given in values.items():
        expected = _PARAMETER_KINDS.get(name)
        if name == "sequence_id" and not (type(given) is str or _is_unsigned(given)):
            _fail(name, _STRING)
        if expected is None:
            continue
        if not _has_kind(given, expected):
            _fail(name, expected)
    return read_parameters(values)


def _has_kind(value: object, expected: str) -> bool:
    if expected is _UNSIGNED:
        return _is_unsigned(value)
    return type(value) is (bool if expected is _BOOLEAN else str)


def _keys(value: JsonObject) -> list[str]:
    """Return the keys of an object. Raises InvalidArgument for another value, and for equal keys."""
    if type(value) not in _OBJECTS:
        raise InvalidArgument("attempt to access JSON non-object as object: inputs and outputs are lists of objects")
    if len(value) > _MOST_MEMBERS:
        raise InvalidArgument(f"failed to parse the request JSON buffer: an object has more than {_MOST_MEMBERS} keys")
    keys = list(value)
    if len({*keys}) != len(keys):
        raise InvalidArgument(
            "failed to parse the request JSON buffer: an object repeats one of its keys "
            f"{[shown(key) for key in keys[:16]]}"
        )
    return keys


def _tensors(document: JsonObject, key: str) -> Any:  # noqa: ANN401 (a JSON array)
    items = _array(document, key)
    if len(items) > MAX_TENSORS:
        raise InvalidArgument(f"the request has more than {MAX_TENSORS} {key}")
    return items


def _array(item: JsonObject, key: str) -> Any:  # noqa: ANN401 (a JSON array)
    value = _get(item, key)
    if type(value) not in ARRAYS:
        _fail(key, "non-array as array")
    return value


def _object(item: JsonObject, key: str) -> JsonObject:
    value = item[key]
    if type(value) not in _OBJECTS:
        _fail(key, "non-object as object")
    _keys(value)
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
