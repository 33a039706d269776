"""torch's tensors as numpy's arrays and back, without a copy; bfloat16 too, which numpy has from ml_dtypes."""

import ml_dtypes
import numpy as np
import torch

from tpuserve_exporter.errors import OptionConflict
from tpuserve_exporter.signature import Array


def to_numpy(tensor: torch.Tensor) -> Array:
    """The same memory, where the tensor is on the CPU and of one stretch."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype is torch.bfloat16:
        return np.asarray(tensor.view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
    return np.asarray(tensor.numpy())


def to_torch(array: Array) -> torch.Tensor:
    """The same values. Copied where numpy would not let torch write into them."""
    array = np.require(array, requirements=("C", "W"))
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def dtype_name(dtype: torch.dtype) -> str:
    """TensorFlow's name of it, which is torch's own."""
    return str(dtype).removeprefix("torch.")


def find_dtype(name: str) -> torch.dtype:
    """Raises OptionConflict for a name that torch has no dtype of (`string`, for one)."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise OptionConflict(f"--input: torch has no dtype {name!r}")
    return dtype
