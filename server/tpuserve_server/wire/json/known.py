"""Small REST bodies that look, but for their numbers, like one that was read before: the fastest way to an array.

A client sends one shape again and again. The text without its numbers and whitespace is looked up: where a body of
that text has been converted, one that simdjson accepts too can only be nested in the same way. What strings and
brackets there are is decided by that text alone: a backslash never stands before what is left out. Only whether a place
holds a number or nothing is not, and the count of numbers tells.
"""

from typing import Any, NamedTuple

import numpy as np
import simdjson

from tpuserve_server.core.types import Signature, Tensors
from tpuserve_server.wire.json.numbers import NUMBER_TEXT, REFUSALS, SOURCES, NumericBody, narrow

# Larger ones spend their time elsewhere, and take memory here.
_MAX_BODY_BYTES = 1 << 12
_MAX_KNOWN = 512


class _Known(NamedTuple):
    """What a text of brackets, commas and keys stands for: one input's numbers under `key`."""

    key: str
    has_signature_name: bool
    shape: tuple[int, ...]
    size: int


# Any thread may read and write: each is a single step.
_known: dict[bytes, _Known] = {}


class KnownBody:
    """A parsed body of numbers for one input. As NumericBody."""

    __slots__ = ("_known", "_value", "is_row", "signature_name")

    def __init__(self, known: _Known, value: Any, signature_name: str) -> None:  # noqa: ANN401 (simdjson has no type for it)
        """For `recall` alone."""
        self._known = known
        self._value = value
        self.is_row = known.key == "instances"
        self.signature_name = signature_name

    def convert(self, signature: Signature) -> Tensors | None:
        """As NumericBody's."""
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
    """`body`, parsed, if its like is known; raises nothing."""
    if len(body) > _MAX_BODY_BYTES:
        return None
    known = _known.get(body.translate(None, NUMBER_TEXT))
    if known is None:
        return None
    try:
        document: Any = simdjson.Parser().parse(body)
        name = document["signature_name"] if known.has_signature_name else ""
        return KnownBody(known, document[known.key], name)
    except REFUSALS:
        return None


def remember(body: bytes, numbers: NumericBody, inputs: Tensors) -> None:
    """Know bodies like `body` from now on, which `numbers.convert` has turned into `inputs`."""
    if len(body) > _MAX_BODY_BYTES:
        return
    skeleton = body.translate(None, NUMBER_TEXT)
    (array, *others) = inputs.values()
    # Another brace stands for objects within, or in a name.
    if others or not array.ndim or skeleton.count(b"{") != 1:
        return
    if len(_known) >= _MAX_KNOWN:
        _known.clear()
    key = "instances" if numbers.is_row else "inputs"
    _known[skeleton] = _Known(key, bool(numbers.signature_name), array.shape, array.size)
