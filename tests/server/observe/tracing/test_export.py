"""Tests for the thread that exports traces, with real receivers: present, away, silent and refusing."""

import logging
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # it has no stubs

from tests.server.observe.tracing.records import make_record, make_run, make_trace
from tests.support.certificates import Authority, ServerTls
from tests.support.otlp_receiver import Receiver, attributes_of, grpc_receiver, http_receiver
from tpuserve_server.core.terms.deadline import SystemClock
from tpuserve_server.observe.tracing.export import TraceExport
from tpuserve_server.observe.tracing.http_transport import HttpTransport
from tpuserve_server.observe.tracing.message import find_resource
from tpuserve_server.observe.tracing.options import find_target
from tpuserve_server.observe.tracing.receiver_reply import ExportError, Rejection
from tpuserve_server.observe.tracing.transport import RetryingSender, open_transport


class Counts:
    """Counted outcomes, from any thread."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self._changed = threading.Condition()

    def requests_traced(self, *, outcome: str, count: int) -> None:
        with self._changed:
            self.outcomes[outcome] += count
            self._changed.notify_all()

    def wait_for(self, outcome: str, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.outcomes[outcome] >= count, 60.0), self.outcomes


def retry_info(delay_ms: int) -> bytes:
    """Return a serialized google.rpc.Status that asks for a retry after a delay."""
    info = error_details_pb2.RetryInfo()
    info.retry_delay.FromMilliseconds(delay_ms)
    status = status_pb2.Status(code=8)
    status.details.add().Pack(info)
    serialized: bytes = status.SerializeToString()
    return serialized


@pytest.fixture
def silent() -> Iterator[str]:
    """Return the address of a socket that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def away() -> str:
    """Return an address without a receiver."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


def make_export(url: str, counts: Counts, **variables: str) -> TraceExport:
    environment = {f"OTEL_EXPORTER_OTLP_{name}": value for name, value in variables.items()}
    target = find_target(url, environment)
    resource = find_resource({"OTEL_SERVICE_NAME": "mine", "OTEL_RESOURCE_ATTRIBUTES": "zone=a%20b,service.name=x"})
    sender = RetryingSender(open_transport(target), target.timeout_s, SystemClock())
    return TraceExport(sender, target.url, resource, counts)


def export(url: str, count: int, **variables: str) -> Counter[str]:
    """Export `count` requests of one batch, and return the counted outcomes."""
    counts = Counts()
    exporting = make_export(url, counts, **variables)
    exporting.start()
    run = make_run()
    for number in range(1, count + 1):
        exporting.add(make_record(make_trace(number), run))
    exporting.stop()
    return counts.outcomes


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the last export all the time that a busy machine may need."""
    monkeypatch.setattr("tpuserve_server.observe.tracing.export._STOP_S", 60.0)
    monkeypatch.setattr("tpuserve_server.observe.tracing.transport._LAST_SEND_S", 60.0)


def check(receiver: Receiver, count: int) -> None:
    spans = receiver.spans()
    [batch] = [span for span in spans if span.name == "batch" and not span.parent_span_id]
    servers = {(span.trace_id, span.span_id) for span in spans if span.name == "Predict"}
    assert len(servers) == count
    assert {(link.trace_id, link.span_id) for link in batch.links} == servers
    resource = attributes_of(receiver.requests[0].resource_spans[0].resource.attributes)
    assert (resource["service.name"], resource["zone"]) == ("mine", "a b")


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.usefixtures("patient")
def test_stop_exports_everything_over_http(compression: str) -> None:
    with http_receiver() as receiver:
        outcomes = export(receiver.url, 3, HEADERS="x-tenant=a%20b", COMPRESSION=compression)
    assert outcomes == {"exported": 3}
    check(receiver, 3)
    assert receiver.headers[0]["x-tenant"] == "a b"
    assert receiver.headers[0][":path"] == "/v1/traces"
    assert receiver.headers[0]["content-type"] == "application/x-protobuf"


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.usefixtures("patient")
def test_stop_exports_everything_over_grpc(compression: str) -> None:
    with grpc_receiver() as receiver:
        outcomes = export(receiver.url, 3, PROTOCOL="grpc", HEADERS="x-tenant=a", COMPRESSION=compression)
    assert outcomes == {"exported": 3}
    check(receiver, 3)
    assert receiver.headers[0]["x-tenant"] == "a"


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
@pytest.mark.usefixtures("patient")
def test_a_receiver_may_require_a_certificate_of_the_server(tmp_path: Path, protocol: str) -> None:
    authority = Authority(tmp_path)
    mine, tls = authority.issue("server@example.org"), ServerTls(authority.server, authority.ca)
    files = {
        "CERTIFICATE": str(authority.ca),
        "CLIENT_CERTIFICATE": str(mine.cert),
        "CLIENT_KEY": str(mine.key),
        "PROTOCOL": protocol,
    }
    with http_receiver(tls=tls) if protocol != "grpc" else grpc_receiver(tls) as receiver:
        assert export(receiver.url, 2, **files) == {"exported": 2}
        check(receiver, 2)
        # The system's authorities do not know it.
        assert export(receiver.url, 1, PROTOCOL=protocol) == {"export_failed": 1}


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_certificate_that_cannot_be_used_is_an_error_at_the_start(tmp_path: Path, protocol: str) -> None:
    with pytest.raises(ExportError, match="a certificate cannot be used: No such file or directory"):
        make_export("https://c", Counts(), CERTIFICATE=str(tmp_path / "missing"), PROTOCOL=protocol)


