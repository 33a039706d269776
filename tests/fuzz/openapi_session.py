"""Calls every documented REST operation with Schemathesis.

Usage: `python -m tests.fuzz.openapi_session SECONDS FINDINGS COUNTS`.

A finding is a response with an undocumented status of 5xx, a body that does not conform to its schema, or a server that
no longer answers.
"""

import random
import sys
import time
from pathlib import Path

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import checks

from tests.fuzz.shared_counts import SharedCounts
from tests.fuzz.target import expect
from tests.fuzz.transports.attacked_server import attacked_server

# Streams without an end, and pages that are no part of an API.
_EXCLUDED = r"^/(console/events|docs|redoc)"
_EXAMPLES = 20
_TIMEOUT_S = 30.0


def server_errors_are_documented(
    _context: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case
) -> None:
    """Check that an operation documents each status of 5xx. Some of Triton's codes for wrong requests are 500."""
    documented = case.operation.definition.raw.get("responses", {})
    expect(response.status_code < 500 or str(response.status_code) in documented, f"{response.status_code} for {case}")


_CHECKS = [server_errors_are_documented, checks.response_schema_conformance, checks.content_type_conformance]


def main(seconds: str, findings: str, counts: str) -> None:
    """Call the operations in turn until the time is over."""
    shared = SharedCounts.create(Path(counts))
    with attacked_server("http1") as attacked:
        schema = schemathesis.openapi.from_url(f"{attacked.server.rest}/openapi.json").exclude(path_regex=_EXCLUDED)
        operations = [result.ok() for result in schema.get_all_operations()]
        end_s = time.monotonic() + float(seconds)
        while time.monotonic() < end_s:
            for operation in operations:
                number = random.SystemRandom().getrandbits(32)
                try:
                    _call(operation, shared, number)
                except BaseException:
                    name = f"{operation.method}{operation.path.replace('/', '-')}"
                    (Path(findings) / f"openapi-{name}-{number}").write_text(f"{number}\n")
                    raise
            attacked.server.check()


def _call(operation: schemathesis.BaseSchema, shared: SharedCounts, number: int) -> None:
    @seed(number)
    @settings(
        max_examples=_EXAMPLES,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def call(case: schemathesis.Case) -> None:
        response = case.call(timeout=_TIMEOUT_S)
        shared.add(is_accepted=response.status_code < 400)
        case.validate_response(response, checks=_CHECKS)

    call()


if __name__ == "__main__":
    main(*sys.argv[1:])
