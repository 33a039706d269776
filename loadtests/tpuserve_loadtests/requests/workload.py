"""Workloads: lines of requests, which are encoded before the run, and the order of requests in a run."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from tpuserve_client.exchange import Exchange
from tpuserve_client.model import ModelSpec, Signature, TensorSpec
from tpuserve_formats.counted import counted
from tpuserve_loadtests.requests.arrays import Request, has_rows
from tpuserve_loadtests.requests.protocols import TITLES, Protocol

# Length of an order, in which the lines have their exact shares. The order then repeats.
_CYCLE: Final = 4096
_ORDER_SEED: Final = 20
_MOST_CLASSES: Final = 8


def simplified(word: str) -> str:
    """Return a word that selects lines without spaces and in lower case, because both do not distinguish lines."""
    return word.replace(" ", "").casefold()


@dataclass(frozen=True, slots=True)
class Line:
    """Requests that are counted together as a line of the table: one model, signature and protocol.

    `name` is the table's, and unique among lines. A run sends `exchanges` in turn, repeatedly. `rows` holds the number
    of rows of each exchange. `golden` holds the golden answers to the exchanges, as PredictResponse messages for any
    protocol. It may end early, and an empty message means that the answer is unknown. `filters` holds the names of the
    outputs that each exchange requests, or is empty if each requests all. A signature without outputs is unknown.
    """

    name: str
    protocol: Protocol
    spec: ModelSpec
    signature: Signature
    exchanges: tuple[Exchange, ...]
    rows: tuple[int, ...]
    golden: tuple[bytes, ...] = ()
    filters: tuple[tuple[str, ...], ...] = ()

    def expected(self, number: int) -> dict[str, TensorSpec]:
        """Return the outputs of the response to an exchange.

        If the model has rows, a free first dimension is the exchange's number of rows.
        """
        outputs = self.signature.outputs
        found = {name: outputs[name] for name in (self.filters and self.filters[number]) or outputs if name in outputs}
        if not has_rows(self.signature):
            return found
        rows = self.rows[number]
        return {
            name: replace(spec, shape=(rows, *spec.shape[1:])) if spec.shape and spec.shape[0] is None else spec
            for name, spec in found.items()
        }

    @property
    def words(self) -> frozenset[str]:
        """The words that select the line in a gate, in simplified form."""
        found = (self.name, TITLES[self.protocol], self.protocol, self.spec.name, str(self.spec))
        return frozenset(map(simplified, found))

    def counted_as(self) -> tuple[str, ...]:
        """Return the name under which each exchange counts: the line's, with the number of rows if it has few classes.

        A line with up to eight numbers of rows has a line of the table for each of them.
        """
        if not 1 < len(set(self.rows)) <= _MOST_CLASSES:
            return (self.name,)
        return tuple(f"{self.name}, {counted(rows, 'row')}" for rows in self.rows)


@dataclass(frozen=True, slots=True)
class Workload:
    """The lines of a run. `order` holds the line of each request by number, and repeats.

    Without an order, the lines share users (closed) or arrivals (open) evenly. Closed users then stay on their line, so
    that a run can measure two protocols in parallel.
    """

    lines: tuple[Line, ...]
    order: tuple[int, ...] = ()

    @property
    def counted(self) -> tuple[str, ...]:
        """The names under which requests count, in the table's order."""
        by_rows = (sorted(zip(line.rows, line.counted_as(), strict=False)) for line in self.lines)
        return tuple(dict.fromkeys(name for of_line in by_rows for _, name in of_line))

    def words(self) -> dict[str, frozenset[str]]:
        """Return the words that select the lines of the table in a gate, by the name of the line."""
        return {
            name: line.words | {simplified(name), simplified(name.removeprefix(f"{line.name}, "))}
            for line in self.lines
            for name in line.counted_as()
        }

    @property
    def rows(self) -> float:
        means = [sum(line.rows) / len(line.rows) for line in self.lines]
        order = self.order or range(len(means))
        return sum(means[line] for line in order) / len(order)


class Turns:
    """Mapping from a request's number in the run to a line and to the request's number in the line.

    It has no state, so every process of a load generator computes the same result.
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
        """Return the line of a request, and the number of earlier requests of that line."""
        cycle, place = divmod(number, len(self._order))
        line = self._order[place]
        return line, cycle * self._counts[line] + self._ranks[place]


def mixed_order(shares: Sequence[float]) -> tuple[int, ...]:
    """Return a random order with each line's share of the requests.

    The shares have any sum. Equal shares give the same order.
    """
    exact = np.asarray(shares) / sum(shares) * _CYCLE
    counts = np.maximum(np.floor(exact).astype(int), 1)
    # Distribute the rounding remainder to the lines that lost most. Lines raised to one request take it from the
    # largest.
    while (missing := _CYCLE - counts.sum()) != 0:
        place = np.argmax(exact - counts) if missing > 0 else np.argmax(counts)
        counts[place] += 1 if missing > 0 else -1
    random = np.random.default_rng(_ORDER_SEED)
    return tuple(random.permutation(np.repeat(np.arange(len(counts)), counts)).tolist())


# Limit for the encoded requests of all lines together. Every line keeps at least one request of any size.
MAX_REQUESTS_BYTES: Final = 64 * 2**20


def encode_lines(
    names: Sequence[str],
    spec: ModelSpec,
    signature: Signature,
    protocols: Sequence[Protocol],
    requests: Iterable[Request],
    max_bytes: int = MAX_REQUESTS_BYTES,
) -> tuple[Line, ...]:
    """Return a line for each protocol, with the same requests.

    The lines hold at most `max_bytes` of requests together, and at least one request each. Raises BadInput or
    InvalidArgument.
    """
    encoded: list[tuple[Exchange, ...]] = []
    rows: list[int] = []
    golden: list[bytes] = []
    filters: list[tuple[str, ...]] = []
    size_bytes = 0
    for request in requests:
        exchanges = tuple(request.exchange(spec, protocol) for protocol in protocols)
        size_bytes += sum(len(exchange.body) for exchange in exchanges)
        if encoded and size_bytes > max_bytes:
            break
        encoded.append(exchanges)
        rows.append(request.rows)
        golden.append(request.golden)
        filters.append(request.output_filter)
    known = tuple(golden) if all(golden) else ()
    # A REST response always has all outputs.
    filtered = tuple(filters) if any(filters) else ()
    return tuple(
        Line(
            name,
            protocol,
            spec,
            signature,
            of_protocol,
            tuple(rows),
            known,
            () if protocol == "rest" else filtered,
        )
        for name, protocol, of_protocol in zip(names, protocols, zip(*encoded, strict=True), strict=True)
    )
