"""Process of the engine: it runs the application that has the models, for front-end processes, and opens no port."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

import uvloop

from tpuserve_server.hosts.application import Application, HostOptions
from tpuserve_server.hosts.envoy.channel import Channel, ChildSetup
from tpuserve_server.hosts.envoy.lifecycle import ORPHANED, Leaving, Lifecycle
from tpuserve_server.hosts.envoy.links import Links, take_link
from tpuserve_server.hosts.handover import CONNECT_S, QUEUE_TIMEOUT_S

# Time for front-ends without a supervisor to stop after their drain.
_STOP_TIMEOUT_S: Final = 10.0
_App = TypeVar("_App", bound=Application)


def run_engine(factory: Callable[[], _App], serve: Callable[[_App, socket.socket], Awaitable[None]]) -> None:
    """Run the application until the supervisor orders its end. Ends the process. Call it on the main thread.

    `factory` is called once, on the event loop. Then `serve` is called with it and a connected UNIX stream socket for
    each front-end that starts. It owns the socket, and returns after the end of the front-end. The application reports
    ready, fails, drains and stops as in one process. After `drain`, it still serves until every front-end has ended.
    """
    setup = ChildSetup.from_environment()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(factory, serve, setup))


async def _run(
    factory: Callable[[], _App], serve: Callable[[_App, socket.socket], Awaitable[None]], setup: ChildSetup
) -> None:
    courier = take_link()
    channel = await Channel.over(socket.socket(fileno=setup.channel))
    lifecycle = await Lifecycle.start(factory, channel, setup)
    if lifecycle is None or not await lifecycle.open():
        return
    links = Links(courier, partial(serve, lifecycle.application))
    lifecycle.report_ready()
    leaving = await lifecycle.leaving()
    if leaving is None:
        return
    lifecycle.application.drain()
    await lifecycle.stopping()
    # Front-ends of a supervisor that is gone drain without its orders.
    await links.finish(_patience_s(setup.options))
    links.close()
    await lifecycle.end(ORPHANED if leaving is Leaving.ORPHANED else 0)


def _patience_s(options: HostOptions) -> float:
    delay_s = max(options.drain_delay_s, CONNECT_S + QUEUE_TIMEOUT_S)
    return delay_s + options.drain_timeout_s + _STOP_TIMEOUT_S
