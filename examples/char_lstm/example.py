"""A character LSTM that writes text like the documentation: Flax NNX in Orbax, with state as inputs and outputs."""

from pathlib import Path

import numpy as np

from examples.example import Array, Example, Tensors

WIDTH = 128


def train(folder: Path) -> Path:
    from examples.char_lstm.train import train

    train(folder / "checkpoints", steps=200, seed=1)
    return folder / "checkpoints"


def requests() -> list[dict[str, Array]]:
    """Return the beginning of a text, and the middle of three, with states like those after a step."""
    from examples.char_lstm.text import encode

    empty = np.zeros((1, WIDTH), np.float32)
    states = np.random.default_rng(1).uniform(-1, 1, (2, 3, WIDTH)).astype(np.float32)
    return [
        {"char": encode("T"), "hidden": empty, "cell": empty},
        {"char": encode("e r"), "hidden": states[0], "cell": states[1]},
    ]


def answer(source: Path, request: Tensors) -> Tensors:
    import orbax.checkpoint as ocp
    from flax import nnx

    from examples.char_lstm.model import build

    model = build(WIDTH)()
    with ocp.CheckpointManager(source.absolute()) as manager:
        restore_arguments = ocp.args.Composite(model=ocp.args.StandardRestore(nnx.state(model)))
        nnx.update(model, manager.restore(manager.latest_step(), args=restore_arguments)["model"])
    outputs: Tensors = nnx.jit(model)(**request)
    return outputs


EXAMPLE = Example(
    name="char_lstm",
    source="Orbax, Flax NNX",
    train=train,
    requests=requests,
    answer=answer,
    export_options=(
        "--model", "examples.char_lstm.model:build",
        "--input", "char:int32[batch]",
        "--input", f"hidden:float32[batch,{WIDTH}]",
        "--input", f"cell:float32[batch,{WIDTH}]",
    ),
    extra="jax",
    packages=("jax", "flax", "orbax"),
)  # fmt: skip
