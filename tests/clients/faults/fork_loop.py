"""A parent and its child that call through one client after os.fork(), as a preforking server does.

Run as a program, in a separate process, because a fork copies the locks of all threads.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tests.clients.faults.scripted_upstream import ROOT
from tpuserve_client import AsyncClient, Client, Prediction, TpuserveError

MODULE: Final = "tests.clients.faults.fork_loop"
RIGHT: Final = "right"
OF_THE_OTHER: Final = "of the other process"
CALL_TIMEOUT_S: Final = 10.0
# The parent's first request leaves before the child's, so that requests on a shared connection do not mix their bytes.
_HEAD_START_S: Final = 0.02
# The parent's numbers are below this number, the child's above it. float32 holds all of them.
_CHILD: Final = 1_000_000

# Calls the model once for each number, and returns the outcomes.
Loop: TypeAlias = Callable[[Iterable[int]], Counter[str]]


def run_fork_loop(kind: str, address: str, calls: int, limit_s: float = 200.0) -> Counter[str]:
    """Return the number of calls by outcome: RIGHT, OF_THE_OTHER, "wrong", or the name of an error.

    `kind` is "sync" or "async". `calls` is the sum of the parent and the child. A process that does not end within
    `limit_s` seconds gives "hang", and a process that ends without a report gives "crash".
    """
    command = [sys.executable, "-m", MODULE, kind, address, str(calls)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            printed, _ = process.communicate(timeout=limit_s)
            silent = "crash"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # also the child of a parent that hangs
            printed, _ = process.communicate()
            silent = "hang"
    reports = [Counter[str](json.loads(line)) for line in printed.splitlines()]
    missing = Counter({silent: 2 - len(reports)} if len(reports) < 2 else {})
    return sum(reports, missing)


def main(kind: str, address: str, calls: int) -> None:
    loop = _blocking(address) if kind == "sync" else _awaited(address)
    loop([0])
    ready, say_ready = os.pipe()
    if (child := os.fork()) == 0:
        os.write(say_ready, b".")
        time.sleep(_HEAD_START_S)
        _report(loop(range(_CHILD + 1, _CHILD + calls // 2 + 1)))
        os._exit(0)
    os.read(ready, 1)
    _report(loop(range(1, calls // 2 + 1)))
    os.waitpid(child, 0)


def _report(outcomes: Counter[str]) -> None:
    # In one write. `print` may write the line feed separately, and the other process then writes in between.
    os.write(sys.stdout.fileno(), f"{json.dumps(outcomes)}\n".encode())


def _blocking(address: str) -> Loop:
    client = Client(address, timeout_s=CALL_TIMEOUT_S)

    def loop(numbers: Iterable[int]) -> Counter[str]:
        outcomes = Counter[str]()
        for number in numbers:
            try:
                outcomes[_judge(number, client.predict("affine", _inputs(number)))] += 1
            except Exception as error:  # the report names every error
                outcomes[_name(error)] += 1
        return outcomes

    return loop


def _awaited(address: str) -> Loop:
    """Return a loop that runs in a separate event loop, with one client for all of them."""
    client = AsyncClient(address, timeout_s=CALL_TIMEOUT_S)

    async def calls(numbers: Iterable[int]) -> Counter[str]:
        outcomes = Counter[str]()
        for number in numbers:
            try:
                outcomes[_judge(number, await client.predict("affine", _inputs(number)))] += 1
            except Exception as error:  # the report names every error
                outcomes[_name(error)] += 1
        return outcomes

    return lambda numbers: asyncio.run(calls(numbers))


def _inputs(number: int) -> dict[str, npt.NDArray[np.float32]]:
    return {"x": np.full((1, 4), number, np.float32)}


def _judge(number: int, answer: Prediction) -> str:
    got = (answer["y"][0, 0] - 1) / 2
    if got == number:
        return RIGHT
    return OF_THE_OTHER if (got > _CHILD) != (number > _CHILD) else "wrong"


def _name(error: Exception) -> str:
    return type(error).__name__ if isinstance(error, TpuserveError) else f"raw {type(error).__name__}"


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
