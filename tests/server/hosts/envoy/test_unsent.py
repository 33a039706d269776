"""Tests for the deliveries of responses that Envoy has, with an embedding that reports when Envoy has sent them."""

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.support.fakes import FakeClock
from tpuserve_server.core.budgets.sending import Delivery, SendingBudget
from tpuserve_server.hosts.envoy import unsent
from tpuserve_server.hosts.envoy.unsent import UnsentByEnvoy

if TYPE_CHECKING:
    from starlette.types import Message

TIMEOUT_S = 30


class Embedding:
    """Its `receive`: an empty body while Envoy holds bytes, then the disconnect."""

    def __init__(self) -> None:
        self.has_sent = False
        self.asked = asyncio.Event()

    async def receive(self) -> "Message":
        self.asked.set()
        if self.has_sent:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": b"", "more_body": False}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def budget(clock: FakeClock) -> SendingBudget:
    return SendingBudget(6400, 6400, TIMEOUT_S, clock)


async def ended(budget: SendingBudget, held_bytes: int = 0) -> None:
    while budget.held_bytes > held_bytes:  # noqa: ASYNC110 - the budget reports no change
        await asyncio.sleep(0)


async def test_bytes_return_once_envoy_has_sent_them(budget: SendingBudget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsent, "_INTERVAL_S", 0)
    held, embedding = UnsentByEnvoy(budget), Embedding()
    held.keep(budget.begin("a", 50), embedding.receive)
    await embedding.asked.wait()
    assert budget.held_bytes == 50
    embedding.has_sent = True
    await ended(budget)
    assert budget.cuts == {}


async def test_envoy_is_asked_at_once_while_the_budget_holds_much(budget: SendingBudget) -> None:
    held, embedding = UnsentByEnvoy(budget), Embedding()
    embedding.has_sent = True
    held.keep(budget.begin("a", 50), embedding.receive)
    await asyncio.sleep(0)
    assert not embedding.asked.is_set()
    held.keep(budget.begin("a", 60), embedding.receive)
    await ended(budget, 50)


async def test_envoys_own_timeout_comes_first_and_counts(budget: SendingBudget, clock: FakeClock) -> None:
    held, embedding = UnsentByEnvoy(budget), Embedding()
    delivery: Delivery = budget.begin("a", 110)
    clock.now_s += TIMEOUT_S
    embedding.has_sent = True
    held.keep(delivery, embedding.receive)
    budget.cut_late()
    assert not delivery.is_cut
    await ended(budget)
    assert budget.cuts == {"timeout": 1}
