"""Reader of --monitoring_config_file, a MonitoringConfig."""

import re
from pathlib import Path

from tpuserve_formats.messages._proto.monitoring_config_pb2 import MonitoringConfig
from tpuserve_server.startup.text_format import ConfigError, read

# util/prometheus_exporter.cc
DEFAULT_PATH = "/monitoring/prometheus/metrics"
# Pages of the REST application (protocols/rest.py).
_TAKEN = frozenset(("/healthz", "/readyz", "/openapi.json"))
# Prefixes of the protocols.
_PROTOCOLS = ("/v1/", "/v2")
_PATH = re.compile(r"(/[\w.~%:@!$&'()*+,;=-]*)+")


def read_metrics_path(path: Path) -> str | None:
    """Return the URL path of the metrics page, or None if the file at `path` disables the page. Blocks.

    Raises:
        ConfigError: the file cannot be read, is not a MonitoringConfig, or has an invalid or reserved URL path.
    """
    config = read(path, MonitoringConfig()).prometheus_config
    if not config.enable:
        return None
    if config.path and not _PATH.fullmatch(config.path):
        raise ConfigError(f"MonitoringConfig '{path}': expected a path such as {DEFAULT_PATH}, got '{config.path}'")
    if config.path.lower().startswith(_PROTOCOLS):
        raise ConfigError(f"MonitoringConfig '{path}': expected a path outside /v1/ and /v2, got '{config.path}'")
    if config.path.lower() in _TAKEN:
        raise ConfigError(f"MonitoringConfig '{path}': the path '{config.path}' is reserved for another page")
    return config.path or DEFAULT_PATH
