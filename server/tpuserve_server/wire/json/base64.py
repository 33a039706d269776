"""`{"b64": "…"}`: the JSON encoding of bytes."""

import binascii

from tpuserve_server.wire.json.body import JsonObject, JsonValue

_KEY = "b64"


def is_base64_object(value: JsonValue) -> bool:
    """Return whether `value` is an object whose only member is a string under `b64`."""
    return type(value) is dict and len(value) == 1 and type(value.get(_KEY)) is str


def decode_base64_object(value: JsonObject) -> bytes:
    """Decode a base64 object to bytes. Raises ValueError if the text is not base64.

    Padding may be missing and whitespace is ignored, as in absl's Base64Unescape.
    """
    text: str = value[_KEY]
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        compact = "".join(text.split()).rstrip("=")
        return binascii.a2b_base64(compact + "=" * (-len(compact) % 4), strict_mode=True)
