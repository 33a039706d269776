"""Budgets: all budgets of a server, and those of the decoded objects and the response of one request."""

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self, TypeAlias, TypeVar

import numpy as np

from tpuserve_server.core.serving.options import BudgetOptions
from tpuserve_server.core.serving.receiving import ReceivingBudget
from tpuserve_server.core.serving.sending import SendingBudget
from tpuserve_server.core.system.memory import LateTrim
from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.core.terms.errors import InvalidArgument, ResourceExhausted
from tpuserve_server.core.terms.types import Array, Tensors

# Memory of a short string: the object, its pointers in arrays, and its copy for the model. TensorFlow converts strings
# with the GIL held, about 30 ns each, so this also bounds that time: 50 ms for the default budget.
STRING_BYTES: Final = 160


class DecodedBudget:
    """The memory that the decoded objects of one request may take. Thread-safe: `_lock` guards the count."""

    __slots__ = ("_lock", "refusals", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        """Set the size in bytes."""
        self.size_bytes = size_bytes
        self._lock = threading.Lock()
        # Requests that were refused.
        self.refusals = 0

    def check(self, needed_bytes: int, parts: str) -> None:
        """Check an estimate of the memory, before the parser runs. `parts` describes what takes it.

        Raises:
            InvalidArgument: naming the budget and its flag. The request can never succeed.
        """
        if needed_bytes > self.size_bytes:
            with self._lock:
                self.refusals += 1
            raise InvalidArgument(
                f"The request would take about {needed_bytes} bytes when decoded ({parts}), more than the "
                f"{self.size_bytes} bytes of max_decoded_bytes. Send fewer values in a request, or send them in binary "
                "form"
            )


# For callers without options: that of the default flags.
DEFAULT_DECODED: Final = DecodedBudget(256 << 20)


_T = TypeVar("_T")
_Numbers: TypeAlias = "Mapping[np.dtype[Any], int]"
# Strings whose lengths the event loop reads in about 0.1 ms. An array of more is large.
_MOST_MEASURED: Final = 2048
# "[],": a JSON list.
_LIST_BYTES: Final = 3


class Encoding(NamedTuple):
    """Upper bounds of the bytes that values take in an encoding.

    `numbers` has the bytes of a number by dtype. Others take `number_bytes`, or their bytes in the array if it is 0.
    A string takes `string_bytes` and `character_bytes` for each of its bytes.
    A result of more than `large_bytes` takes about 5 ms to encode.
    """

    numbers: _Numbers
    number_bytes: int
    string_bytes: int
    character_bytes: int
    large_bytes: int
    # Whether each dimension is a list, and each row names its outputs.
    is_nested: bool = False


def _by_dtype(sizes: Mapping[str, int]) -> _Numbers:
    return {np.dtype(name): size for name, size in sizes.items()}


# The bytes of the arrays.
RAW: Final = Encoding({}, 0, 6, 1, 1 << 18)
# The typed fields of a TensorProto. A varint takes a byte for 7 bits, and 10 for a negative number.
TYPED: Final = Encoding(
    _by_dtype({"i1": 10, "i2": 10, "i4": 10, "i8": 10, "u1": 2, "u2": 3, "u4": 5, "u8": 10, "f2": 3}), 0, 6, 1, 1 << 18
)
_TEXT: Final = _by_dtype(
    {"?": 6, "i1": 5, "u1": 4, "i2": 7, "u2": 6, "i4": 12, "u4": 11, "i8": 21, "u8": 21, "f2": 18, "f4": 18, "f8": 26}
)
# JSON. A control character takes 6 bytes, and {"b64":""} and a comma take 11.
JSON: Final = Encoding(_TEXT, 26, 11, 6, 1 << 20)
JSON_ROWS: Final = JSON._replace(is_nested=True)


# Outputs, and the encoding of their values.
Part: TypeAlias = tuple[Tensors, Encoding]


class ResponseBudget:
    """The size that a response may have. Thread-safe: `_lock` guards the count."""

    __slots__ = ("_lock", "refusals", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        """Set the size in bytes."""
        self.size_bytes = size_bytes
        self._lock = threading.Lock()
        # Responses that were refused.
        self.refusals = 0

    def is_small(self, *parts: Part) -> bool:
        """Return whether the event loop may encode the parts of a response, and they fit."""
        total_bytes, share = 0, 0.0
        for outputs, encoding in parts:
            for array in outputs.values():
                if array.dtype.hasobject and array.size > _MOST_MEASURED:
                    return False
            part_bytes = sum(_sizes(outputs, encoding))
            total_bytes += part_bytes
            share += part_bytes / encoding.large_bytes
        return share <= 1 and total_bytes <= self.size_bytes

    async def encode(self, encode: Callable[[], _T], model: str, *parts: Part) -> _T:
        """Encode the response of `model`, on a worker thread if it is large, so that other requests need not wait.

        Raises:
            ResourceExhausted: as `check`.
        """
        if self.is_small(*parts):
            return encode()
        return await asyncio.to_thread(self._encode_large, encode, model, parts)

    def check(self, model: str, *parts: Part) -> None:
        """Check the size of a response. Takes long for many strings.

        Raises:
            ResourceExhausted: the response may be larger than the budget. The message names its largest tensor.
        """
        tensors = [tensor for outputs, _ in parts for tensor in outputs.items()]
        sizes = [size for outputs, encoding in parts for size in _sizes(outputs, encoding)]
        if sum(sizes) <= self.size_bytes:
            return
        with self._lock:
            self.refusals += 1
        largest = max(sizes)
        name, array = tensors[sizes.index(largest)]
        dtype = "string" if array.dtype.hasobject else array.dtype.name
        raise ResourceExhausted(
            f"The response of model {model} would take up to {sum(sizes)} bytes, more than the {self.size_bytes} bytes "
            f'of max_response_bytes. Its tensor "{name}" ({dtype}, shape {list(array.shape)}) takes up to {largest} '
            "bytes. Request fewer rows or outputs"
        )

    def _encode_large(self, encode: Callable[[], _T], model: str, parts: Iterable[Part]) -> _T:
        self.check(model, *parts)
        return encode()


def _sizes(outputs: Tensors, encoding: Encoding) -> list[int]:
    """Return the bytes that each output takes at most."""
    if encoding.is_nested and len(outputs) > 1:
        return [_size(array, encoding) + _names_size(name, array) for name, array in outputs.items()]
    return [_size(array, encoding) for array in outputs.values()]


def _size(array: Array, encoding: Encoding) -> int:
    dtype, size = array.dtype, array.size
    if dtype.hasobject:
        size_bytes = size * encoding.string_bytes + encoding.character_bytes * sum(map(len, array.flat))
    elif number_bytes := encoding.numbers.get(dtype, encoding.number_bytes):
        size_bytes = size * number_bytes
    else:
        # A varint may take a byte more than an ml_dtypes number.
        size_bytes = size * (dtype.itemsize + 1) if dtype.kind == "V" else array.nbytes
    if encoding.is_nested:
        lists = 1
        for length in array.shape:
            size_bytes += lists * _LIST_BYTES
            lists *= length
    return int(size_bytes)


def _names_size(name: str, array: Array) -> int:
    """Return the bytes of the name of an output in each row, with its quotes."""
    return (6 * len(name) + 6) * (array.shape[0] if array.ndim else 1)


@dataclass(frozen=True, slots=True)
class Budgets:
    """Budgets of each request's decoded objects and of its response, and those that all clients share."""

    decoded: DecodedBudget
    receiving: ReceivingBudget
    response: ResponseBudget
    sending: SendingBudget

    @classmethod
    def of(
        cls,
        options: BudgetOptions,
        max_request_bytes: int,
        clock: Clock,
        write_timeout_s: float = 30.0,
    ) -> Self:
        """Create the budgets for requests of at most `max_request_bytes`.

        A client must take some bytes of a response within `write_timeout_s`.
        """
        return cls(
            DecodedBudget(options.decoded_bytes(max_request_bytes)),
            ReceivingBudget(
                options.receiving_bytes(max_request_bytes),
                options.connection_receiving_bytes(max_request_bytes),
                clock,
                LateTrim(),
            ),
            ResponseBudget(options.max_response_bytes),
            SendingBudget(
                options.sending_bytes(max_request_bytes),
                options.connection_sending_bytes(max_request_bytes),
                write_timeout_s,
                clock,
                LateTrim(),
            ),
        )
