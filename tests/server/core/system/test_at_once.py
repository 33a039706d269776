"""Tests that a coroutine which runs at once ends like one in a task."""

import asyncio

import pytest

from tpuserve_server.core.system.at_once import run_at_once, take_at_once


class Work:
    """A coroutine that waits for `gate`, and records how it went on."""

    def __init__(self) -> None:
        self.gate: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.steps: list[object] = []

    async def run(self) -> int:
        self.steps.append("begun")
        try:
            result = await self.gate
        except BaseException as error:
            self.steps.append(type(error))
            raise
        self.steps.append(result)
        return result


async def nothing() -> int:
    return 7


async def test_coroutine_that_does_not_wait_needs_no_task() -> None:
    assert run_at_once(nothing(), asyncio.get_running_loop()) is None
    assert take_at_once(nothing()) == (7, None)


async def test_coroutine_that_waits_goes_on_in_a_task() -> None:
    work = Work()
    task = run_at_once(work.run(), asyncio.get_running_loop())
    assert task is not None
    assert work.steps == ["begun"]
    work.gate.set_result(5)
    assert await task == 5
    assert work.steps == ["begun", 5]


async def test_rest_of_a_coroutine_can_be_awaited() -> None:
    work = Work()
    result, coming = take_at_once(work.run())
    assert result is None
    assert coming is not None
    work.gate.set_result(5)
    assert await coming == 5


async def test_future_is_awaited_later() -> None:
    gate: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    assert take_at_once(gate) == (None, gate)


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_cancellation_reaches_the_coroutine_even_before_the_first_step_of_its_task(turns: int) -> None:
    work = Work()
    task = run_at_once(work.run(), asyncio.get_running_loop())
    assert task is not None
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.steps == ["begun", asyncio.CancelledError]


async def test_error_of_what_it_waits_for_reaches_the_coroutine() -> None:
    work = Work()
    task = run_at_once(work.run(), asyncio.get_running_loop())
    assert task is not None
    work.gate.set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await task
    assert work.steps == ["begun", ValueError]


async def test_coroutine_that_is_never_awaited_is_closed() -> None:
    work = Work()
    _, coming = take_at_once(work.run())
    del coming
    assert work.steps == ["begun", GeneratorExit]
