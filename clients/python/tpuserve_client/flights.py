"""Single flight: concurrent calls that need the same metadata share one request for it."""

import threading
from collections.abc import Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

from tpuserve_client.errors import Cancelled, DeadlineExceeded, TpuserveError

K = TypeVar("K", bound=Hashable)


class Flight:
    """One request that several calls wait for. `error` is set before `done` completes."""

    def __init__(self) -> None:
        self.done: Future[None] = Future()
        # A running future cannot be cancelled: a cancelled waiter must not cancel the others.
        self.done.set_running_or_notify_cancel()
        self.error: TpuserveError | None = None

    def raise_error(self) -> None:
        """Raise the request's error again, unless it says nothing about the waiting call.

        Deadlines and cancellations belong to the call that sent the request: the waiting call sends its own.
        """
        if self.error is not None and not isinstance(self.error, DeadlineExceeded | Cancelled):
            raise self.error.again()


class Flights(Generic[K]):
    """The requests under way, by key. Safe to share between threads and event loops."""

    def __init__(self) -> None:
        self._flights: dict[K, Flight] = {}
        self._lock = threading.Lock()

    def join(self, key: K) -> tuple[Flight, bool]:
        """Return the key's flight, and whether the caller must send the request and call `land`."""
        with self._lock:
            if (flight := self._flights.get(key)) is not None:
                return flight, False
            self._flights[key] = made = Flight()
            return made, True

    def land(self, key: K, error: TpuserveError | None) -> None:
        """End the key's flight and wake the calls that wait for it."""
        with self._lock:
            flight = self._flights.pop(key)
        flight.error = error
        flight.done.set_result(None)
