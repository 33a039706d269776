"""Failures that people reported in public trackers, rebuilt as small models. Each record names its reports."""

from collections.abc import Mapping

from tests.strangers.stranger import Export, Refusal, Stranger

MODELS = "tests.strangers.models.reported"
BATCH_SIZES = ("--batch-sizes", "1,8")
LENGTHS = ("--sequence-buckets", "8,16")
JAX = {"KERAS_BACKEND": "jax"}
KERAS = Export(".keras", "model.keras", BATCH_SIZES)
SAVED = Export("SavedModel", "saved", BATCH_SIZES)


def _stranger(
    framework: str,
    name: str,
    report: str,
    *exports: Export,
    rows: bool = True,
    environment: Mapping[str, str] | None = None,
) -> Stranger:
    return Stranger(
        f"reported_{name}",
        f"{MODELS}_{framework}:save_{name}",
        exports,
        environment=environment or {},
        torch=framework == "torch",
        rows=rows,
        report=report,
    )


def _keras(source: str, path: str, builder: str, refusal: Refusal | None = None) -> Export:
    return Export(source, path, ("--model", f"{MODELS}_keras:{builder}", *BATCH_SIZES), refusal=refusal)


def _jax(builder: str, *inputs: str, options: tuple[str, ...] = (), refusal: Refusal | None = None) -> Export:
    given = [part for one in inputs for part in ("--input", one)]
    model = ("--model", f"{MODELS}_jax:{builder}")
    return Export("Orbax", "checkpoint", (*model, *given, *options, *BATCH_SIZES), refusal=refusal)


def _torch(
    source: str, path: str, builder: str, given: str, refusal: Refusal | None = None, warning: str = ""
) -> Export:
    options = ("--model", f"{MODELS}_torch:{builder}", "--input", given, *BATCH_SIZES)
    return Export(source, path, options, refusal=refusal, warning=warning)


IMAGE, X, IDS = "x:float32[batch,3,8,8]", "x:float32[batch,6]", "ids:int64[batch,7]"
MERGE = Refusal(2, "peft_model.merge_and_unload()")

STRANGERS = (
    _stranger(
        "keras",
        "denormalized",
        "keras-team/keras#17556, #17486",
        KERAS,
        _keras(".keras, not adapted", "model.keras", "denormalized"),
        _keras(".weights.h5", "model.weights.h5", "denormalized"),
        _keras("TF2 checkpoint", "checkpoints", "denormalized"),
    ),
    _stranger(
        "keras",
        "padded_words",
        "tensorflow/serving#656",
        KERAS,
        Export(
            "TF2 checkpoint",
            "checkpoints",
            ("--model", f"{MODELS}_keras:padded_words", "--allow-missing", "*/vocabulary", *BATCH_SIZES),
            warning="does not hold string_lookup/vocabulary",
        ),
    ),
    _stranger(
        "keras",
        "rms_scaled",
        "keras-team/keras#19806",
        KERAS,
        _keras("TF2 checkpoint", "checkpoints", "rms_scaled"),
    ),
    _stranger(
        "keras",
        "tokens",
        "keras-team/keras#20835, #19458",
        KERAS,
        _keras(".weights.h5", "model.weights.h5", "tokens"),
    ),
    _stranger(
        "keras",
        "two_outputs",
        "tensorflow/tensorflow#28066",
        SAVED,
        Export(".keras, --import", "model.keras", ("--import", f"{MODELS}_keras", *BATCH_SIZES)),
    ),
    _stranger("keras", "series", "keras-team/keras#19048", KERAS, environment=JAX),
    _stranger("keras", "volumes", "keras-team/keras#20985", SAVED, environment=JAX),
    _stranger(
        "keras",
        "learning_phase",
        "tensorflow/serving#1266",
        Export("SavedModel", "saved", BATCH_SIZES, refusal=Refusal(3, "draws random numbers in dropout")),
        environment={"TF_USE_LEGACY_KERAS": "1"},
    ),
    _stranger("jax", "reflecting", "google/flax#4640", _jax("reflecting", "image:float32[batch,8,8,3]")),
    _stranger("jax", "chosen", "jax-ml/jax#9552", _jax("chosen", "ids:int32[batch,length]", "position:int32[batch]")),
    _stranger("jax", "audio", "jax-ml/jax#11402", _jax("audio", "samples:float32[batch,length]")),
    _stranger("jax", "haiku_res_net", "jax-ml/jax#6951", _jax("haiku_res_net", "image:float32[batch,8,8,3]")),
    _stranger(
        "torch",
        "wrapped",
        "karpathy/nanoGPT#325, huggingface/pytorch-image-models#2003",
        *(_torch(name, f"{name}.pt", "residual", IMAGE) for name in ("compiled", "distributed", "inner")),
    ),
    _stranger(
        "torch",
        "program",
        "pytorch/pytorch#133653, #103681",
        Export("free rows", "free.pt2", BATCH_SIZES),
        Export("training", "training.pt2", BATCH_SIZES, refusal=Refusal(4, "module.eval() before torch.export")),
    ),
    _stranger(
        "torch",
        "program_of_one_row",
        "pytorch/pytorch#157621",
        Export(".pt2", "one.pt2", BATCH_SIZES, warning="takes exactly 1 row(s) in a request"),
        rows=False,
    ),
    _stranger(
        "torch",
        "weighted",
        "pytorch/pytorch#102999, huggingface/transformers#33275",
        *(_torch(name, name, "weighted", X) for name in ("new.pt", "old.pt", "old.safetensors")),
    ),
    _stranger(
        "torch",
        "untracked",
        "pytorch/pytorch#156051",
        _torch(".pt", "model.pt", "untracked", X, Refusal(3, "layers.1 (track_running_stats=False)")),
        rows=False,
    ),
    _stranger("torch", "tied", "huggingface/transformers#43159, #38870", Export("directory", "opt", BATCH_SIZES)),
    _stranger(
        "torch",
        "adapter",
        "huggingface/peft#309, huggingface/trl#386",
        _torch("adapter", "adapter", "head", IDS, MERGE),
        Export("adapter, no model", "adapter", BATCH_SIZES, refusal=MERGE),
        _torch("wrapped", "wrapped.pt", "head", IDS, MERGE),
        _torch("merged", "merged.pt", "head", IDS),
    ),
)
