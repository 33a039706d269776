"""JAX models from Orbax and from memory: Flax linen and NNX, and trees of Haiku, Equinox and plain functions."""

from tests.strangers.stranger import BFLOAT16, Export, Refusal, Stranger

MODELS = "tests.strangers.models.jax_models"
BATCH_SIZES = ("--batch-sizes", "1,8")


def _orbax(builder: str, *inputs: str, path: str = "checkpoint", refusal: Refusal | None = None) -> Export:
    options = [part for one in inputs for part in ("--input", one)]
    return Export("Orbax", path, ("--model", f"{MODELS}:{builder}", *options, *BATCH_SIZES), refusal=refusal)


def _live(function: str) -> Export:
    return Export("live", "", script=f"{MODELS}:{function}")


STRANGERS = (
    Stranger(
        "linen_conv",
        f"{MODELS}:save_linen_conv",
        (_orbax("conv_net", "image:float32[batch,8,8,3]", path="checkpoints"),),
    ),
    Stranger("linen_encoder", f"{MODELS}:save_linen_encoder", (_orbax("encoder", "ids:int32[batch,7]"),)),
    Stranger("nnx_tower", f"{MODELS}:save_nnx", (_orbax("tower", "x:float32[batch,6]"),)),
    Stranger("haiku_mlp", f"{MODELS}:save_haiku", (_orbax("haiku", "x:float32[batch,6]"), _live("export_haiku"))),
    Stranger(
        "equinox_mlp", f"{MODELS}:save_equinox", (_orbax("equinox", "x:float32[batch,6]"), _live("export_equinox"))
    ),
    Stranger(
        "jax_plain",
        f"{MODELS}:save_plain",
        (_orbax("plain", "x:float32[batch,6]", "scale:float32[batch]"), _live("export_plain")),
    ),
    Stranger("jax_bfloat16", f"{MODELS}:save_half", (_orbax("half", "x:float32[batch,6]"),), tolerance=BFLOAT16),
    Stranger(
        "jax_batch_statistics",
        f"{MODELS}:save_batch_statistics",
        (_orbax("batch_statistics", "x:float32[batch,6]", refusal=Refusal(3, "batch")),),
        rows=False,
    ),
)
