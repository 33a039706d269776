"""The user's classes and functions that a Keras file names, from the modules of --import."""

from collections.abc import Callable, Iterator, Sequence
from types import ModuleType

from tpuserve_exporter.models.builder import import_module


def import_objects(names: Sequence[str]) -> dict[str, Callable[..., object]]:
    """Import the modules, and return their classes and functions by name. Raises BuilderFailed.

    The import also registers those with a decorator of Keras. Objects that a module imports from another package do
    not count, or a file could name any function.
    """
    return {name: value for module in map(import_module, names) for name, value in _list_own(module)}


def _list_own(module: ModuleType) -> Iterator[tuple[str, Callable[..., object]]]:
    package = module.__name__.partition(".")[0]
    for name, value in vars(module).items():
        origin = getattr(value, "__module__", None)
        if callable(value) and isinstance(origin, str) and origin.partition(".")[0] == package:
            yield name, value
