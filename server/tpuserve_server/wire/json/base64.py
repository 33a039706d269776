"""`{"b64": "…"}`: how JSON carries bytes."""

import binascii

from tpuserve_server.wire.json.body import JsonObject, JsonValue

_KEY = "b64"


def is_base64_object(value: JsonValue) -> bool:
    """Whether `value` is an object with the one key `b64` and text under it."""
    return type(value) is dict and len(value) == 1 and type(value.get(_KEY)) is str


def decode_base64_object(value: JsonObject) -> bytes:
    """The bytes of such an object; raises ValueError when the text is no base64.

    Padding may be missing and whitespace is skipped, as absl's Base64Unescape allows.
    """
    text: str = value[_KEY]
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        compact = "".join(text.split()).rstrip("=")
        return binascii.a2b_base64(compact + "=" * (-len(compact) % 4), strict_mode=True)