@pytest.mark.usefixtures("patient")
def test_many_requests_are_sent_in_parts() -> None:
    with http_receiver() as receiver:
        assert export(receiver.url, 1200) == {"exported": 1200}
    check(receiver, 1200)
    assert max(request.ByteSize() for request in receiver.requests) < 1 << 20


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_receiver_that_is_away_is_reported_once(away: str, protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    counts = Counts()
    exporting = make_export(away, counts, PROTOCOL=protocol, TIMEOUT="1000")
    exporting.start()
    for number in (1, 2):
        exporting.add(make_record(make_trace(number), make_run()))
        counts.wait_for("export_failed", number)
    exporting.stop()
    assert counts.outcomes == {"export_failed": 2}
    [message] = [record.getMessage() for record in caplog.records]
    assert message.startswith(f"Cannot export traces to {away}: ")
    assert message.endswith("The server drops traces meanwhile")


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_stop_ends_the_wait_for_a_silent_receiver(silent: str, protocol: str) -> None:
    assert export(silent, 1, PROTOCOL=protocol, TIMEOUT="60000") == {"export_failed": 1}
    assert not [thread for thread in threading.enumerate() if thread.name == "trace-export"]


def test_a_silent_receiver_never_blocks_and_the_queue_is_bounded(silent: str) -> None:
    counts = Counts()
    exporting = make_export(silent, counts, TIMEOUT="60000")
    exporting.start()
    for number in range(1, 7001):
        exporting.add(make_record(make_trace(number)))
    # The thread may have taken one queue already.
    assert counts.outcomes["queue_full"] >= 7000 - 2 * 2048
    exporting.stop()
    assert counts.outcomes.total() == 7000


def test_a_receiver_that_refuses_is_reported_until_it_takes_spans_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    counts = Counts()
    with http_receiver() as receiver:
        receiver.refusals.append(503)
        receiver.refusal_headers["retry-after"] = "3600"  # too long for another attempt
        exporting = make_export(receiver.url, counts)
        exporting.start()
        exporting.add(make_record(make_trace(1)))
        counts.wait_for("export_failed", 1)
        exporting.add(make_record(make_trace(2)))
        counts.wait_for("exported", 1)
        exporting.stop()
    assert [record.getMessage() for record in caplog.records] == [
        f"Cannot export traces to {receiver.url}: HTTP 503 Service Unavailable. The server drops traces meanwhile",
        f"The receiver of traces {receiver.url} responds again",
    ]


def export_refused(receiver: Receiver, outcome: str, **variables: str) -> Counter[str]:
    """Export one request until its outcome is counted, and return the counts."""
    counts = Counts()
    exporting = make_export(receiver.url, counts, **variables)
    exporting.start()
    exporting.add(make_record(make_trace(1)))
    counts.wait_for(outcome, 1)
    exporting.stop()
    return counts.outcomes


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_receiver_that_is_overloaded_gets_the_request_again(status: int, caplog: pytest.LogCaptureFixture) -> None:
    with http_receiver() as receiver:
        receiver.refusals.append(status)
        assert export_refused(receiver, "exported") == {"exported": 1}
    assert len(receiver.requests) == 2
    assert receiver.requests[0] == receiver.requests[1]
    assert caplog.records == []


@pytest.mark.parametrize(
    ("code", "details"), [(grpc.StatusCode.UNAVAILABLE, b""), (grpc.StatusCode.RESOURCE_EXHAUSTED, retry_info(100))]
)
def test_a_receiver_over_grpc_gets_the_request_again(code: grpc.StatusCode, details: bytes) -> None:
    with grpc_receiver() as receiver:
        receiver.refusals.append(code)
        receiver.refusal_headers = {"grpc-status-details-bin": details}
        assert export_refused(receiver, "exported", PROTOCOL="grpc") == {"exported": 1}
    assert len(receiver.requests) == 2


@pytest.mark.parametrize(
    ("status", "headers"), [(400, {}), (500, {}), (503, {"retry-after": "3600"}), (429, {"retry-after": "9" * 400})]
)
def test_a_request_is_dropped_that_would_fail_again_or_wait_too_long(status: int, headers: dict[str, str]) -> None:
    with http_receiver() as receiver:
        receiver.refusals.append(status)
        receiver.refusal_headers.update(headers)
        assert export_refused(receiver, "export_failed") == {"export_failed": 1}
    assert len(receiver.requests) == 1


@pytest.mark.parametrize("code", [grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED])
def test_a_request_over_grpc_is_dropped_that_would_fail_again(code: grpc.StatusCode) -> None:
    with grpc_receiver() as receiver:
        receiver.refusals.append(code)
        assert export_refused(receiver, "export_failed", PROTOCOL="grpc") == {"export_failed": 1}
    assert len(receiver.requests) == 1


def test_stop_ends_the_pause_before_a_retry() -> None:
    counts = Counts()
    with http_receiver() as receiver:
        receiver.refusals.append(503)
        receiver.refusal_headers["retry-after"] = "50"
        exporting = make_export(receiver.url, counts, TIMEOUT="60000")
        exporting.start()
        exporting.add(make_record(make_trace(1)))
        receiver.wait_for(lambda spans: len(spans) > 0)
        exporting.stop()
    # The refusal may reach the sender before or after the stop.
    assert counts.outcomes in ({"exported": 1}, {"export_failed": 1})
    assert not [thread for thread in threading.enumerate() if thread.name == "trace-export"]


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
@pytest.mark.usefixtures("patient")
def test_rejected_spans_count_as_dropped_requests(protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    with http_receiver() if protocol != "grpc" else grpc_receiver() as receiver:
        receiver.reply.partial_success.rejected_spans = 1
        receiver.reply.partial_success.error_message = "no more\nroom"
        outcomes = export(receiver.url, 3, PROTOCOL=protocol)
        assert outcomes == {"rejected": 1, "exported": 2}
        receiver.reply.partial_success.rejected_spans = 1 << 40
        assert export(receiver.url, 3, PROTOCOL=protocol) == {"rejected": 3}
    assert caplog.records[0].getMessage().startswith(f"The receiver of traces {receiver.url} rejected 1 of ")
    assert caplog.records[0].getMessage().endswith(" spans: no more\nroom")


def test_requests_that_follow_an_export_are_gathered() -> None:
    counts = Counts()
    with http_receiver() as receiver:
        exporting = make_export(receiver.url, counts)
        exporting.start()
        run = make_run()
        for number in range(1, 1025):  # So many that the export begins at once.
            exporting.add(make_record(make_trace(number), run))
        counts.wait_for("exported", 1024)
        before = len(receiver.requests)
        other = HttpTransport(find_target(receiver.url, {}))
        for number in range(2001, 2007):
            for _ in range(50):  # Time for an export that does not gather.
                other.send(b"", 10.0)
            exporting.add(make_record(make_trace(number), make_run()))
        other.close()
        exporting.stop()
    later = [request for request in receiver.requests[before:] if b"Predict" in request.SerializeToString()]
    assert len(later) <= 4  # without gathering, 6


class BrokenTransport:
    """A transport with a bug, which it has only once."""

    def __init__(self) -> None:
        self.sent = 0

    def send(self, body: bytes, timeout_s: float) -> Rejection:
        self.sent += 1
        if self.sent == 1:
            raise ZeroDivisionError
        return Rejection()

    def close(self) -> None:
        pass


def test_a_bug_does_not_end_the_export(caplog: pytest.LogCaptureFixture) -> None:
    counts, transport = Counts(), BrokenTransport()
    exporting = TraceExport(RetryingSender(transport, 1.0, SystemClock()), "http://c", {}, counts)
    exporting.start()
    exporting.add(make_record(make_trace(1)))
    counts.wait_for("export_failed", 1)
    # Not hexadecimal.
    exporting.add(make_record(make_trace(2)._replace(trace_id="x")))
    counts.wait_for("export_failed", 2)
    exporting.add(make_record(make_trace(3)))
    counts.wait_for("exported", 1)
    exporting.stop()
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        "Unexpected error of the export to http://c",
        "Cannot export traces to http://c: ZeroDivisionError. The server drops traces meanwhile",
        "Cannot make the spans of 1 request",
    ]


def test_stop_without_start_does_nothing(away: str) -> None:
    make_export(away, Counts()).stop()
