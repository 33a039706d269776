"""Tests for the budget of responses that clients have not read."""

import asyncio

import pytest

from tests.support.fakes import FakeClock
from tpuserve_server.core.serving.budgets import Budgets
from tpuserve_server.core.serving.options import BudgetOptions
from tpuserve_server.core.serving.sending import Delivery, ResponseCut, SendingBudget
from tpuserve_server.core.terms.errors import ResourceExhausted

TIMEOUT_S = 30


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def budget(clock: FakeClock) -> SendingBudget:
    return SendingBudget(100, 60, TIMEOUT_S, clock)


@pytest.fixture
async def blocked() -> asyncio.Future[None]:
    """Return what a server's `send` returns for a client that does not read."""
    return asyncio.get_running_loop().create_future()


def is_cut(delivery: Delivery) -> bool:
    try:
        delivery.check()
    except ResponseCut:
        return True
    return False


async def test_responses_return_their_bytes_at_the_end(budget: SendingBudget) -> None:
    with budget.begin("a", 50) as delivery:
        delivery.taken()
        assert budget.held_bytes == 50
    assert budget.held_bytes == 0
    assert not is_cut(budget.begin("a", 60))


async def test_the_largest_that_is_not_read_is_cut_for_one_that_begins(budget: SendingBudget, clock: FakeClock) -> None:
    large, small = budget.begin("a", 50), budget.begin("b", 10)
    read = budget.begin("c", 40)
    clock.now_s += 2
    read.taken()
    new = budget.begin("d", 20)
    assert [is_cut(each) for each in (large, small, read, new)] == [True, False, False, False]
    assert (budget.held_bytes, dict(budget.cuts)) == (70, {"memory": 1})


async def test_a_response_is_refused_while_clients_read_all_others(budget: SendingBudget, clock: FakeClock) -> None:
    unread = budget.begin("a", 10)
    clock.now_s += 2
    others = [budget.begin(name, 30) for name in "bcd"]
    with pytest.raises(ResponseCut, match="max_sending_bytes"):
        budget.begin("e", 50)
    with pytest.raises(ResourceExhausted, match="max_sending_bytes"):
        budget.check_room("e", 50)
    assert not any(is_cut(each) for each in (unread, *others))
    assert (budget.held_bytes, budget.cuts["memory"]) == (100, 2)
    budget.check_room("e", 10)


async def test_small_responses_always_fit(clock: FakeClock) -> None:
    budget = SendingBudget(10 << 10, 10 << 10, TIMEOUT_S, clock)
    full = budget.begin("a", 10 << 10)
    assert not is_cut(budget.begin("a", 10))
    assert not is_cut(full)


async def test_a_connection_has_a_budget_of_its_own(budget: SendingBudget, clock: FakeClock) -> None:
    other, first = budget.begin("a", 30), budget.begin("b", 30)
    clock.now_s += 2
    second = budget.begin("b", 40)
    assert [is_cut(each) for each in (other, first, second)] == [False, True, False]
    # Clients of a UNIX socket have no address.
    assert not any(is_cut(budget.begin(None, 10)) for _ in range(3))


async def test_a_response_that_is_alone_fits(budget: SendingBudget) -> None:
    assert not is_cut(budget.begin("a", 1000))


async def test_a_response_without_progress_is_cut_and_a_slow_one_is_not(
    budget: SendingBudget, clock: FakeClock
) -> None:
    stalled, slow = budget.begin("a", 10), budget.begin("b", 10)
    for _ in range(3):
        clock.now_s += TIMEOUT_S / 3
        slow.taken()
    budget.cut_late()
    assert (is_cut(stalled), is_cut(slow)) == (True, False)
    with pytest.raises(ResponseCut, match="read nothing of the response for 30 seconds"):
        stalled.check()
    clock.now_s += TIMEOUT_S
    budget.cut_late()
    assert (is_cut(slow), budget.cuts["timeout"]) == (True, 2)


async def test_the_budget_looks_for_late_responses_by_itself(clock: FakeClock, blocked: asyncio.Future[None]) -> None:
    budget = SendingBudget(100, 60, 0.08, clock)
    delivery = budget.begin("a", 10)
    clock.now_s += 1
    with pytest.raises(ResponseCut):
        await delivery.wait(blocked)
    assert budget.held_bytes == 0


async def test_a_cut_ends_the_wait_of_the_sender_and_leaves_the_servers_future(
    budget: SendingBudget, blocked: asyncio.Future[None], clock: FakeClock
) -> None:
    delivery = budget.begin("a", 10)
    sender = asyncio.create_task(delivery.wait(blocked))
    await asyncio.sleep(0)
    clock.now_s += TIMEOUT_S
    budget.cut_late()
    with pytest.raises(ResponseCut):
        await sender
    # The server may fail it later, and nothing reads that.
    blocked.set_exception(OSError("the client has left"))
    with pytest.raises(ResponseCut):
        await delivery.wait(asyncio.get_running_loop().create_future())


async def test_the_cancellation_of_the_sender_is_its_own(budget: SendingBudget, blocked: asyncio.Future[None]) -> None:
    sender = asyncio.create_task(budget.begin("a", 10).wait(blocked))
    await asyncio.sleep(0)
    sender.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sender
    assert not blocked.cancelled()


async def test_a_wait_passes_the_servers_error_on(budget: SendingBudget, blocked: asyncio.Future[None]) -> None:
    blocked.set_exception(ConnectionResetError("left"))
    with pytest.raises(ConnectionResetError):
        await budget.begin("a", 10).wait(blocked)


async def test_memory_is_trimmed_after_the_last_of_large_responses(clock: FakeClock) -> None:
    trims: list[str] = []
    budget = SendingBudget(100 << 20, 100 << 20, TIMEOUT_S, clock, lambda: trims.append("trim"))
    budget.begin("a", 1000).end()
    with budget.begin("a", 20 << 20), budget.begin("b", 20 << 20):
        pass
    assert trims == ["trim"]


def test_sizes_follow_the_longest_request_and_the_longest_response() -> None:
    sending = Budgets.of(BudgetOptions(max_response_bytes=1 << 10), 1 << 10, FakeClock()).sending
    assert sending.total_bytes == 16 << 10
    options = BudgetOptions(max_response_bytes=1 << 20)
    assert (options.sending_bytes(1 << 10), options.connection_sending_bytes(1 << 10)) == (2 << 20, 1 << 20)
    small = BudgetOptions(max_sending_bytes=7, max_connection_sending_bytes=3)
    assert (small.sending_bytes(1 << 10), small.connection_sending_bytes(1 << 10)) == (7, 3)
