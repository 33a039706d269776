"""Engine: one run of the process that has the models, for front-end processes, as the supervisor sees it."""

import os
import socket
import sys
from collections.abc import Mapping
from typing import Self

from tpuserve_server.core.runtime_folder import RuntimeFolder
from tpuserve_server.hosts.application import HostOptions
from tpuserve_server.hosts.envoy.child import Child, Spawned, child_setup, spawn
from tpuserve_server.hosts.envoy.links import LINK_VARIABLE, pass_link
from tpuserve_server.hosts.envoy.process import module_path


class Engine(Child):
    """One run of the engine process. After `drain`, it goes on for its front-ends until `stop`."""

    def __init__(self, spawned: Spawned, courier: socket.socket) -> None:
        """Follow a process that has just started. `courier` brings links to it."""
        super().__init__(spawned)
        self._courier = courier

    @classmethod
    async def start(
        cls,
        options: HostOptions,
        module: str,
        folder: RuntimeFolder,
        environment: Mapping[str, str],
        *,
        is_respawn: bool,
    ) -> Self:
        """Start `module` as a program, with `environment` in addition to this process's environment."""
        courier, theirs = socket.socketpair()
        courier.setblocking(False)
        with theirs:
            spawned = await spawn(
                # Without -P, a file in the working directory could shadow a module.
                [sys.executable, "-P", "-m", module],
                child_setup(options, folder.lock, None, is_respawn=is_respawn),
                {**os.environ, **environment, "PYTHONPATH": module_path(), LINK_VARIABLE: str(theirs.fileno())},
                descriptors=(theirs.fileno(),),
            )
        return cls(spawned, courier)

    def pass_link(self, link: socket.socket) -> None:
        """Give the engine its end of the link to a front-end. The caller closes its own copy."""
        pass_link(self._courier, link)

    def stop(self) -> None:
        """Order the engine to end. Call it after the end of its front-ends."""
        self._channel.send("stop")

    async def close(self) -> None:
        """Kill the process if it still runs, and release everything."""
        await super().close()
        self._courier.close()
