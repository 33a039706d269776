"""Tests for the reports of a server's start to a reader that may have closed the pipe."""

import os
from pathlib import Path

import pytest

from tests.support.fake_device import NO_BATCHER, FakeServable, RecordingMetrics
from tpuserve_server.core.models.loader import AspiredVersion, LoadedVersion
from tpuserve_server.core.models.registry import ModelRegistry
from tpuserve_server.core.serving.service import InferenceService
from tpuserve_server.core.terms.deadline import SystemClock
from tpuserve_server.core.terms.errors import Internal
from tpuserve_server.core.terms.storage import VersionLocation
from tpuserve_server.core.terms.types import Pending, ServableId
from tpuserve_server.hosts.application import Listening
from tpuserve_server.startup.start_report import START_REPORT_VARIABLE, StartReport, report_start

LISTENING = Listening(grpc="127.0.0.1:8500", rest="127.0.0.1:8501", tls=True)


class Reader:
    """The read end of the named pipe."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._ended = False

    def read(self) -> list[StartReport]:
        lines = []
        try:
            while data := os.read(self._descriptor, 1 << 16):
                lines += data.decode().splitlines()
            self._ended = True
        except BlockingIOError:
            pass
        return [StartReport.from_json(line) for line in lines]

    def has_ended(self) -> bool:
        return self._ended

    def close(self) -> None:
        os.close(self._descriptor)


@pytest.fixture
def registry() -> ModelRegistry:
    return ModelRegistry(["bad", "good"], RecordingMetrics())


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    monkeypatch.setenv(START_REPORT_VARIABLE, str(tmp_path / "pipe"))
    return Reader(tmp_path / "pipe")


def begin(registry: ModelRegistry, name: str) -> ServableId:
    servable_id = ServableId(name, 1)
    registry.aspire(name, {1: AspiredVersion(servable_id, VersionLocation(f"/models/{name}/1"))})
    registry.loading(servable_id)
    return servable_id


def make_available(registry: ModelRegistry, name: str) -> None:
    loaded = LoadedVersion(FakeServable(), NO_BATCHER, ())
    registry.available(begin(registry, name), loaded)


def test_the_reason_of_a_wait_is_reported_when_it_is_known(registry: ModelRegistry, reader: Reader) -> None:
    report_start(InferenceService(registry, SystemClock()), LISTENING)
    reader.read()
    registry.expect("good", Pending("its base path does not exist"))
    (report,) = reader.read()
    assert report.waiting == "no version available for: bad, good (its base path does not exist)"


def test_reports_end_when_every_model_serves_or_has_failed(registry: ModelRegistry, reader: Reader) -> None:
    report_start(InferenceService(registry, SystemClock()), LISTENING)
    (first,) = reader.read()
    assert (first.settled, first.waiting) == (False, "no version available for: bad, good")
    assert first.listening == LISTENING
    registry.failed(begin(registry, "bad"), Internal("no weights"))
    assert [report.failures for report in reader.read()] == [("bad version 1: no weights",)]
    assert not reader.has_ended()
    make_available(registry, "good")
    (last,) = reader.read()
    assert (last.settled, last.failures) == (True, ("bad version 1: no weights",))
    assert reader.has_ended()
    registry.unloading(ServableId("good", 1))
    assert reader.read() == []


def test_a_start_is_settled_when_nothing_can_be_served(registry: ModelRegistry, reader: Reader) -> None:
    report_start(InferenceService(registry, SystemClock()), LISTENING)
    for name in ("bad", "good"):
        registry.failed(begin(registry, name), Internal("no weights"))
    last = reader.read()[-1]
    assert (last.settled, len(last.failures)) == (True, 2)


def test_a_reader_that_has_gone_disturbs_nothing(registry: ModelRegistry, reader: Reader) -> None:
    service = InferenceService(registry, SystemClock())
    report_start(service, LISTENING)
    reader.close()
    make_available(registry, "good")
    report_start(service, LISTENING)
    make_available(registry, "bad")
    assert service.is_ready()
