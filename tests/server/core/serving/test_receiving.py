"""Tests for the budget of requests that are still arriving."""

import asyncio

import pytest

from tests.support.fakes import FakeClock
from tpuserve_server.core.serving import receiving
from tpuserve_server.core.serving.budgets import Budgets
from tpuserve_server.core.serving.options import BudgetOptions
from tpuserve_server.core.serving.receiving import ReceivingBudget, Upload
from tpuserve_server.core.terms.errors import DeadlineExceeded, ResourceExhausted


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def budget(clock: FakeClock) -> ReceivingBudget:
    return ReceivingBudget(100, 60, clock)


def holding(budget: ReceivingBudget, size_bytes: int, connection: str | None = None) -> Upload:
    upload = budget.begin(connection)
    upload.hold(size_bytes)
    return upload


def test_ended_uploads_return_their_bytes(budget: ReceivingBudget) -> None:
    with budget.begin("a") as upload:
        upload.hold(50)
        upload.hold(20)
        assert budget.held_bytes == 20
    assert budget.held_bytes == 0
    holding(budget, 60, "a")


def test_an_upload_that_grows_is_charged_in_steps(budget: ReceivingBudget) -> None:
    upload = budget.begin()
    held = []
    for size_bytes in (0, 1, 8, 9, 16, 17, 18, 19, 40, 44, 45):
        upload.grow(size_bytes)
        held.append(budget.held_bytes)
    assert held == [0, 1, 8, 9, 16, 16, 18, 18, 40, 40, 45]
    with pytest.raises(ResourceExhausted):
        upload.grow(101)
    with pytest.raises(ResourceExhausted):
        upload.grow(101)
    assert budget.held_bytes == 0


def test_memory_is_trimmed_after_the_last_of_large_uploads(clock: FakeClock) -> None:
    trims: list[str] = []
    budget = ReceivingBudget(100 << 20, 60 << 20, clock, lambda: trims.append("trim"))
    with budget.begin() as small:
        small.hold(1000)
    with budget.begin() as first:
        first.hold(20 << 20)
        with budget.begin() as second:
            second.hold(20 << 20)
        assert trims == []
    assert trims == ["trim"]


def test_stalled_uploads_are_cut_for_those_that_send(budget: ReceivingBudget, clock: FakeClock) -> None:
    stalled = holding(budget, 60)
    clock.now_s += 20
    recent, fresh = holding(budget, 40), holding(budget, 30)
    assert budget.held_bytes == 70
    recent.hold(41)
    fresh.hold(31)
    with pytest.raises(
        ResourceExhausted,
        match=r"^The requests that are still arriving from all clients take all 100 bytes of max_receiving_bytes\.",
    ):
        stalled.hold(61)


def test_the_slowest_upload_is_refused_itself(budget: ReceivingBudget) -> None:
    fast = holding(budget, 90)
    with pytest.raises(ResourceExhausted):
        holding(budget, 20)
    assert budget.held_bytes == 90
    fast.hold(100)


def test_a_small_request_passes_while_stalled_uploads_fill_the_budget(clock: FakeClock) -> None:
    budget = ReceivingBudget(1 << 20, 1 << 20, clock)
    stalled = holding(budget, 1 << 19)
    clock.now_s += 1
    other = holding(budget, 1 << 19)
    small = holding(budget, 64)
    assert budget.held_bytes == (1 << 19) + 64
    with pytest.raises(ResourceExhausted):
        stalled.hold(1 << 19)
    clock.now_s += 2
    other.hold(1 << 20)
    with pytest.raises(ResourceExhausted):  # It has stalled, too.
        small.hold(65)


def test_a_large_request_that_begins_is_not_small(clock: FakeClock) -> None:
    budget = ReceivingBudget(1 << 20, 1 << 20, clock)
    holding(budget, 1 << 20)
    with pytest.raises(ResourceExhausted):
        holding(budget, 1025)


def test_each_connection_has_its_budget(budget: ReceivingBudget, clock: FakeClock) -> None:
    other = holding(budget, 30, "b")
    first = holding(budget, 50, "a")
    clock.now_s += 20
    holding(budget, 20, "a")
    with pytest.raises(ResourceExhausted, match=r"from this connection take all 60 bytes of max_connection_receiving"):
        first.hold(51)
    other.hold(31)


async def test_a_cut_ends_the_wait_for_the_next_bytes(budget: ReceivingBudget, clock: FakeClock) -> None:
    stalled, message = holding(budget, 100), asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(stalled.wait(message))
    await asyncio.sleep(0)
    clock.now_s += 20
    holding(budget, 10)
    with pytest.raises(ResourceExhausted):
        await waiting
    with pytest.raises(ResourceExhausted):
        await stalled.wait(message)


async def test_a_stalled_body_is_cut_and_an_idle_stream_is_not(
    budget: ReceivingBudget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "IDLE_TIMEOUT_S", 0)
    waiting = asyncio.create_task(budget.begin().wait(asyncio.get_running_loop().create_future()))
    with pytest.raises(DeadlineExceeded, match="The client sent no more of the request's body for 30 seconds"):
        await holding(budget, 1).wait(asyncio.get_running_loop().create_future())
    assert budget.held_bytes == 0
    assert not waiting.done()
    waiting.cancel()


async def test_a_cancelled_reader_stays_cancelled(budget: ReceivingBudget) -> None:
    waiting = asyncio.create_task(budget.begin().wait(asyncio.get_running_loop().create_future()))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_sizes_follow_the_longest_request_and_are_never_smaller() -> None:
    defaults = Budgets.of(BudgetOptions(), 10, FakeClock())
    assert defaults.decoded.size_bytes == 40
    small = BudgetOptions(max_decoded_bytes=7, max_receiving_bytes=1, max_connection_receiving_bytes=2)
    assert small.decoded_bytes(10) == 7
    assert (small.receiving_bytes(10), small.connection_receiving_bytes(10)) == (10, 10)
    assert (BudgetOptions().receiving_bytes(10), BudgetOptions().connection_receiving_bytes(10)) == (160, 40)
