"""Requests before they are encoded: arrays from a file, cut into requests, or random ones that fit the model."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, Protocol

import numpy as np

from tpuserve_client.dtypes import Array
from tpuserve_client.exchange import Exchange, PredictCall, Wire
from tpuserve_client.grpc_wire import GrpcWire
from tpuserve_client.model import ModelSpec, Signature
from tpuserve_client.rest_wire import RestWire
from tpuserve_loadtests import workload
from tpuserve_loadtests.distribution import Distribution
from tpuserve_loadtests.golden.golden_answers import encode_golden
from tpuserve_loadtests.inputs import BadInput, free_axes, has_rows, random_inputs

# Different requests that are sent in turn; few enough to be encoded at once.
MAX_REQUESTS: Final = 1024
RANDOM_REQUESTS: Final = 32
# As many as show a distribution's shares, if not those of rare values.
DRAWN_REQUESTS: Final = 256
RANDOM_SEED: Final = 20
# Of Lengths: every input.
EVERY_INPUT: Final = ""
ONE: Final = Distribution.choice({1: 1.0})

_WIRES: Final[dict[workload.Protocol, Wire]] = {"grpc": GrpcWire(), "rest": RestWire()}


class Request(Protocol):
    """What is asked, of whichever model and over whichever protocol."""

    @property
    def rows(self) -> int: ...

    @property
    def golden(self) -> bytes:
        """The right answer as a PredictResponse; empty if it is not known."""

    def exchange(self, spec: ModelSpec, protocol: workload.Protocol) -> Exchange:
        """The request as bytes. Raises InvalidArgument for arrays that cannot be sent."""


@dataclass(frozen=True, slots=True, eq=False)  # arrays do not compare to one truth value
class ArrayRequest:
    """Arrays by input name, to be encoded as the client does; `outputs` are the right answer, if it is known."""

    inputs: Mapping[str, Array]
    signature_name: str
    rows: int
    outputs: Mapping[str, Array] = field(default_factory=dict)

    @property
    def golden(self) -> bytes:
        """As Request's."""
        return encode_golden(self.outputs) if self.outputs else b""

    def exchange(self, spec: ModelSpec, protocol: workload.Protocol) -> Exchange:
        """gRPC with `tensor_content`, REST in the columnar form."""
        return _WIRES[protocol].predict(PredictCall(spec, self.inputs, self.signature_name))


def array_requests(
    signature: Signature,
    *,
    rows: Distribution | None = None,
    lengths: Mapping[str, Distribution] | None = None,
    inputs: Mapping[str, Array] | None = None,
    outputs: Mapping[str, Array] | None = None,
) -> Iterator[ArrayRequest]:
    """Requests of so many `rows` (1 unless told) from `inputs`, or random ones: at most MAX_REQUESTS.

    More rows in `inputs` than in a request make several requests; fewer are repeated. A model without a batch dimension
    is sent the inputs as they are. `lengths` are of random inputs' free dimensions beside the first (1 unless told), by
    input, or of EVERY_INPUT, which then all have the same in a request. `outputs` are the right answers to `inputs`,
    row by row. Raises BadInput where that cannot be done.
    """
    if not has_rows(signature) and rows is not None and rows.values != (1,):
        raise BadInput("the model has no batch dimension: a request cannot carry several rows")
    if inputs is not None and lengths:
        raise BadInput("lengths are of random inputs: those of a file have their own")
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
        raise BadInput(f"every input needs the same number of rows, at least one; they have {sorted(found)}")
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
            raise BadInput("lengths are given, and no input of the model has a free dimension beside the first")
        if name != EVERY_INPUT and name not in free:
            raise BadInput(f"lengths of {name!r} are given; inputs with a free dimension beside the first are {free}")
