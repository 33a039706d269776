"""The retry budget: gRPC's token bucket (proposal A6, retry throttling).

Rule: the bucket has 100 tokens (`Retry.budget_tokens`). A failed attempt takes one, a success returns 0.1, and the
client retries only while the bucket is more than half full.
"""

from tests.clients.faults.retry_budget import CALLS, AlwaysUnavailable, run_retry_budget
from tests.clients.model_server import serving

# Failures before the bucket is half empty. Only they may be followed by a retry.
TOKENS_ABOVE_HALF = 50


def test_server_that_is_always_unavailable_gets_few_retries(protocol: str, kind: str) -> None:
    server = AlwaysUnavailable()
    with serving(server, protocol) as address:
        failed, attempts = run_retry_budget(kind, address, server)
    assert failed == CALLS
    assert CALLS < attempts <= CALLS + TOKENS_ABOVE_HALF
