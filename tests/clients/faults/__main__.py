"""Show what the client does under faults. `python -m tests.clients.faults [PART …]`; without a part, run all."""

import argparse
from collections import Counter
from collections.abc import Callable
from typing import Final

from tests.clients.faults.cold_burst import WAYS, run_burst
from tests.clients.faults.dead_path import CALLS, count, run_dead_path
from tests.clients.faults.event_loops import run_two_loops
from tests.clients.faults.fault_proxy import proxied
from tests.clients.faults.fault_table import KINDS, print_table
from tests.clients.faults.fork_loop import run_fork_loop
from tests.clients.faults.retry_budget import AlwaysUnavailable, run_retry_budget
from tests.clients.faults.scripted_upstream import upstream_process
from tests.clients.model_server import ModelServer, serving

PROTOCOLS: Final = ("grpc", "rest")
FORK_CALLS: Final = 1200
# Long enough that requests of two processes on one connection overlap.
PREDICTION_S: Final = 0.05
BURSTS: Final = (500, 1000)


def print_fork_loop() -> None:
    """Count the answers of a parent and its child that share a client."""
    with upstream_process(PREDICTION_S) as running:
        for protocol in PROTOCOLS:
            for kind in KINDS:
                with proxied(running.addresses[protocol]) as (_, address):
                    outcomes = run_fork_loop(kind, address, FORK_CALLS)
                print(f"fork, {kind} {protocol}, {FORK_CALLS:,} calls: {_counts(outcomes)}", flush=True)


def print_cold_burst() -> None:
    """Measure concurrent first calls."""
    for calls in BURSTS:
        for way in WAYS:
            with upstream_process() as running:
                burst = run_burst(way, running.addresses["rest"], calls)
                served = running.executed()
            print(
                f"burst, {calls:,} concurrent calls, {way}: {_counts(burst.outcomes)}; "
                f"{burst.cpu_s:.1f} CPU s, {burst.wall_s:.1f} s; the server got {_counts(served)}",
                flush=True,
            )


def print_dead_path() -> None:
    """Count the calls that a dead path fails."""
    for protocol in PROTOCOLS:
        with serving(ModelServer(), protocol) as address:
            for kind in KINDS:
                outcomes = run_dead_path(kind, address)
                print(f"dead path, {kind} {protocol}, {CALLS} calls of 1 s: {count(outcomes)}", flush=True)


def print_retry_budget() -> None:
    """Count the attempts that reach a server that is always unavailable."""
    for protocol in PROTOCOLS:
        server = AlwaysUnavailable()
        with serving(server, protocol) as address:
            for kind in KINDS:
                failed, attempts = run_retry_budget(kind, address, server)
                print(f"retry budget, {kind} {protocol}: {failed} calls failed, {attempts} attempts", flush=True)


def print_event_loops() -> None:
    """Show the outcomes of an AsyncClient that outlives event loops."""
    for protocol in PROTOCOLS:
        with serving(ModelServer(), protocol) as address:
            print(f"two event loops, {protocol}: {'; '.join(run_two_loops(address))}", flush=True)


PARTS: Final[dict[str, Callable[[], None]]] = {
    "table": print_table,
    "fork": print_fork_loop,
    "burst": print_cold_burst,
    "dead-path": print_dead_path,
    "budget": print_retry_budget,
    "event-loops": print_event_loops,
}


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{number:,} {name}" for name, number in counter.most_common()) or "nothing"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.clients.faults", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"any of {', '.join(PARTS)}")
    parts = parser.parse_args().parts
    if unknown := [part for part in parts if part not in PARTS]:
        parser.error(f"unknown part {unknown[0]}: choose from {', '.join(PARTS)}")
    for part in parts or PARTS:
        PARTS[part]()


if __name__ == "__main__":
    main()
