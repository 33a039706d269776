"""Tests for interruptions on a real event loop: the events that end a request early, and who cancels."""

import asyncio
import gc
import warnings
from typing import TYPE_CHECKING

import pytest

from tests.server.hosts.asgi_client import Exchange, body
from tests.support.fakes import FakeClock
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import Cancelled, DeadlineExceeded, Unavailable
from tpuserve_server.protocols.interruption import Interruption, Interruptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Message, Receive

# The interval shortens the tests and is not asserted.
INTERVAL_S = 0.001


async def never() -> "Message":
    pending: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    return await pending


async def gone() -> "Message":
    return {"type": "http.disconnect"}


class Request:
    """A request that waits until it is interrupted."""

    def __init__(self, receive: "Receive" = never, deadline: Deadline | None = None) -> None:
        self._deadline = deadline or Deadline.never()
        self.interruption = Interruption(Interruptions(INTERVAL_S), receive)
        self.begun = asyncio.Event()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        with self.interruption:
            self.interruption.expire_at(self._deadline, FakeClock(now_s=10))
            self.begun.set()
            await asyncio.Event().wait()


@pytest.mark.parametrize("talkative", [True, False])
async def test_client_that_leaves_interrupts(talkative: bool) -> None:
    exchange = Exchange([], talkative=talkative)
    request = Request(exchange.receive)
    await asyncio.sleep(5 * INTERVAL_S)
    assert not request.task.done()
    exchange.leave()
    with pytest.raises(Cancelled, match="The client disconnected"):
        await request.task


async def test_failing_receive_is_a_client_that_left() -> None:
    async def receive() -> "Message":
        raise ConnectionError

    with pytest.raises(Cancelled):
        await Request(receive).task


async def test_the_first_reason_is_raised() -> None:
    left: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    left.set_result({"type": "http.disconnect"})
    request = Request(lambda: left)
    await request.begun.wait()
    # The loop finds the disconnect after this call, and before the task ends.
    request.interruption.poll()
    request.interruption.shut_down()
    with pytest.raises(Unavailable, match="shutting down"):
        await request.task
    assert request.task.cancelling() == 0


async def test_a_deadline_that_passes_interrupts() -> None:
    with pytest.raises(DeadlineExceeded):
        await Request(deadline=Deadline(10.001)).task


@pytest.mark.parametrize(
    ("remaining_s", "error"), [(0.04, DeadlineExceeded), (10, Cancelled)], ids=["at its deadline", "long before"]
)
async def test_a_client_that_leaves_at_its_deadline_has_reached_it(remaining_s: float, error: type[Exception]) -> None:
    with pytest.raises(error):
        await Request(gone, Deadline(10 + remaining_s)).task


async def test_work_is_not_begun_after_its_deadline() -> None:
    request = Request(deadline=Deadline(10.0))
    with pytest.raises(DeadlineExceeded):
        await request.task
    assert not request.begun.is_set()


async def test_a_cancellation_by_another_goes_on() -> None:
    request = Request()
    await request.begun.wait()
    request.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request.task


@pytest.mark.parametrize("interrupts_first", [True, False])
async def test_a_cancellation_by_another_in_the_same_turn_goes_on(interrupts_first: bool) -> None:
    request = Request()
    await request.begun.wait()
    steps: list[Callable[[], object]] = [request.interruption.shut_down, request.task.cancel]
    for step in steps if interrupts_first else reversed(steps):
        step()
    with pytest.raises(asyncio.CancelledError):
        await request.task
    assert request.task.cancelled()


async def test_an_interruption_after_the_work_changes_nothing() -> None:
    interruption = Interruption(Interruptions(INTERVAL_S), never)
    with interruption:
        pass
    interruption.shut_down()
    await asyncio.sleep(0)


async def test_quick_request_is_never_polled() -> None:
    polled = 0

    async def receive() -> "Message":
        nonlocal polled
        polled += 1
        return {"type": "http.disconnect"}

    with Interruption(Interruptions(INTERVAL_S), receive):
        pass
    await asyncio.sleep(5 * INTERVAL_S)
    assert polled == 0


def test_one_application_on_two_loops_notices_the_clients_of_both() -> None:
    interruptions = Interruptions(INTERVAL_S)

    async def request() -> None:
        with Interruption(interruptions, gone):
            await asyncio.Event().wait()

    for _ in range(2):
        with pytest.raises(Cancelled):
            asyncio.run(request())


async def test_body_found_by_a_poll_is_kept_for_the_reader() -> None:
    interruption = Interruption(Interruptions(INTERVAL_S), Exchange([body(b"data", more=True), body(b"end")]).receive)
    for _ in range(2):
        interruption.poll()
        await asyncio.sleep(0)
    assert [(await interruption.receive())["body"] for _ in range(2)] == [b"data", b"end"]


async def test_cancelled_reader_leaves_the_servers_future_alone() -> None:
    pending: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    with Interruption(Interruptions(INTERVAL_S), lambda: pending) as interruption:
        reader = asyncio.create_task(interruption.receive())
        await asyncio.sleep(0)
        reader.cancel()
        await asyncio.wait([reader])
    assert not pending.cancelled()


@pytest.mark.timeout(20)  # The loop of a reader that waits for itself never ends.
@pytest.mark.parametrize("polls_first", [True, False])
async def test_reader_takes_a_message_that_arrived_in_the_same_iteration_of_the_loop(polls_first: bool) -> None:
    messages: list[asyncio.Future[Message]] = [asyncio.get_running_loop().create_future() for _ in range(2)]
    arriving = iter(messages)
    interruption = Interruption(Interruptions(INTERVAL_S), lambda: next(arriving))
    if polls_first:
        interruption.poll()
    messages[0].set_result(body(b"first", more=True))
    # The future is done, and the loop has not called its callbacks.
    assert (await interruption.receive())["body"] == b"first"
    reader = asyncio.create_task(interruption.receive())
    await asyncio.sleep(0)
    messages[1].set_result(body(b"second"))
    assert (await reader)["body"] == b"second"


async def test_a_poll_that_has_not_begun_leaves_nothing_behind() -> None:
    awaited = False

    async def receive() -> "Message":
        nonlocal awaited
        awaited = True
        raise AssertionError("the task is cancelled before its first step")

    with Interruption(Interruptions(INTERVAL_S), receive) as interruption:
        interruption.poll()
    with warnings.catch_warnings(record=True) as warned:
        await asyncio.sleep(0)
        del interruption
        gc.collect()
    assert not awaited
    assert [str(warning.message) for warning in warned] == []
