import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

from tests.support.device_programs import double_and_add, write_programs
from tests.support.fake_device import FakeClock
from tests.support.trace_events import find_facts
from tpuserve_server.core.system.memory import HostMemory
from tpuserve_server.core.terms.errors import Internal
from tpuserve_server.core.terms.servable import VersionFiles
from tpuserve_server.core.terms.tracer import TraceOptions
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.executors.choice import ChosenTracer, ExecutorChoice
from tpuserve_server.executors.pjrt import PjrtOptions
from tpuserve_server.executors.pjrt.candidate import DevicePrograms
from tpuserve_server.executors.pjrt.tracer import JaxTracer
from tpuserve_server.executors.tensorflow import TensorFlowOptions
from tpuserve_server.executors.tensorflow.on_demand import TensorFlowOnDemand
from tpuserve_server.observe.metrics.measurements import DeviceMeasurements

# Set this before JAX starts, or it searches for a TPU.
jax.config.update("jax_platforms", "cpu")


def trace(tracer: JaxTracer | ChosenTracer) -> set[str]:
    """Return the names of the recorded events."""
    work = jax.jit(jnp.tanh).lower(jnp.ones((64, 64))).compile()
    tracer.start(TraceOptions())
    work(jnp.ones((64, 64))).block_until_ready()
    space = XSpace.FromString(tracer.stop())
    return {event.name for plane in space.planes for event in plane.event_metadata.values()}


def test_a_trace_has_the_programs_that_ran_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tracer = JaxTracer()
    for _ in range(2):  # one session at a time
        assert any("tanh" in name for name in trace(tracer))
        assert list(tmp_path.iterdir()) == []


def test_one_session_at_a_time_in_the_whole_process() -> None:
    first, second = JaxTracer(), JaxTracer()
    first.start(TraceOptions())
    for tracer in (first, second):
        with pytest.raises(Internal, match=r"^Another profiling session active\.$"):
            tracer.start(TraceOptions())
    first.stop()
    second.start(TraceOptions())
    second.stop()


def test_there_is_nothing_to_stop_before_a_start() -> None:
    for tracer in (JaxTracer(), ChosenTracer(JaxTracer)):
        with pytest.raises(Internal, match="No profiling session"):
            tracer.stop()


def test_jax_records_where_device_programs_run_and_tensorflow_where_none_do(tmp_path: Path) -> None:
    saved_model = TensorFlowOnDemand(TensorFlowOptions(), HostMemory())
    programs = DevicePrograms.of(PjrtOptions("cpu"), saved_model, DeviceMeasurements(), FakeClock())
    choice = ExecutorChoice((programs, saved_model), DeviceMeasurements())
    tracer = ChosenTracer(choice.tracer)
    assert not any("tanh" in name for name in trace(tracer))
    version = write_programs(tmp_path / "1", double_and_add())
    choice.load(ServableId("m", 1), VersionFiles(version)).close()
    assert any("tanh" in name for name in trace(tracer))


def test_a_span_is_an_event_with_its_facts_during_a_session_and_nothing_otherwise() -> None:
    tracer = ChosenTracer(JaxTracer)
    recording = []
    with tracer.span("before the session"):
        recording.append(tracer.is_recording)
    tracer.start(TraceOptions())
    with tracer.span("batch m:1", rows=3, signature="serving_default"):
        recording.append(tracer.is_recording)
    assert find_facts(tracer.stop(), "batch m:1") == {"rows": 3, "signature": "serving_default"}
    assert [*recording, tracer.is_recording] == [False, True, False]
