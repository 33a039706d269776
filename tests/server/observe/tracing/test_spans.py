"""Tests for the spans of requests and batches, as OpenTelemetry's own messages read them."""

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.server.observe.tracing.records import ENDED_UNIX_S, SERVABLE, make_record, make_run, make_trace
from tests.support.otlp_receiver import attributes_of
from tpuserve_server.core.terms.batch_run import TaskTimes
from tpuserve_server.core.terms.errors import Code
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.observe.requests.request_record import RequestRecord
from tpuserve_server.observe.tracing.export import BatchSpans, request_spans
from tpuserve_server.observe.tracing.message import request, resource, scope

ENDED_NS = int(ENDED_UNIX_S) * 10**9
IS_LOCAL, IS_REMOTE = 0x101, 0x301


def read(spans: list[bytes]) -> list[Span]:
    """Return the spans that a receiver reads. Every byte has a meaning to it."""
    body = request(resource({"service.name": "x", "n": -1}), scope("tpuserve", "1"), spans)
    message = ExportTraceServiceRequest.FromString(body)
    assert message.SerializeToString(deterministic=True) == body
    [resource_spans] = message.resource_spans
    [scope_spans] = resource_spans.scope_spans
    assert attributes_of(resource_spans.resource.attributes) == {"service.name": "x", "n": -1}
    assert (scope_spans.scope.name, scope_spans.scope.version) == ("tpuserve", "1")
    return list(scope_spans.spans)


def spans_of(record: RequestRecord, batches: BatchSpans | None = None) -> list[Span]:
    assert record.trace is not None
    return read(request_spans(record, record.trace, BatchSpans() if batches is None else batches))


def test_a_request_is_a_server_span_with_its_client_as_the_parent() -> None:
    trace = make_trace(1, "b7ad6b7169203331", "a=1,b=2")
    server, *stages = spans_of(make_record(trace, make_run()))
    assert (server.trace_id.hex(), server.span_id.hex()) == (trace.trace_id, trace.span_id)
    assert (server.parent_span_id.hex(), server.trace_state, server.flags) == (trace.parent_id, trace.state, IS_REMOTE)
    assert (server.name, server.kind) == ("Predict", Span.SPAN_KIND_SERVER)
    assert (server.start_time_unix_nano, server.end_time_unix_nano) == (ENDED_NS - 11_000_000_000, ENDED_NS)
    assert server.status.code == Status.STATUS_CODE_UNSET
    assert attributes_of(server.attributes) == {
        "tpuserve.protocol": "grpc",
        "tpuserve.code": "OK",
        "tpuserve.model": "digits",
        "tpuserve.version": 7,
        "tpuserve.signature": "serving_default",
        "tpuserve.request_id": "abc",
    }
    assert {span.trace_state for span in stages} == {trace.state}


def test_the_stages_are_children_that_follow_each_other() -> None:
    server, *stages = spans_of(make_record(make_trace(1), make_run()))
    assert not server.parent_span_id
    assert server.flags == IS_LOCAL
    assert [span.name for span in stages] == ["receive", "decode", "queue", "batch", "execute", "resume", "encode"]
    assert {(span.trace_id, span.parent_span_id, span.kind, span.flags) for span in stages} == {
        (server.trace_id, server.span_id, Span.SPAN_KIND_INTERNAL, IS_LOCAL)
    }
    assert len({span.span_id for span in (server, *stages)}) == 8
    starts = [span.start_time_unix_nano for span in stages]
    ends = [span.end_time_unix_nano for span in stages]
    assert (starts[0], ends[-1]) == (server.start_time_unix_nano, server.end_time_unix_nano)
    assert starts[1:] == ends[:-1]
    reasons = {span.name: attributes_of(span.attributes).get("tpuserve.reason") for span in stages}
    assert reasons["queue"] == "2000.000 ms for more requests (batch_timeout_micros) and 1000.000 ms for the device"
    assert reasons["encode"] is None


@pytest.mark.parametrize(
    ("code", "is_error"), [(Code.INTERNAL, True), (Code.DEADLINE_EXCEEDED, True), (Code.INVALID_ARGUMENT, False)]
)
def test_faults_of_the_server_are_errors(code: Code, is_error: bool) -> None:
    server, *stages = spans_of(make_record(make_trace(1), code=code))
    assert (server.status.code == Status.STATUS_CODE_ERROR) is is_error
    assert attributes_of(server.attributes).get("error.type") == (code.name if is_error else None)
    assert attributes_of(server.attributes)["tpuserve.code"] == code.name
    assert {span.status.code for span in stages} == {Status.STATUS_CODE_UNSET}


def test_a_batch_links_to_its_requests_and_they_link_to_it() -> None:
    run, batches = make_run(), BatchSpans()
    requests = [spans_of(make_record(make_trace(number), run), batches) for number in (1, 2)]
    assert list(batches.tick()) == []
    # A request that ends in the next tick.
    requests.append(spans_of(make_record(make_trace(3), run), batches))
    [batch] = read(list(batches.tick()))
    assert [(link.trace_id, link.span_id, link.flags) for link in batch.links] == [
        (spans[0].trace_id, spans[0].span_id, IS_LOCAL) for spans in requests
    ]
    for spans in requests:
        [execute] = [span for span in spans if span.name == "execute"]
        assert [(link.trace_id, link.span_id) for link in execute.links] == [(batch.trace_id, batch.span_id)]
        assert not any(span.links for span in spans if span is not execute)
    assert batch.trace_id not in {spans[0].trace_id for spans in requests}
    assert not batch.parent_span_id
    assert (batch.start_time_unix_nano, batch.end_time_unix_nano) == (ENDED_NS - 7 * 10**9, ENDED_NS - 4_500_000_000)
    assert attributes_of(batch.attributes) == {
        "tpuserve.model": "digits",
        "tpuserve.version": 7,
        "tpuserve.batch.number": run.number,
        "tpuserve.batch.requests": 2,
        "tpuserve.batch.rows": 3,
        "tpuserve.batch.bucket": 4,
        "tpuserve.batch.padding": 1,
        "tpuserve.batch.departure": "timeout",
        "tpuserve.reason": "waited for more requests (batch_timeout_micros)",
    }


def test_a_late_request_links_to_a_batch_that_was_exported() -> None:
    run, batches = make_run(), BatchSpans()
    spans_of(make_record(make_trace(1), run), batches)
    assert list(batches.tick()) == []
    [batch] = read(list(batches.tick()))
    late = spans_of(make_record(make_trace(2), run), batches)
    assert [link.span_id for span in late for link in span.links] == [batch.span_id]
    assert not batches.are_pending


def test_a_batch_that_failed_is_an_error() -> None:
    batches = BatchSpans()
    spans_of(make_record(make_trace(1), make_run(failed=True)), batches)
    [batch] = read([*batches.tick(), *batches.tick()])
    assert batch.status.code == Status.STATUS_CODE_ERROR


def test_each_step_links_to_its_own_batches() -> None:
    first, second, third = make_run(), make_run(), make_run()
    not_started = make_run()
    not_started.started_s = 0.0
    more = TaskTimes(ServableId("other", 1), 10.0, (second, third, not_started), 16.0)
    batches = BatchSpans()
    spans = spans_of(make_record(make_trace(1), first, more=(more,)), batches)
    links = {span.name: len(span.links) for span in spans if span.links}
    assert links == {"step1.execute": 1, "step2.execute": 2}
    models = [attributes_of(span.attributes)["tpuserve.model"] for span in read([*batches.tick(), *batches.tick()])]
    assert models == [SERVABLE.name, "other", "other"]
