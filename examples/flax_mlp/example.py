"""A digits classifier in Flax linen: an Orbax CheckpointManager directory with a moving average and statistics."""

from pathlib import Path

from examples.example import Array, Example, Tensors


def train(folder: Path) -> Path:
    from examples.flax_mlp.train import train

    train(folder / "checkpoints", epochs=8, seed=1)
    return folder / "checkpoints"


def requests() -> list[dict[str, Array]]:
    """Return one digit, and 21 digits, a number without a bucket."""
    from examples.digits.data import load

    _, held_out = load()
    return [{"image": held_out.images[:1]}, {"image": held_out.images[:21]}]


def answer(source: Path, request: Tensors) -> Tensors:
    import jax
    import orbax.checkpoint as ocp

    from examples.flax_mlp.model import build

    with ocp.CheckpointManager(source.absolute()) as manager:
        state = manager.restore(manager.latest_step(), args=ocp.args.StandardRestore())
    variables = {"params": state["ema_params"], "batch_stats": state["batch_stats"]}
    outputs: Tensors = jax.jit(build().apply)(variables, request["image"])
    return outputs


EXAMPLE = Example(
    name="flax_mlp",
    source="Orbax, Flax linen",
    train=train,
    requests=requests,
    answer=answer,
    export_options=("--model", "examples.flax_mlp.model:build", "--input", "image:float32[batch,8,8,1]"),
    extra="jax",
    packages=("jax", "flax", "orbax"),
)
