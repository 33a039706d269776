"""The requests of a run, encoded before it starts: while it runs the load generator only moves bytes."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from tpuserve_client.dtypes import Array
from tpuserve_client.exchange import Exchange, PredictCall, Wire
from tpuserve_client.grpc_wire import GrpcWire
from tpuserve_client.model import ModelSpec, Signature
from tpuserve_client.rest_wire import RestWire
from tpuserve_loadtests.inputs import BadInput, has_rows, random_inputs

Protocol: TypeAlias = Literal["grpc", "rest"]

# Different requests that are sent in turn; few and small enough to be encoded at once and kept in memory.
MAX_REQUESTS = 1024
MAX_REQUESTS_BYTES = 64 * 2**20  # as encoded, all protocols together; one request there is, however large
RANDOM_REQUESTS = 32
RANDOM_SEED = 20

_WIRES: dict[Protocol, Wire] = {"grpc": GrpcWire(), "rest": RestWire()}


@dataclass(frozen=True, slots=True)
class Workload:
    """What is sent. `exchanges` holds the same requests for each protocol, taken in turn for as long as a run lasts."""

    spec: ModelSpec
    rows: int
    exchanges: Mapping[Protocol, tuple[Exchange, ...]]


def build_workload(
    spec: ModelSpec,
    signature: Signature,
    protocols: tuple[Protocol, ...],
    *,
    rows: int | None = None,
    inputs: Mapping[str, Array] | None = None,
) -> Workload:
    """Encode requests of `rows` rows (1 unless told) from `inputs`, or from random arrays that fit the signature.

    More rows in `inputs` than in a request make several requests; fewer are repeated. A model without a batch
    dimension is sent the inputs as they are. There are at most MAX_REQUESTS requests, and as many as MAX_REQUESTS_BYTES
    hold. BadInput where that cannot be done.
    """
    if not has_rows(signature):
        if rows not in (None, 1):
            raise BadInput("the model has no batch dimension: a request cannot carry several rows")
        requests = iter([inputs]) if inputs is not None else _random_requests(signature, 1)
    elif inputs is not None:
        requests = _slices(inputs, rows or 1)
    else:
        requests = _random_requests(signature, rows or 1)
    calls = (PredictCall(spec, request, signature.name) for request in requests)
    return Workload(spec, rows or 1, _encoded(calls, protocols))


def _encoded(calls: Iterator[PredictCall], protocols: tuple[Protocol, ...]) -> dict[Protocol, tuple[Exchange, ...]]:
    encoded: list[tuple[Exchange, ...]] = []
    size_bytes = 0
    for call in calls:
        request = tuple(_WIRES[protocol].predict(call) for protocol in protocols)
        size_bytes += sum(len(exchange.body) for exchange in request)
        if encoded and size_bytes > MAX_REQUESTS_BYTES:
            break
        encoded.append(request)
    return dict(zip(protocols, zip(*encoded, strict=True), strict=True))


def _slices(inputs: Mapping[str, Array], rows: int) -> Iterator[dict[str, Array]]:
    lengths = {len(array) for array in inputs.values()}
    if len(lengths) != 1 or 0 in lengths:
        raise BadInput(f"every input needs the same number of rows, at least one; they have {sorted(lengths)}")
    (length,) = lengths
    for start in range(min(math.ceil(length / rows), MAX_REQUESTS)):
        chosen = (np.arange(rows) + start * rows) % length
        yield {name: array[chosen] for name, array in inputs.items()}


def _random_requests(signature: Signature, rows: int) -> Iterator[dict[str, Array]]:
    random = np.random.default_rng(RANDOM_SEED)
    for _ in range(RANDOM_REQUESTS):
        yield random_inputs(signature, rows, random)
