"""The parts that all REST requests share: the document is an object and may name a signature."""

from tpuserve_server.core.terms.errors import InvalidArgument, shown
from tpuserve_server.wire.json.body import JsonObject, JsonValue
from tpuserve_server.wire.json.text import value_text


def check_object(document: JsonValue) -> JsonObject:
    """Return `document` itself. Raises InvalidArgument if it is not an object."""
    if type(document) is not dict:
        raise InvalidArgument(f"JSON Value: {value_text(document)} Is not object")
    return document


def signature_name(document: JsonObject) -> str:
    """Return the named signature, or "" if there is none. Raises InvalidArgument if the name is not a string."""
    name = document.get("signature_name", "")
    if type(name) is not str:
        raise InvalidArgument(
            f"JSON Value: {value_text(document)} not formatted correctly. 'signature_name' key must be a string value."
        )
    return shown(name)
