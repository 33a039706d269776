"""FrontEndLink: a front-end's end of the link to the engine process."""

import asyncio
from collections.abc import Callable, Mapping

from tpuserve_server.core.deadline import Clock
from tpuserve_server.core.metrics import Metrics
from tpuserve_server.core.registry import ModelRegistry
from tpuserve_server.link.array_coding import ArrayCoding
from tpuserve_server.link.connection import Connection, Handler
from tpuserve_server.link.engine import INSTALLATION
from tpuserve_server.link.forecasts import Forecasts
from tpuserve_server.link.messages import Kind
from tpuserve_server.link.mirror import Mirror
from tpuserve_server.link.tasks import TaskLink


class FrontEndLink:
    """Fills a registry with the engine's versions, until the engine ends. The event loop's thread owns it."""

    def __init__(self, connection: Connection, registry: ModelRegistry, clock: Clock, metrics: Metrics) -> None:
        """Create the link. `start` connects it. `metrics` count the requests that it refuses."""
        self._connection = connection
        self._coding = ArrayCoding(connection)
        self._tasks = TaskLink(connection, self._coding)
        self._forecasts = Forecasts(connection, clock, metrics)
        self.mirror = Mirror(connection, registry, self._tasks, self._forecasts, clock)
        self._ended: Callable[[], None] = _ignore
        self._begun: asyncio.Future[None] | None = None

    async def start(self, others: Mapping[int, Handler], on_end: Callable[[], None]) -> None:
        """Connect, and wait for the first state. `others` handle messages of other parts. `on_end`: the engine ended.

        Raises:
            ConnectionError: the engine ended before.
        """
        self._begun, self._ended = asyncio.get_running_loop().create_future(), on_end
        handlers = {
            Kind.STATE: self._adopt,
            Kind.ANSWERS: self._tasks.on_answers,
            Kind.FORECASTS: self._forecasts.on_forecasts,
            **self._coding.handlers(),
            **others,
        }
        self._connection.start(handlers, self._end)
        self._connection.send(Kind.HELLO, INSTALLATION.encode())
        await self._begun

    def close(self) -> None:
        """End the link, with the messages of this tick unsent. Call it after the last request."""
        self._connection.close()
        self._coding.close()

    def _adopt(self, payload: memoryview) -> None:
        self.mirror.adopt(payload)
        if self._begun is not None and not self._begun.done():
            self._begun.set_result(None)

    def _end(self) -> None:
        self._tasks.fail_all()
        self._coding.close()
        if self._begun is not None and not self._begun.done():
            self._begun.set_exception(ConnectionError("The engine process ended during the start"))
        self._ended()


def _ignore() -> None: ...
