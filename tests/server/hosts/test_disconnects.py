import asyncio
import gc
import warnings

import pytest

from tests.server.hosts.asgi_client import Exchange, body
from tpuserve_server.hosts.disconnects import Caller, DisconnectWatch

# The interval shortens the tests and is not asserted.
INTERVAL_S = 0.001


@pytest.mark.parametrize("talkative", [True, False])
async def test_watched_caller_that_leaves_is_noticed(talkative: bool) -> None:
    exchange = Exchange([], talkative=talkative)
    gone = asyncio.Event()
    caller = Caller(exchange.receive, gone.set)
    watch = DisconnectWatch(INTERVAL_S)
    watch.add(caller)
    await asyncio.sleep(5 * INTERVAL_S)
    assert not gone.is_set()
    exchange.leave()
    await gone.wait()
    watch.remove(caller)


async def test_quick_request_is_never_asked() -> None:
    asked = 0

    async def receive() -> dict[str, object]:
        nonlocal asked
        asked += 1
        return {"type": "http.disconnect"}

    watch = DisconnectWatch(INTERVAL_S)
    caller = Caller(receive, lambda: None)
    watch.add(caller)
    watch.remove(caller)
    await asyncio.sleep(5 * INTERVAL_S)
    assert asked == 0


async def test_body_found_while_asking_is_kept_for_the_reader() -> None:
    exchange = Exchange([body(b"data", more=True), body(b"end")])
    caller = Caller(exchange.receive, lambda: None)
    caller.ask()
    await asyncio.sleep(0)
    caller.ask()
    await asyncio.sleep(0)
    assert [(await caller.receive())["body"] for _ in range(2)] == [b"data", b"end"]


async def test_failing_receive_is_a_caller_that_left() -> None:
    async def receive() -> dict[str, object]:
        raise ConnectionError

    gone = asyncio.Event()
    caller = Caller(receive, gone.set)
    caller.ask()
    await gone.wait()


async def test_cancelled_reader_leaves_the_servers_future_alone() -> None:
    pending = asyncio.get_running_loop().create_future()
    caller = Caller(lambda: pending, lambda: None)
    reader = asyncio.create_task(caller.receive())
    await asyncio.sleep(0)
    reader.cancel()
    await asyncio.wait([reader])
    caller.close()
    assert not pending.cancelled()


@pytest.mark.timeout(20)  # The loop of a reader that waits for itself never ends.
@pytest.mark.parametrize("asks_first", [True, False])
async def test_reader_takes_a_message_that_arrived_in_the_same_iteration_of_the_loop(asks_first: bool) -> None:
    messages = [asyncio.get_running_loop().create_future() for _ in range(2)]
    arriving = iter(messages)
    caller = Caller(lambda: next(arriving), lambda: None)
    if asks_first:
        caller.ask()
    messages[0].set_result(body(b"first", more=True))
    # The future is done, and the loop has not called its callbacks.
    assert (await caller.receive())["body"] == b"first"
    reader = asyncio.create_task(caller.receive())
    await asyncio.sleep(0)
    messages[1].set_result(body(b"second"))
    assert (await reader)["body"] == b"second"


async def test_a_caller_that_is_let_go_before_it_was_asked_leaves_nothing_behind() -> None:
    awaited = False

    async def receive() -> dict[str, object]:
        nonlocal awaited
        awaited = True
        raise AssertionError("the task is cancelled before its first step")

    caller = Caller(receive, lambda: None)
    caller.ask()
    caller.close()
    with warnings.catch_warnings(record=True) as warned:
        await asyncio.sleep(0)
        del caller
        gc.collect()
    assert not awaited
    assert [str(warning.message) for warning in warned] == []
