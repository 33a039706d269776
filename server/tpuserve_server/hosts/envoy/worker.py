"""Worker: one run of Envoy with an application inside, from its start to its end, as the supervisor sees it."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Self

from tpuserve_server.core.runtime_folder import RuntimeFolder
from tpuserve_server.hosts.application import HostOptions, Listening
from tpuserve_server.hosts.envoy.admin import EnvoyAdmin, until
from tpuserve_server.hosts.envoy.child import Child, Spawned, child_setup, spawn
from tpuserve_server.hosts.envoy.config import Embedding, bootstrap
from tpuserve_server.hosts.envoy.native_line import ENVOY_LOG_FORMAT
from tpuserve_server.hosts.envoy.process import child_environment, envoy_binary
from tpuserve_server.hosts.envoy.secret_files import SecretFiles
from tpuserve_server.hosts.tls import TlsOptions

# One thread parses HTTP for all connections. The application's event loop is the bottleneck long before this thread.
# More threads would only compete with that loop and the model for the same cores.
_WORKER_THREADS = 1
_CONFIG = "envoy.json"
# Envoy reads a changed file within milliseconds.
_READ_TIMEOUT_S = 10.0
# Time for the application to release its resources after the drain.
_STOP_TIMEOUT_S = 10.0


class Worker(Child):
    """One run of Envoy. `is_live` shows whether its addresses are open."""

    name: Final = "Envoy"
    start_hint: Final = "Envoy's log lines above have the reason. Use --host_backend=python to run without Envoy."
    stop_timeout_s: Final = _STOP_TIMEOUT_S

    def __init__(self, spawned: Spawned, folder: RuntimeFolder) -> None:
        """Follow a process that has just started."""
        super().__init__(spawned)
        self.is_live = False
        self._admin = admin_of(folder)
        self._folder = folder

    @classmethod
    async def start(
        cls,
        options: HostOptions,
        embedding: Embedding,
        folder: RuntimeFolder,
        environment: Mapping[str, str],
        *,
        is_respawn: bool,
    ) -> Self:
        """Start Envoy, with `environment` in addition to this process's environment."""
        admin = admin_of(folder).path
        config = folder.path / _CONFIG
        config.touch(mode=0o600)
        config.write_text(json.dumps(bootstrap(options, embedding, admin)))
        if options.tls is not None:
            SecretFiles(folder.path).write(options.tls)
        spawned = await spawn(
            [
                envoy_binary(),
                *("--config-path", config, "--disable-hot-restart", "--concurrency", str(_WORKER_THREADS)),
                *("--log-level", "warning", "--log-format", ENVOY_LOG_FORMAT),
            ],
            child_setup(options, folder.lock, admin, is_respawn=is_respawn),
            child_environment(environment),
            directory=folder.path,
        )
        return cls(spawned, folder)

    def began(self) -> bool:
        """Return whether the start came as far as the models, so that Envoy and its configuration work.

        A model may end the process before the ports open.
        """
        return self.is_live or self.is_loading or (self.ready.is_set() and self.ended.result() < 0)

    async def listening(self, options: HostOptions) -> Listening:
        """Wait until the process listens, and return the addresses.

        Raises:
            OSError, http.client.HTTPException: Envoy's admin interface does not respond.
        """
        await self.ready.wait()
        await until(self._admin.is_live)
        listening = await asyncio.to_thread(self._admin.listening, options)
        return listening if self.rest_address is None else replace(listening, rest=self.rest_address)

    def opened(self, listening: Listening) -> None:
        """Announce the addresses, and remove the files that Envoy has read. One contains the key."""
        self.is_live = True
        (self._folder.path / _CONFIG).unlink(missing_ok=True)
        SecretFiles(self._folder.path).remove()
        self.announce(listening)

    async def replace_certificates(self, tls: TlsOptions) -> bool:
        """Let Envoy use other certificates, which the caller has checked. Return whether it has read them in time.

        Raises:
            OSError, http.client.HTTPException: Envoy's admin interface does not respond.
        """
        files, names = SecretFiles(self._folder.path), SecretFiles.names(tls)
        before = {name: await asyncio.to_thread(self._admin.secret_updates, name) for name in names}
        try:
            files.write(tls)
            async with asyncio.timeout(_READ_TIMEOUT_S):
                await until(lambda: all(self._admin.secret_updates(name) > count for name, count in before.items()))
        except TimeoutError:
            return False
        finally:
            files.remove()
        return True


def admin_of(folder: RuntimeFolder) -> EnvoyAdmin:
    """Return Envoy's admin interface in a server's directory."""
    return EnvoyAdmin(folder.path / "admin.sock")
