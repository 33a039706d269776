from pathlib import Path
from typing import Any

import pytest
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XPlane, XSpace

from examples.profile.summary import read_summary

MS = 10**9
SIZES: dict[str, str | int] = {"batch": 7, "requests": 2, "rows": 6, "bucket": 8, "signature": "serving_default"}


class Plane:
    """A plane of a trace whose events have names and facts."""

    def __init__(self, plane: XPlane) -> None:
        self._plane = plane

    def add(self, line: Any, name: str, begin_ms: float, duration_ms: float, **facts: str | int) -> None:  # noqa: ANN401 - a message without types
        event = line.events.add(metadata_id=self._metadata(self._plane.event_metadata, name))
        event.offset_ps, event.duration_ps = int(begin_ms * MS), int(duration_ms * MS)
        for fact, value in facts.items():
            stat = event.stats.add(metadata_id=self._metadata(self._plane.stat_metadata, fact))
            if isinstance(value, int):
                stat.int64_value = value
            else:
                stat.ref_value = self._metadata(self._plane.stat_metadata, value)

    def _metadata(self, known: Any, name: str) -> int:  # noqa: ANN401 - as above
        number = next((number for number, one in known.items() if one.name == name), len(known) + 1)
        known[number].id, known[number].name = number, name
        return int(number)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Return the trace of two batches of one model, with operations of TensorFlow and of a device program."""
    space = XSpace()
    message = space.planes.add(name="/host:CPU")
    plane, device, pool = Plane(message), message.lines.add(name="device-m-1"), message.lines.add(name="tf_pool")
    plane.add(device, "results m:1", 3, 1, **SIZES)
    plane.add(device, "batch m:1", 1, 2, **SIZES)
    plane.add(device, "batch m:1", 6, 1, **{**SIZES, "rows": 2})
    plane.add(device, "SessionRun", 1, 1.5)
    plane.add(device, "model/dense/MatMul:MatMul", 1.5, 0.5)
    plane.add(device, "model/dense/MatMul:MatMul", 6.5, 0.25)
    plane.add(pool, "ThreadpoolListener::Record", 1, 1)
    plane.add(pool, "fusion.1", 2, 0.125, hlo_op="fusion.1")
    plane.add(pool, "end: fusion.1", 2, 0.125)
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(space.SerializeToString())
    return path


def test_batches_are_counted_with_their_padding_and_the_device_threads_time(trace: Path) -> None:
    (found,) = read_summary(trace).batches.values()
    assert (found.count, found.requests, found.rows, found.padded_rows) == (2, 4, 8, 16)
    assert found.padding == 0.5
    assert (found.batch_ms, found.results_ms, found.between_ms) == pytest.approx((3, 1, 2))


def test_operations_are_those_of_tensorflow_and_of_device_programs(trace: Path) -> None:
    summary = read_summary(trace)
    assert summary.operation_ms == pytest.approx({"dense/MatMul (MatMul)": 0.75, "fusion.1": 0.125})
    assert summary.operation_runs == {"dense/MatMul (MatMul)": 2, "fusion.1": 1}
