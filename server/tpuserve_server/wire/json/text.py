"""Text of JSON values in error messages, as upstream's JsonValueToDebugString and JsonTypeString write it."""

import orjson

from tpuserve_server.wire.json.body import JsonValue

# tensorflow_serving/util/json_tensor.cc, kMaxJsonDebugStringBytes.
MAX_CHARACTERS = 256

_INDENT = "    "
_TYPE_NAMES = {
    type(None): "Null",
    dict: "Object",
    list: "Array",
    str: "String",
    int: "Number",
    float: "Number",
}


def type_text(value: JsonValue) -> str:
    """Return rapidjson's name for the type of a value."""
    if type(value) is bool:
        return "True" if value else "False"
    return _TYPE_NAMES[type(value)]


def value_text(value: JsonValue) -> str:
    """Return the value as text, arrays on one line and objects on several.

    The text is cut after MAX_CHARACTERS and then no longer valid JSON.
    """
    writer = _Writer()
    writer.write(value, 0)
    return "".join(writer.parts)[:MAX_CHARACTERS]


class _Writer:
    """Writes text up to the limit. Every level first writes a bracket, so the limit also bounds the recursion."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self._room = MAX_CHARACTERS

    def write(self, value: JsonValue, level: int) -> None:
        if self._room <= 0:
            return
        if type(value) is dict:
            self._write_object(value, level)
        elif type(value) is list:
            self._write_array(value, level)
        else:
            self._put(_scalar_text(value, self._room))

    def _write_array(self, items: list[JsonValue], level: int) -> None:
        self._put("[")
        for index, item in enumerate(items):
            if self._room <= 0:
                return
            if index:
                self._put(", ")
            self.write(item, level + 1)
        self._put("]")

    def _write_object(self, members: dict[str, JsonValue], level: int) -> None:
        self._put("{")
        for index, (name, member) in enumerate(members.items()):
            if self._room <= 0:
                return
            self._put(f"{',' if index else ''}\n{_INDENT * (level + 1)}{_scalar_text(name, self._room)}: ")
            self.write(member, level + 1)
        self._put(f"\n{_INDENT * level}}}" if members else "}")

    def _put(self, text: str) -> None:
        self.parts.append(text)
        self._room -= len(text)


def _scalar_text(value: JsonValue, room: int) -> str:
    if type(value) is str:
        # Python's parser accepts lone surrogates, which have no UTF-8 encoding.
        return orjson.dumps(value[:room].encode(errors="replace").decode()).decode()
    if type(value) is float and (value != value or value in (float("inf"), float("-inf"))):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    # repr: Python's parser keeps integers over 64 bits, which orjson cannot write. Python limits their digits.
    return repr(value)[:room] if type(value) is int else orjson.dumps(value).decode()
