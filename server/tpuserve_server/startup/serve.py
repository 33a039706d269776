"""Program of the serving process: `python -m tpuserve_server.startup.serve`, which only the supervisor starts.

The supervisor (`tpuserve serve`) passes the validated settings through the environment.
"""

# ruff: noqa: E402 - numpy starts a thread, which would get a heap of its own before the call.
from tpuserve_server.core.system.memory import keep_freed_memory

keep_freed_memory()

import faulthandler
import os
from pathlib import Path
from typing import TYPE_CHECKING

from tpuserve_server.core.models.change_record import ChangeRecord
from tpuserve_server.core.models.journal import Journal
from tpuserve_server.core.terms.deadline import SystemClock
from tpuserve_server.hosts import serving_process
from tpuserve_server.hosts.channel import LAST_END_VARIABLE, RUNTIME_FOLDER_VARIABLE
from tpuserve_server.observe.logs.configuration import configure_logging
from tpuserve_server.startup.listening import tls_reader
from tpuserve_server.startup.settings import SETTINGS_VARIABLE, Settings
from tpuserve_server.startup.validation import read_settings_json

if TYPE_CHECKING:
    from tpuserve_server.startup.app import Server


def _build(settings: Settings) -> "Server":
    folder = Path(os.environ[RUNTIME_FOLDER_VARIABLE])
    journal = Journal.open(folder, os.environ[LAST_END_VARIABLE], SystemClock())
    # Before the imports, which may log or fail. Their error must reach the supervisor, too.
    configure_logging(settings.server.log_format)
    from tpuserve_server.startup.app import build, building

    with building():
        return build(settings, journal, ChangeRecord(folder))


def main() -> None:
    """Serve until the supervisor orders the end."""
    # A crash in a native library leaves the stacks of all threads in the log.
    faulthandler.enable()
    settings = read_settings_json(os.environ[SETTINGS_VARIABLE])
    serving_process.run(lambda: _build(settings), tls_reader(settings.listening))


if __name__ == "__main__":
    main()
