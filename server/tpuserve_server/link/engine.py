"""EngineLink: the engine's end of the link to one front-end process."""

import logging
from collections.abc import Callable, Mapping
from importlib.metadata import version

from tpuserve_server.core.registry import ModelRegistry
from tpuserve_server.link.array_coding import ArrayCoding
from tpuserve_server.link.connection import Connection, Handler
from tpuserve_server.link.engine_tasks import EngineTasks
from tpuserve_server.link.messages import Kind
from tpuserve_server.link.publisher import EngineRules, StatePublisher

_log = logging.getLogger(__name__)
INSTALLATION = version("tpuserve-server")


class EngineLink:
    """Serves one front-end until it ends. The event loop's thread owns it."""

    def __init__(
        self,
        connection: Connection,
        registry: ModelRegistry,
        rules: EngineRules,
        others: Mapping[int, Handler],
        on_end: Callable[["EngineLink"], None],
    ) -> None:
        """Serve the front-end at the other end of `connection`. `others` handle the messages of other parts."""
        self._connection = connection
        self._coding = ArrayCoding(connection)
        self.publisher = StatePublisher(connection, registry, rules)
        self._tasks = EngineTasks(connection, self._coding, self.publisher.find)
        self._on_end = on_end
        self._leave = registry.subscribe(self.publisher.changed)
        handlers = {
            Kind.HELLO: self._greet,
            **self._coding.handlers(),
            **self._tasks.handlers(),
            **self.publisher.handlers(),
            **others,
        }
        connection.start(handlers, self._end)

    def close(self) -> None:
        """End the link, if it has not ended. The front-end then ends, too."""
        if self._connection.is_open:
            self._connection.close()
            self._end()

    def _greet(self, payload: memoryview) -> None:
        theirs = bytes(payload).decode()
        if theirs != INSTALLATION:
            _log.error(
                "A front-end process runs tpuserve-server %s, and the engine runs %s, because the package has been "
                "replaced. Restart the server",
                theirs,
                INSTALLATION,
            )
            self.close()
            return
        self.publisher.publish()

    def _end(self) -> None:
        self._leave()
        self._tasks.give_up()
        self.publisher.end()
        self._coding.close()
        self._on_end(self)
