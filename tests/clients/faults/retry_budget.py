"""Calls to a server that refuses every request as Unavailable: how many attempts reach it."""

from typing import Final

from tests.clients.clients_under_test import Clock, make_client
from tests.clients.faults.trial import X
from tests.clients.model_server import Failure, ModelServer
from tpuserve_client import Unavailable
from tpuserve_client.errors import Code

CALLS: Final = 100


class AlwaysUnavailable(ModelServer):
    """A model server that is loading, for ever. `attempts` is the number of requests that reached it."""

    def begin(self, served: object) -> Failure:
        self.attempts += 1
        return Failure(Code.UNAVAILABLE, "loading")

    def reset(self) -> None:
        super().reset()
        self.attempts = 0


def run_retry_budget(kind: str, address: str, server: AlwaysUnavailable) -> tuple[int, int]:
    """Return the number of calls that failed as Unavailable, and of the attempts that reached the server."""
    server.reset()
    failed = 0
    with make_client(kind, address, Clock()) as client:  # the pauses between attempts pass at once
        for _ in range(CALLS):
            try:
                client.predict("affine", {"x": X})
            except Unavailable:
                failed += 1
    return failed, server.attempts
