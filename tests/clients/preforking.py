"""Predictions through gunicorn's workers, which were forked from a process with used clients.

`python -m tests.clients.preforking --calls 10000` starts a model server, and gunicorn with `preforked_app`. It checks
each prediction and prints the counts by worker.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from typing import Any, Final, TypeAlias

from tests.clients.faults.scripted_upstream import ROOT, upstream_process

WORKERS: Final = 4
# More than one, so that each worker calls the model server from several threads and tasks at a time.
_CONNECTIONS_TO_A_WORKER: Final = 4
# Environment variable that `preforked_app` reads.
ADDRESSES_VARIABLE: Final = "MODEL_SERVERS"
ROUTES: Final = tuple((kind, protocol) for kind in ("sync", "async") for protocol in ("grpc", "rest"))
RIGHT: Final = "right"
WRONG: Final = "wrong"
# Limits a wait for a worker that hangs. A busy machine starts gunicorn and its workers slowly.
_LIMIT_S: Final = 120.0

Route: TypeAlias = tuple[str, str]
# Counts by the worker's process id and the outcome: RIGHT, WRONG or the text of an error.
Outcomes: TypeAlias = Counter[tuple[int, str]]


@contextmanager
def preforked(addresses: dict[str, str]) -> Iterator[int]:
    """Start gunicorn with `preforked_app` in front of a model server, and yield its port. Stop it at exit."""
    command = [sys.executable, "-m", "gunicorn", "tests.clients.preforked_app:app", "--preload", "--no-control-socket"]
    command += ["--workers", str(WORKERS), "--worker-class", "uvicorn_worker.UvicornWorker"]
    command += ["--timeout", "0", "--keep-alive", str(round(_LIMIT_S)), "--log-level", "warning"]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        process = subprocess.Popen(
            [*command, "--bind", f"fd://{listener.fileno()}"],
            cwd=ROOT,
            env={**os.environ, ADDRESSES_VARIABLE: json.dumps(addresses)},
            pass_fds=[listener.fileno()],
        )
    try:
        with closing(_connection(port)) as connection:
            _get(connection, "/pid")  # the answer follows the calls of the parent process
        yield port
    finally:
        process.terminate()
        process.wait(_LIMIT_S)


def count_outcomes(port: int, calls: int, routes: Sequence[Route] = ROUTES) -> Outcomes:
    """Request `calls` different predictions, an equal share from each worker, and check each of them."""
    connections = [pair for _ in range(_CONNECTIONS_TO_A_WORKER) for pair in _connect_to_each_worker(port)]

    def request_share(first: int) -> Outcomes:
        pid, connection = connections[first]
        outcomes = Outcomes()
        with closing(connection):
            for step, number in enumerate(range(first, calls, len(connections))):
                outcomes[pid, _request(connection, pid, routes[step % len(routes)], number)] += 1
        return outcomes

    with ThreadPoolExecutor(len(connections)) as pool:
        return sum(pool.map(request_share, range(len(connections))), Outcomes())


def _connect_to_each_worker(port: int) -> list[tuple[int, HTTPConnection]]:
    """Return a connection to each worker, with the worker's process id. The client cannot choose the worker.

    A worker that is stopped cannot accept the next connection. All of them continue at the end.
    """
    connections: list[tuple[int, HTTPConnection]] = []
    try:
        for _ in range(WORKERS):
            connection = _connection(port)
            pid: int = _get(connection, "/pid")["pid"]
            connections.append((pid, connection))
            os.kill(pid, signal.SIGSTOP)
    finally:
        for pid, _ in connections:
            os.kill(pid, signal.SIGCONT)
    return connections


def _connection(port: int) -> HTTPConnection:
    return HTTPConnection("127.0.0.1", port, timeout=_LIMIT_S)


def _request(connection: HTTPConnection, pid: int, route: Route, number: int) -> str:
    kind, protocol = route
    document = _get(connection, f"/{kind}/{protocol}/{number}")
    if "error" in document:
        return str(document["error"])
    assert document["pid"] == pid  # a connection belongs to one worker
    return RIGHT if document["outputs"]["y"] == [[2.0 * number + 1] * 4] else WRONG


def _get(connection: HTTPConnection, path: str) -> Any:  # noqa: ANN401  a JSON document
    connection.request("GET", path)
    response = connection.getresponse()
    body = response.read()
    return json.loads(body) if response.getheader("content-type") == "application/json" else {"error": body.decode()}


def print_outcomes(outcomes: Outcomes) -> bool:
    """Print a line for each worker and a sum. Return whether all answers are right."""
    pids = sorted({pid for pid, _ in outcomes})
    print(f"{'worker':>8} {'right':>8} {'wrong':>8} {'errors':>8}")
    for name, of in [*((str(pid), [pid]) for pid in pids), ("all", pids)]:
        counts = Counter[str]()
        for (pid, outcome), number in outcomes.items():
            if pid in of:
                counts[outcome if outcome in (RIGHT, WRONG) else "error"] += number
        print(f"{name:>8} {counts[RIGHT]:8,} {counts[WRONG]:8,} {counts['error']:8,}")
    texts = Counter(outcome for _, outcome in outcomes.elements() if outcome not in (RIGHT, WRONG))
    for text, number in texts.most_common(5):
        print(f"{number:,} calls: {text}")
    return all(outcome == RIGHT for _, outcome in outcomes)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.clients.preforking", description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000, help="number of predictions (default: 10000)")
    calls = parser.parse_args().calls
    with upstream_process() as upstream, preforked(upstream.addresses) as port:
        outcomes = count_outcomes(port, calls)
        print(f"{calls:,} predictions; the model server executed {upstream.executed()['Predict']:,}")
    return 0 if print_outcomes(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
