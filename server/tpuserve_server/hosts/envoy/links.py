"""Sockets between the front-end processes and the engine process: the supervisor makes a pair for each front-end.

The front-end inherits one end. The engine, which already runs, receives the other end over a socket to the supervisor.
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Final

_log = logging.getLogger(__name__)

# Environment variable with a descriptor: in a front-end its link, in the engine the socket that brings the links.
LINK_VARIABLE: Final = "TPUSERVE_LINK"
# Each link arrives with one byte. The kernel keeps messages with descriptors apart.
_MARK: Final = b"\0"


def take_link() -> socket.socket:
    """Return the socket that the variable names, and remove the variable. Children of this process do not inherit it.

    Raises:
        KeyError: the supervisor passed none.
    """
    link = socket.socket(fileno=int(os.environ.pop(LINK_VARIABLE)))
    link.set_inheritable(False)
    return link


def pass_link(courier: socket.socket, link: socket.socket) -> None:
    """Give the engine a copy of `link`. Do nothing if the engine has ended: then its front-ends end, too."""
    with contextlib.suppress(OSError):
        socket.send_fds(courier, [_MARK], [link.fileno()])


class Links:
    """The engine's ends of the links, each with a task that serves a front-end. The event loop's thread owns it."""

    def __init__(self, courier: socket.socket, serve: Callable[[socket.socket], Awaitable[None]]) -> None:
        """Receive links over `courier` from now on. `serve` owns its socket, and returns after the link's end."""
        courier.setblocking(False)
        self._courier = courier
        self._serve = serve
        self._serving: set[asyncio.Task[None]] = set()
        asyncio.get_running_loop().add_reader(courier.fileno(), self._receive)

    async def finish(self, timeout_s: float) -> bool:
        """Wait until every front-end has ended, for at most `timeout_s`. Return whether all have."""
        if self._serving:
            await asyncio.wait(self._serving, timeout=timeout_s)
        return not self._serving

    def close(self) -> None:
        """Accept no more links."""
        asyncio.get_running_loop().remove_reader(self._courier.fileno())
        self._courier.close()

    def _receive(self) -> None:
        try:
            mark, descriptors, _, _ = socket.recv_fds(self._courier, len(_MARK), 1)
        except BlockingIOError:
            return
        except OSError:
            mark, descriptors = b"", []
        for descriptor in descriptors:
            task = asyncio.create_task(self._follow(socket.socket(fileno=descriptor)))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
        if not mark:  # The supervisor has ended.
            asyncio.get_running_loop().remove_reader(self._courier.fileno())

    async def _follow(self, link: socket.socket) -> None:
        try:
            await self._serve(link)
        except Exception:  # Other front-ends go on. This one loses its link, and the supervisor starts it again.
            _log.exception("The link to a front-end process failed")
        finally:
            link.close()
