"""Calls behind a path that dies without a close: existing connections go dead, and new connections work."""

from collections import Counter
from typing import Final

from tests.clients.clients_under_test import make_client
from tests.clients.faults.fault import Fault
from tests.clients.faults.fault_proxy import proxied
from tests.clients.faults.trial import X
from tpuserve_client import TpuserveError

CALLS: Final = 12


def run_dead_path(kind: str, address: str, timeout_s: float = 1.0) -> list[str]:
    """Return the outcome of each of 12 calls after the path died: "ok" or the name of the error."""
    with proxied(address) as (proxy, place), make_client(kind, place, timeout_s=timeout_s) as client:

        def outcome() -> str:
            try:
                client.predict("affine", {"x": X})
            except TpuserveError as error:
                return type(error).__name__
            return "ok"

        if (first := outcome()) != "ok":
            raise RuntimeError(f"the path did not work before it died: {first}")
        proxy.inject(Fault.BLACK_HOLE)
        return [outcome() for _ in range(CALLS)]


def count(outcomes: list[str]) -> str:
    """Return the outcomes with their numbers, as text."""
    return ", ".join(f"{number} {name}" for name, number in Counter(outcomes).most_common())
