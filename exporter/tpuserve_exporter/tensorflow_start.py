"""Bringing TensorFlow up without its remarks on itself; everything else in this package imports it afterwards."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def _stderr_held_back() -> Iterator[None]:
    """Catch what is written to descriptor 2, and show it only when the body fails."""
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


def start_tensorflow() -> None:
    """Import TensorFlow and Keras (slow: seconds) on the CPU, quietly.

    Checks compare numbers, so they run on the CPU wherever the export runs; a GPU would hold memory for nothing.
    TensorFlow writes its first lines before it reads TF_CPP_MIN_LOG_LEVEL, hence the descriptor.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    with _stderr_held_back():
        import keras  # noqa: F401 - reads its configuration now
        import tensorflow as tf

        tf.get_logger().setLevel("ERROR")
        with contextlib.suppress(RuntimeError):  # devices are up already in a process that used them
            tf.config.set_visible_devices([], "GPU")
        tf.config.list_logical_devices()
