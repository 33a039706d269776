import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tensorflow_serving.apis.classification_pb2 import ClassificationRequest, ClassificationResponse
from tensorflow_serving.apis.inference_pb2 import MultiInferenceRequest, MultiInferenceResponse
from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog
from tensorflow_serving.apis.regression_pb2 import RegressionRequest, RegressionResponse

from tests.server.observe.request_log.predict_entries import (
    ID,
    CountingMetrics,
    entry,
    inputs_of,
    read_lines,
    request,
    response,
)
from tests.support.fakes import FakeClock
from tpuserve_server.observe.options import Rotation
from tpuserve_server.observe.request_log import writer as writer_module
from tpuserve_server.observe.request_log.writer import LogEntry, LogKind, LogTarget, LogWriter


class Bench:
    """A writer, its clock and its counts."""

    def __init__(self, target: LogTarget) -> None:
        self.target = target
        self.clock = FakeClock()
        self.metrics = CountingMetrics()
        self.writer = LogWriter(Rotation(1 << 20, 4), self.clock, self.metrics)
        self.writer.keep([target])

    def add(self, *values: float, size_bytes: int = 100) -> None:
        for value in values:
            self.writer.add(entry(self.target, value, size_bytes))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(LogTarget(str(tmp_path / "m"), "jsonl", 1.0))
    yield made
    made.writer.stop()


def test_what_is_queued_is_written_by_the_end(bench: Bench, tmp_path: Path) -> None:
    bench.add(1, 2)
    bench.writer.start()
    bench.add(3)
    bench.writer.stop()
    assert inputs_of(read_lines(*tmp_path.iterdir())) == [1, 2, 3]
    assert bench.metrics.outcomes == {"written": 3}
    assert "request-log" not in {thread.name for thread in threading.enumerate()}


def test_it_can_be_stopped_without_having_been_started(bench: Bench) -> None:
    bench.writer.stop()


def test_what_finds_no_room_is_dropped_and_counted(bench: Bench, tmp_path: Path) -> None:
    limit = writer_module._MAX_ENTRIES
    bench.add(*range(limit + 5))
    assert bench.metrics.outcomes == {"queue_full": 5}
    bench.writer.start()
    bench.writer.stop()
    assert len(read_lines(*tmp_path.iterdir())) == limit


