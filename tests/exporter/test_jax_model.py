"""Tests that models which a version cannot serve as they are get a refusal with a next step."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from tests.exporter import flax_builders
from tpuserve_exporter.errors import BuilderFailed, CannotLower, ExportError, TrainingMode
from tpuserve_exporter.models.jax_function import JaxFunction
from tpuserve_exporter.models.jax_model import read_inputs, understand_live
from tpuserve_exporter.models.jax_serving import Variables, serve_jax
from tpuserve_exporter.options.export_options import InputNaming, ModelOptions

pytestmark = [pytest.mark.xdist_group("exporter"), pytest.mark.usefixtures("tensorflow")]

KERNEL = {"kernel": np.ones((3, 2), np.float32)}
OPTIONS = ModelOptions(inputs=(InputNaming.parse("x:float32[batch,3]"),), batch_sizes=(1, 2))


def serve(model: object) -> None:
    inputs = read_inputs(OPTIONS)
    understood = understand_live(model, OPTIONS, inputs)
    function = JaxFunction(understood.by_name(), understood.arrays, inputs)
    serve_jax(function, Variables.of(understood.arrays), OPTIONS.batch_sizes)


def printing(params: Mapping[str, Any], x: Any) -> Any:  # noqa: ANN401 - arrays of jax
    jax.debug.print("{}", x)
    return x @ params["kernel"]


@pytest.mark.parametrize(
    ("model", "error", "advice"),
    [
        (lambda params, x: np.asarray(x) @ params["kernel"], BuilderFailed, "Use jax.numpy in the model instead of"),
        (lambda params, x: x if x.sum() > 0 else -x, BuilderFailed, "Use jnp.where or jax.lax.cond"),
        (lambda params, x: x[:, : int(x[0, 0])], BuilderFailed, "Use jnp.where or jax.lax.cond"),
        (lambda params, x: {"y": x, "name": "text"}, BuilderFailed, "Return arrays of numbers alone"),
        (printing, CannotLower, "calls Python code .debug_print.*, which a server cannot run. Remove jax.debug.print"),
        (linen.Dense(2), BuilderFailed, "Return .module.apply, params."),
        (linen.Dense, BuilderFailed, "Return .module.apply, params."),
    ],
    ids=["numpy", "if", "int", "text", "print", "module", "class"],
)
def test_code_that_jax_cannot_trace_gets_a_next_step(
    model: Callable[..., Any], error: type[ExportError], advice: str
) -> None:
    with pytest.raises(error, match=advice):
        serve((model, KERNEL))


def test_modules_that_answer_with_their_state_are_refused() -> None:
    with pytest.raises(
        TrainingMode, match=r"the module draws random numbers \(rngs/default/key/value\). A version keeps"
    ):
        serve(flax_builders.Noisy(nnx.Rngs(0)))
    with pytest.raises(TrainingMode, match=r"the module changes calls in each call, and its answers depend on it"):
        serve(flax_builders.Counting(nnx.Rngs(0)))
    attention = nnx.MultiHeadAttention(1, 3, decode=True, rngs=nnx.Rngs(0))
    with pytest.raises(
        BuilderFailed, match=r"Autoregressive cache not initialized.* Build the model with decode=False"
    ):
        serve(attention)
    attention.init_cache((1, 1, 3), dtype=jnp.float32)
    with pytest.raises(BuilderFailed, match=r"nnx.Cache \(decode=True\), which each call changes. A version keeps no"):
        serve(attention)


def test_modules_that_only_count_or_have_unused_keys_are_served() -> None:
    class Tower(flax_builders.Tower):
        def __init__(self, rngs: nnx.Rngs) -> None:
            super().__init__(rngs)
            self.calls = nnx.Variable(jnp.zeros((), jnp.int32))

        def __call__(self, features: Any) -> Any:  # noqa: ANN401 - arrays of jax
            self.calls[...] += 1
            return super().__call__(features)

    serve(Tower(nnx.Rngs(0)))
