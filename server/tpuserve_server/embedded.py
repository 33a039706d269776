"""What Envoy's embedded Python loads: the application behind the Envoy host's entry point.

The supervisor (`tpuserve serve`) passes the validated settings through the environment.
"""

import os

from tpuserve_server.app import build
from tpuserve_server.hosts.application import Application
from tpuserve_server.hosts.envoy_entry import EnvoyEntry
from tpuserve_server.logs import configure_logging
from tpuserve_server.settings import Settings

SETTINGS_VARIABLE = "TPUSERVE_EMBEDDED_SETTINGS"


def _build() -> Application:
    configure_logging()
    return build(Settings.model_validate_json(os.environ[SETTINGS_VARIABLE]))


asgi = EnvoyEntry(_build)
