"""Logging of the server's processes: one line an event, to stderr."""

import logging
import os


def configure_logging() -> None:
    """Log to stderr at TPUSERVE_LOG_LEVEL (default INFO)."""
    logging.basicConfig(
        level=os.environ.get("TPUSERVE_LOG_LEVEL", "INFO").upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    # Says what the start-up block says, in other words.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
