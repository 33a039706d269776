"""Catalogue of the executors: those of the server, and those of other installed packages."""

from collections.abc import Iterator
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from tpuserve_server.executors.plugin import ExecutorPlugin

# Entry points of other packages: `onnx = "tpuserve_onnx:EXECUTOR"`.
GROUP: Final = "tpuserve.executors"

# Packages of the server's executors. A version goes to the last one that accepts it: the special ones come last.
_PACKAGES: Final = (
    "tensorflow",
    "openvino",
    "pjrt",
    "tflite",
)


@cache
def executor_plugins() -> tuple[ExecutorPlugin, ...]:
    """Return the executors, the most general first. Does not import their runtimes.

    An installed package that declares an entry point runs in the server, as each of its dependencies does.

    Raises:
        ImportError: the import of an entry point failed. The message names it and the reason.
        TypeError: an entry point is not an ExecutorPlugin. The message names it.
    """
    return tuple(_load(entry) for entry in (*_own(), *sorted(entry_points(group=GROUP), key=lambda each: each.name)))


def model_files() -> tuple[str, ...]:
    """Return the files of which every version has one, TensorFlow's first."""
    return tuple(name for plugin in executor_plugins() for name in plugin.model_files)


def _own() -> Iterator[EntryPoint]:
    return (EntryPoint(name, f"{__package__}.{name}:EXECUTOR", GROUP) for name in _PACKAGES)


def _load(entry: EntryPoint) -> ExecutorPlugin:
    named = f"The entry point {entry.name} of {GROUP}, {entry.value}, "
    try:
        plugin = entry.load()
    except Exception as error:  # Another package may raise any error.
        raise ImportError(
            f"{named}cannot be imported: {type(error).__name__}: {error}. Reinstall or uninstall its package."
        ) from error
    if not isinstance(plugin, ExecutorPlugin):
        raise TypeError(f"{named}is not an ExecutorPlugin.")
    return plugin