def test_room_is_counted_in_bytes_too(bench: Bench) -> None:
    bench.add(1, 2, size_bytes=writer_module._MAX_BYTES // 2)
    bench.add(3, size_bytes=1)
    assert bench.metrics.outcomes == {"queue_full": 1}


def test_written_entries_make_room(bench: Bench) -> None:
    bench.writer.start()
    for value in range(3):
        bench.add(value, size_bytes=writer_module._MAX_BYTES)
        wait_for(lambda: bench.metrics.outcomes.total() > value)  # noqa: B023 - called at once
        # The writer frees space just after it counts the entry.
        wait_for(lambda: bench.writer._queued_bytes == 0)
    assert bench.metrics.outcomes == {"written": 3}


def test_a_disk_that_cannot_be_written_is_told_once_and_tried_again(
    bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "folder"
    folder.write_text("no folder")
    bench.target = LogTarget(str(folder / "m"), "jsonl", 1.0)
    bench.writer.keep([bench.target])
    bench.writer.start()
    with caplog.at_level(logging.ERROR):
        bench.add(1, 2)
        wait_for(lambda: bench.metrics.outcomes["write_failed"] == 2)
        bench.clock.now_s += 11
        bench.add(3)
        wait_for(lambda: bench.metrics.outcomes["write_failed"] == 3)
    assert len(caplog.records) == 1
    assert "Cannot write the request log" in caplog.text
    folder.unlink()
    bench.add(4)
    wait_for(lambda: bench.metrics.outcomes["write_failed"] == 4)
    bench.clock.now_s += 11
    bench.add(5)
    bench.writer.stop()
    assert inputs_of(read_lines(*folder.iterdir())) == [5]


def test_an_entry_that_cannot_be_serialized_does_not_end_the_log(
    bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> bytes:
        raise ValueError("no message")

    broken = entry(bench.target, 1)
    bench.writer.add(type(broken)(broken.target, broken.kind, broken.servable, "s", fail, b"", 0, 0))
    bench.add(2)
    bench.writer.start()
    bench.writer.stop()
    assert inputs_of(read_lines(*tmp_path.iterdir())) == [2]
    assert bench.metrics.outcomes == {"written": 1, "write_failed": 1}
    assert "Cannot log a request" in caplog.text


def test_files_that_are_no_longer_wanted_are_closed(bench: Bench, tmp_path: Path) -> None:
    bench.writer.start()
    bench.add(1)
    wait_for(lambda: bench.metrics.outcomes["written"] == 1)
    bench.writer.keep([])
    wait_for(lambda: not bench.writer._outputs)
    assert inputs_of(read_lines(*tmp_path.iterdir())) == [1]


def wait_for(condition: Callable[[], bool]) -> None:
    """Poll until the log's thread has made the condition true. The test's timeout is the limit."""
    pause = threading.Event()
    while not condition():
        pause.wait(0.001)


def test_targets_of_one_prefix_share_its_file(bench: Bench, tmp_path: Path) -> None:
    half = LogTarget(bench.target.prefix, bench.target.format, 0.5)
    bench.writer.keep([bench.target, half])
    bench.writer.add(entry(bench.target, 1))
    bench.writer.add(entry(half, 2))
    bench.writer.start()
    bench.writer.stop()
    (path,) = tmp_path.iterdir()
    logs = read_lines(path)
    assert inputs_of(logs) == [1, 2]
    assert [log.log_metadata.sampling_config.sampling_rate for log in logs] == [1, 0.5]


TARGET = LogTarget("/log/m", "jsonl", 0.25)


def test_an_entry_is_a_prediction_log_with_the_messages_as_they_were() -> None:
    log = PredictionLog.FromString(entry(TARGET, 3).serialize())
    assert log.predict_log.request == request(3)
    assert log.predict_log.response == response(6)


def test_its_metadata_says_what_answered_when_and_how_often_one_is_drawn() -> None:
    metadata = PredictionLog.FromString(entry(TARGET, 3).serialize()).log_metadata
    assert (metadata.model_spec.name, metadata.model_spec.version.value) == ("m", 7)
    assert metadata.model_spec.signature_name == "serving_default"
    assert metadata.sampling_config.sampling_rate == 0.25
    assert metadata.timestamp_secs == 1234
    assert list(metadata.saved_model_tags) == ["serve"]


@pytest.mark.parametrize(
    ("kind", "field", "asked", "answered"),
    [
        (LogKind.CLASSIFY, "classify_log", ClassificationRequest(), ClassificationResponse()),
        (LogKind.REGRESS, "regress_log", RegressionRequest(), RegressionResponse()),
        (LogKind.MULTI_INFERENCE, "multi_inference_log", MultiInferenceRequest(), MultiInferenceResponse()),
    ],
)
def test_every_kind_is_in_its_own_field(
    kind: LogKind,
    field: str,
    asked: ClassificationRequest | RegressionRequest | MultiInferenceRequest,
    answered: ClassificationResponse | RegressionResponse | MultiInferenceResponse,
) -> None:
    spec = asked.tasks.add().model_spec if isinstance(asked, MultiInferenceRequest) else asked.model_spec
    spec.name = "m"
    # The log's thread may serialize a payload.
    made = LogEntry(TARGET, kind, ID, "s", asked.SerializeToString, answered.SerializeToString(), 0, 0)
    log = PredictionLog.FromString(made.serialize())
    assert log.WhichOneof("log_type") == field
    assert getattr(log, field).request == asked
    assert getattr(log, field).response == answered
