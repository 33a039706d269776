import asyncio

from tpuserve_server.hosts.in_flight import InFlight


async def test_nothing_in_flight_is_finished_at_once() -> None:
    await InFlight().finish()


async def test_finish_waits_for_the_last_call_and_lets_others_come() -> None:
    in_flight = InFlight()
    in_flight.begin()
    finishing = asyncio.create_task(in_flight.finish())
    await asyncio.sleep(0)
    in_flight.begin()
    in_flight.end()
    await asyncio.sleep(0)
    assert not finishing.done()
    in_flight.end()
    await finishing


async def test_streams_are_ended_after_the_calls() -> None:
    in_flight = InFlight()
    ended: list[str] = []

    def end_stream() -> None:
        ended.append("stream")
        in_flight.end_stream(end_stream)
        in_flight.end()

    in_flight.begin()
    in_flight.begin_stream(end_stream)
    in_flight.begin()
    finishing = asyncio.create_task(in_flight.finish())
    await asyncio.sleep(0)
    assert ended == []
    in_flight.end()
    await finishing
    assert ended == ["stream"]


async def test_stream_that_comes_during_the_end_is_ended_soon() -> None:
    in_flight = InFlight()
    await in_flight.finish()
    ended = asyncio.Event()
    in_flight.begin()
    in_flight.begin_stream(ended.set)
    await ended.wait()


async def test_cut_cancels_calls_and_ends_streams_instead() -> None:
    in_flight = InFlight()
    ended = asyncio.Event()

    async def call() -> None:
        in_flight.begin()
        try:
            await asyncio.Event().wait()
        finally:
            in_flight.end()

    async def stream() -> None:
        in_flight.begin()
        in_flight.begin_stream(ended.set)
        await ended.wait()
        in_flight.end_stream(ended.set)
        in_flight.end()

    calls = asyncio.gather(call(), call(), stream(), return_exceptions=True)
    await asyncio.sleep(0)
    in_flight.cut()
    await in_flight.finish()
    assert in_flight.is_cut
    assert [type(result) for result in await calls] == [asyncio.CancelledError, asyncio.CancelledError, type(None)]


async def test_cut_leaves_other_tasks_alone() -> None:
    in_flight = InFlight()
    in_flight.begin()
    in_flight.end()
    in_flight.cut()
    await asyncio.sleep(0)
