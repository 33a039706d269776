"""Request ids: the value of x-request-id, by which clients, proxies and operators find a request in logs."""

import re
import uuid
from typing import Final

# Header of a request on REST, metadata on gRPC; a header or trailer of its response.
REQUEST_ID_HEADER: Final = "x-request-id"

# Visible ASCII: it fits a header, and an attacker can put no control character or second field into a log line.
_VALID: Final = re.compile(rb"[\x21-\x7e]{1,128}")


def read_request_id(raw: bytes | None) -> str:
    """Return the id that a client sent, or "" for none or an invalid one."""
    return raw.decode() if raw is not None and _VALID.fullmatch(raw) else ""


def echo_request_id(raw: bytes | None, trailers: list[tuple[str, str]]) -> None:
    """Add the id that a client sent to the trailers or headers of its response, if it is valid."""
    if request_id := read_request_id(raw):
        trailers.append((REQUEST_ID_HEADER, request_id))


def identify_response(trailers: list[tuple[str, str]]) -> str:
    """Return the id among the trailers of a response. Add a new one if there is none."""
    for name, value in trailers:
        if name == REQUEST_ID_HEADER:
            return value
    request_id = uuid.uuid4().hex
    trailers.append((REQUEST_ID_HEADER, request_id))
    return request_id
