"""Application of a front-end process, which Envoy's embedded Python loads. It has no models: the engine runs them.

The supervisor (`tpuserve serve --frontends=N`) passes the validated settings and a link to the engine.
"""

import os

from tpuserve_server.command.settings import SETTINGS_VARIABLE
from tpuserve_server.command.validation import read_settings_json
from tpuserve_server.hosts.application import Application
from tpuserve_server.hosts.envoy.entry import EnvoyEntry
from tpuserve_server.hosts.envoy.links import take_link
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.link.connection import Connection
from tpuserve_server.process.build import build_front_end_application


def _build(in_flight: InFlight) -> Application:
    settings = read_settings_json(os.environ[SETTINGS_VARIABLE])
    return build_front_end_application(settings, Connection(take_link()), in_flight)


asgi = EnvoyEntry(_build)
