"""Ends a host's process. Waits for the application's stop only for a limited time, and for no thread."""

import asyncio
import logging
import os
import sys
import threading
from typing import NoReturn

from tpuserve_server.hosts.application import Application
from tpuserve_server.observe.logs.background import WRITER_NAME

_log = logging.getLogger(__name__)

# Exit code after a drain that ended before every accepted request had its response.
LOST_REQUESTS = 3
# Time for cancelled calls to send their error responses.
CUT_TIMEOUT_S = 1.0
# Time for the application to release its resources. The process cannot interrupt a model that loads or runs, and
# SIGKILL usually follows SIGTERM soon. The sum of both times is below the supervisor's timeout.
STOP_TIMEOUT_S = 5.0


async def stop_in_time(application: Application) -> bool:
    """Stop the application and return whether it stopped in time. If not, end the process with `end_process`.

    Raises the errors of the application's `stop`.
    """
    stopping = asyncio.ensure_future(application.stop())
    await asyncio.wait({stopping}, timeout=STOP_TIMEOUT_S)
    if stopping.done():
        stopping.result()
        return True
    _log.error(
        "The application did not stop within %g s. The process ends without it. Threads still running: %s",
        STOP_TIMEOUT_S,
        ", ".join(_running_threads()) or "none",
    )
    return False


def end_process(code: int) -> NoReturn:
    """End the process at once: threads that load or run a model would block an orderly exit."""
    sys.stdout.flush()
    logging.shutdown()
    os._exit(code)


def _running_threads() -> list[str]:
    """Return the names of this process's threads, except those of the event loop and the log, and the main thread."""
    own_threads = {threading.current_thread(), threading.main_thread()}
    others = [thread.name for thread in threading.enumerate() if thread not in own_threads]
    return [name for name in others if name != WRITER_NAME]
