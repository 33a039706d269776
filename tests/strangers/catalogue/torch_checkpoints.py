"""PyTorch training checkpoints: torch.distributed.checkpoint, FSDP, Lightning; padding masks and tables of ids."""

from tests.strangers.stranger import Export, Refusal, Stranger

MODELS = "tests.strangers.models.torch_checkpoints"
SIZES = ("--batch-sizes", "1,8")
ENCODER = ("--model", f"{MODELS}:masked_encoder", "--input", "ids:int64[batch,length]", *SIZES)
RECOMMENDER = ("--model", f"{MODELS}:recommender", "--input", "categories:int64[batch,3]", *SIZES)


def _stranger(name: str, *exports: Export) -> Stranger:
    return Stranger(f"torch_{name}", f"{MODELS}:save_{name}", exports, torch=True)


STRANGERS = (
    _stranger("masked_encoder", Export(".pt", "model.pt", ENCODER)),
    _stranger("recommender", Export(".pt", "model.pt", RECOMMENDER)),
    _stranger(
        "wrapped_average",
        Export("one state_dict", "both.ckpt", RECOMMENDER, warning="'state_dict.ema_model', instead of"),
        Export("list", "list.pt", RECOMMENDER, warning="'ema.shadow_params', instead of 'model'"),
        Export("LoRA", "adapted.pt", RECOMMENDER, refusal=Refusal(2, "has weights of an adapter (")),
    ),
    _stranger("titan", Export("TorchTitan", "step-2", ENCODER)),
    _stranger("sharded", Export("FSDP .distcp", "parts", ENCODER), Export("FSDP safetensors", "shards", ENCODER)),
    _stranger(
        "lightning",
        Export("last.ckpt", "last.ckpt", RECOMMENDER),
        Export("FSDP names", "wrapped.bin", RECOMMENDER),
        Export("hyperparameters", "old.ckpt", RECOMMENDER, refusal=Refusal(11, "argparse.Namespace")),
    ),
    _stranger(
        "fused_program",
        Export(".pt2", "model.pt2", SIZES, refusal=Refusal(4, "torch.backends.mha.set_fastpath_enabled(False)")),
        Export("missing file", "parts", ENCODER, refusal=Refusal(6, "lacks __0_0.distcp")),
    ),
)
