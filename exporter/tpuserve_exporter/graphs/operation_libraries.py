"""Loads the libraries of operations that an extra installs, for graphs that need them."""

from collections.abc import Collection

from tpuserve_exporter.errors import MissingExtra, SourceUnreadable, reason_of
from tpuserve_formats.operation_libraries import OperationLibrary, libraries_with


def load_libraries(operations: Collection[str]) -> None:
    """Make TensorFlow know the libraries' operations among `operations`, unless it does.

    Raises MissingExtra if a library is not installed, or SourceUnreadable if TensorFlow cannot load it.
    """
    for library in libraries_with(_undefined(operations)):
        require(library, operations)
        _load(library)


def require(library: OperationLibrary, operations: Collection[str]) -> None:
    """Raise MissingExtra if the library is not installed. The message names its part of `operations`."""
    if not library.is_installed:
        raise MissingExtra(
            f"the graph needs {library.named(operations)} (pip install 'tpuserve-exporter[{library.extra}]')"
        )


def load_installed(operations: Collection[str]) -> None:
    """Do as `load_libraries`, but leave operations of missing libraries unknown."""
    for library in libraries_with(_undefined(operations)):
        if library.is_installed:
            _load(library)


def describe_libraries(operations: Collection[str]) -> list[str]:
    """Return a sentence for each library that servers need for these operations."""
    return [
        f"the graph has {library.named(operations)}. Servers load it with the extra {library.extra}: pip install "
        f"'tpuserve-server[{library.extra}]'"
        for library in libraries_with(operations)
    ]


def _undefined(operations: Collection[str]) -> list[str]:
    from tensorflow.python.framework import op_def_registry

    return [one for one in operations if op_def_registry.get(one) is None]


def _load(library: OperationLibrary) -> None:
    import tensorflow as tf

    for file in library.shared_objects():
        try:
            tf.load_library(str(file))
        except tf.errors.OpError as error:
            raise SourceUnreadable(
                f"TensorFlow {tf.__version__} cannot load {file.name} of {library.name} ({reason_of(error)}). "
                f"Reinstall it: pip install --force-reinstall 'tpuserve-exporter[{library.extra}]'"
            ) from error
