"""Cache for REST requests that differ from an earlier request only in the numbers of their only input.

Clients send the same shape repeatedly. The texts before and after the numbers decide everything else about the request,
so they are parsed once: a JSON list in the place of another makes the same document with other data.
"""

import secrets
from typing import Final, NamedTuple, TypeAlias

import simdjson

from tpuserve_server.wire.json.numbers import REFUSALS
from tpuserve_server.wire.oip.inference import InferenceRequest, InputTensor
from tpuserve_server.wire.oip.tensor_json import JsonData

_KEY: Final = b'"data":'
# A list that no request has, to find its place.
_MARK_VALUES: Final = [secrets.randbits(62)]
_MARK: Final = str(_MARK_VALUES).encode()
# Longer texts are not cached, so that clients cannot fill memory.
_MAX_TEXT_BYTES: Final = 1 << 10
_MAX_KNOWN: Final = 512

# The texts before and after the list.
Around: TypeAlias = tuple[bytes, bytes]


class SplitBody(NamedTuple):
    """A body, split at the first list under a key `data`."""

    around: Around
    numbers: bytes

    @property
    def marked(self) -> bytes:
        """The body with other numbers. `remember` accepts the request that it is parsed to."""
        before, after = self.around
        return before + _MARK + after


# A text is parsed when it appears for the second time: texts with a new id in each request never do. None is for texts
# that appeared once. Any thread may read and write: each access is a single atomic step.
_known: dict[Around, InferenceRequest | None] = {}


def split_body(body: bytes) -> SplitBody | None:
    """Split a body, or return None if it has no such list or the texts around it are long."""
    key_end = body.find(_KEY) + len(_KEY)
    start = body.find(b"[", key_end)
    stop = body.find(b"]", start) + 1
    if key_end < len(_KEY) or start < 0 or not stop or len(body) - (stop - start) > _MAX_TEXT_BYTES:
        return None
    return SplitBody((body[:start], body[stop:]), body[start:stop])


def recall(split: SplitBody) -> InferenceRequest | None:
    """Return the request if its text is in the cache, and otherwise None. Raises nothing."""
    known = _known.get(split.around)
    if known is None:
        return None
    try:
        numbers = simdjson.Parser().parse(split.numbers)
    except REFUSALS:
        # Nested lists, or strings.
        return None
    ((name, datatype, shape, _),) = known.inputs
    before, after = split.around
    size_bytes = len(before) + len(split.numbers) + len(after)
    inputs = (InputTensor(name, datatype, shape, JsonData(numbers)),)
    return InferenceRequest(known.id, inputs, known.outputs, known.parameters, known.is_binary, None, size_bytes)


def is_new(split: SplitBody) -> bool:
    """Return whether the text appears for the first time. It is not the next time."""
    if split.around in _known:
        return False
    if len(_known) >= _MAX_KNOWN:
        _known.clear()
    _known[split.around] = None
    return True


def remember(split: SplitBody, marked: InferenceRequest) -> None:
    """Add a text to the cache, if the list is the data of the only input. `marked` is the parsed `split.marked`."""
    if len(marked.inputs) != 1:
        return
    ((_, _, _, data),) = marked.inputs
    if isinstance(data, JsonData) and type(data.value) is simdjson.Array and data.value.as_list() == _MARK_VALUES:
        _known[split.around] = marked
