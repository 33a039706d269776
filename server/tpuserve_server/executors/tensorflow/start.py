"""TensorFlow's start: imported once in a process, when the first model needs it, with requests perhaps being served."""

import contextlib
import gc
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator

from tpuserve_server.core.garbage import settle_garbage_collector

# What TensorFlow writes before it reads TF_CPP_MIN_LOG_LEVEL: a line of absl's about itself, and lines of level INFO.
_FIRST_LINES = re.compile(rb"^(WARNING: All log messages before absl|I\d{4} ).*\n?", re.MULTILINE)

_lock = threading.Lock()


def start_tensorflow() -> None:
    """Import TensorFlow quietly and without Keras; seconds, the first time. Any thread may call it.

    With TF_CPP_MIN_LOG_LEVEL=0 in the environment it speaks.
    """
    with _lock:
        if sys.modules.get("tensorflow") is None:
            _import_tensorflow()


def _import_tensorflow() -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with _first_lines_held_back(), _without_keras(), _without_collections():
        import tensorflow as tf

    tf.get_logger().setLevel("ERROR")
    settle_garbage_collector()


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Collect no garbage meanwhile: all of a million new objects stay, and walking them takes a tenth of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def _without_keras() -> Iterator[None]:
    """Hide Keras while TensorFlow is imported.

    TensorFlow imports it where it is installed and does without where it is not. A SavedModel needs none of it: left
    out it saves 2.5 s and 60 MB, and its optree does not complain when Envoy's embedded interpreter ends.
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
def _first_lines_held_back() -> Iterator[None]:
    """Catch what is written to descriptor 2, and show it afterwards without TensorFlow's first lines; all if it fails.

    TensorFlow writes them from C++, hence the descriptor. What else the process has to say meanwhile is late, not lost.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as caught:
        os.dup2(caught.fileno(), 2)
        has_failed = True
        try:
            yield
            has_failed = False
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            caught.seek(0)
            written = caught.read()
            os.write(2, written if has_failed else _FIRST_LINES.sub(b"", written))
