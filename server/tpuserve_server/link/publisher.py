"""StatePublisher: keeps the models of one front-end process equal to those of the engine, and leases it the versions.

A front-end's requests use a version only while the engine holds a handle for it. When the version unloads, the
front-end gets the new state, finishes its requests, and reports it. Then the engine releases the handle.
"""

import asyncio
import contextlib
import itertools
import pickle
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from tpuserve_server.core.errors import ServingError
from tpuserve_server.core.loader import Loaded, LoadedVersion
from tpuserve_server.core.registry import ModelRegistry
from tpuserve_server.core.servable_handle import ServableHandle
from tpuserve_server.core.types import ModelSpec, ServableId
from tpuserve_server.link.connection import Connection, Handler
from tpuserve_server.link.messages import Kind
from tpuserve_server.link.state import EngineState, VersionFacts, facts_of, is_special, read_models

_Serving: TypeAlias = list[tuple[ServableId, Loaded]]


class EngineRules(NamedTuple):
    """Decides what only the engine answers. `is_logged` is called with the name of a model."""

    is_logged: Callable[[str], bool]
    is_oip_in_engine: bool


class _Lease(NamedTuple):
    handle: ServableHandle
    loaded: LoadedVersion


class StatePublisher:
    """The engine's side. The event loop's thread owns it."""

    def __init__(self, connection: Connection, registry: ModelRegistry, rules: EngineRules) -> None:
        """Publish `registry` over `connection`, from the first call of `publish` on."""
        self._connection = connection
        self._registry = registry
        self._rules = rules
        self._loop = asyncio.get_running_loop()
        self._keys = itertools.count()
        self._leases: dict[int, _Lease] = {}
        self._numbers = itertools.count(1)
        self._published = self._acknowledged = 0
        # Set on any thread.
        self._is_stale = False
        self._synced: asyncio.Future[None] | None = None

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers of the messages about versions."""
        return {Kind.RELEASED: self._release, Kind.ADOPTED: self._on_adopted}

    def find(self, key: int) -> LoadedVersion | None:
        """Return a leased version."""
        lease = self._leases.get(key)
        return None if lease is None else lease.loaded

    def changed(self) -> None:
        """Publish soon, once for many changes. Callable from any thread."""
        if not self._is_stale:
            self._is_stale = True
            with contextlib.suppress(RuntimeError):  # The event loop has closed.
                self._loop.call_soon_threadsafe(self._publish_if_stale)

    def publish(self) -> None:
        """Publish the state now."""
        self._is_stale = False
        if not self._connection.is_open:
            return
        (models, serving), configured, is_closed = self._registry.read_all(read_models)
        new: dict[int, VersionFacts] = {}
        state = EngineState(
            next(self._numbers),
            models,
            configured,
            is_closed,
            self._lease(serving, new),
            new,
            self._engine_only(serving, configured),
            self._rules.is_oip_in_engine,
        )
        self._published = state.number
        self._connection.send(Kind.STATE, pickle.dumps(state, protocol=5))

    @property
    def is_synced(self) -> bool:
        """Whether the front-end has adopted every change until now, or has ended. Publishes a pending change."""
        self._publish_if_stale()
        return self._acknowledged >= self._published or not self._connection.is_open

    async def synced(self) -> None:
        """Wait until the front-end has adopted every change until now, or has ended."""
        self._publish_if_stale()
        wanted = self._published
        while self._acknowledged < wanted and self._connection.is_open:
            if self._synced is None or self._synced.done():
                self._synced = self._loop.create_future()
            await asyncio.shield(self._synced)

    def end(self) -> None:
        """Release all versions, because the front-end has ended."""
        for lease in self._leases.values():
            lease.handle.release()
        self._leases.clear()
        self._wake()

    def _publish_if_stale(self) -> None:
        if self._is_stale:
            self.publish()

    def _lease(self, serving: _Serving, new: dict[int, VersionFacts]) -> dict[tuple[str, int], int]:
        """Lease all versions that serve, and return their keys. Add the facts about new ones to `new`."""
        known = {id(lease.loaded): key for key, lease in self._leases.items()}
        keys: dict[tuple[str, int], int] = {}
        for servable, loaded in serving:
            if not isinstance(loaded, LoadedVersion) or is_special(loaded):
                continue
            key = known.get(id(loaded))
            if key is None:
                key = self._lease_new(servable, loaded)
                if key is None:
                    continue  # It has begun to unload: another state follows.
                new[key] = facts_of(loaded)
            keys[servable.name, servable.version] = key
        return keys

    def _lease_new(self, servable: ServableId, loaded: LoadedVersion) -> int | None:
        try:
            handle = self._registry.acquire(ModelSpec(servable.name, servable.version))
        except ServingError:
            return None
        if handle.loaded is not loaded:
            handle.release()
            return None
        key = next(self._keys)
        self._leases[key] = _Lease(handle, loaded)
        return key

    def _engine_only(self, serving: _Serving, configured: tuple[str, ...]) -> frozenset[str]:
        special = {servable.name for servable, loaded in serving if is_special(loaded)}
        return frozenset(special.union(name for name in configured if self._rules.is_logged(name)))

    def _release(self, payload: memoryview) -> None:
        self._leases.pop(int(bytes(payload))).handle.release()

    def _on_adopted(self, payload: memoryview) -> None:
        self._acknowledged = int(bytes(payload))
        self._wake()

    def _wake(self) -> None:
        if self._synced is not None and not self._synced.done():
            self._synced.set_result(None)
