"""The requests of a run, encoded before it starts: while it runs the load generator only moves bytes."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
class Line:
    """Requests that are counted together, a line of the table: of one model and signature, over one protocol.

    `name` is the table's and unique among lines. `exchanges` are sent in turn for as long as a run lasts; `rows` says
    how many rows each of them has.
    """

    name: str
    protocol: Protocol
    spec: ModelSpec
    signature_name: str
    exchanges: tuple[Exchange, ...]
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """What is sent. `order` holds lines by number: that of each request in turn, again and again.

    Without an order the lines share users (closed) or arrivals (open) evenly: so two protocols are measured side by
    side, each with users of its own.
    """

    lines: tuple[Line, ...]
    order: tuple[int, ...] = ()

    @property
    def rows(self) -> float:
        """Rows in a request, on average."""
        means = [sum(line.rows) / len(line.rows) for line in self.lines]
        order = self.order or range(len(means))
        return sum(means[line] for line in order) / len(order)


def build_workload(
    spec: ModelSpec,
    signature: Signature,
    protocols: tuple[Protocol, ...],
    *,
    rows: int | None = None,
    inputs: Mapping[str, Array] | None = None,
) -> Workload:
    """A line for each protocol, named as it: requests of `rows` rows (1 unless told) from `inputs`, or random ones.

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
    encoded = _encoded(calls, protocols)
    lines = [
        Line(protocol, protocol, spec, signature.name, exchanges, (rows or 1,) * len(exchanges))
        for protocol, exchanges in encoded.items()
    ]
    return Workload(tuple(lines))


class Turns:
    """Which line a request goes to, and which of the line's requests it is, by the number of the request in the run.

    Nothing is remembered from one call to the next: every process of a load generator finds the same.
    """

    def __init__(self, order: Sequence[int]) -> None:
        self._order = tuple(order)
        counts = [0] * (max(self._order) + 1)
        ranks = []
        for line in self._order:
            ranks.append(counts[line])
            counts[line] += 1
        self._ranks, self._counts = tuple(ranks), tuple(counts)

    def at(self, number: int) -> tuple[int, int]:
        """The line, and how many of its requests come before this one."""
        cycle, place = divmod(number, len(self._order))
        line = self._order[place]
        return line, cycle * self._counts[line] + self._ranks[place]


def _encoded(calls: Iterable[PredictCall], protocols: tuple[Protocol, ...]) -> dict[Protocol, tuple[Exchange, ...]]:
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
