"""Bringing TensorFlow up without its remarks on itself; everything else in this package imports it afterwards."""

import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def stderr_caught() -> Iterator[Callable[[], bytes]]:
    """Keep what is written to descriptor 2 off it; the function tells what came."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as caught:
        os.dup2(caught.fileno(), 2)
        try:
            yield lambda: os.pread(caught.fileno(), os.fstat(caught.fileno()).st_size, 0)
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)


@contextlib.contextmanager
def _stderr_held_back() -> Iterator[None]:
    """Show what is written to descriptor 2 only when the body fails."""
    said = b""
    try:
        with stderr_caught() as read:
            try:
                yield
            except BaseException:
                said = read()
                raise
    finally:
        os.write(2, said)


def start_tensorflow() -> None:
    """Import TensorFlow and Keras (slow: seconds) on the CPU, quietly.

    Checks compare numbers, so they run on the CPU wherever the export runs; a GPU would hold memory for nothing.
    TensorFlow writes its first lines before it reads TF_CPP_MIN_LOG_LEVEL, hence the descriptor.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # What is imported on the way may import JAX, which would look for a TPU where libtpu is installed.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    # Whatever Keras trains on here, in the environment or in its configuration file: it is served by TensorFlow.
    os.environ["KERAS_BACKEND"] = "tensorflow"
    with _stderr_held_back():
        import keras  # noqa: F401 - reads its configuration now
        import tensorflow as tf

        tf.get_logger().setLevel("ERROR")
        with contextlib.suppress(RuntimeError):  # devices are up already in a process that used them
            tf.config.set_visible_devices([], "GPU")
        tf.config.list_logical_devices()


@contextlib.contextmanager
def quiet_tensorflow() -> Iterator[None]:
    """Without its remarks while the body runs, in a process that uses TensorFlow already: its settings are a user's."""
    import tensorflow as tf

    logger = tf.get_logger()
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
