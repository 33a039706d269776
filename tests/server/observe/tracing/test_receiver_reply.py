"""Tests for the replies of receivers, with the messages of OpenTelemetry and of Google's RPC protocols."""

from typing import Any

import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # it has no stubs
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from tpuserve_server.observe.tracing.receiver_reply import (
    Rejection,
    read_rejection,
    read_retry_after_s,
    read_retry_delay_s,
)


def make_response(**fields: Any) -> bytes:  # noqa: ANN401 - fields of a message
    response = ExportTraceServiceResponse()
    for name, value in fields.items():
        setattr(response.partial_success, name, value)
    return response.SerializeToString()


@pytest.mark.parametrize(
    ("response", "rejection"),
    [
        (b"", Rejection()),
        (make_response(rejected_spans=300), Rejection(300)),
        (make_response(error_message="slow down"), Rejection(0, "slow down")),
        (make_response(rejected_spans=1, error_message="é" * 1000), Rejection(1, "é" * 256)),
        (make_response(rejected_spans=-1), Rejection()),
    ],
)
def test_rejections_are_read(response: bytes, rejection: Rejection) -> None:
    assert read_rejection(response) == rejection


def make_status(*details: Any) -> bytes:  # noqa: ANN401 - messages of any kind
    status = status_pb2.Status(code=14, message="later")
    for detail in details:
        status.details.add().Pack(detail)
    serialized: bytes = status.SerializeToString()
    return serialized


def make_info(seconds: int, nanoseconds: int = 0) -> error_details_pb2.RetryInfo:
    info = error_details_pb2.RetryInfo()
    info.retry_delay.seconds, info.retry_delay.nanos = seconds, nanoseconds
    return info


@pytest.mark.parametrize(
    ("status", "delay_s"),
    [
        (b"", None),
        (make_status(), None),
        (make_status(error_details_pb2.ErrorInfo(reason="x")), None),
        (make_status(error_details_pb2.ErrorInfo(reason="x"), make_info(2, 500_000_000)), 2.5),
        (make_status(error_details_pb2.RetryInfo()), 0.0),
        (make_status(make_info(-5)), 0.0),
    ],
)
def test_retry_delays_are_read(status: bytes, delay_s: float | None) -> None:
    assert read_retry_delay_s(status) == delay_s


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("", 0.0),
        ("7", 7.0),
        ("9" * 400, float("inf")),
        ("-1", 0.0),
        ("soon", 0.0),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 40.0),
        ("Thu, 01 Jan 1970 00:00:01 GMT", 0.0),
        ("Thu, 01 Jan 99999 00:00:01 GMT", 0.0),
    ],
)
def test_retry_after_is_a_number_or_a_date(header: str, seconds: float) -> None:
    assert read_retry_after_s(header, 60.0) == seconds


@given(st.binary(), st.text())
def test_garbage_is_no_error(garbage: bytes, header: str) -> None:
    for reply in (garbage, b"\x0a" + bytes([len(garbage) % 128]) + garbage):
        assert read_rejection(reply).spans >= 0
    detail = AnyMessage(type_url="type.googleapis.com/google.rpc.RetryInfo", value=garbage)
    status = status_pb2.Status(details=[detail]).SerializeToString()
    assert (read_retry_delay_s(status) or 0.0) >= 0.0
    assert read_retry_after_s(header, 0.0) >= 0.0
