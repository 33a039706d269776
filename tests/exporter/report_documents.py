"""JSON reports of exports for report pages: long names, several outputs, programs that do not fit."""

from typing import Any


def preflight(topology: str, size: int, needed_gib: int) -> dict[str, Any]:
    """Return the preflight of a program with `size` rows, which fits on the topology or does not."""
    fits = needed_gib < 15
    return {
        "part": "device", "topology": topology, "mesh": {"data": 1, "model": 1},
        "batch_size": size, "sequence_length": None,
        "verdict": "compiles and fits" if fits else "does not fit",
        "reason": "compiles and fits" if fits else f"does not fit: needs {needed_gib}.00 of 15.75 GiB",
        "hbm_bytes": {"needed": needed_gib * 2**30, "available": int(15.75 * 2**30)},
        "compile_s": 1.25, "flops": 4.2e9 if fits else None, "bytes_accessed": 3e9 if fits else None,
        "latency_s_estimate": [1.2e-3, 3.7e-3] if fits else None,
        "layout_padding": 1.5 if fits else None, "rows_padding_at_most": 0.875,
    }  # fmt: skip


# A PNG file of one pixel.
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5E"
    "rkJggg=="
)


def sample(name: str, expected: str | None = None, passed: bool | None = None, **shown: str) -> dict[str, Any]:
    """Return a sample with two classes. The second class has a long name and the highest score."""
    top = [
        {"index": 1, "label": "a class whose name is long enough to need a line or two of its own", "score": 0.93},
        {"index": 0, "label": None, "score": 0.07},
        {"index": 2, "label": None, "score": None},
    ]
    return {
        "signature": "photo", "name": name, **shown, "prediction": {"top": top, "outputs": {}},
        "expected": expected, "passed": passed, "problem": "",
    }  # fmt: skip


def samples() -> list[dict[str, Any]]:
    """Return samples: an image with the expected class, a text with another class, and numbers without classes."""
    numbers = sample("row 0, made-up input", text="float32[1, 30]: [[0.1, 0.2, 0.3, ..., 0.4, 0.5, 0.6]]")
    numbers["prediction"] = {"top": [], "outputs": {"area": "float32[1, 1]: [[0.637]]"}}
    return [
        sample("IMG_20260101_of_a_very_long_holiday_in_the_mountains.jpg", "tabby", True, image=PIXEL),
        sample("a good <film>", "positive", False, text="a good <film>"),
        numbers,
    ]


def published() -> dict[str, Any]:
    """Return the report of a version with two outputs. One output sometimes ranks another class first."""
    output = {"max_abs_difference": 5.1e-3, "mean_abs_difference": 1.2e-5, "top1_agreement": 0.9921}
    layer = {"max_abs_difference": 0.0, "mean_abs_difference": 0.0, "top1_agreement": None}
    outputs = {"probabilities": output, "embeddings_of_the_last_but_one_layer_of_the_encoder": layer}
    buckets = [
        {"batch_size": size, "padded": padded, "loaded_by": way, "comparisons": 1, "outputs": outputs}
        for size, padded in ((1, False), (8, False), (32, False), (32, True))
        for way in ("session", "Python")
    ]
    parity = {"rows": 32, "comparisons": 8, "outputs": outputs, "buckets": buckets}
    image = {"dtype": "float32", "shape": [None, 8, 8, 1]}
    scores = {"dtype": "float32", "shape": [None, 10]}
    return {
        "ok": True,
        "name": "an_image_classifier_with_quite_a_long_name",
        "version": 3,
        "published": True,
        "serve_check": {
            "grpc_answers": 3, "rest_answers": 3, "max_abs_difference": 1e-7, "start_seconds": 9.0, "ask_seconds": 0.1,
        },
        "variables": [],
        "path": "models/an_image_classifier_with_quite_a_long_name/3",
        "seconds": 31.8,
        "warnings": ["names differ from the checkpoint's, so that variables were matched by position in the model"],
        "warmup_records": 3,
        "samples": samples(),
        "preflight_advice": ["v5e:1x1, batch 32: does not fit. These fit: smaller batches: 8"],
        "steps": [
            {"title": "Start TensorFlow", "seconds": 4.9, "detail": "", "failed": False},
            {"title": "Write the SavedModel", "seconds": 0.7, "detail": "0.8 MB", "failed": False},
        ],
        "restore": restored(),
        "provenance": provenance(),
        "manifest": {
            "format_version": 1,
            "exporter_version": "0.1.0",
            "created_at": "2026-11-21T09:00:00Z",
            "source": {
                "kind": "tf2-ckpt", "name": "ckpt-300", "step": 300, "builder": "examples.digits.model:build",
                "provenance": [{"kind": "average", "part": "ema", "count": 40}],
            },
            "compute_dtype": "mixed_bfloat16",
            "cpu": {"allow_bfloat16_kernels": True},
            "signatures": {
                "serving_default": {
                    "inputs": {"image": image}, "outputs": {"probabilities": scores},
                    "batch_sizes": [1, 8, 32], "rows_independent": True,
                }
            },
            "parity": {
                "max_abs_difference": 5.1e-3, "atol": 0.02, "rtol": 0.02, "rows": 32,
                "signatures": {"serving_default": parity},
            },
            "device": {
                "preflight": [preflight("v5e:1x1", 8, 4), preflight("v5e:1x1", 32, 20), preflight("v6e:1x1", 8, 4)],
                "preflight_together": [together("v5e:1x1", None), together("v6e:1x1", 5)],
            },
            "files": {
                "saved_model.pb": {"sha256": "0" * 64, "size_bytes": 67_200},
                "variables/variables.data-00000-of-00001": {"sha256": "0" * 64, "size_bytes": 2_000_000},
            },
        },
    }  # fmt: skip


