from pathlib import Path

import pytest

from tests.server.observe.request_log.predict_entries import CountingMetrics
from tests.support.fakes import FakeClock
from tpuserve_server.core.models.model_config import LoggingConfig, ModelConfig
from tpuserve_server.core.terms.errors import InvalidArgument, NotFound
from tpuserve_server.observe.options import RequestLogOptions, Rotation
from tpuserve_server.observe.request_log.request_logs import RequestLogs
from tpuserve_server.observe.request_log.writer import LogTarget, LogWriter


def request_logs(options: RequestLogOptions, drawn: float = 0.0) -> RequestLogs:
    writer = LogWriter(Rotation(1, 1), FakeClock(), CountingMetrics())
    return RequestLogs(options, writer, sample=lambda: drawn)


def model(name: str, logging: LoggingConfig | None = None) -> ModelConfig:
    return ModelConfig(name, "/models", logging=logging)


def test_nothing_is_logged_without_a_path() -> None:
    logs = request_logs(RequestLogOptions())
    logs.configure([model("m")])
    assert logs.choose("m") is None


def test_the_options_are_for_every_configured_model_each_with_its_own_files() -> None:
    logs = request_logs(RequestLogOptions("/log/requests", 0.5, "tfrecord"))
    logs.configure([model("m"), model("a/b")])
    assert logs.choose("m") == LogTarget("/log/requests-m", "tfrecord", 0.5)
    assert logs.choose("a/b") == LogTarget("/log/requests-a%2Fb", "tfrecord", 0.5)
    assert logs.choose("made-up") is None


def test_a_models_own_configuration_goes_over_the_options() -> None:
    logs = request_logs(RequestLogOptions("/log/requests"))
    logs.configure(
        [model("m", LoggingConfig("", "/other/m", 0.5)), model("n", LoggingConfig("tfrecord", "/other/n", 0.0))]
    )
    assert logs.choose("m") == LogTarget("/other/m", "jsonl", 0.5)
    assert logs.choose("n") is None


@pytest.mark.parametrize(("drawn", "chosen"), [(0.0, True), (0.2499, True), (0.25, False), (0.9999, False)])
def test_the_sampling_rate_is_the_share_that_is_drawn(drawn: float, chosen: bool) -> None:
    logs = request_logs(RequestLogOptions("/log/requests", 0.25), drawn)
    logs.configure([model("m")])
    assert (logs.choose("m") is not None) is chosen


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        (LoggingConfig("kafka", "/log/m", 1.0), NotFound, "Cannot find LogCollector::Factory for type: kafka"),
        (LoggingConfig("jsonl", "", 1.0), InvalidArgument, "Model m: .* filename_prefix"),
        (LoggingConfig("jsonl", "/log/m", 1.5), InvalidArgument, "Model m: sampling_rate 1.5"),
    ],
)
def test_a_bad_configuration_is_refused_and_changes_nothing(
    config: LoggingConfig, error: type[Exception], message: str
) -> None:
    logs = request_logs(RequestLogOptions("/log/requests"))
    logs.configure([model("m")])
    with pytest.raises(error, match=message):
        logs.check([model("m", config)])
    with pytest.raises(error, match=message):
        logs.configure([model("m", config), model("n")])
    assert logs.choose("m") is not None
    assert logs.choose("n") is None


def test_a_model_that_went_is_no_longer_logged(tmp_path: Path) -> None:
    logs = request_logs(RequestLogOptions(str(tmp_path / "requests")))
    logs.configure([model("m")])
    logs.configure([model("n")])
    assert logs.choose("m") is None
