"""Models of transformers: directories without a builder, and a module of a user with one inside."""

from tests.strangers.stranger import Export, Refusal, Stranger

MODELS = "tests.strangers.models.hugging_face"
BATCH_SIZES = ("--batch-sizes", "1,8")
LENGTHS = ("--sequence-buckets", "8,16")


def _stranger(name: str, *exports: Export) -> Stranger:
    return Stranger(f"hugging_face_{name}", f"{MODELS}:save_{name}", exports, torch=True)


STRANGERS = (
    _stranger("bert", Export("directory", "bert", BATCH_SIZES), Export("buckets", "bert", (*BATCH_SIZES, *LENGTHS))),
    _stranger("t5_encoder", Export("directory", "t5", BATCH_SIZES)),
    _stranger("gpt2", Export("shards", "gpt2", (*BATCH_SIZES, *LENGTHS))),
    _stranger("vit", Export("directory", "vit", BATCH_SIZES)),
    _stranger("llama", Export("pickle", "llama", (*BATCH_SIZES, "--output", "logits"))),
    _stranger("mixtral", Export("directory", "mixtral", BATCH_SIZES)),
    _stranger("t5", Export("directory", "t5", (*BATCH_SIZES, "--output", "logits"))),
    _stranger("whisper", Export("directory", "whisper", (*BATCH_SIZES, "--output", "logits"))),
    _stranger("swin", Export("directory", "swin", BATCH_SIZES)),
    _stranger("quantized", Export("directory", "vit", BATCH_SIZES, refusal=Refusal(4, "is quantized (gptq)"))),
    _stranger(
        "own_gpt2",
        Export(
            ".pt", "gpt2.pt", ("--model", f"{MODELS}:own_gpt2", "--input", "input_ids:int64[batch,7]", *BATCH_SIZES)
        ),
    ),
)
