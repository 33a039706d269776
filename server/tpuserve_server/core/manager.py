"""VersionManager: moves versions through their states as a source aspires them."""

import logging
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from tpuserve_server.core.errors import Internal, ServingError
from tpuserve_server.core.loader import Loader
from tpuserve_server.core.policy import Action, VersionSnapshot, next_action
from tpuserve_server.core.registry import ModelRegistry
from tpuserve_server.core.types import AspiredVersion, ServableId, State

logger = logging.getLogger(__name__)


class VersionManager:
    """Loads and unloads on its own threads, one action at a time for each model and `load_threads` in all.

    `_busy` and `_stopping` are guarded by `_lock`; the registry has its own.
    """

    def __init__(self, registry: ModelRegistry, loader: Loader, *, load_threads: int) -> None:
        """Nothing is loaded before the first `aspire`."""
        self._registry = registry
        self._loader = loader
        self._lock = threading.Lock()
        self._busy: set[str] = set()
        self._stopping = False
        self._pool = ThreadPoolExecutor(max_workers=load_threads, thread_name_prefix="load")

    def aspire(self, name: str, aspired: Mapping[int, AspiredVersion]) -> None:
        """Say which versions of a model ought to be served; returns at once. Called by the source's thread."""
        self._registry.aspire(name, aspired)
        self._advance(name)

    def stop(self) -> None:
        """Unload everything and join the threads; a load that is under way is finished first."""
        with self._lock:
            self._stopping = True
        self._registry.close()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for name in self._registry.model_names():
            for aspired, state, _ in self._registry.snapshot(name):
                if state is State.AVAILABLE:
                    self._unload(aspired.servable)

    def _advance(self, name: str) -> None:
        """Start the model's next action, unless one is under way: its end will ask again."""
        with self._lock:
            if self._stopping or name in self._busy:
                return
            versions = self._registry.snapshot(name)
            step = next_action([VersionSnapshot(a.servable.version, state, wanted) for a, state, wanted in versions])
            if step is None:
                return
            action, number = step
            self._busy.add(name)
            self._pool.submit(self._perform, action, {a.servable.version: a for a, _, _ in versions}[number])

    def _perform(self, action: Action, aspired: AspiredVersion) -> None:
        name = aspired.servable.name
        try:
            if action is Action.LOAD:
                self._load(aspired)
            else:
                self._unload(aspired.servable)
        except Exception:
            # The top of a loading thread; nobody looks at its future.
            logger.exception("%s of %s failed", action.name, aspired.servable)
        finally:
            with self._lock:
                self._busy.discard(name)
            self._advance(name)

    def _load(self, aspired: AspiredVersion) -> None:
        servable_id = aspired.servable
        if not self._registry.loading(servable_id):
            return
        logger.info("Loading %s", servable_id)
        try:
            loaded = self._loader.load(aspired)
        except ServingError as error:
            logger.error("Loading %s failed: %s", servable_id, error.message)
            self._registry.failed(servable_id, error)
        except Exception as error:
            # The top of a loading thread: one bad model must not stop the others, and status must say that it failed.
            logger.exception("Loading %s failed", servable_id)
            self._registry.failed(
                servable_id, Internal(f"{type(error).__name__} while loading; the server's log has more")
            )
        else:
            self._registry.available(servable_id, loaded)
            logger.info("Serving %s", servable_id)

    def _unload(self, servable_id: ServableId) -> None:
        loaded = self._registry.unloading(servable_id)
        try:
            self._loader.unload(loaded)
        except Exception:
            # As in _load: whatever a model does on its way out, its version ends.
            logger.exception("Unloading %s failed", servable_id)
        self._registry.ended(servable_id)
        logger.info("Unloaded %s", servable_id)
