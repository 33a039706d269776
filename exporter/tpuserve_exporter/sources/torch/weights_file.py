"""Files of torch weights: `.pt` and similar files of torch.save, and safetensors in one file or several.

torch.save writes a pickle, which can run code when it is loaded. Unless the user allows more, this module reads only
plain tensors and containers.
"""

import collections
import pickletools
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from tpuserve_exporter.errors import SourceUnreadable, UnsafeSource, reason_of
from tpuserve_exporter.sources.checkpoint_path import INDEX_SUFFIX, read_index
from tpuserve_exporter.sources.hugging_face_directory import BIN_INDEX_SUFFIX, find_weights
from tpuserve_exporter.sources.part_roles import is_torch_optimizer
from tpuserve_exporter.sources.torch.distributed import read_distributed, read_sharded
from tpuserve_exporter.sources.torch.distributed_metadata import is_distributed

_STEPS = ("step", "global_step", "iteration", "iterations", "num_steps")
# Dictionaries of a training's progress, of TorchTitan and others.
_PROGRESS = ("train_state", "trainer_state", "progress")
# The counter of torch's AveragedModel.
_UPDATES = "n_averaged"
_UNSAFE_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")
_DEEPEST = 3
# The reader ignores longer lists: they hold data, such as a replay buffer.
_MOST_MODELS = 32
# Files before torch 1.6 start with a magic number, two pickles on the system, and the saved object.
_PICKLES = 4
_CODE_IN_IT = "Reading it could run code from the file, with all your rights"


@dataclass(frozen=True, slots=True)
class WeightsFile:
    """The content of a file: sets of tensors by name, keyed by their path in the file (`model`, `ema.shadow`, or ``).

    `module` is a whole pickled module, which only unsafe loading returns. `is_for_training`: a schedule-free optimizer
    was saved in training mode, in which the module has other weights than for evaluation. `updates` has the number of
    updates of each set that is an average by its form, whatever its name. `lists` are tensors without names.
    """

    name: str
    sets: Mapping[str, Mapping[str, torch.Tensor]]
    optimizer_state: tuple[str, ...] = ()
    bookkeeping: tuple[str, ...] = ()
    step: int | None = None
    is_for_training: bool = False
    updates: Mapping[str, int] = field(default_factory=dict)
    lists: Mapping[str, Sequence[torch.Tensor]] = field(default_factory=dict)
    module: torch.nn.Module | None = None


def read_weights(path: Path, unsafe: bool) -> WeightsFile:
    """Read a file or directory. Raises SourceUnreadable, and UnsafeSource for more than tensors, unless `unsafe`.

    If the format allows, tensors are mapped from the file and read on first use.
    """
    if path.is_dir() and is_distributed(path):
        nested, read = read_distributed(path)
        found = _sort_out(path.name, nested)
        sets = {where: {name: read(one) for name, one in tensors.items()} for where, tensors in found.sets.items()}
        return replace(found, sets=sets)
    if path.is_dir() and (joined := read_sharded(_unindexed(path))):
        return WeightsFile(path.name, {"": joined})
    file = _find_file(path) if path.is_dir() else path
    if file.name.endswith((INDEX_SUFFIX, BIN_INDEX_SUFFIX)):
        return WeightsFile(path.name, {"": _read_shards(file, unsafe)})
    if file.suffix == ".safetensors":
        return WeightsFile(path.name, {"": _read_safetensors(file)})
    return _sort_out(path.name, _load(file, unsafe))


def _unindexed(path: Path) -> list[Path]:
    """Return the safetensors files of a directory with several of them and no index."""
    found = sorted(path.glob("*.safetensors"))
    return found if len(found) > 1 and not any(path.glob(f"*{INDEX_SUFFIX}")) else []


def _find_file(directory: Path) -> Path:
    """Return transformers' file or index in a directory, or its only other index or safetensors file.

    Raises SourceUnreadable.
    """
    if (weights := find_weights(directory)) is not None:
        return weights
    found = sorted(directory.glob(f"*{INDEX_SUFFIX}")) or sorted(directory.glob("*.safetensors"))
    if len(found) != 1:
        names = ", ".join(one.name for one in found) or "none"
        raise SourceUnreadable(
            f"{directory.name} must contain one {INDEX_SUFFIX} or one .safetensors, but contains {names}"
        )
    return found[0]


