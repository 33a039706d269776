"""ListTemplate: JSON responses that differ only in the numbers of their lists."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import orjson

from tpuserve_formats.dtypes import DType
from tpuserve_server.core.terms.types import Tensors


class ListOutput(NamedTuple):
    """An output, and the text after its list. `is_flat` writes its numbers without nesting."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    after: bytes
    is_flat: bool = False


class ListTemplate:
    """The texts around the lists of responses whose outputs have the same names, dtypes and shapes."""

    __slots__ = ("_before", "_names", "_outputs")

    def __init__(self, before: bytes, outputs: Sequence[ListOutput]) -> None:
        """Create it with the text before the first list. orjson must write the dtypes, and no output is a scalar."""
        self._before = before
        self._names = [output.name for output in outputs]
        self._outputs = tuple(outputs)

    def encode(self, outputs: Tensors) -> bytes | None:
        """Return the response, or None for other outputs, and for numbers that JSON does not have."""
        if [*outputs] != self._names:
            return None
        parts = [self._before]
        for name, dtype, shape, after, is_flat in self._outputs:
            array = outputs[name]
            if array.shape != shape or array.dtype != dtype:
                return None
            values = array.ravel() if is_flat else np.ascontiguousarray(array)
            text = orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)
            # orjson's text of NaN and infinities.
            if b"null" in text:
                return None
            parts += (text, after)
        return b"".join(parts)
