"""What every REST request's document has: it is an object, and may name a signature."""

from tpuserve_server.core.errors import InvalidArgument
from tpuserve_server.wire.json.body import JsonObject, JsonValue
from tpuserve_server.wire.json.text import value_text


def check_object(document: JsonValue) -> JsonObject:
    """`document` itself; raises InvalidArgument when it is no object."""
    if type(document) is not dict:
        raise InvalidArgument(f"JSON Value: {value_text(document)} Is not object")
    return document


def signature_name(document: JsonObject) -> str:
    """The signature named, empty for none; raises InvalidArgument when the name is no string."""
    name = document.get("signature_name", "")
    if type(name) is not str:
        raise InvalidArgument(
            f"JSON Value: {value_text(document)} not formatted correctly. 'signature_name' key must be a string value."
        )
    return name
