from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import Internal
from tpuserve_server.hosts.grpc_headers import deadline_of, encode_message, trace_headers_of
from tpuserve_server.hosts.grpc_metadata import Metadata
from tpuserve_server.observe.requests.trace_context import TraceHeaders


class StoppedClock:
    def monotonic_s(self) -> float:
        return 1000.0


@pytest.mark.parametrize(
    ("timeout", "seconds"),
    [
        (b"2H", 7200), (b"2M", 120), (b"2S", 2), (b"2m", 2e-3), (b"2u", 2e-6), (b"2n", 2e-9),
        (b"0n", 0), (b"00000001S", 1), (b"99999999H", 99999999 * 3600),
    ],
)  # fmt: skip
def test_timeout_in_every_unit(timeout: bytes, seconds: float) -> None:
    assert deadline_of(timeout, StoppedClock()).at_s == pytest.approx(1000.0 + seconds, rel=1e-15)


def test_no_timeout_never_passes() -> None:
    assert deadline_of(None, StoppedClock()) == Deadline.never()


@pytest.mark.parametrize(
    "timeout", [b"", b"S", b"1", b"1s", b"-1S", b"1.5S", b" 1S", b"1S ", b"1S\n", b"123456789S", b"1SS"]
)
def test_malformed_timeout(timeout: bytes) -> None:
    with pytest.raises(Internal, match="malformed grpc-timeout"):
        deadline_of(timeout, StoppedClock())


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_message_is_printable_ascii_that_decodes_to_itself(message: str) -> None:
    encoded = encode_message(message)
    assert all(0x20 <= byte <= 0x7E for byte in encoded)
    assert unquote(encoded.decode("ascii")) == message


def test_message_with_half_a_surrogate_pair_is_still_sent() -> None:
    assert encode_message("\ud800") == b"?"


def test_plain_message_stays_readable() -> None:
    assert encode_message("Servable not found: 'm' [x=1]") == b"Servable not found: 'm' [x=1]"


def test_metadata_leaves_out_what_is_the_transports() -> None:
    headers = [
        (b"host", b"x"), (b"te", b"trailers"), (b"content-type", b"application/grpc"), (b"grpc-timeout", b"1S"),
        (b":path", b"/"), (b"X-One", b"1"), (b"x-two", b"a"), (b"x-two", b"\xe9"), (b"user-agent", b"u"),
    ]  # fmt: skip
    metadata = Metadata(headers)
    assert dict(metadata) == {"x-one": "1", "x-two": "a,é", "user-agent": "u"}
    assert len(metadata) == 3
    assert "te" not in metadata


def test_trace_headers_of_one_name_are_joined() -> None:
    headers = [(b"tracestate", b"a=1"), (b"traceparent", b"x"), (b"other", b"y"), (b"tracestate", b"b=2")]
    assert trace_headers_of(headers) == TraceHeaders(b"x", b"a=1,b=2")
    assert trace_headers_of([*headers, (b"traceparent", b"z")]).traceparent == b"x,z"


def test_names_that_are_not_ascii_are_no_metadata() -> None:
    assert dict(Metadata([(b"x-\xc2\xa0", b"a"), (b"x-b", b"\xff")])) == {"x-b": "\xff"}
