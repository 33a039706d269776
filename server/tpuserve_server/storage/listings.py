"""Listings: queries of stores that limit the wait for a store that hangs."""

import logging
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

logger = logging.getLogger(__name__)

_Asked = TypeVar("_Asked", bound=Hashable)
_Answer = TypeVar("_Answer")


class StoreAway(OSError):
    """Error of a store that is unavailable. The message gives the reason, with the same text at each poll."""


class Listings(Generic[_Asked, _Answer]):
    """Queries of stores, such as the listing of a base path. Each key has at most one query, on a separate thread.

    The polling thread queries one model after another, and a store that hangs must not delay the other models. A caller
    therefore waits at most `patience_s` seconds. The next caller gets the late result, or StoreAway at once if the
    result is still missing.

    `_lock` guards `_under_way`, and `_away` with the reasons.
    """

    def __init__(self, look: Callable[[_Asked], _Answer], *, patience_s: float) -> None:
        """Take `look`, which queries the store and blocks. Its errors become reasons of StoreAway."""
        self._look = look
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._under_way: dict[_Asked, Future[_Answer]] = {}
        self._away: dict[_Asked, str] = {}

    def get(self, asked: _Asked) -> _Answer:
        """Return the store's result for `asked`. Blocks for at most `patience_s` seconds.

        Raises:
            StoreAway: the query failed, or has no result yet.
        """
        with self._lock:
            late = self._under_way.get(asked)
            future = late or self._begin(asked)
        wait([future], 0 if late else self._patience_s)
        if not future.done():
            with self._lock:
                # Repeat the last reason, if there is one: the poller logs only a new reason.
                raise StoreAway(self._away.setdefault(asked, "the store has not responded yet"))
        return self._end(asked, future)

    def _begin(self, asked: _Asked) -> "Future[_Answer]":
        future: Future[_Answer] = Future()
        self._under_way[asked] = future
        # A daemon thread that is never joined: a query that hangs cannot be ended, and it holds no resources.
        threading.Thread(target=self._run, args=(asked, future), name="storage-listing", daemon=True).start()
        return future

    def _run(self, asked: _Asked, future: "Future[_Answer]") -> None:
        try:
            future.set_result(self._look(asked))
        except BaseException as error:
            # The top of the thread: the caller of `get` receives the error.
            future.set_exception(error)

    def _end(self, asked: _Asked, future: "Future[_Answer]") -> _Answer:
        error = future.exception()
        with self._lock:
            self._under_way.pop(asked, None)
            was_away = self._away.pop(asked, None) is not None
            if error is not None:
                self._away[asked] = str(error)
        if error is not None:
            raise StoreAway(str(error)) from error
        if was_away:
            logger.info("The store of %s responds again", asked)
        return future.result()
