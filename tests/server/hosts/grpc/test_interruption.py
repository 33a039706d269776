"""Tests for interruptions on a real event loop: the events that end a call early, and the source of a cancellation."""

import asyncio
from collections.abc import Callable

import pytest

from tests.support.fakes import FakeClock
from tpuserve_server.core.system.timers import RareTimersByLoop
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import Code, DeadlineExceeded
from tpuserve_server.hosts.grpc.failure import RpcFailure
from tpuserve_server.hosts.grpc.interruption import Interruption


class Call:
    """A call that waits until it is interrupted."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._interruption: asyncio.Future[Interruption] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> RpcFailure:
        interruption = Interruption(self._deadline, FakeClock(now_s=10), RareTimersByLoop())
        self._interruption.set_result(interruption)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as cancelled:
            return interruption.absorb(cancelled)
        finally:
            interruption.disarm()
        raise AssertionError("nothing sets the event")

    async def begun(self) -> Interruption:
        return await self._interruption


@pytest.mark.parametrize(
    ("interrupt", "code"), [(Interruption.leave, Code.CANCELLED), (Interruption.shut_down, Code.UNAVAILABLE)]
)
async def test_the_first_reason_becomes_the_status(interrupt: Callable[[Interruption], None], code: Code) -> None:
    call = Call(Deadline.never())
    interruption = await call.begun()
    interrupt(interruption)
    interruption.leave()
    assert (await call.task).code is code
    assert call.task.cancelling() == 0


async def test_a_deadline_that_passes_interrupts() -> None:
    assert (await Call(Deadline(10.001)).task).code is Code.DEADLINE_EXCEEDED


async def test_work_is_not_begun_after_its_deadline() -> None:
    with pytest.raises(DeadlineExceeded):
        Interruption(Deadline(10.0), FakeClock(now_s=10), RareTimersByLoop())


async def test_a_cancellation_by_another_goes_on() -> None:
    call = Call(Deadline.never())
    await call.begun()
    call.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call.task


@pytest.mark.parametrize("leaves_first", [True, False])
async def test_a_cancellation_by_another_in_the_same_turn_goes_on(leaves_first: bool) -> None:
    call = Call(Deadline.never())
    interruption = await call.begun()
    steps: list[Callable[[], object]] = [interruption.leave, call.task.cancel]
    for step in steps if leaves_first else reversed(steps):
        step()
    with pytest.raises(asyncio.CancelledError):
        await call.task
    assert call.task.cancelled()


async def test_an_interruption_after_the_work_changes_nothing() -> None:
    interruption = Interruption(Deadline.never(), FakeClock(now_s=10), RareTimersByLoop())
    interruption.disarm()
    interruption.leave()
    await asyncio.sleep(0)
