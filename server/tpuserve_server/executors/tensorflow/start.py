"""Import of TensorFlow, once in a process, for the first model that needs it. Requests may run at the same time."""

import contextlib
import gc
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator

from tpuserve_server.core.garbage import settle_garbage_collector

# Lines that TensorFlow writes before it reads TF_CPP_MIN_LOG_LEVEL: a notice of absl, and lines of level INFO.
_FIRST_LINES = re.compile(rb"^(WARNING: All log messages before absl|I\d{4} ).*\n?", re.MULTILINE)

_lock = threading.Lock()


def start_tensorflow() -> None:
    """Import TensorFlow quietly and without Keras. The first call takes seconds. Thread-safe.

    TF_CPP_MIN_LOG_LEVEL=0 in the environment enables TensorFlow's log.
    """
    with _lock:
        if sys.modules.get("tensorflow") is None:
            _import_tensorflow()


def _import_tensorflow() -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with _first_lines_delayed(), _without_keras(), _without_collections():
        import tensorflow as tf

    tf.get_logger().setLevel("ERROR")
    settle_garbage_collector()


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Pause garbage collection: it takes a tenth of the import time, and would free none of a million new objects."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def _without_keras() -> Iterator[None]:
    """Hide Keras during the import of TensorFlow.

    TensorFlow imports Keras if it is installed, and works without it. SavedModels do not need it. Hiding it saves 2.5 s
    and 60 MB, and Keras's optree prints no error when Envoy's embedded interpreter ends.
    """
    if "keras" in sys.modules:
        yield
        return
    sys.modules["keras"] = None  # type: ignore[assignment]  # Python's own sign for "cannot be imported"
    try:
        yield
    finally:
        del sys.modules["keras"]


@contextlib.contextmanager
def _first_lines_delayed() -> Iterator[None]:
    """Hold back output to descriptor 2, and remove TensorFlow's first lines from it. An error keeps all lines.

    TensorFlow writes these lines from C++, so the function redirects the descriptor. Other output of the process is
    late, not lost.
    """
    sys.stderr.flush()
    saved_stderr = os.dup(2)
    with tempfile.TemporaryFile() as caught:
        os.dup2(caught.fileno(), 2)
        has_failed = True
        try:
            yield
            has_failed = False
        finally:
            sys.stderr.flush()
            os.dup2(saved_stderr, 2)
            os.close(saved_stderr)
            caught.seek(0)
            written = caught.read()
            os.write(2, written if has_failed else _FIRST_LINES.sub(b"", written))
