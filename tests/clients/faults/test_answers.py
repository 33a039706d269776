"""Each call gets its own answer: calls that the server answers in the other order, and answers that come too late."""

import asyncio
import threading
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pytest

from tests.clients.clients_under_test import make_client
from tests.clients.faults.fault_proxy import proxied
from tests.clients.faults.scripted_upstream import FirstWaits, Upstream
from tpuserve_client import AsyncClient, Client, DeadlineExceeded, Prediction

FIRST, SECOND = 100.0, 200.0


def inputs(number: float) -> dict[str, npt.NDArray[np.float32]]:
    return {"x": np.full((1, 4), number, np.float32)}


def value(answer: Prediction) -> float:
    return float((answer["y"][0, 0] - 1) / 2)


def hold_next(behind: Upstream) -> FirstWaits:
    """Hold the next prediction in the server."""
    behind.server.gate = gate = FirstWaits()
    return gate


def test_blocking_calls_answered_in_the_other_order(protocol: str, behind: Upstream) -> None:
    with (
        proxied(behind.addresses[protocol, False]) as (proxy, place),
        Client(place) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        client.predict("affine", inputs(0))
        held = hold_next(behind)
        first = pool.submit(client.predict, "affine", inputs(FIRST))
        held.started.wait(30)
        assert value(client.predict("affine", inputs(SECOND))) == SECOND
        held.release.set()
        assert value(first.result()) == FIRST
        assert proxy.connections == (1 if protocol == "grpc" else 2)  # gRPC multiplexes


async def test_awaited_calls_answered_in_the_other_order(protocol: str, behind: Upstream) -> None:
    with proxied(behind.addresses[protocol, False]) as (proxy, place):
        async with AsyncClient(place) as client:
            await client.predict("affine", inputs(0))
            held = hold_next(behind)
            first = asyncio.create_task(_awaited(client.predict("affine", inputs(FIRST))))
            await asyncio.to_thread(held.started.wait, 30)
            assert value(await client.predict("affine", inputs(SECOND))) == SECOND
            held.release.set()
            assert value(await first) == FIRST
            assert proxy.connections == (1 if protocol == "grpc" else 2)  # gRPC multiplexes


async def _awaited(answer: Awaitable[Prediction]) -> Prediction:
    return await answer


def test_late_answer_does_not_answer_the_next_call(protocol: str, kind: str, behind: Upstream) -> None:
    with make_client(kind, behind.addresses[protocol, False]) as client:
        client.predict("affine", inputs(0))
        held = hold_next(behind)
        with pytest.raises(DeadlineExceeded):
            client.predict("affine", inputs(FIRST), timeout_s=0.2)
        late = threading.Timer(0.1, held.release.set)
        late.start()
        answers = [value(client.predict("affine", inputs(SECOND + number))) for number in range(20)]
        late.join()
    assert answers == [SECOND + number for number in range(20)]
