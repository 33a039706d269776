"""Queries of stores that may hang: each on a thread of its own, for which a caller waits for a limited time."""

import logging
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from typing import Final, Generic, TypeVar

logger = logging.getLogger(__name__)

_Query = TypeVar("_Query", bound=Hashable)
_Result = TypeVar("_Result")

# Bound of the threads. A store that hangs keeps each of them until the timeout of its library.
_MOST_IN_PROGRESS: Final = 64


class StoreUnavailable(OSError):
    """Error of a store that is unavailable. The message gives the reason, with the same text at each poll."""


class Listings(Generic[_Query, _Result]):
    """Queries of stores, such as the listing of a base path. Each key has at most one query, on a separate thread.

    A polling thread queries one model after another, and a store that hangs must not delay the other models. A caller
    therefore waits at most `patience_s` seconds. The next caller gets the late result. While it is still missing, the
    next caller gets StoreUnavailable at once. While `_MOST_IN_PROGRESS` queries have no result, all others get it, too.

    `_lock` guards `_in_progress`, and `_failures` with the reasons.
    """

    def __init__(self, run_query: Callable[[_Query], _Result], *, patience_s: float) -> None:
        """Take `run_query`, which queries the store and blocks. Its errors become reasons of StoreUnavailable."""
        self._run_query = run_query
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._in_progress: dict[_Query, Future[_Result]] = {}
        self._failures: dict[_Query, str] = {}

    def get(self, query: _Query) -> _Result:
        """Return the store's result for `query`. Blocks for at most `patience_s` seconds.

        Raises:
            StoreUnavailable: the query failed, or has no result yet.
        """
        with self._lock:
            in_progress = self._in_progress.get(query)
            if in_progress is None and self._hangs():
                raise self._not_yet(query)
            future = in_progress or self._begin(query)
        wait([future], 0 if in_progress else self._patience_s)
        if not future.done():
            with self._lock:
                raise self._not_yet(query)
        return self._end(query, future)

    def _hangs(self) -> bool:
        return sum(not future.done() for future in self._in_progress.values()) >= _MOST_IN_PROGRESS

    def _not_yet(self, query: _Query) -> StoreUnavailable:
        # Repeat the last reason, if there is one: the poller logs only a new reason.
        return StoreUnavailable(self._failures.setdefault(query, "the store has not responded yet"))

    def _begin(self, query: _Query) -> "Future[_Result]":
        future: Future[_Result] = Future()
        self._in_progress[query] = future
        # A daemon thread that is never joined: a query that hangs cannot be ended, and it holds no resources.
        threading.Thread(target=self._run, args=(query, future), name="storage-listing", daemon=True).start()
        return future

    def _run(self, query: _Query, future: "Future[_Result]") -> None:
        try:
            future.set_result(self._run_query(query))
        except BaseException as error:
            # The top of the thread: the caller of `get` receives the error.
            future.set_exception(error)

    def _end(self, query: _Query, future: "Future[_Result]") -> _Result:
        error = future.exception()
        with self._lock:
            self._in_progress.pop(query, None)
            had_failed = self._failures.pop(query, None) is not None
            if error is not None:
                self._failures[query] = str(error)
        if error is not None:
            raise StoreUnavailable(str(error)) from error
        if had_failed:
            logger.info("The store of %s responds again", query)
        return future.result()
