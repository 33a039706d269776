"""Idioms of TensorFlow 1: the training graph in a .meta file next to its checkpoint."""

from tests.strangers.stranger import Export, Refusal, Stranger

MODELS = "tests.strangers.models.tf1_graphs"
TENSORS = ("--input-tensor", "features", "--output-tensor", "probabilities", "--batch-sizes", "1,8")
# Keras 2 provides tf.layers.
ENVIRONMENT = {"TF_USE_LEGACY_KERAS": "1"}


def _idiom(
    name: str, source: str = "features", refusal: Refusal | None = None, warning: str = "", rows: bool = True
) -> Stranger:
    tensors = ("--input-tensor", source, *TENSORS[2:])
    one = Export("TF1 .meta", "model.ckpt-30.meta", tensors, refusal=refusal, warning=warning)
    return Stranger(
        f"tf1_{name}", f"{MODELS}:save", (one,), arguments={"idiom": name}, environment=ENVIRONMENT, rows=rows
    )


STRANGERS = (
    _idiom("bn_rank2"),
    _idiom("bn_unfused"),
    _idiom("bn_channels_first"),
    _idiom("bn_fused"),
    _idiom("bn_renorm", refusal=Refusal(3, "batch", required=False)),
    _idiom("bn_population"),
    _idiom("bn_ema"),
    _idiom("bn_ema_cond", refusal=Refusal(2, "phase_train", required=False)),
    _idiom("bn_slim"),
    _idiom("bn_no_statistics", refusal=Refusal(3, "moments")),
    _idiom("layer_norm"),
    _idiom("instance_norm"),
    _idiom("dropout_keep_prob"),
    _idiom("dropout_rate"),
    _idiom("is_training_default"),
    _idiom("is_training_default_true", refusal=Refusal(3, "is_training", required=False)),
    _idiom("is_training_placeholder", refusal=Refusal(2, "is_training", required=False)),
    _idiom("lstm_static"),
    _idiom("lstm_dynamic"),
    _idiom("partitioned_embedding"),
    Stranger(
        "tf1_zeros_batch",
        f"{MODELS}:save",
        (
            Export(
                "TF1 .meta",
                "model.ckpt-30.meta",
                (*TENSORS[:4], "--batch-sizes", "1,32"),
                refusal=Refusal(2, "--input 'features:int32[32", required=False),
            ),
            Export(
                "TF1 .meta, [32,6]",
                "model.ckpt-30.meta",
                (*TENSORS[:4], "--input", "features:int32[32,6]"),
            ),
        ),
        arguments={"idiom": "zeros_batch"},
        environment=ENVIRONMENT,
        rows=False,
    ),
    Stranger(
        "tf1_tpu_replicated",
        f"{MODELS}:save_tpu",
        (
            Export(
                "TF1 .meta of a TPU",
                "model.ckpt-30.meta",
                ("--input-tensor", "InfeedQueue/dequeue=features", *TENSORS[2:]),
            ),
        ),
        environment=ENVIRONMENT,
    ),
    _idiom("input_pipeline", source="IteratorGetNext=features"),
    _idiom("moving_average"),
    _idiom("vocabulary", refusal=Refusal(4, "HashTableV2")),
    _idiom("python_function", refusal=Refusal(4, "PyFunc")),
    _idiom("ranking", warning="depends on", rows=False),
)
