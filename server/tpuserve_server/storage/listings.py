"""Listings: what stores answer, asked for so that one that hangs keeps nobody waiting for long."""

import logging
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

logger = logging.getLogger(__name__)

_Asked = TypeVar("_Asked", bound=Hashable)
_Answer = TypeVar("_Answer")


class StoreAway(OSError):
    """A store cannot be asked now; the message says why, each time in the same words."""


class Listings(Generic[_Asked, _Answer]):
    """At most one question of each kind, such as the listing of a base path, under way, on a thread of its own.

    The polling thread asks for one model after the other: a store that is away must not cost the others their turn.
    So nobody waits for an answer longer than `patience_s`; the next who asks gets it, or is told at once that it is
    still missing. `_under_way`, and `_away` with the reasons why, are guarded by `_lock`.
    """

    def __init__(self, look: Callable[[_Asked], _Answer], *, patience_s: float) -> None:
        """`look` asks the store, blocking; whatever it raises is a reason."""
        self._look = look
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._under_way: dict[_Asked, Future[_Answer]] = {}
        self._away: dict[_Asked, str] = {}

    def get(self, asked: _Asked) -> _Answer:
        """What the store says to `asked`.

        Raises:
            StoreAway: it failed, or has not answered yet.
        """
        with self._lock:
            late = self._under_way.get(asked)
            future = late or self._begin(asked)
        wait([future], 0 if late else self._patience_s)
        if not future.done():
            with self._lock:
                # As it failed last time, if it did: a poller that says each new reason once has nothing new to say.
                raise StoreAway(self._away.setdefault(asked, "the store has not answered yet"))
        return self._end(asked, future)

    def _begin(self, asked: _Asked) -> "Future[_Answer]":
        future: Future[_Answer] = Future()
        self._under_way[asked] = future
        # A daemon, and never joined: there is no way to end a listing that hangs, and it holds nothing.
        threading.Thread(target=self._run, args=(asked, future), name="storage-listing", daemon=True).start()
        return future

    def _run(self, asked: _Asked, future: "Future[_Answer]") -> None:
        try:
            future.set_result(self._look(asked))
        except BaseException as error:
            # The top of the thread: whoever asks gets it.
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
            logger.info("The store of %s answers again", asked)
        return future.result()
