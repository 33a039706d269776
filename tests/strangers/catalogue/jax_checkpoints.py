"""JAX models in the kinds of checkpoints that people have, and refusals with a next step."""

from tests.strangers.stranger import BFLOAT16, Export, Refusal, Stranger, Tolerance

MODELS = "tests.strangers.models.jax_checkpoints"
BATCH_SIZES = ("--batch-sizes", "1,8")
DEFAULT = Tolerance()


def _export(
    source: str, path: str, builder: str, *options: str, refusal: Refusal | None = None, warning: str = ""
) -> Export:
    return Export(
        source, path, ("--model", f"{MODELS}:{builder}", *options, *BATCH_SIZES), refusal=refusal, warning=warning
    )


_IDS = ("--input", "ids:int32[batch,length]")
_SEVEN = ("--input", "ids:int32[batch,7]")


def _encoder(name: str, *sources: tuple[str, str], tolerance: Tolerance = DEFAULT) -> Stranger:
    exports = tuple(_export(*one, "encoder", *_SEVEN) for one in sources)
    return Stranger(name, f"{MODELS}:save_{name}", exports, tolerance=tolerance)


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
    Stranger(
        "msgpack",
        f"{MODELS}:save_msgpack",
        (
            _export("to_bytes", "params.msgpack", "encoder", *_SEVEN),
            _export("save_checkpoint", "steps", "encoder", *_SEVEN),
            _export("flax_model.msgpack", "whole", "encoder", *_SEVEN),
            _export("shards", "shards", "encoder", *_SEVEN),
            _export("pickle", "params.pkl", "encoder", *_SEVEN, refusal=Refusal(11, "s.to_bytes(pickle.load(open(")),
        ),
    ),
    _encoder("t5x", ("directory", "run"), ("step", "run/checkpoint_1000000"), tolerance=BFLOAT16),
    _encoder("pax", ("directory", "checkpoints")),
    _encoder("npz", ("big_vision", "checkpoint.npz"), tolerance=BFLOAT16),
    _encoder("maxtext", ("Orbax", "checkpoints")),
    Stranger(
        "linen_decode",
        f"{MODELS}:save_decoder",
        (_export("to_bytes", "params.msgpack", "decoder", *_SEVEN, refusal=Refusal(7, "decode=False")),),
    ),
    Stranger(
        "nnx_noise",
        f"{MODELS}:save_noisy",
        (
            _export(
                "Orbax", "checkpoint", "noisy", "--input", "x:float32[batch,6]",
                refusal=Refusal(3, "the module draws random numbers"),
            ),
        ),
    ),
)  # fmt: skip
