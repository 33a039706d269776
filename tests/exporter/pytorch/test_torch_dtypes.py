"""Tests that lowered operations have torch's dtypes and values: tensors made from numbers, and promotion."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from torch import nn

from tpuserve_exporter.models.frameworks import quiet
from tpuserve_exporter.models.jax_function import JaxInput
from tpuserve_exporter.options.export_options import ComputeDtype
from tpuserve_exporter.sources.torch.lowering import lower, start_torchax
from tpuserve_exporter.sources.torch.program import Module

pytestmark = [pytest.mark.usefixtures("tensorflow")]

Operation = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

# Operations of `x`, float32[rows, length], and `ids`, int64[rows, length].
MADE_FROM_NUMBERS: Mapping[str, Operation] = {
    "arange": lambda x, ids: torch.arange(x.shape[1]),
    "arange of a constant": lambda x, ids: torch.arange(3),
    "arange from a start": lambda x, ids: torch.arange(2, x.shape[1]),
    "arange with a step": lambda x, ids: torch.arange(1, x.shape[1] + 1, 2),
    "arange downwards": lambda x, ids: torch.arange(5, 0, -2),
    "arange of whole floats": lambda x, ids: torch.arange(x.shape[1], -1, -1.0),
    "arange of floats": lambda x, ids: torch.arange(0, 1, 0.25),
    "arange to a float": lambda x, ids: torch.arange(3.0),
    "arange of int32": lambda x, ids: torch.arange(3, dtype=torch.int32),
    "arange above 2**24": lambda x, ids: torch.arange(2**24, 2**24 + 3),
    "full of an integer": lambda x, ids: torch.full((2,), 3),
    "full of a size": lambda x, ids: torch.full((2,), x.shape[1]),
    "full above 2**24": lambda x, ids: torch.full((2,), 2**24 + 1),
    "full of a bool": lambda x, ids: torch.full((2,), True),
    "full of a float": lambda x, ids: torch.full((2,), 1.5),
    "zeros": lambda x, ids: torch.zeros(2),
    "zeros of int64": lambda x, ids: torch.zeros(2, dtype=torch.int64),
    "ones": lambda x, ids: torch.ones(2),
    "empty": lambda x, ids: torch.empty(2).fill_(1),
    "tensor of integers": lambda x, ids: torch.tensor([1, 2]),
    "tensor of a float": lambda x, ids: torch.tensor(1.5),
    "tensor of a bool": lambda x, ids: torch.tensor(True),
    "tensor of a size": lambda x, ids: torch.tensor(x.shape[1]),
    "linspace": lambda x, ids: torch.linspace(0, 1, 5),
    "linspace of int64": lambda x, ids: torch.linspace(0, 10, 5, dtype=torch.int64),
    "logspace": lambda x, ids: torch.logspace(0, 1, 4),
    "eye": lambda x, ids: torch.eye(3),
    "eye of bools": lambda x, ids: torch.eye(2, 3, dtype=torch.bool),
    "scalar_tensor": lambda x, ids: torch.scalar_tensor(3),
    "tril_indices": lambda x, ids: torch.tril_indices(3, 3),
    "new_zeros": lambda x, ids: ids.new_zeros(2),
    "new_full": lambda x, ids: ids.new_full((2,), 3),
    "new_empty": lambda x, ids: ids.new_empty(2).fill_(4),
    "new_tensor": lambda x, ids: x.new_tensor([1, 2]),
    "zeros_like": lambda x, ids: torch.zeros_like(ids, dtype=torch.float32),
    "full_like": lambda x, ids: torch.full_like(ids, 1.5),
    "one_hot": lambda x, ids: nn.functional.one_hot(ids, 9),
    "positions": lambda x, ids: x.index_select(1, torch.arange(2)),
}
PROMOTED: Mapping[str, Operation] = {
    "float16 with a float32 scalar": lambda x, ids: x.half() * torch.tensor(1.5),
    "int8 with an int64 scalar": lambda x, ids: ids.to(torch.int8) + torch.tensor(3),
    "int8 with a number": lambda x, ids: ids.to(torch.int8) + 3,
    "uint8 with int8": lambda x, ids: ids.to(torch.uint8) * ids.to(torch.int8),
    "sum of int8": lambda x, ids: ids.to(torch.int8).sum(1),
    "sum of bools": lambda x, ids: (x > 0.5).sum(),
    "two bools": lambda x, ids: (x > 0.5) + (x > 0.7),
    "cumsum of bools": lambda x, ids: (x > 0.5).cumsum(1),
    "product of int32": lambda x, ids: ids.to(torch.int32).prod(1),
    "mean of integers": lambda x, ids: ids.mean(1, dtype=torch.float32),
    "an integer by an integer": lambda x, ids: ids / 2,
    "a floor of integers": lambda x, ids: -ids // 2,
    "a remainder of integers": lambda x, ids: -ids % 3,
    "a square root of integers": lambda x, ids: torch.sqrt(ids),
    "a power of a number": lambda x, ids: 2.0**ids,
    "integers with a float": lambda x, ids: ids + 1.5,
    "where of integers": lambda x, ids: torch.where(x > 0.5, 1, 0),
    "where of a float": lambda x, ids: torch.where(ids > 0, ids, 1.5),
    "cat of floats and integers": lambda x, ids: torch.cat([x, ids], 1),
    "places of the largest": lambda x, ids: x.topk(2).indices,
    "the largest of another dimension": lambda x, ids: x.topk(2, 0).values,
    "the smallest": lambda x, ids: ids.topk(3, 0, largest=False).values,
    "the smallest of unsigned integers": lambda x, ids: (ids - ids.amin()).to(torch.uint8).topk(3, 0, False).values,
    "the smallest beside NaN": lambda x, ids: torch.where(ids > 4, -torch.nan, x).topk(2, largest=False).values,
    "softmax of float16 in float32": lambda x, ids: torch.softmax(x.half(), -1, dtype=torch.float32),
}


class Table(nn.Module):  # type: ignore[misc]  # torch is untyped here
    def __init__(self, operations: Mapping[str, Operation]) -> None:
        super().__init__()
        self.operations = operations

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> list[torch.Tensor]:
        return [operation(x, ids) for operation in self.operations.values()]


@pytest.mark.parametrize("operations", [MADE_FROM_NUMBERS, PROMOTED], ids=["made from numbers", "promoted"])
def test_operations_have_the_dtypes_and_values_of_torch(operations: Mapping[str, Operation]) -> None:
    assert wrong(operations, "keep") == {}


def test_integers_keep_their_dtype_if_the_model_computes_in_bfloat16() -> None:
    integers = {name: one for name, one in MADE_FROM_NUMBERS.items() if "float" not in name and "int" in name}
    assert wrong(integers, "bfloat16") == {}


def wrong(operations: Mapping[str, Operation], compute_dtype: ComputeDtype) -> dict[str, str]:
    """Return torch's and the lowered program's results by operation, for those that differ."""
    import jax

    start_torchax()
    from torchax.ops.mappings import t2j_dtype

    dims = ("rows", "length")
    model = Module(Table(operations).eval(), {"x": JaxInput("float32", dims), "ids": JaxInput("int64", dims)})
    random = np.random.default_rng(0)
    x, ids = random.random((3, 5), dtype=np.float32), random.integers(0, 8, (3, 5))
    expected = model.call({"x": torch.from_numpy(x), "ids": torch.from_numpy(ids)})
    with quiet():
        results = lower(model.trace(), compute_dtype)({}, [jax.numpy.asarray(x), jax.numpy.asarray(ids)])

    def differ(tensor: torch.Tensor, result: jax.Array) -> bool:
        if result.dtype != jax.dtypes.canonicalize_dtype(t2j_dtype(tensor.dtype)):
            return True
        return not np.allclose(result, tensor.numpy(), rtol=2e-3 if tensor.dtype is torch.float16 else 1e-5)

    pairs = zip(operations, expected, results, strict=True)
    return {name: f"{tensor} {result!r}" for name, tensor, result in pairs if differ(tensor, result)}
