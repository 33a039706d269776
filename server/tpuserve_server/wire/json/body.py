"""A REST body as a JSON document: its cost, the parser, the errors that it ignores, and values in error messages.

orjson parses the body. It rejects NaN, and it keeps the last of two equal keys. Python's parser therefore parses bodies
with bare NaN or Infinity, and parses a body again if it may hold a key twice.
"""

import binascii
import json
import re
from collections.abc import Iterable
from functools import partial
from typing import Any, Final, NoReturn

import numpy as np
import orjson

from tpuserve_server.core.terms.errors import InvalidArgument, shown

# UTF-8's byte order mark, which upstream's reader skips, too (json_tensor.cc, EncodedInputStream). simdjson skips it.
_MARK = b"\xef\xbb\xbf"

# Deeper than any tensor. orjson's own limit is 1024, without recursion in Python.
MAX_DEPTH = 100

# A document without half of a surrogate pair, which has no UTF-8. A valid document has backslashes only in strings.
_IS_WHOLE = re.compile(rb"(?:[^\\]++|\\[^u]|\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u(?![dD][89a-fA-F])....)*+", re.DOTALL)

# Reading a smaller body takes a millisecond and a megabyte at most, whatever it holds.
_SMALL_BYTES: Final = 1 << 13
# Bodies with few values take at most 64 bytes of memory for each unit, and one more copy of the text.
MEDIUM_BYTES: Final = 1 << 20
_FEW: Final = 1 << 14
_NESTING: Final = 4
# The bit that distinguishes [ from {.
_CASE_BIT: Final = 0x20
_OPEN: Final = ord("[") | _CASE_BIT
_ESCAPE: Final = ord("\\") | _CASE_BIT

# JSON values and objects as Python objects. A client can send any type, so the types cannot be narrower.
JsonValue = Any
JsonObject = dict[str, JsonValue]


def without_mark(body: bytes) -> bytes:
    """Return a document without a byte order mark at its start."""
    return body[len(_MARK) :] if body.startswith(_MARK) else body


class RepeatedKeys(dict[str, JsonValue]):
    """An object with equal keys. `names` has all keys."""

    def __init__(self, pairs: list[tuple[str, JsonValue]]) -> None:
        """Keep the last of equal keys."""
        super().__init__(pairs)
        self.names = [name for name, _ in pairs]


def parse_json(body: bytes, *, keeps_repeated: bool = False) -> JsonValue:
    """Parse `body`. Raises InvalidArgument if it is not a single JSON document with distinct keys.

    With `keeps_repeated`, objects with equal keys are RepeatedKeys, and no error.

    It may begin with a byte order mark. No text in it has a lone surrogate, so every text has a UTF-8 encoding.
    Numbers beyond a double's range become infinities; integers beyond 64 bits become floats.
    """
    found: list[RepeatedKeys] | None = [] if keeps_repeated else None
    body = without_mark(body)
    if not body:
        raise InvalidArgument("JSON Parse error: The document is empty")
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if b"NaN" in body or b"Infinity" in body or "infinity" in error.msg:
            return _parse_slowly(body, found)
        raise InvalidArgument(f"JSON Parse error: Invalid value. at offset: {error.pos} ({error.msg})") from None
    if _may_hold_equal_keys(body, document):
        checked = _parse_slowly(body, found)
        return checked if found else document
    return document


def is_large(body: bytes) -> bool:
    """Return whether to read `body` in pieces. If not, it can neither take much memory nor hold the GIL for long."""
    if len(body) <= _SMALL_BYTES:
        return False
    if len(body) > MEDIUM_BYTES:
        return True
    text = np.frombuffer(body, np.uint8)
    folded = text | _CASE_BIT
    opens = int(np.count_nonzero(folded == _OPEN))
    if len(body) + (_NESTING - 1) * opens <= _FEW:
        # If each character were a value.
        return False
    # Count lists and objects, halves of strings, values, and escapes. The loop keeps only one mask in memory.
    units = _NESTING * opens
    for characters, code in ((text, ord('"')), (text, ord(",")), (folded, _ESCAPE)):
        units += int(np.count_nonzero(characters == code))
    return units > _FEW


