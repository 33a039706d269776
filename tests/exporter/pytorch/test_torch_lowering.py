"""Tests for the lowering of torch programs: its cost on the device, and the state of the model afterwards."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tpuserve_exporter.models.frameworks import compute_on_cpu, quiet
from tpuserve_exporter.models.jax_function import JaxInput
from tpuserve_exporter.options.export_options import ModelOptions
from tpuserve_exporter.sources.opened import OpenedSource
from tpuserve_exporter.sources.torch.lowering import lower
from tpuserve_exporter.sources.torch.program import Module
from tpuserve_exporter.sources.torch.serving import TorchReference, serve_torch
from tpuserve_exporter.sources.torch.tensors import Outputs, to_numpy
from tpuserve_exporter.terms.signature import Signature

pytestmark = [pytest.mark.usefixtures("tensorflow")]


class Scaled(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A module with products in two and three dimensions.

    They have a bias, no bias, or factors other than 1.
    """

    def __init__(self) -> None:
        super().__init__()
        self.with_bias, self.without = nn.Linear(5, 7), nn.Linear(7, 6, bias=False)
        self.matrix, self.bias = nn.Parameter(torch.rand(4, 6)), nn.Parameter(torch.rand(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.without(self.with_bias(x.unsqueeze(1))).squeeze(1)
        return torch.addmm(self.bias, hidden, self.matrix.t(), beta=0.5, alpha=2.0)


def module(rows: int | str = "rows") -> Module:
    torch.manual_seed(4)
    return Module(Scaled().eval(), {"x": JaxInput("float32", (rows, 5))})


def test_weights_are_multiplied_with_as_they_are_stored() -> None:
    import jax

    model = module(2)
    with quiet():
        program = lower(model.trace())
    state = {name: to_numpy(tensor) for name, tensor in model.state().items()}
    rows = np.random.default_rng(0).random((2, 5), dtype=np.float32)

    def call(values: dict[str, Any], x: Any) -> Any:  # noqa: ANN401 - arrays of jax
        return program(values, [x])[0]

    compute_on_cpu()
    with quiet():
        text = str(jax.make_jaxpr(call)(state, rows))
        answer = jax.jit(call)(state, rows)
    assert text.count("dot_general") == 3
    assert "transpose[" not in text
    expected = model.call({"x": torch.from_numpy(rows)}).numpy()
    np.testing.assert_allclose(answer, expected, rtol=1e-6)


def test_a_released_model_holds_no_weights_wherever_they_are_referred_to() -> None:
    model = module()
    outputs = Outputs.read(model.returned(), ())
    with quiet():
        served = serve_torch(model, outputs, ModelOptions(batch_sizes=(1, 2)))
    reference = TorchReference(model, outputs)
    source = OpenedSource("torch", "scaled", served.function, reference)
    assert reference.run(Signature("device", {}, {}), {"x": np.ones((2, 5), np.float32)})["outputs"].shape == (2, 4)
    kept = list(model.module.parameters())
    source.release()
    assert [tensor.numel() for tensor in kept] == [0] * len(kept)
    assert all(variable.shape.num_elements() for variable in served.function.trackables[0].variables)
    assert not any(variable.read_value().numpy().size for variable in served.function.trackables[0].variables)


class Attention(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Attention as in GPT-2: a view of its output, which needs the strides of the attention itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = x.view(*x.shape[:-1], 2, -1).transpose(1, 2)
        attended = nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        together = attended.transpose(1, 2).reshape(*x.shape[:-1], -1).contiguous()
        return together.view(-1, together.size(-1)) * 2


def test_the_output_of_an_attention_can_be_viewed() -> None:
    model = Module(Attention().eval(), {"x": JaxInput("float32", ("rows", "length", 8))})
    rows = np.random.default_rng(0).random((2, 5, 8), dtype=np.float32)
    with quiet():
        answer = lower(model.trace())({}, [rows])[0]
    np.testing.assert_allclose(answer, model.call({"x": torch.from_numpy(rows)}).numpy(), atol=1e-6)
