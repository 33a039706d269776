"""Tests for the connections that calls take in turn."""

import asyncio
import threading

import pytest

from tpuserve_client.slots import AsyncSlots, Slots


async def test_slot_goes_to_the_task_that_has_waited_longest() -> None:
    slots = AsyncSlots(1, object, 5.0)
    slot = await slots.take()
    order: list[int] = []

    async def take(number: int) -> None:
        own = await slots.take()
        order.append(number)
        slots.give_back(own)

    tasks = [asyncio.create_task(take(number)) for number in range(5)]
    await asyncio.sleep(0)
    slots.give_back(slot)
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2, 3, 4]


def test_call_that_waits_in_vain_leaves_the_slot_to_others() -> None:
    slots = Slots(1, object, 5.0, lambda slot: None)
    slot = slots.take(None)
    with pytest.raises(TimeoutError):
        slots.take(0.0)
    slots.give_back(slot)
    assert slots.take(0.0) is slot


def test_interrupted_wait_leaves_the_slot_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = Slots(1, object, 5.0, lambda slot: None)
    slot = slots.take(None)

    def interrupted(event: threading.Event, timeout: float | None = None) -> bool:
        slots.give_back(slot)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(threading.Event, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            slots.take(None)
    assert slots.take(0.0) is slot


async def test_closing_refuses_the_tasks_that_wait() -> None:
    slots = AsyncSlots(1, object, 5.0)
    slot = await slots.take()
    waiting = asyncio.create_task(slots.take())
    await asyncio.sleep(0)
    assert slots.close() == []
    with pytest.raises(RuntimeError, match="closed"):
        await waiting
    assert slots.give_back(slot) == [slot]


async def test_slot_of_a_cancelled_task_goes_to_the_next() -> None:
    slots = AsyncSlots(1, object, 5.0)
    slot = await slots.take()
    first, second = (asyncio.create_task(slots.take()) for _ in range(2))
    await asyncio.sleep(0)
    slots.give_back(slot)
    first.cancel()
    assert await second is slot
