"""Training states of JAX with weights that optax keeps, saved by Orbax, and a builder for their parameters."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp

SHAPES = {"w0": (6, 8), "b0": (8,), "w1": (8, 3)}
_RNG = np.random.default_rng(3)
X, Y = _RNG.normal(size=(64, 6)).astype("f"), _RNG.normal(size=(64, 3)).astype("f")


def apply(params: Any, x: Any) -> dict[str, Any]:  # noqa: ANN401 - arrays of jax
    return {"y": jnp.tanh(x @ params["w0"] + params["b0"]) @ params["w1"]}


def mlp() -> tuple[Callable[..., Any], Any]:
    return apply, {name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in SHAPES.items()}


def params() -> dict[str, Any]:
    generator = np.random.default_rng(1)
    return {name: jnp.asarray(generator.normal(0, 0.3, shape), "float32") for name, shape in SHAPES.items()}


def train(transformation: optax.GradientTransformation, steps: int = 20) -> tuple[Any, Any]:
    """Return the parameters and the optimizer's state after some steps."""
    trained = params()
    state = transformation.init(trained)
    gradient = jax.jit(jax.grad(lambda one: ((apply(one, X)["y"] - Y) ** 2).mean()))
    for _ in range(steps):
        updates, state = transformation.update(gradient(trained), state, trained)
        trained = optax.apply_updates(trained, updates)
    return trained, state


def average(values: Any, decay: float, steps: int) -> tuple[Any, Any]:  # noqa: ANN401 - a tree
    """Return an average of the values as optax returns it, and the state that optax keeps."""
    transformation = optax.ema(decay)
    state = transformation.init(values)
    for _ in range(steps):
        debiased, state = transformation.update(values, state)
    return debiased, state


def save(directory: Path, tree: Any) -> Path:  # noqa: ANN401 - any tree
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(directory.absolute(), tree)
    return directory
