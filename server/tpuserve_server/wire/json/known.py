"""Cache for small REST bodies that differ from an earlier body only in their numbers: the fastest way to an array.

Clients send the same shape repeatedly. The cache key is a body's text without its numbers and whitespace. If a body
with the same key was converted before, and simdjson accepts the new body, both have the same nesting. The key alone
determines the strings and brackets, because a backslash never precedes a removed character. It does not determine
whether a place holds a number or nothing, so the count of numbers must match, too.
"""

from typing import Any, NamedTuple

import numpy as np
import simdjson

from tpuserve_server.core.types import Signature, Tensors
from tpuserve_server.wire.json.numbers import NUMBER_TEXT, REFUSALS, SOURCES, NumericBody, has_slow_numbers, narrow

# Larger bodies spend their time elsewhere, and their keys would take memory here.
_MAX_BODY_BYTES = 1 << 12
_MAX_KNOWN = 512


class _Known(NamedTuple):
    """The meaning of a text of brackets, commas and keys: the numbers of one input, under `key`."""

    key: str
    has_signature_name: bool
    shape: tuple[int, ...]
    size: int


# Any thread may read and write: each access is a single atomic step.
_known: dict[bytes, _Known] = {}


class KnownBody:
    """A parsed body of numbers for one input, with the interface of NumericBody."""

    __slots__ = ("_known", "_value", "is_row", "signature_name")

    def __init__(self, known: _Known, value: Any, signature_name: str) -> None:  # noqa: ANN401 (simdjson has no type for it)
        """Create the body; only `recall` calls this."""
        self._known = known
        self._value = value
        self.is_row = known.key == "instances"
        self.signature_name = signature_name

    def convert(self, signature: Signature) -> Tensors | None:
        """Return the array with the signature's dtype, or None; see `NumericBody.convert`."""
        try:
            ((name, spec),) = signature.inputs.items()
            source, of_type = SOURCES[spec.dtype]
            flat = np.frombuffer(self._value.as_buffer(of_type=of_type), source)
            if flat.size != self._known.size:
                return None
            array = flat if source is spec.dtype else narrow(flat, spec.dtype)
            return {name: array.reshape(self._known.shape)}
        except REFUSALS:
            return None


def recall(body: bytes) -> KnownBody | None:
    """Parse `body` if its text without numbers is in the cache, or else return None. Raises nothing."""
    if len(body) > _MAX_BODY_BYTES:
        return None
    known = _known.get(body.translate(None, NUMBER_TEXT))
    if known is None:
        return None
    if has_slow_numbers(body):
        return None
    try:
        document: Any = simdjson.Parser().parse(body)
        name = document["signature_name"] if known.has_signature_name else ""
        return KnownBody(known, document[known.key], name)
    except REFUSALS:
        return None


def remember(body: bytes, numbers: NumericBody, inputs: Tensors) -> None:
    """Add `body`, which `numbers.convert` has converted to `inputs`, to the cache."""
    if len(body) > _MAX_BODY_BYTES:
        return
    skeleton = body.translate(None, NUMBER_TEXT)
    (array, *others) = inputs.values()
    # A second brace means a nested object or a brace in a name.
    if others or not array.ndim or skeleton.count(b"{") != 1:
        return
    if len(_known) >= _MAX_KNOWN:
        _known.clear()
    key = "instances" if numbers.is_row else "inputs"
    _known[skeleton] = _Known(key, bool(numbers.signature_name), array.shape, array.size)
