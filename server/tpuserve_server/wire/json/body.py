"""A REST body to a JSON document: fast where it can be, strict about what a fast parser lets through.

orjson parses. It knows no NaN and keeps the last of two equal keys, so Python's own parser takes over for bodies with
bare NaN or Infinity, and reads those again that may hold a key twice.
"""

import json
from collections.abc import Iterable
from typing import Any, NoReturn

import orjson

from tpuserve_server.core.errors import InvalidArgument

# Deeper than any tensor; orjson itself stops at 1024 without recursion into Python.
MAX_DEPTH = 100

# JSON's objects and values as Python has them; nothing more can be said of what a client sends.
JsonValue = Any
JsonObject = dict[str, JsonValue]


def parse_json(body: bytes) -> JsonValue:
    """The document in `body`; raises InvalidArgument for anything that is not one JSON document with distinct keys.

    Numbers beyond a double's range become infinities; integers beyond 64 bits become floats.
    """
    if not body:
        raise InvalidArgument("JSON Parse error: The document is empty")
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if b"NaN" in body or b"Infinity" in body or "infinity" in error.msg:
            return _parse_slowly(body)
        raise InvalidArgument(f"JSON Parse error: Invalid value. at offset: {error.pos} ({error.msg})") from None
    if _may_hold_equal_keys(body, document):
        _parse_slowly(body)
    return document


def check_depth(value: JsonValue, outside: int) -> None:
    """Raises InvalidArgument when `value`, inside `outside` arrays and objects, brings the nesting over MAX_DEPTH.

    Goes level by level, without recursion.
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
    """Whether the text has more colons than the parsed objects have members: a key lost, or a colon in a string.

    Each member has one colon, so equal numbers prove that no key was lost. Counting fewer members than there are is
    safe: it costs a second parse. Objects are looked for where requests have them: rows, columns, b64 values in these.
    """
    colons = body.count(b":")
    if type(document) is not dict:
        return colons > 0
    return colons != len(document) and colons != len(document) + sum(map(_members, document.values()))


def _members(value: JsonValue) -> int:
    if type(value) is list:
        return sum(map(_object_members, value)) if value and type(value[0]) is dict else 0
    return _object_members(value)


def _object_members(value: JsonValue) -> int:
    if type(value) is not dict:
        return 0
    return len(value) + sum(len(member) for member in value.values() if type(member) is dict)


def _parse_slowly(body: bytes) -> JsonValue:
    """Python's parser: NaN, Infinity and -Infinity, and a hook that sees every object's keys."""
    try:
        return json.loads(body.decode(), object_pairs_hook=_object_with_distinct_keys)
    except RecursionError:
        _fail_depth()
    except json.JSONDecodeError as error:
        raise InvalidArgument(f"JSON Parse error: Invalid value. at offset: {error.pos} ({error.msg})") from None
    except ValueError:
        # Not UTF-8, or an integer of more digits than Python converts.
        raise InvalidArgument("JSON Parse error: Invalid value.") from None


def _object_with_distinct_keys(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]  # add returns None: the idiom for a first repeat
        raise InvalidArgument(f"JSON Parse error: duplicate key: {twice}")
    return members
