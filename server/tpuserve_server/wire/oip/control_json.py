"""Bodies of control requests over REST: small JSON objects, with Triton's messages for wrong ones."""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.wire.json.body import without_mark

JsonObject = Mapping[str, Any]
# The event loop parses a body in one step.
_MAX_BYTES: Final = 1 << 20
_MAX_UINT64: Final = (1 << 64) - 1


def parse_object(body: bytes, *, may_be_empty: bool = True) -> JsonObject:
    """Return the object in a body. An empty body is an empty object.

    Raises:
        InvalidArgument: the body is not an object, is too large, or is empty although it must not be.
    """
    body = without_mark(body)
    if not body and may_be_empty:
        return {}
    if len(body) > _MAX_BYTES:
        raise InvalidArgument(f"the body of this request may have at most {_MAX_BYTES} bytes; was {len(body)}")
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidArgument(f"failed to parse the request JSON buffer: {error}") from None
    if not isinstance(document, dict):
        raise InvalidArgument("failed to parse the request JSON buffer: expected an object")
    return document


def read_parameters(document: JsonObject) -> JsonObject:
    """Return the object `parameters`, empty if it is absent. Raises InvalidArgument."""
    parameters = document.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise _wrong("parameters", "non-object as object")
    return parameters


def read_boolean(values: JsonObject, key: str) -> bool:
    """Return a boolean, False if it is absent. Raises InvalidArgument."""
    value = values.get(key, False)
    if not isinstance(value, bool):
        raise InvalidArgument(f"Invalid value for '{key}': expected a boolean")
    return value


def read_texts(values: JsonObject) -> dict[str, str | bytes]:
    """Return an object whose values are all texts. Raises InvalidArgument."""
    for name, value in values.items():
        if not isinstance(value, str):
            raise _wrong(name[:64], "non-string as string")
    return dict(values)


def read_text(values: JsonObject, key: str) -> str:
    """Return a text. Raises InvalidArgument."""
    value = values[key]
    if not isinstance(value, str):
        raise _wrong(key, "non-string as string")
    return value


def read_size(values: JsonObject, key: str) -> int:
    """Return an integer of at most 64 bits without sign. Raises InvalidArgument."""
    value = values[key]
    if type(value) is not int or not 0 <= value <= _MAX_UINT64:
        raise _wrong(key, "non-unsigned-integer as unsigned-integer")
    return value


def _wrong(key: str, what: str) -> InvalidArgument:
    return InvalidArgument(f"Unable to parse '{key}': attempt to access JSON {what}")