def check_depth(value: JsonValue, outside: int) -> None:
    """Raise InvalidArgument if `value`, within `outside` arrays and objects, is nested deeper than MAX_DEPTH.

    The check goes level by level, without recursion.
    """
    level = [value]
    for _ in range(MAX_DEPTH - outside):
        level = [member for container in level for member in _members_of(container) if type(member) in (list, dict)]
        if not level:
            return
    _fail_depth()


def _members_of(value: JsonValue) -> Iterable[JsonValue]:
    if type(value) is dict:
        return value.values()
    return value if type(value) is list else ()


def _fail_depth() -> NoReturn:
    raise InvalidArgument(f"JSON Parse error: nested more than {MAX_DEPTH} levels deep")


def _may_hold_equal_keys(body: bytes, document: JsonValue) -> bool:
    """Return whether the text has more colons than the parsed objects have members.

    Each member has one colon, so equal counts prove that the parser dropped no key. More colons mean a dropped key or a
    colon in a string. Counting too few members is safe: it only costs a second parse. The count therefore covers only
    the objects that requests usually have: rows, columns and b64 values in them.
    """
    colons = body.count(b":")
    if type(document) is not dict:
        return colons != _members(document)
    return colons != len(document) and colons != len(document) + sum(map(_members, document.values()))


def _members(value: JsonValue) -> int:
    if type(value) is list:
        return sum(map(_object_members, value)) if value and type(value[0]) is dict else 0
    return _object_members(value)


def _object_members(value: JsonValue) -> int:
    if type(value) is not dict:
        return 0
    return len(value) + sum(len(member) for member in value.values() if type(member) is dict)


def _parse_slowly(body: bytes, found: list[RepeatedKeys] | None) -> JsonValue:
    """Parse with Python's parser, which accepts NaN, Infinity and -Infinity and lets a hook check all keys."""
    try:
        document = json.loads(body.decode(), object_pairs_hook=partial(_object_of, found))
    except RecursionError:
        _fail_depth()
    except json.JSONDecodeError as error:
        raise InvalidArgument(f"JSON Parse error: Invalid value. at offset: {error.pos} ({error.msg})") from None
    except ValueError:
        # The body is not UTF-8, or has an integer with more digits than Python converts.
        raise InvalidArgument("JSON Parse error: Invalid value.") from None
    if b"\\" in body and _IS_WHOLE.fullmatch(body) is None:
        # rapidjson's words, for upstream's parser also refuses it.
        raise InvalidArgument("JSON Parse error: The surrogate pair in string is invalid.")
    return document


def _object_of(found: list[RepeatedKeys] | None, pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    """Return an object. One with equal keys is added to `found`. Without `found`, it raises InvalidArgument."""
    members = dict(pairs)
    if len(members) != len(pairs):
        if found is None:
            seen: set[str] = set()
            twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]  # add returns None: the idiom for a first repeat
            raise InvalidArgument(f"JSON Parse error: duplicate key: {shown(twice)}")
        members = RepeatedKeys(pairs)
        found.append(members)
    return members


_BASE64_KEY = "b64"


def is_base64_object(value: JsonValue) -> bool:
    """Return whether `value` is an object whose only member is a string under `b64`."""
    return type(value) is dict and len(value) == 1 and type(value.get(_BASE64_KEY)) is str


def decode_base64_object(value: JsonObject) -> bytes:
    """Decode a base64 object to bytes. Raises ValueError if the text is not base64.

    Padding may be missing and whitespace is ignored, as in absl's Base64Unescape.
    """
    text: str = value[_BASE64_KEY]
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        compact = "".join(text.split()).rstrip("=")
        return binascii.a2b_base64(compact + "=" * (-len(compact) % 4), strict_mode=True)


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
