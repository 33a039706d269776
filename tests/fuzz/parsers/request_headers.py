"""Headers of REST and gRPC requests: limits, timeouts, priority, trace context, codings and lengths."""

import asyncio
import gzip
import math
import re
import zlib

from tests.fuzz.parsers.header_lines import RawHeaders, read_lines
from tests.fuzz.refusals import check_refusal
from tests.fuzz.target import Target, expect
from tpuserve_server.core.terms.deadline import SystemClock
from tpuserve_server.core.terms.errors import Code, PermissionDenied, ServingError
from tpuserve_server.hosts.grpc_headers import deadline_of, encode_message, trace_headers_of
from tpuserve_server.hosts.grpc_metadata import Metadata
from tpuserve_server.observe.requests.trace_context import read_parent, read_request_id
from tpuserve_server.protocols.control import check_browser, comes_from_page, names_this_machine
from tpuserve_server.protocols.http.content import GZIP, Coding, accepted_coding, decompress
from tpuserve_server.protocols.http.headers import (
    find_request_id,
    find_timeout_s,
    parse_accept,
    prefers_html,
    read_headers,
    read_observed,
)
from tpuserve_server.protocols.oip_rest.v2 import read_json_length, read_media_type_length
from tpuserve_server.protocols.priority import parse_priority
from tpuserve_server.wire.oip.infer_json import parse_infer_json

_LIMIT_BYTES = 1 << 16
_CLOCK = SystemClock()
_PLAIN_HEADER = re.compile(rb"[\x20-\x7e]*")


def run(data: bytes) -> bool:
    """Read the headers of a request with a body in every reader."""
    headers, body = read_lines(data)
    scope: dict[str, object] = {"type": "http", "method": "POST", "path": "/", "headers": headers}
    _check_rest(scope, body)
    _check_grpc(headers)
    _check_browser(scope)
    try:
        read = read_headers(scope, _LIMIT_BYTES)
    except ServingError as error:
        check_refusal(error)
        return False
    expect(read.timeout_s > 0 and not math.isnan(read.timeout_s), f"timeout {read.timeout_s}")
    expect(find_timeout_s(scope) == read.timeout_s or _is_repeated(headers), "two readers of the timeout differ")
    if read.trace is not None:
        read_parent(read.trace)
    if read.coding is not None:
        _check_coding(body, read.coding)
    return True


def _check_rest(scope: "dict[str, object]", body: bytes) -> None:
    for read in (read_json_length, read_media_type_length):
        try:
            length = read(scope, len(body))
            expect(length is None or 0 <= length <= len(body), f"JSON of {length} bytes in {len(body)}")
            if length is not None:
                parse_infer_json("m", body, length)
        except ServingError as error:
            check_refusal(error)
    try:
        read_observed(scope)
    except ServingError as error:
        check_refusal(error)
    read_request_id(find_request_id(scope))
    accepted_coding(scope)


def _check_grpc(headers: RawHeaders) -> None:
    found = dict(headers)
    dict(Metadata(headers))
    read_parent(trace_headers_of(headers))
    expect(_PLAIN_HEADER.fullmatch(encode_message(found.get(b"m", b"").decode("latin-1"))) is not None, "no header")
    try:
        deadline = deadline_of(found.get(b"grpc-timeout"), _CLOCK)
        expect(not math.isnan(deadline.at_s), "deadline")
        parse_priority(found.get(b"x-tpuserve-priority"))
    except ServingError as error:
        # gRPC's own libraries answer INTERNAL for a malformed timeout.
        check_refusal(error, Code.INTERNAL)


def _check_browser(scope: "dict[str, object]") -> None:
    try:
        check_browser(scope)
    except PermissionDenied as error:
        check_refusal(error, Code.PERMISSION_DENIED)
    names_this_machine(scope)
    comes_from_page(scope)
    accept = b",".join(value for name, value in scope["headers"] if name == b"accept")  # type: ignore[attr-defined]  # made in run
    parse_accept(accept.decode("latin-1"))
    prefers_html(accept.decode("latin-1"))


def _is_repeated(headers: RawHeaders) -> bool:
    return sum(name == b"x-tpuserve-timeout-ms" for name, _ in headers) > 1


def _check_coding(body: bytes, coding: Coding) -> None:
    try:
        content = asyncio.run(decompress(body, coding, _LIMIT_BYTES))
    except ServingError as error:
        check_refusal(error)
        return
    expect(content == (gzip.decompress(body) if coding is GZIP else zlib.decompress(body)), "the content differs")


TARGET = Target(
    run,
    max_bytes=1024,
    words=(
        b"\nx-tpuserve-timeout-ms: ", b"\nx-tpuserve-priority: low", b"\ngrpc-timeout: 1S", b"\ncontent-encoding: gzip",
        b"\ninference-header-content-length: ", b"\ntraceparent: 00-", b"\ntracestate: a=b", b"\norigin: http://x",
        b"\ncontent-length: ", b"\naccept-encoding: gzip;q=0", b"\nsec-fetch-site: cross-site", b"\naccept: text/html",
        b"\nhost: [::1]", b"\nx-tpuserve-span: ", b"\nx-request-id: ", b"\nx-tpuserve-timing: ", b"\n\n",
    ),
)  # fmt: skip
