"""Concurrent first calls of one AsyncClient over REST, compared with plain httpx and with calls of a warm client.

Run as a program: each measurement has a separate process, so that its CPU time is the client's alone.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import httpx
import numpy as np

from tests.clients.faults.scripted_upstream import ROOT
from tpuserve_client import AsyncClient

MODULE: Final = "tests.clients.faults.cold_burst"
WAYS: Final = ("cold client", "warm client", "plain httpx")
OK: Final = "ok"

# Makes call number n and raises if it fails.
Call: TypeAlias = Callable[[int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Burst:
    """Outcomes of the calls by name, CPU seconds of the client's process (without imports), and wall seconds."""

    outcomes: Counter[str]
    cpu_s: float
    wall_s: float


def run_burst(way: str, address: str, calls: int) -> Burst:
    """Make `calls` concurrent predictions in one of WAYS, in a separate process."""
    command = [sys.executable, "-m", MODULE, way, address, str(calls)]
    printed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    outcomes, cpu_s, wall_s = json.loads(printed)
    return Burst(Counter(outcomes), cpu_s, wall_s)


async def main(way: str, address: str, calls: int) -> None:
    if way == "plain httpx":
        async with httpx.AsyncClient(base_url=address, timeout=None) as plain:
            await _measure(_plain_call(plain), calls)
        return
    async with AsyncClient(address) as client:
        call = _client_call(client)
        if way == "warm client":
            await call(0)
        await _measure(call, calls)


async def _measure(call: Call, calls: int) -> None:
    async def outcome(number: int) -> str:
        try:
            await call(number)
        except Exception as error:  # the report names every error
            return type(error).__name__
        return OK

    started = time.process_time(), time.monotonic()
    outcomes = Counter(await asyncio.gather(*map(outcome, range(calls))))
    print(json.dumps([outcomes, time.process_time() - started[0], time.monotonic() - started[1]]))


def _client_call(client: AsyncClient) -> Call:
    async def call(number: int) -> None:
        answer = await client.predict("affine", {"x": np.full((1, 4), number, np.float32)})
        if answer["y"][0, 0] != 2 * number + 1:
            raise AssertionError("wrong answer")

    return call


def _plain_call(plain: httpx.AsyncClient) -> Call:
    async def call(number: int) -> None:
        response = await plain.post("/v1/models/affine:predict", json={"inputs": {"x": [[number] * 4]}})
        if response.json()["outputs"]["y"][0][0] != 2 * number + 1:
            raise AssertionError("wrong answer")

    return call


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
