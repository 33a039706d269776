"""Keras 3 models: subclassed, shared layers, sequences, text, several dtypes."""

from collections.abc import Mapping

from tests.strangers.stranger import BFLOAT16, Export, Stranger, Tolerance

MODELS = "tests.strangers.models.keras_models"
BATCH_SIZES = ("--batch-sizes", "1,8")
FLOAT16 = Tolerance(2.5e-3, 2.5e-3)
DEFAULT = Tolerance()
KERAS = Export(".keras", "model.keras", BATCH_SIZES)


def _stranger(
    name: str,
    builder: str,
    *exports: Export,
    arguments: Mapping[str, object] | None = None,
    tolerance: Tolerance = DEFAULT,
    rest_refusal: str = "",
) -> Stranger:
    return Stranger(
        f"keras_{name}",
        f"{MODELS}:save_{builder}",
        exports,
        arguments or {},
        tolerance=tolerance,
        rest_refusal=rest_refusal,
    )


def _weights(source: str, path: str, builder: str, *options: str) -> Export:
    return Export(source, path, ("--model", f"{MODELS}:{builder}", *options, *BATCH_SIZES))


STRANGERS = (
    _stranger(
        "subclassed",
        "residual",
        _weights(".keras", "model.keras", "residual", "--input", "x:float32[batch,6]"),
        _weights("TF2 checkpoint", "checkpoints", "residual", "--input", "x:float32[batch,6]"),
    ),
    _stranger("shared_layers", "shared", KERAS, _weights(".weights.h5", "model.weights.h5", "shared")),
    _stranger("bidirectional", "bidirectional", KERAS, _weights("TF2 checkpoint", "checkpoints", "bidirectional")),
    _stranger(
        "text", "text", KERAS, _weights("TF2 checkpoint", "checkpoints", "text", "--allow-missing", "*/vocabulary")
    ),
    _stranger("tabular", "tabular", KERAS),
    _stranger("mixed_bfloat16", "mixed", KERAS, arguments={"policy": "mixed_bfloat16"}, tolerance=BFLOAT16),
    _stranger("mixed_float16", "mixed", KERAS, arguments={"policy": "mixed_float16"}, tolerance=FLOAT16),
    _stranger("float16", "half", KERAS, arguments={"dtype": "float16"}, tolerance=FLOAT16),
    _stranger("bfloat16", "half", KERAS, arguments={"dtype": "bfloat16"}, tolerance=BFLOAT16),
    _stranger("float64", "half", KERAS, arguments={"dtype": "float64"}),
    _stranger("odd_outputs", "odd_outputs", KERAS),
    _stranger("attention", "attention", KERAS, _weights(".weights.h5", "model.weights.h5", "attention")),
)
