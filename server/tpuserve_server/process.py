"""What the process that serves does once, around building the server: TensorFlow's start and the garbage collector."""

import contextlib
import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpuserve_server.config.text_format import ConfigError
from tpuserve_server.hosts.application import HostError
from tpuserve_server.logs import configure_logging
from tpuserve_server.settings import Settings

if TYPE_CHECKING:
    from tpuserve_server.app import Server

# Allocations of containers, less those freed, between collections. A request makes some fifty, which die by reference
# count; Python's 700 would walk the young ones of a few dozen requests at a time to find nothing. On the Python host,
# though, grpcio leaves a cycle of six objects behind each call (`_find_method_handler`, whose inner function refers to
# itself), and many of them stop everything for long: 20,000 for 5 ms.
_GC_THRESHOLDS = (2_000, 20, 50)


def build_server(settings: Settings, host_note: str) -> "Server":
    """Build the server in a process of its own; takes the seconds that TensorFlow takes to import."""
    configure_logging(settings.log_format)
    start_tensorflow()
    from tpuserve_server.app import build

    try:
        server = build(settings, host_note)
    except ConfigError as error:  # The file was fine a moment ago, when the flags were read.
        raise HostError(str(error)) from error
    settle_garbage_collector()
    return server


def settle_garbage_collector() -> None:
    """Leave what is there now out of later collections.

    TensorFlow's import leaves a million objects that live as long as the process. A full collection walks them all with
    the interpreter's lock held: 150 ms in which no request is answered, and the whole of p99 under load.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def start_tensorflow() -> None:
    """Import TensorFlow quietly and without Keras; with TF_CPP_MIN_LOG_LEVEL=0 in the environment it speaks."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with _stderr_held_back(), _without_keras():
        import tensorflow as tf

    tf.get_logger().setLevel("ERROR")


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
def _stderr_held_back() -> Iterator[None]:
    """Catch what is written to descriptor 2, and show it only when the body fails.

    TensorFlow writes its first lines before it reads TF_CPP_MIN_LOG_LEVEL, from C++, hence the descriptor.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as caught:
        os.dup2(caught.fileno(), 2)
        try:
            yield
        except BaseException:
            caught.seek(0)
            os.write(kept, caught.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)
