import asyncio

from tpuserve_server.hosts.in_flight import InFlight


class Call:
    """A call in its own task, until `end` or a cancellation."""

    def __init__(self, in_flight: InFlight, *, is_stream: bool = False) -> None:
        self._in_flight = in_flight
        self._is_stream = is_stream
        self._ended = asyncio.Event()
        self.end = self._ended.set
        self.task = asyncio.create_task(self._run())

    @property
    def is_ended(self) -> bool:
        return self._ended.is_set()

    async def _run(self) -> None:
        task = self._in_flight.begin()
        try:
            if self._is_stream:
                self._in_flight.begin_stream(task, self.end)
            await self._ended.wait()
        finally:
            self._in_flight.end(task)


async def begun(in_flight: InFlight, *, is_stream: bool = False) -> Call:
    call = Call(in_flight, is_stream=is_stream)
    await asyncio.sleep(0)
    return call


async def test_nothing_in_flight_is_finished_at_once() -> None:
    await InFlight().finish()


async def test_finish_waits_for_the_last_call_and_lets_others_come() -> None:
    in_flight = InFlight()
    first = await begun(in_flight)
    finishing = asyncio.create_task(in_flight.finish())
    second = await begun(in_flight)
    first.end()
    await first.task
    await asyncio.sleep(0)
    assert (finishing.done(), in_flight.count) == (False, 1)
    second.end()
    await finishing


async def test_streams_are_ended_after_the_calls() -> None:
    in_flight = InFlight()
    call, stream = await begun(in_flight), await begun(in_flight, is_stream=True)
    finishing = asyncio.create_task(in_flight.finish())
    await asyncio.sleep(0)
    assert not stream.is_ended
    call.end()
    await finishing
    assert stream.is_ended


async def test_stream_that_comes_during_the_end_is_ended_soon() -> None:
    in_flight = InFlight()
    await in_flight.finish()
    await (await begun(in_flight, is_stream=True)).task


async def test_cut_cancels_calls_and_ends_streams_instead() -> None:
    in_flight = InFlight()
    calls = [await begun(in_flight), await begun(in_flight), await begun(in_flight, is_stream=True)]
    in_flight.cut()
    await in_flight.finish()
    assert in_flight.is_cut
    results = await asyncio.gather(*(call.task for call in calls), return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError, asyncio.CancelledError, type(None)]


async def test_cut_leaves_other_tasks_alone() -> None:
    in_flight = InFlight()
    call = await begun(in_flight)
    call.end()
    await call.task
    in_flight.cut()
    await asyncio.sleep(0)
