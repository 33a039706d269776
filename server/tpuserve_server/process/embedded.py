"""Application that Envoy's embedded Python loads through the Envoy host's entry point.

The supervisor (`tpuserve serve`) passes the validated settings through the environment.
"""

import os

from tpuserve_server.command.settings import HOST_NOTE_VARIABLE, SETTINGS_VARIABLE
from tpuserve_server.command.validation import read_settings_json
from tpuserve_server.hosts.application import Application
from tpuserve_server.hosts.envoy.entry import EnvoyEntry
from tpuserve_server.process.build import build_server


def _build() -> Application:
    settings = read_settings_json(os.environ[SETTINGS_VARIABLE])
    return build_server(settings, os.environ[HOST_NOTE_VARIABLE])


asgi = EnvoyEntry(_build)
