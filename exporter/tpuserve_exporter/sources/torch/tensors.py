"""Tensors of torch as arrays, and the outputs of a torch model by name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.utils import _pytree as pytree

from tpuserve_exporter.errors import BuilderFailed, OptionConflict
from tpuserve_exporter.models.naming import name_outputs
from tpuserve_exporter.terms.signature import Array


def to_numpy(tensor: torch.Tensor) -> Array:
    """Convert a tensor to an array, which shares memory with a contiguous tensor on the CPU."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype is torch.bfloat16:
        return np.asarray(tensor.view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
    return np.asarray(tensor.numpy())


def to_torch(array: Array) -> torch.Tensor:
    """Convert an array to a tensor. Copy arrays that are read-only or not contiguous."""
    array = np.require(array, requirements=("C", "W"))
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def dtype_name(dtype: torch.dtype) -> str:
    """Return TensorFlow's name of the dtype, which equals torch's name."""
    return str(dtype).removeprefix("torch.")


def find_dtype(name: str) -> torch.dtype:
    """Return the torch dtype with this name. Raises OptionConflict for a name unknown to torch, such as `string`."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise OptionConflict(f"--input: torch has no dtype {name!r}")
    return dtype


@dataclass(frozen=True, slots=True)
class Outputs:
    """The position and dtype of each output among the leaves of the model's return value. Other leaves are ignored."""

    positions: Mapping[str, int]
    dtypes: Mapping[str, str]

    @classmethod
    def read(cls, returned: Any, chosen: Sequence[str]) -> "Outputs":  # noqa: ANN401 - whatever a model returns
        """Name the tensors in the model's return value.

        Names come from `given` (--output), or else from keys of a dictionary or fields of a named tuple or data class.
        Other outputs are named `outputs`, or `output_0` and so on. Raises OptionConflict if the `given` names do not
        fit, and BuilderFailed if there is no tensor.
        """
        leaves = pytree.tree_flatten_with_path(returned)[0]
        tensors = {index: (path, leaf) for index, (path, leaf) in enumerate(leaves) if torch.is_tensor(leaf)}
        if not tensors:
            raise BuilderFailed(
                f"the model returns {type(returned).__name__} without a tensor, so that there is nothing to serve"
            )
        names = list(chosen) or _name([path for path, _ in tensors.values()])
        positions = name_outputs(names, list(tensors))
        return cls(positions, {name: dtype_name(tensors[index][1].dtype) for name, index in positions.items()})

    def pick(self, leaves: Sequence[Any]) -> dict[str, Any]:
        """Return the outputs by name from all the leaves."""
        return {name: leaves[position] for name, position in self.positions.items()}

    def pick_from(self, returned: Any) -> dict[str, torch.Tensor]:  # noqa: ANN401 - whatever a model returns
        return self.pick(pytree.tree_leaves(returned))


def _name(paths: Sequence[Sequence[Any]]) -> list[str]:
    if len(paths) == 1 and all(isinstance(key, pytree.SequenceKey) for key in paths[0]):
        return ["outputs"]
    return ["_".join(_parts(path)) for path in paths]


def _parts(path: Sequence[Any]) -> list[str]:
    parts = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path]
    return ["output", *parts] if parts[0].isdigit() else parts
