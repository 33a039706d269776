"""SavedModels written by other programs."""

from dataclasses import replace

from tests.strangers.stranger import Export, Refusal, Stranger, Tolerance, Unexported

MODELS = "tests.strangers.models.saved_models"
BATCH_SIZES = ("--batch-sizes", "1,8")
# Deep networks with random weights amplify rounding differences. A wrong scale differs by tenths.
DEEP = Tolerance(1e-3, 1e-3)
SIGNATURES = ("--signature", "serving_default=tensor", "--signature", "photo=image_bytes", *BATCH_SIZES)


def _saved(name: str, *, rows: bool = True, rest_refusal: str = "") -> Stranger:
    export = Export("SavedModel", "saved", BATCH_SIZES if rows else ())
    return Stranger(f"saved_{name}", f"{MODELS}:save_{name}", (export,), rows=rows, rest_refusal=rest_refusal)


def _keras_2(family: str, *exports: Export) -> Stranger:
    return Stranger(
        f"keras2_{family}",
        f"{MODELS}:save_keras_2",
        exports,
        arguments={"family": family},
        environment={"TF_USE_LEGACY_KERAS": "1"},
        tolerance=DEEP,
    )


def _tpu_estimator(name: str, warning: str, *options: str) -> Stranger:
    """Return a SavedModel of TPUEstimator, whose graph for TPUs has the tags serve,tpu."""
    export = Export("SavedModel", "saved", (*BATCH_SIZES, *options), warning=warning)
    return Stranger(f"tpu_estimator_{name}", f"tests.strangers.models.tpu_estimators:save_{name}", (export,))


def _unassigned(name: str, reads: str, warning: str = "", refusal: Refusal | None = None) -> Stranger:
    """Return a SavedModel that TensorFlow loads and that fails every request, because a state has no value."""
    return Stranger(
        f"unassigned_{name}",
        f"tests.strangers.models.unassigned:save_{name}",
        (Export("SavedModel", "saved", BATCH_SIZES, warning=warning, refusal=refusal),),
        unexported=Unexported("saved", f"reads the {reads}"),
    )


def _tokeniser(name: str, library: str) -> Stranger:
    """Return a SavedModel with operations of a library that TensorFlow Serving links."""
    export = Export("SavedModel", "saved", BATCH_SIZES, warning=library)
    return Stranger(f"library_{name}", f"tests.strangers.models.tokenisers:save_{name}", (export,))


STRANGERS = (
    _saved("module"),
    _saved("scalars", rows=False),
    _saved("complex", rest_refusal="complex"),
    _saved("ragged", rows=False),
    _saved("simple"),
    replace(_saved("pooled"), outside={"x": (1, 8, 8, 3)}),
    _keras_2(
        "RegNetX002",
        Export("SavedModel", "saved", SIGNATURES),
        Export(".h5", "model.h5", SIGNATURES),
        Export(".keras", "model.keras", SIGNATURES),
    ),
    _keras_2("ResNetRS50", Export(".h5", "model.h5", SIGNATURES)),
    _tpu_estimator("two_graphs", "only the one with the tags serve. To export another, give --tag-set serve,tpu"),
    _tpu_estimator("tpu_graph", "ordinary ones, for one replica"),
    _tpu_estimator("tpu_call", "ordinary ones, for one replica"),
    _unassigned("copied_variables", "variables", "the export saved it again"),
    _unassigned("table", "table 'words'", "the export saved it again"),
    _unassigned("without_bias", "variable 'bias'", refusal=Refusal(6, "reads the variable 'bias'")),
    _tokeniser("bert", "WordpieceTokenizeWithOffsets of TensorFlow Text"),
    _tokeniser("fast_bert", "of TensorFlow Text"),
    _tokeniser("sentencepiece", "SentencepieceTokenizeOp of TensorFlow Text"),
    _tokeniser("forest", "SimpleMLLoadModelFromPathWithHandle of Decision Forests"),
)
