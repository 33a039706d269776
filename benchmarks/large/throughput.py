"""Throughput of large requests, next to a byte echo of the same bytes and one copy of the tensor.

The model does hardly any work, so that the figures show the way of the bytes. The limit is the rate of the echo, whose
requests take the time of one more copy. A sink, which joins the body and answers with 12 bytes, is a stricter one: the
echo also sends the bytes back, which the server need not do.
"""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.harness.load_tools import Load
from benchmarks.harness.measurement import WrongAnswer, check_size
from benchmarks.harness.targets import (
    PROTOCOLS,
    Protocol,
    Target,
    asgi_server,
    free_port,
    is_open,
    model_server,
    wait_until_ready,
)
from benchmarks.harness.turns import in_turn
from benchmarks.large import edge_model
from benchmarks.large.ways import FLAG, Way, ways
from benchmarks.overhead.call_turns import check_call, load_call

ECHO, SINK, SERVER = "echo", "sink", "server"
_APPS: Final = {ECHO: "benchmarks.harness.echo_asgi:app", SINK: "benchmarks.harness.sink_asgi:join"}
# More would only take memory: two keep the cores busy.
IN_FLIGHT: Final = 4
_WARM_UP_S: Final = 1
# Memory that the copies go through in turn: more than the caches hold.
_COPIED_BYTES: Final = 1 << 28


@dataclass(frozen=True, slots=True)
class Throughput:
    """Requests per second of a way and a size, by target, and the seconds of one copy of the tensor.

    The medians of the turns.
    """

    name: str
    size: str
    rate_per_s: Mapping[str, float]
    copy_s: float

    @property
    def limit_per_s(self) -> float:
        """The rate of the echo with one more copy in each request."""
        return 1 / (1 / self.rate_per_s[ECHO] + self.copy_s)

    @property
    def ratio(self) -> float:
        """The server's rate, as a share of the limit."""
        return self.rate_per_s[SERVER] / self.limit_per_s


def measure(
    base: Path, scratch: Path, *, rounds: int, seconds: int, progress: Callable[[str], None]
) -> list[Throughput]:
    """Load the server, the echo and the sink with each way of each size in turn.

    Raises ServerDied, ToolFailed and WrongAnswer.
    """
    found = []
    with (
        model_server(base, scratch, FLAG, name=edge_model.NAME) as server,
        _apps(scratch) as apps,
        ways(server["rest"].port) as listed,
    ):
        for way in listed:
            call = way.call
            answer_bytes = check_call(call, server[call.protocol].port)
            targets = {name: target[call.protocol] for name, target in {SERVER: server, **apps}.items()}
            copies_s: list[float] = []
            rates: dict[str, list[float]] = {name: [] for name in targets}
            for target in targets.values():
                load_call(call, target, _WARM_UP_S, scratch, IN_FLIGHT)
            for number in range(rounds):
                copies_s.append(copy_s(way.tensor_bytes))
                for name in in_turn(list(targets), number):
                    progress(f"{call.name} of {call.size}, {name}, turn {number + 1} of {rounds}")
                    load = load_call(call, targets[name], seconds, scratch, IN_FLIGHT)
                    _check(way, name, load, answer_bytes)
                    rates[name].append(load.rate_per_s)
            check_call(call, server[call.protocol].port)
            medians = {name: statistics.median(each) for name, each in rates.items()}
            found.append(Throughput(call.name, call.size, medians, statistics.median(copies_s)))
        server["rest"].tree.check_alive()
    return found


def _check(way: Way, name: str, load: Load, answer_bytes: int) -> None:
    if load.failures:
        raise WrongAnswer(f"{way.call.name} of {way.call.size}: {load.failures} failures of {name}")
    if name == SERVER:
        # h2load cannot see a gRPC status, but errors have no body.
        check_size(load, answer_bytes)


def copy_s(size_bytes: int) -> float:
    """Return the seconds of a copy whose source and target are in no cache."""
    arrays = [np.ones(size_bytes, np.uint8) for _ in range(max(2, _COPIED_BYTES // size_bytes // 2 * 2))]
    started_s = time.perf_counter()
    for source, target in zip(arrays[::2], arrays[1::2], strict=True):
        np.copyto(target, source)
    return (time.perf_counter() - started_s) / (len(arrays) / 2)


@contextlib.contextmanager
def _apps(scratch: Path) -> Iterator[dict[str, dict[Protocol, Target]]]:
    with contextlib.ExitStack() as stack:
        found = {}
        for name, app in _APPS.items():
            port = free_port()
            tree = stack.enter_context(asgi_server(app, port, scratch / f"{name}.log"))
            target = Target("echo", "rest", port, tree)
            wait_until_ready(target, is_open)
            found[name] = {protocol: replace(target, protocol=protocol) for protocol in PROTOCOLS}
        yield found
