"""What a run sends: lines of requests that are encoded already, and which of them each request of the run is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np

from tpuserve_client.exchange import Exchange
from tpuserve_client.model import ModelSpec

Protocol: TypeAlias = Literal["grpc", "rest"]

# Requests in which lines have exactly their shares; then the order begins anew.
_CYCLE: Final = 4096
_ORDER_SEED: Final = 20


@dataclass(frozen=True, slots=True)
class Line:
    """Requests that are counted together, a line of the table: of one model and signature, over one protocol.

    `name` is the table's and unique among lines. `exchanges` are sent in turn for as long as a run lasts; `rows` says
    how many rows each of them has, `golden` what the right answer is: a PredictResponse, whatever the protocol. It is
    empty where that is not known.
    """

    name: str
    protocol: Protocol
    spec: ModelSpec
    signature_name: str
    exchanges: tuple[Exchange, ...]
    rows: tuple[int, ...]
    golden: tuple[bytes, ...] = ()


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


def mixed_order(shares: Sequence[float]) -> tuple[int, ...]:
    """An order that gives each line its share (of any sum) of the requests, at random, and the same every time."""
    exact = np.asarray(shares) / sum(shares) * _CYCLE
    counts = np.maximum(np.floor(exact).astype(int), 1)
    # What rounding left over goes where most was lost; a line that was lifted to one request takes from the largest.
    while (missing := _CYCLE - counts.sum()) != 0:
        place = np.argmax(exact - counts) if missing > 0 else np.argmax(counts)
        counts[place] += 1 if missing > 0 else -1
    random = np.random.default_rng(_ORDER_SEED)
    return tuple(random.permutation(np.repeat(np.arange(len(counts)), counts)).tolist())
