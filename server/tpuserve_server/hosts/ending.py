"""How a host's process ends: neither its application's stop nor any thread is waited for without end."""

import asyncio
import logging
import os
import sys
import threading
from typing import NoReturn

from tpuserve_server.hosts.application import Application

_log = logging.getLogger(__name__)

# How long calls that were cut get to tell their callers.
CUT_TIMEOUT_S = 1.0
# How long the application may take to release things. A load or a run of a model that is under way cannot be ended from
# outside, and whoever sent SIGTERM sends SIGKILL soon. Both together stay below what Envoy's supervisor allows.
STOP_TIMEOUT_S = 5.0


async def stop_in_time(application: Application) -> bool:
    """Stop it; whether it ended in time. Raises what its `stop` raises. When False, end by `end_process`."""
    stopping = asyncio.ensure_future(application.stop())
    await asyncio.wait({stopping}, timeout=STOP_TIMEOUT_S)
    if stopping.done():
        stopping.result()
        return True
    _log.error(
        "The application did not stop within %g s: ending without it. Threads still running: %s",
        STOP_TIMEOUT_S,
        ", ".join(_running_threads()) or "none",
    )
    return False


def end_process(code: int) -> NoReturn:
    """End without waiting for anything: threads that load or run a model would hold an orderly exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _running_threads() -> list[str]:
    """Of this process, less the event loop's and the main one."""
    ours = {threading.current_thread(), threading.main_thread()}
    return [thread.name for thread in threading.enumerate() if thread not in ours]
