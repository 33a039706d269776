"""JAX models in the kinds of checkpoints that people have, and refusals with a next step."""

from tests.strangers.stranger import Export, Refusal, Stranger

MODELS = "tests.strangers.models.jax_checkpoints"
BATCH_SIZES = ("--batch-sizes", "1,8")


def _export(
    source: str, path: str, builder: str, *options: str, refusal: Refusal | None = None, warning: str = ""
) -> Export:
    return Export(
        source, path, ("--model", f"{MODELS}:{builder}", *options, *BATCH_SIZES), refusal=refusal, warning=warning
    )


_IDS = ("--input", "ids:int32[batch,length]")

STRANGERS = (
    Stranger(
        "learned_positions",
        f"{MODELS}:save_positions",
        (
            _export(
                "Orbax", "checkpoint", "positions", *_IDS, "--sequence-buckets", "8,16", warning="at most 16 long"
            ),
            _export("no buckets", "checkpoint", "positions", *_IDS, refusal=Refusal(4, "--sequence-buckets 64,128")),
            _export(
                "too long", "checkpoint", "positions", *_IDS, "--sequence-buckets", "8,64",
                refusal=Refusal(7, "64 is the largest of --sequence-buckets"),
            ),
        ),
    ),
)  # fmt: skip
