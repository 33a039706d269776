"""Inspection of callers' nested lists before numpy converts them.

numpy has no defence against a list that contains itself, converts a bytearray to its byte values, and ignores masks.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from tpuserve_client.errors import InvalidArgument

# numpy's limit on dimensions.
MAX_RANK: Final = 64
# No request has more elements: each takes at least one byte, and messages end at 2 GiB.
_MAX_ELEMENTS: Final = 2**31
_TEXTS: Final = (str, bytes, bytearray, memoryview)


def check_nesting(value: object) -> None:
    """Raise InvalidArgument for lists nested too deep, or with too many elements by the sizes of the first in each.

    numpy visits every path of nested lists down to the depth of their first path. For a list that contains itself
    twice, these are 2**64 paths.
    """
    depth, count = 0, 1
    while _is_sequence(value) and (size := _size(value)):
        depth, count = depth + 1, count * size
        if depth > MAX_RANK:
            raise InvalidArgument(f"Not an array: lists have more than {MAX_RANK} levels, or a list contains itself.")
        if count > _MAX_ELEMENTS:
            raise InvalidArgument(
                f"Not an array: lists have more than {_MAX_ELEMENTS:,} elements, or a list contains itself."
            )
        value = _first(value)


def check_masks(value: object) -> None:
    """Raise InvalidArgument if a masked array, also in a list, hides elements. A tensor has no mask."""
    # Without this module there are no masked arrays. numpy imports it at its first use.
    if (masked := sys.modules.get("numpy.ma")) is None:
        return
    arrays = [value] if not isinstance(value, list | tuple) else _leaves(value, masked.MaskedArray)
    if any(isinstance(array, masked.MaskedArray) and masked.is_masked(array) for array in arrays):
        raise InvalidArgument("A tensor has no mask, but elements are masked. Fill the array or compress it.")


def has_bytearray(value: object) -> bool:
    """Return whether nested lists contain a bytearray."""
    return isinstance(value, list | tuple) and any(True for _ in _leaves(value, bytearray))


def with_bytes(value: Any) -> Any:  # noqa: ANN401  lists of any depth
    """Return nested lists with bytes instead of each bytearray. Levels below numpy's limit stay unchanged."""
    return _mapped(value, lambda leaf: bytes(leaf) if isinstance(leaf, bytearray) else leaf, {}, 0)


def _mapped(value: Any, convert: Callable[[Any], Any], known: dict[int, Any], depth: int) -> Any:  # noqa: ANN401
    if not isinstance(value, list | tuple):
        return convert(value)
    # `known` keeps a list that contains itself from being read twice.
    if id(value) not in known and depth < MAX_RANK:
        known[id(value)] = value
        known[id(value)] = [_mapped(item, convert, known, depth + 1) for item in value]
    return known.get(id(value), value)


def _leaves(value: Iterable[object], kind: type) -> Iterator[object]:
    """Yield the elements of nested lists that are instances of `kind`. Lists without any pass at the speed of C."""
    pending, seen = [value], {id(value)}
    while pending:
        items = pending.pop()
        types = set(map(type, items))
        if any(issubclass(each, kind) for each in types):
            yield from (item for item in items if isinstance(item, kind))
        if any(issubclass(each, list | tuple) for each in types):
            deeper = [item for item in items if isinstance(item, list | tuple) and id(item) not in seen]
            seen.update(map(id, deeper))
            pending += deeper


def _is_sequence(value: object) -> bool:
    """Return whether numpy reads the elements of `value` one by one."""
    if isinstance(value, list | tuple):
        return True
    kind = type(value)
    is_indexed = hasattr(kind, "__len__") and hasattr(kind, "__getitem__")
    return is_indexed and not hasattr(kind, "__array__") and not isinstance(value, (*_TEXTS, Mapping))


def _size(value: Any) -> int:  # noqa: ANN401  a sequence by its methods
    try:
        return len(value)
    except Exception:  # a caller's class can raise anything; numpy reports it
        return 0


def _first(value: Any) -> object:  # noqa: ANN401  as above
    try:
        first: object = value[0]
    except Exception:  # as above
        return None
    return first
