"""Several HDF5 files as one: Keras' sharded weights, where a group's datasets can be in different files."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import h5py


class ShardedGroup:
    """The groups at one path of several files. It has the methods of `h5py.Group` that read."""

    def __init__(self, groups: "Sequence[h5py.Group]") -> None:
        self._groups = groups
        self.attrs: Mapping[str, Any] = {}

    def __contains__(self, path: str) -> bool:
        return any(path in group for group in self._groups)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name for group in self._groups for name in group))

    def __getitem__(self, path: str) -> "h5py.Dataset | ShardedGroup":
        """Return the dataset, or the groups, at a path. Raises KeyError."""
        import h5py

        found = [group[path] for group in self._groups if path in group]
        if not found:
            raise KeyError(path)
        return found[0] if isinstance(found[0], h5py.Dataset) else ShardedGroup(found)

    def get(self, path: str, default: Any = None) -> Any:  # noqa: ANN401 - a dataset, a group or the default
        return self[path] if path in self else default  # noqa: SIM401 - this is the method

    def items(self) -> "Iterator[tuple[str, Any]]":
        return ((name, self[name]) for name in self)

    def visititems(self, visit: Callable[[str, Any], object]) -> None:
        """Call `visit` with each name and item, file by file."""
        for group in self._groups:
            group.visititems(visit)
