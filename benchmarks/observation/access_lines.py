"""Access log of the observation benchmark: the log's thread renders the lines, and discards them."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from tpuserve_server.observe.logs.background import BackgroundHandler
from tpuserve_server.observe.logs.configuration import line_formatter
from tpuserve_server.observe.logs.log_format import ACCESS


@contextmanager
def discarded_lines() -> Iterator[BackgroundHandler]:
    """Write the lines of requests as JSON to the null device. Raises RuntimeError if a line was dropped."""
    log, descriptor = logging.getLogger(ACCESS), os.open(os.devnull, os.O_WRONLY)
    handler = BackgroundHandler(descriptor, line_formatter("json"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield handler
    finally:
        log.removeHandler(handler)
        log.propagate = True
        # The handler's thread keeps the descriptor.
        handler.close()
    if handler.dropped:
        raise RuntimeError(f"The log dropped {handler.dropped} lines")
