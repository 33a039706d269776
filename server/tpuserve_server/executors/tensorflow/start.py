"""Start of TensorFlow, once in a process, for the first model that needs it. Requests may run at the same time."""

import contextlib
import gc
import importlib.util
import logging
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from tpuserve_formats.operation_libraries import OperationLibrary
from tpuserve_server.core.system.memory import release_library_pages, settle_garbage_collector
from tpuserve_server.core.terms.errors import FailedPrecondition

# Lines that TensorFlow writes before it reads TF_CPP_MIN_LOG_LEVEL: a notice of absl, and lines of level INFO.
_FIRST_LINES = re.compile(rb"^(WARNING: All log messages before absl|I\d{4} ).*\n?", re.MULTILINE)
# Directory of third-party kernels and devices, which `import tensorflow` loads.
_PLUGINS = "tensorflow-plugins"
_PLUGINS_VARIABLE = "TF_PLUGGABLE_DEVICE_LIBRARY_PATH"
# The last module that `_import_runtime` imports.
_RUNTIME = "tensorflow.python.framework.op_def_registry"

# By default, TensorFlow's allocator for oneDNN locks itself for the 10 s in which it waits for memory that a run lacks.
# Every run of every model needs the lock. It also keeps the memory of unloaded versions.
_SYSTEM_ALLOCATOR = "TF_ONEDNN_USE_SYSTEM_ALLOCATOR"

# Held by the thread that imports.
_lock = threading.RLock()


def start_tensorflow() -> None:
    """Load TensorFlow's libraries quietly, without the rest of its Python package. Thread-safe.

    The first call takes a third of a second, or seconds if TensorFlow has plugins. TF_CPP_MIN_LOG_LEVEL=0 in the
    environment enables TensorFlow's log, and TF_ONEDNN_USE_SYSTEM_ALLOCATOR=0 its own allocator.
    """
    with _lock:
        if _RUNTIME not in sys.modules:
            with _quiet_import():
                if _has_plugins():
                    import tensorflow  # noqa: F401 (loads the plugins)
                _import_runtime()


def start_whole_tensorflow() -> None:
    """Run `import tensorflow` as well. It defines a few more operations, and takes seconds and 170 MB. Thread-safe."""
    with _lock:
        start_tensorflow()
        if "tensorflow" not in sys.modules:
            with _quiet_import():
                import tensorflow  # noqa: F401 (as above)


def load_library(library: OperationLibrary) -> None:
    """Register a library's operations and kernels. The first call takes 5 ms for each of its files. Thread-safe.

    Raises:
        FailedPrecondition: TensorFlow cannot load the library, which is probably of another version.
    """
    with _lock:
        start_tensorflow()
        with tensorflow_modules():
            from tensorflow.python.client import pywrap_tf_session
            from tensorflow.python.framework import errors_impl
        for file in library.shared_objects():
            try:
                # TensorFlow keeps the libraries that it has loaded, and loads none twice.
                pywrap_tf_session.TF_LoadLibrary(str(file))
            except errors_impl.OpError as error:
                raise FailedPrecondition(
                    f"TensorFlow {pywrap_tf_session.__version__} cannot load {file.name} of {library.name}. Reinstall "
                    f"it: pip install --force-reinstall 'tpuserve-server[{library.extra}]'"
                ) from error


@contextlib.contextmanager
def tensorflow_modules() -> Iterator[None]:
    """Let the block import modules inside the package `tensorflow`, without executing the package's `__init__`.

    `import tensorflow` imports 1,600 modules. The few that the server uses need only the package's path. After the
    block, `import tensorflow` works as ever. Other threads must not execute it during the block.
    """
    with _lock:
        if "tensorflow" in sys.modules:
            yield
            return
        found = importlib.util.find_spec("tensorflow")
        if found is None or found.submodule_search_locations is None:
            raise ModuleNotFoundError("No module named 'tensorflow'")
        bare = sys.modules["tensorflow"] = ModuleType("tensorflow")
        bare.__path__ = list(found.submodule_search_locations)
        try:
            yield
        finally:
            del sys.modules["tensorflow"]


def _import_runtime() -> None:
    """Import all modules of TensorFlow that a session needs."""
    with tensorflow_modules():
        from tensorflow.python import tf2
        from tensorflow.python.client import pywrap_tf_session  # noqa: F401 (for other modules)

        # Importing it gives the C++ code the classes of its errors.
        from tensorflow.python.framework import (
            errors_impl,  # noqa: F401 (as above)
            op_def_registry,  # noqa: F401 (as above)
        )

        # Like `import tensorflow`.
        tf2.enable()


def _has_plugins() -> bool:
    """Return whether `import tensorflow` would load libraries of other distributions."""
    return bool(os.environ.get(_PLUGINS_VARIABLE)) or any(Path(folder, _PLUGINS).exists() for folder in sys.path)


@contextlib.contextmanager
def _quiet_import() -> Iterator[None]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault(_SYSTEM_ALLOCATOR, "1")
    with _first_lines_delayed(), _without_keras(), _without_collections():
        yield
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    settle_garbage_collector()
    release_library_pages()


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Pause garbage collection: it takes a tenth of the import time, and would free none of many new objects."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def _without_keras() -> Iterator[None]:
    """Hide Keras during the import of TensorFlow.

    TensorFlow imports Keras if it is installed, and works without it. SavedModels do not need it. Hiding it saves 2.5 s
    and 60 MB.
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
