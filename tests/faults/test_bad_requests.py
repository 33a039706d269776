"""Tests for single bad requests over every protocol: cases 1 to 9, 11, 23, 24, 31 and 42 of the table."""

import json

import pytest

from tests.faults.bad_request import BadRequest
from tests.faults.faulted_server import OIP_GRPC, TF_GRPC, Answer, Faults
from tests.faults.json_requests import json_requests
from tests.faults.oip_requests import oip_requests
from tests.faults.proto_requests import proto_requests

BAD_REQUESTS = (*json_requests(), *proto_requests(), *oip_requests())


def shown(bad: BadRequest, answer: Answer) -> str:
    """Return the message of an error. REST answers an object with the error alone."""
    if bad.protocol in (TF_GRPC, OIP_GRPC):
        return answer.text
    [(key, message)] = json.loads(answer.content).items()
    assert key == "error"
    return str(message)


@pytest.mark.parametrize("bad", BAD_REQUESTS, ids=str)
def test_bad_request_is_refused_and_the_next_one_is_answered(faults: Faults, bad: BadRequest) -> None:
    with faults.fault(bad.case, bad.fault, bad.protocol, *bad.expected, memory_mb=bad.memory_mb) as attempt:
        answer = faults.server.send(bad.protocol, bad.body, bad.headers, bad.path)
        attempt.got = answer.got
        if attempt.got not in ("OK", "200"):
            assert bad.says in shown(bad, answer)
            assert not any(secret in answer.text for secret in ("Traceback", "site-packages", '.py"', "/tmp/"))
