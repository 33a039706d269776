"""Clients that send predictions without a pause, and count what becomes of each."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from typing import Final

from tests.deploy.envoy.fleet import check_predict
from tpuserve_client import Attempt, Client, TpuserveError

CLIENTS: Final = 6
_PATIENCE_S: Final = 300.0


class Load:
    """Counts of all clients. `changed` guards them."""

    def __init__(self) -> None:
        self.answered = 0
        self.client_retries = 0
        self.failures: list[str] = []
        self._changed = threading.Condition()
        self._ends = False

    def wait_for(self, more: int) -> None:
        """Wait for further answers, or for a failure. Fails after five minutes."""
        with self._changed:
            enough = self.answered + more
            assert self._changed.wait_for(lambda: self.failures or self.answered >= enough, _PATIENCE_S)

    def end(self) -> None:
        """Let each client end after its request."""
        self._ends = True

    def send(self, address: str) -> None:
        """Send requests to `address` until the end."""
        with Client(address, on_attempt=self._note) as client:
            for number in count():
                if self._ends:
                    return
                try:
                    check_predict(client, number % 1000)
                except (TpuserveError, AssertionError) as error:
                    self._count(str(error))
                else:
                    self._count()

    def _count(self, *failures: str) -> None:
        with self._changed:
            self.answered += not failures
            self.failures += failures
            self._changed.notify_all()

    def _note(self, attempt: Attempt) -> None:
        with self._changed:
            self.client_retries += attempt.pause_s is not None


@contextmanager
def run_load(addresses: Sequence[str]) -> Iterator[Load]:
    """Start clients of each address, and end them after the body."""
    load = Load()
    with ThreadPoolExecutor(CLIENTS * len(addresses)) as threads:
        sending = [threads.submit(load.send, address) for address in addresses for _ in range(CLIENTS)]
        try:
            yield load
        finally:
            load.end()
    for each in sending:
        each.result()
