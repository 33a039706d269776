"""JSON values as error messages show them: upstream's JsonValueToDebugString and JsonTypeString."""

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
    """What rapidjson calls the value's type."""
    if type(value) is bool:
        return "True" if value else "False"
    return _TYPE_NAMES[type(value)]


def value_text(value: JsonValue) -> str:
    """The value as text, arrays on one line and objects on several, cut (not even JSON, then) after MAX_CHARACTERS."""
    writer = _Writer()
    writer.write(value, 0)
    return "".join(writer.parts)[:MAX_CHARACTERS]


class _Writer:
    """Writes until the limit. Every level writes a bracket first, so the recursion stays below the limit too."""

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
        # Surrogates that Python's parser let through have no UTF-8.
        return orjson.dumps(value[:room].encode(errors="replace").decode()).decode()
    if type(value) is float and (value != value or value in (float("inf"), float("-inf"))):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    # repr for integers over 64 bits, which Python's parser keeps; their digits are limited there.
    return repr(value)[:room] if type(value) is int else orjson.dumps(value).decode()
