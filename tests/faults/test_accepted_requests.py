"""Tests that the valid twins of bad requests are answered: cases 1 to 9, 11, 24 and 31 of the table."""

import pytest

from tests.faults.accepted_requests import Accepted, accepted_requests
from tests.faults.faulted_server import OIP_GRPC, TF_GRPC, Faults
from tests.faults.json_requests import BODY_MB


@pytest.mark.parametrize("accepted", [*accepted_requests()], ids=str)
def test_valid_twin_of_a_bad_request_is_answered(faults: Faults, accepted: Accepted) -> None:
    is_call = accepted.protocol in (TF_GRPC, OIP_GRPC)
    with faults.fault(
        accepted.case, f"valid: {accepted.name}", accepted.protocol, "OK" if is_call else "200", memory_mb=BODY_MB
    ) as attempt:
        answer = faults.server.send(accepted.protocol, accepted.body, accepted.headers)
        attempt.got = answer.got
        content = answer.content if is_call else b"".join(answer.content.split())
        assert accepted.holds in content, answer