def together(topology: str, needed_gib: int | None) -> dict[str, Any]:
    """Return the memory use of all programs on a topology with a v6e's memory, or unknown values."""
    names = ("needed", "weights", "batches", "temporary", "code")
    sizes = (5, 3, 1, 1, 0) if needed_gib is not None else (None,) * 5
    return {
        "topology": topology, "mesh": {"data": 1, "model": 1},
        "verdict": "does not fit" if needed_gib is None else "fits",
        "hbm_bytes": {
            "available": int(31.24 * 2**30),
            **{name: None if size is None else size * 2**30 for name, size in zip(names, sizes, strict=True)},
        },
        "side_by_side": None if needed_gib is None else 31 // needed_gib,
    }  # fmt: skip


def restored() -> dict[str, Any]:
    """Return a restore report: forty matched variables, one that may be missing, and omitted values."""
    matched = [_variable(f"encoder/layer_{number}/self_attention/query/kernel", "matched") for number in range(40)]
    return {
        "variables": [*matched, _variable("head/kernel", "missing", allowed=True)],
        "counts": {"matched": 40, "missing": 1},
        "optimizer_state": ["adam/m/head/kernel"],
        "other_models": {"ema": ["ema/head/kernel"]},
        "bookkeeping": ["step"],
        "notes": [],
    }


def provenance() -> list[dict[str, Any]]:
    """Return the origins of the matched variables, of the missing one, and of a table."""
    names = [one["name"] for one in restored()["variables"]]
    kinds = dict.fromkeys(names, "average") | {"head/kernel": "initializer", "tokens": "vocabulary"}
    return [{"name": name, "kind": kind, "part": "ema", "detail": "", "stored": None} for name, kind in kinds.items()]


def refused() -> dict[str, Any]:
    """Return the report of an export that failed because the checkpoint does not match."""
    variables = [_variable("head/kernel", "shape differs"), _variable("head/bias", "missing")]
    return {
        "ok": False,
        "name": "digits",
        "error": "ckpt-300 does not fit the model that examples.digits.model:build builds: 1 missing, 1 shape differs",
        "kind": "CheckpointMismatch",
        "exit_code": 2,
        "steps": [{"title": "Read the source", "seconds": 0.9, "detail": "", "failed": True}],
        "restore": restored() | {"variables": variables},
        "samples": samples(),
    }


def _variable(name: str, fate: str, allowed: bool = False) -> dict[str, Any]:
    stored = None if fate == "missing" else "bfloat16[768, 768]"
    return {"name": name, "fate": fate, "model": "float32[768, 512]", "checkpoint": stored, "allowed": allowed}
