"""Load: threads that send predictions without a pause and count the answers, the retries and the failures."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.support.ray_cluster import GRPC
from tpuserve_client import Client, Retry, TpuserveError
from tpuserve_client.attempts import Attempt

# Every request must be answered in the end, so the retries have no budget.
_RETRY: Final = Retry(max_attempts=20, max_backoff_s=1.0, budget_tokens=float("inf"))
_TIMEOUT_S: Final = 120.0


class Load:
    """Counts of a load that runs. `_changed` guards every field."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._changed = threading.Condition()
        self._stopping = False
        self.answered = 0
        self.retries: list[str] = []
        self.failures: list[TpuserveError] = []
        self.wrong = 0

    def wait_for(self, more: int) -> None:
        """Wait until `more` requests than now are answered, or one has failed."""
        with self._changed:
            wanted = self.answered + more
            assert self._changed.wait_for(lambda: self.answered >= wanted or self.failures, _TIMEOUT_S), self.answered

    def describe(self) -> str:
        """Return the counts as a line for the test's output."""
        kinds = sorted({f"{self.retries.count(kind)} {kind}" for kind in self.retries})
        return f"{self.answered} answered, {len(self.failures)} lost, retries: {', '.join(kinds) or 'none'}"

    def run(self, model: str) -> None:
        """Send predictions until `stop`."""
        with Client(self._address, timeout_s=_TIMEOUT_S, retry=_RETRY, on_attempt=self._attempted) as client:
            while not self._stopping:
                try:
                    values = client.predict(model, {"x": [[2.0]]})["y"]
                except TpuserveError as error:
                    self._count(error)
                else:
                    self._count(None, is_right=values.tolist() in ([[3.0]], [[4.0]]))

    def stop(self) -> None:
        """Let each thread finish its request."""
        self._stopping = True

    def _count(self, error: TpuserveError | None, *, is_right: bool = True) -> None:
        with self._changed:
            if error is None:
                self.answered += 1
                self.wrong += not is_right
            else:
                self.failures.append(error)
            self._changed.notify_all()

    def _attempted(self, attempt: Attempt) -> None:
        if attempt.pause_s is not None and attempt.error is not None:
            with self._changed:
                self.retries.append(f"{attempt.error.code.name}: {attempt.error.message}")


@contextmanager
def load(threads: int, model: str, address: str = GRPC) -> Iterator[Load]:
    """Run a load of `threads` requests in flight, and join its threads at exit."""
    running = Load(address)
    senders = [threading.Thread(target=running.run, args=(model,)) for _ in range(threads)]
    for sender in senders:
        sender.start()
    try:
        yield running
    finally:
        running.stop()
        for sender in senders:
            sender.join()
