"""Program of the serving process: `python -m tpuserve_server.process.serve`, which only the supervisor starts.

The supervisor (`tpuserve serve`) passes the validated settings through the environment.
"""

# ruff: noqa: E402 - numpy starts a thread, which would get a heap of its own before the call.
from tpuserve_server.core.freed_memory import keep_freed_memory

keep_freed_memory()

import faulthandler
import os
from pathlib import Path
from typing import TYPE_CHECKING

from tpuserve_server.command.listening import tls_reader
from tpuserve_server.command.settings import SETTINGS_VARIABLE, Settings
from tpuserve_server.command.validation import read_settings_json
from tpuserve_server.core.change_record import ChangeRecord
from tpuserve_server.core.deadline import SystemClock
from tpuserve_server.core.journal import Journal
from tpuserve_server.hosts import serving_process
from tpuserve_server.hosts.channel import LAST_END_VARIABLE, RUNTIME_FOLDER_VARIABLE
from tpuserve_server.process.build import build_server

if TYPE_CHECKING:
    from tpuserve_server.app import Server


def _build(settings: Settings) -> "Server":
    folder = Path(os.environ[RUNTIME_FOLDER_VARIABLE])
    journal = Journal.open(folder, os.environ[LAST_END_VARIABLE], SystemClock())
    return build_server(settings, journal, record=ChangeRecord(folder))


def main() -> None:
    """Serve until the supervisor orders the end."""
    # A crash in a native library leaves the stacks of all threads in the log.
    faulthandler.enable()
    settings = read_settings_json(os.environ[SETTINGS_VARIABLE])
    serving_process.run(lambda: _build(settings), tls_reader(settings.listening))


if __name__ == "__main__":
    main()
