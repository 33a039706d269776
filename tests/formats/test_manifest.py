"""Tests for the manifest's models: the exporter's output, and the fields that a reader ignores."""

import json
import math
from typing import Any

import pytest
from pydantic import ValidationError

from tpuserve_formats.manifest.device import DeviceSignature, ManifestDevice
from tpuserve_formats.manifest.version import Manifest, ManifestParity

# Every field, in the order of the file.
OUTPUT: dict[str, Any] = {"max_abs_difference": 0.5, "mean_abs_difference": None, "top1_agreement": 1.0}
WHOLE: dict[str, Any] = {
    "format_version": 1,
    "exporter_version": "0.1.0",
    "created_at": "2026-11-21T09:00:00Z",
    "source": {
        "kind": "tf2-ckpt",
        "name": "ckpt-300",
        "step": 300,
        "builder": None,
        "provenance": [{"kind": "average", "part": "optimizer", "count": 8}],
    },
    "compute_dtype": "mixed_bfloat16",
    "cpu": {"allow_bfloat16_kernels": True},
    "signatures": {
        "serving_default": {
            "inputs": {"x": {"dtype": "int32", "shape": [None, None], "pad_value": 1, "row_splits": ["x/splits"]}},
            "outputs": {"y": {"dtype": "float32", "shape": None}},
            "batch_sizes": [1, 2],
            "rows_independent": True,
            "deterministic": False,
            "sequence_buckets": [8, 16],
        }
    },
    "parity": {
        "max_abs_difference": 0.5,
        "atol": 0.02,
        "rtol": None,
        "rows": 32,
        "signatures": {
            "serving_default": {
                "rows": 32,
                "comparisons": 14,
                "outputs": {"y": OUTPUT},
                "buckets": [
                    {
                        "batch_size": None,
                        "padded": False,
                        "loaded_by": "session",
                        "comparisons": 1,
                        "outputs": {"y": OUTPUT},
                    }
                ],
            }
        },
    },
    "quantized": {"mode": "int8", "layers": 2, "bytes_before": 8, "bytes_after": 2},
    "frozen": {"folded": 1, "computed": 2, "dropped": {"Dropout": 1}},
    "fingerprint": "abc",
    "labels": "assets.extra/tpuserve/labels.txt",
    "device": {
        "format_version": 1,
        "lowered_with": {"jax": "0.10"},
        "calling_convention_version": 10,
        "weights": "weights.safetensors",
        "shard": [{"pattern": "embedding/.*", "axes": ["model", None]}],
        "parts": {
            "p": {
                "inputs": {"x": {"dtype": "int32", "shape": [None, 4], "pad_value": 0}},
                "weights": ["w"],
                "outputs": {"y": {"dtype": "float32", "shape": [None]}},
                "compute_dtype": "float32",
                "programs": [{"batch_size": 1, "sequence_length": None, "file": "programs/1"}],
            }
        },
        "signatures": {
            "serving_default": {
                "part": "p",
                "inputs": {"x": "x"},
                "outputs": {},
                "host": {"model": "host", "before": None, "after": "after"},
                "method_name": "tensorflow/serving/predict",
            }
        },
        "preflight": [{"fits": True}],
        "preflight_together": [{"fits": True}],
        "numerics": {"emulated": "products of bfloat16", "signatures": {"serving_default": {"rows": 1}}},
    },
    "files": {"saved_model.pb": {"sha256": "0", "size_bytes": 5}},
}


def written(document: dict[str, Any]) -> str:
    """Return the JSON text that the exporter writes for these values."""
    return Manifest.model_validate(document).model_dump_json(indent=2)


def test_every_field_is_written_in_its_place() -> None:
    assert written(WHOLE) == json.dumps(WHOLE, indent=2)


def test_optional_fields_are_written_where_they_say_something() -> None:
    plain = {name: WHOLE[name] for name in Manifest.model_fields if name in WHOLE}
    for name in ("quantized", "frozen", "fingerprint", "labels", "device"):
        del plain[name]
    tensor = {"dtype": "int32", "shape": [None]}
    plain["source"] = {"kind": "k", "name": "n", "step": None, "builder": None}
    signature = {"inputs": {"x": tensor}, "outputs": {"y": tensor}, "batch_sizes": [], "rows_independent": False}
    plain["signatures"] = {"s": signature}
    assert written(plain) == json.dumps(plain, indent=2)


def test_an_infinite_tolerance_is_null() -> None:
    parity = ManifestParity(max_abs_difference=1.0, atol=math.inf, rtol=0.1, rows=1)
    assert json.loads(parity.model_dump_json())["atol"] is None
    assert ManifestParity.model_validate_json(parity.model_dump_json()).atol == math.inf


@pytest.mark.parametrize("value", ["3", '"text"', "null", '{"deep": [1]}'])
def test_fields_that_are_for_people_are_not_read(value: str) -> None:
    parity = ManifestParity.model_validate_json(
        f'{{"atol": 0.5, "max_abs_difference": {value}, "signatures": {value}}}'
    )
    assert (parity.atol, parity.max_abs_difference, parity.signatures) == (0.5, 0.0, {})


def test_fields_of_later_exporters_are_ignored() -> None:
    device = ManifestDevice.model_validate_json(json.dumps({**WHOLE["device"], "later": 1, "numerics": "later"}))
    assert (device.numerics, device.parts["p"].compute_dtype) == (None, "")
    assert device.shard[0].axes == ("model", None)


def test_null_names_stand_for_none() -> None:
    signature = DeviceSignature.model_validate_json('{"part": "p", "inputs": null}')
    assert (signature.inputs, signature.outputs) == ({}, {})


@pytest.mark.parametrize("field", ["inputs", "outputs", "programs"])
def test_a_part_without_an_end_or_a_program_is_refused(field: str) -> None:
    document = json.loads(json.dumps(WHOLE["device"]))
    del document["parts"]["p"][field]
    with pytest.raises(ValidationError, match="Field required"):
        ManifestDevice.model_validate_json(json.dumps(document))
