"""Logging of the server's processes: one line an event, to stderr."""

import logging
import os


def configure_logging() -> None:
    """Log to stderr at TPUSERVE_LOG_LEVEL (default INFO), and quieten what TensorFlow says about itself."""
    logging.basicConfig(
        level=os.environ.get("TPUSERVE_LOG_LEVEL", "INFO").upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    # Read by TensorFlow's C++ when it is imported: errors only, and no oneDNN greeting.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