def _read_shards(index: Path, unsafe: bool) -> dict[str, torch.Tensor]:
    shard_of = read_index(index)
    shards = sorted(set(shard_of.values()))
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        raise SourceUnreadable(f"{index.name} lists shards that are missing: {', '.join(missing)}")
    tensors: dict[str, torch.Tensor] = {}
    for shard in shards:
        tensors |= _read_safetensors(shard) if shard.suffix == ".safetensors" else _tensors(_load(shard, unsafe))
    lost = sorted(shard_of.keys() - tensors.keys())
    if lost:
        raise SourceUnreadable(f"{index.name} lists tensors that its shards lack: {', '.join(lost)}")
    return tensors


def _read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    import safetensors

    try:
        with safetensors.safe_open(path, framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dictionary
    except (OSError, safetensors.SafetensorError) as error:
        raise SourceUnreadable(
            f"cannot read {path.name} as safetensors: {_first_sentence(error, path)}. If it is truncated, copy it again"
        ) from error


def _load(path: Path, unsafe: bool) -> Any:  # noqa: ANN401 - whatever was saved
    try:
        is_zip = zipfile.is_zipfile(path)
        if is_zip:
            _refuse_torchscript(path)
        # Files before torch 1.6 are no archives, and torch cannot map them.
        return torch.load(path, map_location="cpu", weights_only=not unsafe, mmap=is_zip)
    except (SourceUnreadable, UnsafeSource):
        raise
    except Exception as error:  # torch, zipfile and pickle raise many kinds of errors for damaged files
        unsafe_names = [] if unsafe else _unsafe_names(path, error)
        if unsafe_names:
            raise UnsafeSource(
                f"{path.name} contains more than tensors ({', '.join(unsafe_names)}). {_CODE_IN_IT}. Save only "
                "tensors with torch.save(model.state_dict(), ...), or use --unsafe if you trust the file's author",
                globals=unsafe_names,
            ) from error
        hint = "The classes in its pickle must be importable here" if unsafe else "If it is truncated, copy it again"
        raise SourceUnreadable(
            f"cannot read {path.name} as a file of torch.save: {_first_sentence(error, path)}. {hint}"
        ) from error


def _refuse_torchscript(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    if any(name.endswith("/constants.pkl") for name in names):
        raise SourceUnreadable(
            f"{path.name} is TorchScript, which cannot be lowered for a TPU. Save the model again with "
            "torch.export.save (.pt2) or torch.save(model.state_dict(), ...)"
        )


def _unsafe_names(path: Path, error: Exception) -> list[str]:
    """Return the names that the pickle would import besides tensors: all for an archive, else only the first."""
    try:
        return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(str(path)))
    except Exception:  # an old file, or not a file of torch
        return [] if _is_cut(path) else _UNSAFE_GLOBAL.findall(str(error))[:1]


def _is_cut(path: Path) -> bool:
    """Return whether an old file ends within one of its pickles. This parses the pickles without running them."""
    with path.open("rb") as file:
        try:
            for _ in range(_PICKLES):
                if file.peek(1):
                    collections.deque(pickletools.genops(file), maxlen=0)
        except ValueError:
            return True
    return False


def _first_sentence(error: Exception, path: Path) -> str:
    """Return the first sentence of torch's error, without the machine's paths."""
    return reason_of(error).replace(str(path), path.name).partition(". ")[0].rstrip(".")


def _sort_out(name: str, loaded: Any) -> WeightsFile:  # noqa: ANN401 - whatever was saved
    """Separate weights from optimizer state and other training data in the same file."""
    if isinstance(loaded, torch.nn.Module):
        return WeightsFile(name, {"": loaded.state_dict()}, module=loaded)
    nodes = dict(_walk("", loaded))
    sets = {path: _tensors(node) for path, node in nodes.items() if not is_torch_optimizer(node) and _tensors(node)}
    if not sets:
        raise SourceUnreadable(f"{name} contains no weights: its {type(loaded).__name__} has no tensors by name")
    nested = {path: tensors for path, tensors in sets.items() if path}
    optimizer = [
        f"{path}.{leaf}" for path, node in nodes.items() if is_torch_optimizer(node) for leaf in _optimizer_names(node)
    ]
    own = loaded if isinstance(loaded, Mapping) else {}
    training = any(is_torch_optimizer(node) and _is_in_training(node) for node in nodes.values())
    updates = dict(_count_updates(sets, own))
    lists = {
        f"{path}.{key}" if path else str(key): one
        for path, node in nodes.items()
        if not is_torch_optimizer(node)
        for key, one in node.items()
        if isinstance(one, list) and one and all(map(torch.is_tensor, one))
    }
    if nested and len(sets) > len(nested) and max(map(_size, nested.values())) >= _size(sets[""]):
        # Next to whole sets, tensors at the top level are counters and losses.
        counters = tuple(map(str, sets[""]))
        return WeightsFile(name, nested, tuple(optimizer), counters, _step(own), training, updates, lists)
    return WeightsFile(name, sets, tuple(optimizer), (), _step(own), training, updates, lists)


def _count_updates(sets: Mapping[str, Mapping[str, torch.Tensor]], own: Mapping[Any, Any]) -> Iterator[tuple[str, int]]:
    """Yield the averages of torch's AveragedModel, and of Lightning's WeightAveraging, which swaps the state_dict."""
    for path, tensors in sets.items():
        if _UPDATES in tensors:
            yield path, int(tensors[_UPDATES])
    state = own.get("averaging_state")
    if isinstance(state, Mapping) and "current_model_state" in own:
        yield "state_dict", int(state.get(_UPDATES, 1))


def _walk(path: str, node: Any, depth: int = 0) -> Iterator[tuple[str, Mapping[Any, Any]]]:  # noqa: ANN401 - as saved
    """Yield the dictionaries within a dictionary or a list, with their paths (`models.0` for the first of a list)."""
    if isinstance(node, Mapping):
        yield path, node
    is_list = isinstance(node, list | tuple) and len(node) <= _MOST_MODELS
    children = node.items() if isinstance(node, Mapping) else enumerate(node) if is_list else ()
    if depth < _DEEPEST and not (isinstance(node, Mapping) and is_torch_optimizer(node)):
        for key, child in children:
            yield from _walk(f"{path}.{key}" if path else str(key), child, depth + 1)


def _tensors(node: Mapping[Any, Any]) -> dict[str, torch.Tensor]:
    return {str(name): value for name, value in node.items() if torch.is_tensor(value)}


def _is_in_training(optimizer: Mapping[Any, Any]) -> bool:
    """Return whether a schedule-free optimizer is in training mode. Other optimizers have no mode."""
    groups = optimizer.get("param_groups")
    listed = groups.values() if isinstance(groups, Mapping) else groups if isinstance(groups, list) else ()
    return any(isinstance(one, Mapping) and one.get("train_mode") for one in listed)


def _size(tensors: Mapping[str, torch.Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors.values())


def _optimizer_names(node: Mapping[Any, Any]) -> list[str]:
    if "state" not in node:
        return [str(name) for name in node if str(name).startswith("state.")]
    slots = node["state"] if isinstance(node["state"], Mapping) else {}
    return [f"state.{index}.{name}" for index, one in slots.items() if isinstance(one, Mapping) for name in one]


def _step(loaded: Mapping[Any, Any]) -> int | None:
    places = (loaded, *(loaded[name] for name in _PROGRESS if isinstance(loaded.get(name), Mapping)))
    found = (place.get(name) for place in places for name in _STEPS)
    return next((int(value) for value in found if _is_integer(value)), None)


def _is_integer(value: Any) -> bool:  # noqa: ANN401 - as saved
    if torch.is_tensor(value):
        return bool(value.ndim == 0 and not value.is_floating_point() and value.dtype is not torch.bool)
    return isinstance(value, int) and not isinstance(value, bool)
