"""Starts the frameworks on the CPU, without their messages. Other modules import TensorFlow after that."""

import contextlib
import ctypes
import gc
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def stderr_caught() -> Iterator[Callable[[], bytes]]:
    """Catch what the process writes to descriptor 2. The yielded function returns the bytes so far."""
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
def _stderr_buffered() -> Iterator[None]:
    """Hold back what the process writes to descriptor 2, and show it only if the body fails."""
    output = b""
    try:
        with stderr_caught() as read:
            try:
                yield
            except BaseException:
                output = read()
                raise
    finally:
        os.write(2, output)


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Pause garbage collection: it takes a quarter of the import time, and would free none of a million new objects."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def start_tensorflow(*, in_command: bool = False) -> None:
    """Import TensorFlow and Keras (slow: seconds) on the CPU, quietly.

    With `in_command`, the process is the command's own. The first import then excludes all current objects from later
    collections, each of which would otherwise traverse them for 0.3 s. In a user's process, the user's own objects
    could never be collected. Freed weights and outputs also return to the system at once.

    Checks compare numbers, so they run on the CPU on every machine. A GPU would only lose memory to TensorFlow.
    TensorFlow writes its first lines before it reads TF_CPP_MIN_LOG_LEVEL, so this function redirects descriptor 2.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # An import below may import JAX, which would look for a TPU if libtpu is installed.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    # Otherwise, oneDNN's allocator keeps the memory of the weights that the export has freed.
    os.environ.setdefault("TF_ONEDNN_USE_SYSTEM_ALLOCATOR", "1")
    # TensorFlow serves the model, so this setting overrides the environment and Keras's configuration file.
    os.environ["KERAS_BACKEND"] = "tensorflow"
    is_first = "tensorflow" not in sys.modules
    with _stderr_buffered(), _without_collections():
        import keras  # noqa: F401 - reads its configuration now
        import tensorflow as tf

        tf.get_logger().setLevel("ERROR")
        with contextlib.suppress(RuntimeError):  # devices are up already in a process that used them
            tf.config.set_visible_devices([], "GPU")
        tf.config.list_logical_devices()
    if in_command and is_first:
        gc.freeze()
        _return_freed_arrays()


# `man mallopt`: the size from which glibc gives an allocation its own pages.
_M_MMAP_THRESHOLD, _ARRAY_BYTES = -3, 2**20


def _return_freed_arrays() -> None:
    """Let glibc return the memory of freed arrays to the system. By default, it keeps those of up to 32 MB."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _ARRAY_BYTES)


@contextlib.contextmanager
def quiet_tensorflow() -> Iterator[None]:
    """Silence TensorFlow's log while the body runs, then restore its level, which belongs to the user's process."""
    import tensorflow as tf

    logger = tf.get_logger()
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def compute_on_cpu() -> None:
    """Run JAX on the CPU unless JAX_PLATFORMS is set, so that checks compare the same numbers on every machine.

    This sets JAX's configuration, because TensorFlow has already imported JAX and JAX reads the environment at import.
    If JAX has initialized its devices, it keeps them.
    """
    import jax

    if jax.config.jax_platforms is None:
        jax.config.update("jax_platforms", "cpu")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings and log records below ERROR while the body runs. Exceptions propagate."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
