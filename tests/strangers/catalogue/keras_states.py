"""Models with vocabularies, statistics, files and tables: restored from the file, or compared with the builder's."""

from tests.strangers.stranger import Export, Refusal, Stranger

MODELS = "tests.strangers.models.keras_states"
BATCH_SIZES = ("--batch-sizes", "1,8")


def _build(source: str, path: str, builder: str, refusal: Refusal | None = None, warning: str = "") -> Export:
    options = ("--model", f"{MODELS}:{builder}", *BATCH_SIZES)
    return Export(source, path, options, refusal=refusal, warning=warning)


def _stranger(name: str, *exports: Export) -> Stranger:
    return Stranger(f"keras_{name}", f"{MODELS}:save_{name}", exports)


FILE, CHECKPOINT = "model.keras", "checkpoints"

STRANGERS = (
    _stranger(
        "vocabulary",
        _build(".keras", FILE, "vocabulary"),
        _build(".keras, other data", FILE, "of_other_data", Refusal(2, "text_vectorization/vocabulary has 11 terms")),
        Export(
            "TF2 checkpoint",
            CHECKPOINT,
            ("--model", f"{MODELS}:of_the_training", "--allow-missing", "*/vocabulary", *BATCH_SIZES),
            warning="does not hold text_vectorization/vocabulary",
        ),
        _build("TF2 checkpoint, other data", CHECKPOINT, "of_other_data", Refusal(2, "1 not in the format")),
        _build("TF2 checkpoint, no terms", CHECKPOINT, "vocabulary", Refusal(2, "vocabulary has no value")),
    ),
    _stranger("weighted_terms", _build(".keras", FILE, "weighted_terms")),
    _stranger("places", _build(".keras", FILE, "places")),
    _stranger("line_ends", Export(".keras", FILE, BATCH_SIZES)),
    _stranger("counter", _build("TF2 checkpoint", CHECKPOINT, "counter")),
    _stranger(
        "keras_2",
        Export(
            "TF2 checkpoint",
            CHECKPOINT,
            ("--model", f"{MODELS}:keras_2_with_terms", "--allow-missing", "*/vocabulary", *BATCH_SIZES),
            warning="does not hold",
        ),
    ),
    _stranger(
        "nested",
        Export("OrbaxCheckpoint", "orbax", BATCH_SIZES),
        _build("OrbaxCheckpoint, builder", "orbax", "nested"),
        _build("sharded weights", "model.weights.json", "nested"),
    ),
    # The callback of the JAX backend saves JAX's arrays.
    Stranger(
        "keras_nested_on_jax",
        f"{MODELS}:save_nested",
        (Export("OrbaxCheckpoint", "orbax", BATCH_SIZES),),
        environment={"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"},
    ),
    _stranger(
        "own_classes",
        Export("--import", FILE, ("--import", MODELS, *BATCH_SIZES)),
        Export(".keras", FILE, BATCH_SIZES, refusal=Refusal(6, "Import the module that defines it, --import")),
    ),
    _stranger(
        "upsampling",
        Export("fixed size", FILE, ("--input", "image:float32[batch,8,8,1]", *BATCH_SIZES)),
        Export("any size", FILE, BATCH_SIZES, refusal=Refusal(7, "--input 'image:float32[batch,64,64,1]'")),
    ),
)
