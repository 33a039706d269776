"""The `.metadata` file of torch.distributed.checkpoint: which file has which part of which tensor. Needs no torch.

The file is a pickle. This module makes records of the objects in it, which run no code, whatever their names.
"""

import math
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpuserve_exporter.errors import SourceUnreadable, reason_of

METADATA = ".metadata"
SUFFIX = ".distcp"


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of a file, in the format of torch.save: a part of a tensor from `offsets` on, or an object."""

    file: str
    start: int
    length: int
    offsets: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredValue:
    """A tensor with its parts, or an object with one part. `keys` lead to it through the saved dictionaries and lists.

    `shape` is None for an object. `dtype` is torch's name.
    """

    keys: tuple[str | int, ...]
    dtype: str
    shape: tuple[int, ...] | None
    parts: tuple[Part, ...]


def is_distributed(folder: Path) -> bool:
    return (folder / METADATA).is_file() and any(folder.glob(f"*{SUFFIX}"))


def read_metadata(folder: Path) -> dict[str, StoredValue]:
    """Return every stored value by its full name. Raises SourceUnreadable."""
    try:
        with (folder / METADATA).open("rb") as file:
            metadata = _Reader(file).load().state
        places = _places(metadata["storage_data"])
        keys = metadata.get("planner_data") or {}
        return dict(_values(metadata["state_dict_metadata"], keys, places))
    except SourceUnreadable:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        raise SourceUnreadable(
            f"{folder.name}/{METADATA} is damaged or not of torch.distributed.checkpoint: {type(error).__name__}: "
            f"{reason_of(error)}"
        ) from error


class _Record:
    """Any object of the pickle, or the result of any function. `state` is what the object would take."""

    state: Any

    def __new__(cls, *args: Any) -> "_Record":  # noqa: ANN401 - as pickled
        record = super().__new__(cls)
        record.state = {}
        return record

    def __init__(self, *args: Any) -> None:  # noqa: ANN401 - as pickled
        pass

    def __setstate__(self, state: Any) -> None:  # noqa: ANN401 - as pickled
        self.state = state


class _Reader(pickle.Unpickler):
    """An unpickler that imports nothing."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - as pickle has it
        if (module, name) == ("torch", "Size"):
            return tuple
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        return name if module == "torch" else type(name, (_Record,), {})


def _places(stored: Mapping[Any, Any]) -> dict[tuple[str, tuple[int, ...] | None], tuple[str, int, int]]:
    """Return file, start and length by name and offsets."""
    found = {}
    for index, place in stored.items():
        state = place.state
        if state.get("transform_descriptors"):
            raise SourceUnreadable(
                f"{state['relative_path']} is compressed ({', '.join(map(str, state['transform_descriptors']))}). Save "
                "the checkpoint again without extensions of its writer"
            )
        found[index.state["fqn"], index.state.get("offset")] = (
            str(state["relative_path"]), int(state["offset"]), int(state["length"])
        )  # fmt: skip
    return found


def _values(
    stored: Mapping[str, Any],
    keys: Mapping[str, tuple[str | int, ...]],
    places: Mapping[tuple[str, tuple[int, ...] | None], tuple[str, int, int]],
) -> Iterator[tuple[str, StoredValue]]:
    for name, one in stored.items():
        path = tuple(keys.get(name, (name,)))
        if "chunks" not in one.state:
            yield (
                name,
                StoredValue(path, "", None, tuple(Part(*places[key]) for key in [(name, None)] if key in places)),
            )
            continue
        chunks = [(tuple(chunk.state["offsets"]), tuple(chunk.state["sizes"])) for chunk in one.state["chunks"]]
        parts = tuple(Part(*places[name, offsets], offsets, sizes) for offsets, sizes in chunks)
        shape = tuple(one.state["size"])
        if sum(math.prod(part.sizes) for part in parts) != math.prod(shape):
            raise SourceUnreadable(f"{name} is incomplete: its parts do not fill the shape {list(shape)}")
        yield name, StoredValue(path, str(one.state["properties"].state[0]), shape, parts)
