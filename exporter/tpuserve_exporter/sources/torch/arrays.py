"""Conversion between torch tensors and numpy arrays without a copy, including bfloat16 from ml_dtypes."""

import ml_dtypes
import numpy as np
import torch

from tpuserve_exporter.errors import OptionConflict
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
