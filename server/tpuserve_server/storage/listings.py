"""Listings: what lies below base paths, asked for so that a store that hangs keeps nobody waiting for long."""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import TypeAlias

from tpuserve_server.storage.objects import StoredObject

logger = logging.getLogger(__name__)

Objects: TypeAlias = Sequence[StoredObject] | None


class StoreAway(OSError):
    """A base path cannot be listed now; the message says why, each time in the same words."""


class Listings:
    """At most one listing of a base path under way, on a thread of its own.

    The polling thread asks for one model after the other: a store that is away must not cost the others their turn.
    So nobody waits for an answer longer than `patience_s`; the next who asks gets it, or is told at once that it is
    still missing. `_under_way`, and `_away` with the reasons why, are guarded by `_lock`.
    """

    def __init__(self, look: Callable[[str], Objects], *, patience_s: float) -> None:
        """`look` lists a base path, blocking; whatever it raises is a reason."""
        self._look = look
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._under_way: dict[str, Future[Objects]] = {}
        self._away: dict[str, str] = {}

    def get(self, base_path: str) -> Objects:
        """The objects below `base_path`; None if there are none.

        Raises:
            StoreAway: it failed, or has not answered yet.
        """
        with self._lock:
            late = self._under_way.get(base_path)
            future = late or self._begin(base_path)
        wait([future], 0 if late else self._patience_s)
        if not future.done():
            with self._lock:
                # As it failed last time, if it did: a poller that says each new reason once has nothing new to say.
                raise StoreAway(self._away.setdefault(base_path, "the store has not answered yet"))
        return self._end(base_path, future)

    def _begin(self, base_path: str) -> "Future[Objects]":
        future = self._under_way[base_path] = Future()
        # A daemon, and never joined: there is no way to end a listing that hangs, and it holds nothing.
        threading.Thread(target=self._run, args=(base_path, future), name="storage-listing", daemon=True).start()
        return future

    def _run(self, base_path: str, future: "Future[Objects]") -> None:
        try:
            future.set_result(self._look(base_path))
        except BaseException as error:
            # The top of the thread: whoever asks gets it.
            future.set_exception(error)

    def _end(self, base_path: str, future: "Future[Objects]") -> Objects:
        error = future.exception()
        with self._lock:
            self._under_way.pop(base_path, None)
            was_away = self._away.pop(base_path, None) is not None
            if error is not None:
                self._away[base_path] = str(error)
        if error is not None:
            raise StoreAway(str(error)) from error
        if was_away:
            logger.info("The store of %s answers again", base_path)
        return future.result()
