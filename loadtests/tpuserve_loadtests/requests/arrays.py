"""Requests before they are encoded: arrays from a file, divided into requests, or random arrays for the model."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, Protocol

import numpy as np

from tpuserve_client.dtypes import Array
from tpuserve_client.exchange import Exchange
from tpuserve_client.model import ModelSpec, Signature
from tpuserve_loadtests.requests import protocols
from tpuserve_loadtests.requests.distribution import Distribution
from tpuserve_loadtests.requests.inputs import BadInput, free_axes, has_rows, random_inputs
from tpuserve_loadtests.requests.wires import encode_golden, predict_exchange

# Limit for different requests, which are sent in turn. They must be few enough to encode in advance.
MAX_REQUESTS: Final = 1024
RANDOM_REQUESTS: Final = 32
# Enough requests to represent a distribution, except its rare values.
DRAWN_REQUESTS: Final = 256
RANDOM_SEED: Final = 20
# Key for lengths that apply to every input.
EVERY_INPUT: Final = ""
ONE: Final = Distribution.choice({1: 1.0})


class Request(Protocol):
    """A request, independent of model and protocol."""

    @property
    def rows(self) -> int: ...

    @property
    def golden(self) -> bytes:
        """The expected response as a PredictResponse, or empty if it is unknown."""

    def exchange(self, spec: ModelSpec, protocol: protocols.Protocol) -> Exchange:
        """Return the encoded request. Raises InvalidArgument for arrays that cannot be encoded."""


@dataclass(frozen=True, slots=True, eq=False)  # a comparison of arrays has no single truth value
class ArrayRequest:
    """Arrays by input name, in the client's encoding. `outputs` are the expected response, if known."""

    inputs: Mapping[str, Array]
    signature_name: str
    rows: int
    outputs: Mapping[str, Array] = field(default_factory=dict)

    @property
    def golden(self) -> bytes:
        """The expected response, as in Request."""
        return encode_golden(self.outputs) if self.outputs else b""

    def exchange(self, spec: ModelSpec, protocol: protocols.Protocol) -> Exchange:
        """Return the encoded request: gRPC with `tensor_content`, REST in the columnar format, OIP as its wires do."""
        return predict_exchange(protocol, spec, self.inputs, self.signature_name)


def array_requests(
    signature: Signature,
    *,
    rows: Distribution | None = None,
    lengths: Mapping[str, Distribution] | None = None,
    inputs: Mapping[str, Array] | None = None,
    outputs: Mapping[str, Array] | None = None,
) -> Iterator[ArrayRequest]:
    """Return at most MAX_REQUESTS requests of `rows` rows (default 1), from `inputs` or with random arrays.

    If `inputs` has more rows than a request, the function divides them into several requests. If it has fewer, rows
    repeat. A model without a batch dimension receives the inputs unchanged. `lengths` gives random inputs' free
    dimensions except the first (default 1), by input or for EVERY_INPUT, which uses equal lengths within a request.
    `outputs` are the expected responses for `inputs`, row by row. Raises BadInput for unsuitable arguments.
    """
    if not has_rows(signature) and rows is not None and rows.values != (1,):
        raise BadInput("the model has no batch dimension, so a request cannot contain several rows")
    if inputs is not None and lengths:
        raise BadInput("lengths apply only to random inputs, not to inputs from a file")
    if inputs is None:
        return _random(signature, rows or ONE, lengths or {})
    if not has_rows(signature):
        return iter([ArrayRequest(inputs, signature.name, 1, outputs or {})])
    return _slices(signature, inputs, outputs or {}, rows or ONE)


def _slices(
    signature: Signature, inputs: Mapping[str, Array], outputs: Mapping[str, Array], rows: Distribution
) -> Iterator[ArrayRequest]:
    found = {len(array) for array in inputs.values()}
    if len(found) != 1 or 0 in found:
        raise BadInput(f"every input needs the same number of rows, at least one, received {sorted(found)}")
    (length,) = found
    count = math.ceil(length / rows.mean)
    if not rows.is_fixed:
        count = max(count, DRAWN_REQUESTS)
    sizes = rows.draw(min(count, MAX_REQUESTS), np.random.default_rng(RANDOM_SEED)).tolist()
    return (
        ArrayRequest(
            _rows_of(inputs, start, size, length), signature.name, size, _rows_of(outputs, start, size, length)
        )
        for start, size in zip(accumulate(sizes, initial=0), sizes, strict=False)
    )


def _rows_of(inputs: Mapping[str, Array], start: int, size: int, length: int) -> dict[str, Array]:
    chosen = (np.arange(size) + start) % length
    return {name: array[chosen] for name, array in inputs.items()}


def _random(signature: Signature, rows: Distribution, lengths: Mapping[str, Distribution]) -> Iterator[ArrayRequest]:
    _check_lengths(signature, lengths)
    random = np.random.default_rng(RANDOM_SEED)
    fixed = all(distribution.is_fixed for distribution in (rows, *lengths.values()))
    count = RANDOM_REQUESTS if fixed else DRAWN_REQUESTS
    sizes = rows.draw(count, random).tolist()
    drawn = {name: distribution.draw(count, random).tolist() for name, distribution in lengths.items()}
    return (
        ArrayRequest(
            random_inputs(signature, size, _lengths_of(signature, drawn, number), random), signature.name, size
        )
        for number, size in enumerate(sizes)
    )


def _lengths_of(signature: Signature, drawn: Mapping[str, list[int]], number: int) -> dict[str, int]:
    every = drawn.get(EVERY_INPUT)
    return {name: drawn[name][number] if name in drawn else every[number] if every else 1 for name in signature.inputs}


def _check_lengths(signature: Signature, lengths: Mapping[str, Distribution]) -> None:
    free = [name for name, spec in signature.inputs.items() if free_axes(spec)]
    for name in lengths:
        if not free:
            raise BadInput("lengths have no effect: no input of the model has a free dimension except the first")
        if name != EVERY_INPUT and name not in free:
            raise BadInput(f"input {name!r} has no free dimension except the first; expected one of {free}")
