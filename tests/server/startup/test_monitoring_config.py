from pathlib import Path

import pytest

from tpuserve_server.startup.monitoring_config import read_metrics_path
from tpuserve_server.startup.text_format import ConfigError


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("", None),
        ("prometheus_config { path: '/m' }", None),
        ("prometheus_config { enable: true }", "/monitoring/prometheus/metrics"),
        ("prometheus_config { enable: true path: '/m' }", "/m"),
    ],
)
def test_where_metrics_are(tmp_path: Path, text: str, path: str | None) -> None:
    file = tmp_path / "monitoring.config"
    file.write_text(text)
    assert read_metrics_path(file) == path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "prometheus_config { enable: true path: 'm' }",
            "expected a path such as /monitoring/prometheus/metrics, got 'm'",
        ),
        ("prometheus_config { enable: true path: '/a b' }", "expected a path such as"),
        ("prometheus_config { enable: true path: '/{a}' }", "expected a path such as"),
        ("prometheus_config { enable: true path: '/healthz' }", "the path '/healthz' is reserved for another page"),
        (
            "prometheus_config { enable: true path: '/v1/metrics' }",
            "expected a path outside /v1/ and /v2, got '/v1/metrics'",
        ),
        ("prometheus_config { enable: true path: '/V2' }", "expected a path outside /v1/ and /v2, got '/V2'"),
        ("prometheus_config { enable: 2 }", "Error parsing text-format tensorflow.serving.MonitoringConfig: 1:29: "),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "monitoring.config"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_metrics_path(file)
