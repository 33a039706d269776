"""Golden answers of a line's requests, decoded on first use. They are stored as gRPC PredictResponse messages."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from tpuserve_client.dtypes import Array
from tpuserve_client.exchange import PredictCall, Reply
from tpuserve_client.grpc_wire import GrpcWire
from tpuserve_client.model import ModelSpec
from tpuserve_loadtests.golden.difference import find_difference
from tpuserve_loadtests.golden.tolerance import Tolerance

# The search for the request of a wrong response keeps golden answers as float64: 32 MiB at most.
_MOST_ELEMENTS: Final = 4 * 2**20


class GoldenAnswers:
    """Golden answers by number of the request. Belongs to one thread."""

    def __init__(self, encoded: Sequence[bytes], tolerance: Tolerance) -> None:
        self._encoded = tuple(encoded)
        self._tolerance = tolerance
        self._decoded: dict[int, Mapping[str, Array]] = {}
        self._stacks: dict[str, Array | None] = {}

    def __len__(self) -> int:
        return len(self._encoded)

    def is_verbatim(self, number: int, answer: bytes) -> bool:
        """Return whether a gRPC response equals the golden answer byte for byte."""
        return answer == self._encoded[number]

    def outputs(self, number: int) -> Mapping[str, Array]:
        """Return the arrays of a request's golden answer, by output name."""
        found = self._decoded.get(number)
        if found is None:
            found = self._decoded[number] = _decode(self._encoded[number])
        return found

    def are_alike(self) -> bool:
        """Return whether all requests have the same golden answer, so that checks cannot detect a mix-up."""
        first = self.outputs(0)
        others = range(1, len(self))
        return all(find_difference(self.outputs(other), first, self._tolerance) is None for other in others)

    def has_elsewhere(self, name: str, array: Array) -> bool:
        """Return whether the golden answer of any request has this output; False if there are too many to compare."""
        if name not in self._stacks:
            self._stacks[name] = self._stack(name)
        stack = self._stacks[name]
        if stack is None or array.shape != stack.shape[1:]:
            return False
        if stack.dtype == object:
            return bool((stack == array).reshape(len(stack), -1).all(axis=1).any())
        allowed = self._tolerance.of(array.dtype)
        near = np.isclose(array.astype(stack.dtype), stack, rtol=allowed.rtol, atol=allowed.atol, equal_nan=True)
        return bool(near.reshape(len(stack), -1).all(axis=1).any())

    def _stack(self, name: str) -> Array | None:
        """Return the stacked arrays of one output, or None if their shapes differ or they are too large."""
        arrays = [self.outputs(number)[name] for number in range(len(self))]
        if len({array.shape for array in arrays}) > 1 or len(arrays) * arrays[0].size > _MOST_ELEMENTS:
            return None
        stack: Array = np.stack(arrays)
        if stack.dtype == object:
            return stack
        wide: Array = stack.astype(np.complex128 if stack.dtype.kind == "c" else np.float64)
        return wide


def _decode(encoded: bytes) -> Mapping[str, Array]:
    return GrpcWire().read_prediction(Reply(encoded), PredictCall(ModelSpec("golden"), {}), None).outputs
