import tempfile
from pathlib import Path

import pytest
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

from tests.support.trace_events import find_facts
from tpuserve_server.core.terms.errors import Internal
from tpuserve_server.core.terms.tracer import SESSION_EVENT, TraceOptions
from tpuserve_server.executors.tensorflow.on_demand import TensorFlowTracer


def test_a_trace_has_the_operations_that_ran_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tracer = TensorFlowTracer()
    for _ in range(2):  # one session at a time
        tracer.start(TraceOptions())
        tf.linalg.matmul(tf.ones((8, 8)), tf.ones((8, 8))).numpy()
        space = XSpace.FromString(tracer.stop())
        names = {event.name for plane in space.planes for event in plane.event_metadata.values()}
        assert any("MatMul" in name for name in names)
        assert list(tmp_path.iterdir()) == []


def test_a_trace_without_operations_is_not_empty() -> None:
    tracer = TensorFlowTracer()
    tracer.start(TraceOptions())
    space = XSpace.FromString(tracer.stop())
    # A trace covers the whole process, including programs of other tests.
    assert SESSION_EVENT in [event.name for plane in space.planes for event in plane.event_metadata.values()]


def test_one_session_at_a_time_in_the_whole_process() -> None:
    first, second = TensorFlowTracer(), TensorFlowTracer()
    first.start(TraceOptions())
    for tracer in (first, second):
        with pytest.raises(Internal, match=r"^Another profiling session active\.$"):
            tracer.start(TraceOptions())
    first.stop()
    second.start(TraceOptions())
    second.stop()


def test_there_is_nothing_to_stop_before_a_start() -> None:
    with pytest.raises(Internal, match="No profiling session"):
        TensorFlowTracer().stop()


def test_a_span_is_an_event_with_its_facts() -> None:
    tracer = TensorFlowTracer()
    tracer.start(TraceOptions())
    with tracer.span("batch m:1", rows=3, signature="serving_default"):
        pass
    assert find_facts(tracer.stop(), "batch m:1") == {"rows": 3, "signature": "serving_default"}
    with tracer.span("after the session"):
        pass
