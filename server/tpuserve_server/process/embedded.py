"""Application that Envoy's embedded Python loads through the Envoy host's entry point.

The supervisor (`tpuserve serve`) passes the validated settings through the environment.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tpuserve_server.command.settings import HOST_NOTE_VARIABLE, SETTINGS_VARIABLE
from tpuserve_server.command.validation import read_settings_json
from tpuserve_server.core.change_record import ChangeRecord
from tpuserve_server.core.deadline import SystemClock
from tpuserve_server.core.journal import Journal
from tpuserve_server.hosts.envoy.channel import LAST_END_VARIABLE, RUNTIME_FOLDER_VARIABLE
from tpuserve_server.hosts.envoy.entry import EnvoyEntry
from tpuserve_server.process.build import build_server

if TYPE_CHECKING:
    from tpuserve_server.app import Server


def build_embedded() -> "Server":
    """Build the server from the settings that the supervisor passed. Call this once in a process."""
    settings = read_settings_json(os.environ[SETTINGS_VARIABLE])
    folder = Path(os.environ[RUNTIME_FOLDER_VARIABLE])
    journal = Journal.open(folder, os.environ[LAST_END_VARIABLE], SystemClock())
    return build_server(settings, os.environ[HOST_NOTE_VARIABLE], journal, record=ChangeRecord(folder))


asgi = EnvoyEntry(build_embedded)
