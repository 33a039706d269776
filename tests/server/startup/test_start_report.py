"""Tests for the banner, and for the reports of a start to a reader that may have closed the pipe."""

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
from tpuserve_server.startup.start_report import START_REPORT_VARIABLE, StartReport, print_banner, report_start

LISTENING = Listening(grpc="127.0.0.1:8500", rest="127.0.0.1:8501", tls=True)
AGAIN = "(tried again when its files change)"


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
    loading, failed = reader.read()
    assert loading.waiting == "loading: bad (version 1); no version available for: good"
    assert failed.failures == (f"bad version 1: no weights {AGAIN}",)
    assert not reader.has_ended()
    make_available(registry, "good")
    loading, last = reader.read()
    assert (loading.settled, loading.waiting) == (False, "loading: good (version 1)")
    assert (last.settled, last.failures) == (True, (f"bad version 1: no weights {AGAIN}",))
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


ID = ServableId("digits", 7)
ADDRESSES = Listening(grpc="127.0.0.1:8500", rest="127.0.0.1:8501", grpc_socket="unix:/run/s")


def bring_up(registry: ModelRegistry) -> None:
    registry.aspire("digits", {7: AspiredVersion(ID, VersionLocation("/models/digits/7"))})
    registry.loading(ID)
    loaded = LoadedVersion(FakeServable(), NO_BATCHER, ("device: CPU", "serving_default: batches of 1, 8 rows"))
    registry.available(ID, loaded)


def test_the_block_is_printed_once_when_every_model_is_up(capsys: pytest.CaptureFixture[str]) -> None:
    registry = ModelRegistry(["digits"], RecordingMetrics())
    print_banner(InferenceService(registry, SystemClock()), ADDRESSES, has_console=True)
    waiting = capsys.readouterr().out
    assert "tpuserve is listening, but not ready: no version available for: digits\n" in waiting
    assert "127.0.0.1:8500" in waiting
    bring_up(registry)
    assert capsys.readouterr().out.split("\n") == [
        "",
        "tpuserve is ready",
        "  model    digits version 7",
        "           device: CPU",
        "           serving_default: batches of 1, 8 rows",
        "  gRPC     127.0.0.1:8500",
        "  gRPC     unix:/run/s",
        "  REST     http://127.0.0.1:8501/v1/models",
        "  console  http://127.0.0.1:8501/console",
        "",
    ]
    registry.unloading(ID)
    assert capsys.readouterr().out == ""


def test_what_failed_and_what_has_not_come_yet_hold_nothing_back(capsys: pytest.CaptureFixture[str]) -> None:
    registry = ModelRegistry(["bad", "digits"], RecordingMetrics())
    bad = ServableId("bad", 1)
    registry.aspire("bad", {1: AspiredVersion(bad, VersionLocation("/models/bad/1"))})
    registry.loading(bad)
    registry.failed(bad, Internal("no model"))
    registry.configure(["bad", "digits", "new"])
    print_banner(InferenceService(registry, SystemClock()), ADDRESSES, has_console=True)
    bring_up(registry)
    lines = capsys.readouterr().out.splitlines()
    assert f"  failed   bad version 1: no model {AGAIN}" in lines
    assert "  model    digits version 7" in lines


def print_addresses(listening: Listening, *, has_console: bool = True) -> None:
    registry = ModelRegistry(["digits"], RecordingMetrics())
    bring_up(registry)
    service = InferenceService(registry, SystemClock())
    print_banner(service, listening, has_console=has_console)


def test_a_server_that_is_ready_says_so_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    print_addresses(Listening(grpc="127.0.0.1:8500"))
    printed = capsys.readouterr().out
    assert printed.startswith("\ntpuserve is ready")
    assert "/console" not in printed


def test_rest_behind_tls_is_shown_as_https(capsys: pytest.CaptureFixture[str]) -> None:
    print_addresses(Listening(rest="127.0.0.1:8501", tls=True))
    printed = capsys.readouterr().out
    assert "https://127.0.0.1:8501/v1/models" in printed
    assert "https://127.0.0.1:8501/console" in printed


@pytest.mark.parametrize("everywhere", ["0.0.0.0:8501", "[::]:8501"])
def test_the_address_of_the_console_opens_in_a_browser(capsys: pytest.CaptureFixture[str], everywhere: str) -> None:
    print_addresses(Listening(rest=everywhere))
    assert "  console  http://localhost:8501/console\n" in capsys.readouterr().out


def test_a_server_without_console_does_not_name_it(capsys: pytest.CaptureFixture[str]) -> None:
    print_addresses(Listening(rest="127.0.0.1:8501"), has_console=False)
    assert "console" not in capsys.readouterr().out
