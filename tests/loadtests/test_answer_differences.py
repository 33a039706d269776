"""Tests for the comparison of two versions' outputs."""

from collections.abc import Mapping

import numpy as np
import pytest
from ml_dtypes import bfloat16

from tpuserve_client import tensor
from tpuserve_client.dtypes import Array
from tpuserve_client.model import Signature, TensorSpec
from tpuserve_formats.messages import official
from tpuserve_loadtests.golden.difference import Parity, differences, signature_difference
from tpuserve_loadtests.golden.tolerance import Precision, Tolerance

F32 = np.dtype(np.float32)


def answer(outputs: Mapping[str, Array]) -> bytes:
    response = official.PredictResponse()
    for name, array in outputs.items():
        response.outputs[name].CopyFrom(tensor.to_proto(array))
    return bytes(response.SerializeToString())


def compared(a: Mapping[str, Array], b: Mapping[str, Array], tolerance: Tolerance) -> Parity:
    return Parity(tuple(differences({"grpc": (answer(a),)}, {"grpc": (answer(b),)}, tolerance)))


def difference(a: Mapping[str, Array], b: Mapping[str, Array], atol: float = 1e-5, rtol: float = 1e-5) -> str:
    return "".join(compared(a, b, Tolerance(atol, rtol)).different)


def test_what_is_beyond_the_tolerance_is_told_with_its_place() -> None:
    a = np.ones((2, 3), np.float32)
    b = a.copy()
    b[1, 2] = 1.5
    assert difference({"y": a}, {"y": a + np.float32(5e-6)}) == ""
    assert (
        difference({"y": a}, {"y": b})
        == "gRPC request 0: output 'y' differs by 0.5 at [1, 2]: 1.5 instead of 1.0; allowed 2e-05 "
        "(set with --atol and --rtol)"
    )
    assert difference({"y": a}, {"y": b}, rtol=0.6) == ""


def test_nan_is_the_same_as_nan_and_as_nothing_else() -> None:
    nan, one = np.array([np.nan], np.float32), np.array([1], np.float32)
    assert difference({"y": nan}, {"y": nan}) == ""
    assert "differs by nan" in difference({"y": one}, {"y": nan})


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (np.array([100_000]), np.array([100_001])),  # a class number has no tolerance
        (np.array([True]), np.array([False])),
        (np.array([b"cat"], object), np.array([b"dog"], object)),
        (np.array([1 + 1j], np.complex64), np.array([1 - 1j], np.complex64)),
        (np.array([1], bfloat16), np.array([1.5], bfloat16)),
        (np.array([1], np.float32), np.array([1], np.float64)),
        (np.array([[1]], np.float32), np.array([1], np.float32)),
    ],
)
def test_every_kind_of_output_is_held_beside_the_other(a: Array, b: Array) -> None:
    assert difference({"y": a}, {"y": a}) == ""
    assert "output 'y'" in difference({"y": a}, {"y": b})


def test_other_outputs_are_differences() -> None:
    one = {"y": np.array([1], np.float32)}
    assert difference(one, {**one, "z": one["y"]}) == "gRPC request 0: outputs are ['y', 'z'], were ['y']"


def test_each_protocol_is_compared_with_itself() -> None:
    one, two = (answer({"y": np.array([value], np.float32)}) for value in (1, 2))
    found = Parity(
        tuple(differences({"grpc": (one,), "rest": (one, two)}, {"grpc": (one,), "rest": (one, one)}, Tolerance()))
    )
    assert len(found.answers) == 3
    [problem] = found.different
    assert problem.startswith("REST request 1: output 'y' differs by 1 at [0]: 1.0 instead of 2.0")


def in_two_outputs(value: float) -> Mapping[str, Array]:
    return {"n": np.array([7]), "y": np.array([[value]], np.float32)}


def test_versions_of_two_dtypes_are_held_to_the_wider_manifest() -> None:
    exact = Precision("float32", 1e-5, 1e-4, "m version 0's manifest")
    coarse = Precision("mixed_bfloat16", 0.02, 0.02, "m version 1's manifest")
    for versions in ((exact, coarse), (coarse, exact)):
        found = compared(in_two_outputs(0.5), in_two_outputs(0.503), Tolerance(versions=versions))
        assert not found.different
        assert found.largest == (
            "largest difference 0.003 in `y`, allowed 0.02 + 0.02 * |golden| "
            "(mixed_bfloat16, from m version 1's manifest; change with --atol/--rtol)"
        )
    (problem,) = compared(in_two_outputs(0.5), in_two_outputs(0.503), Tolerance(versions=(exact, exact))).different
    assert problem.endswith("allowed 6e-05 (float32, from m version 0's manifest; change with --atol/--rtol)")


def test_options_go_before_manifests() -> None:
    coarse = Precision("mixed_bfloat16", 0.02, 0.02, "m version 1's manifest")
    (problem,) = compared(in_two_outputs(0.5), in_two_outputs(0.503), Tolerance(1e-4, 0.0, (coarse,))).different
    assert problem.endswith("allowed 0.0001 (set with --atol and --rtol)")
    (problem,) = compared(in_two_outputs(0.5), in_two_outputs(0.6), Tolerance(1e-4, None, (coarse,))).different
    assert problem.endswith("allowed 0.0101 (--atol as set, --rtol of mixed_bfloat16, from m version 1's manifest)")
    (problem,) = compared(in_two_outputs(0.5), in_two_outputs(0.6), Tolerance(None, 0.0, (coarse,))).different
    assert problem.endswith("allowed 0.02 (--rtol as set, --atol of mixed_bfloat16, from m version 1's manifest)")


def test_a_version_without_a_manifest_is_judged_by_the_dtype_of_its_outputs() -> None:
    tight = Precision("float32", 1e-7, 0.0, "m version 0's manifest")
    assert compared(in_two_outputs(1.0), in_two_outputs(1.00005), Tolerance(versions=(tight,))).different
    assert not compared(in_two_outputs(1.0), in_two_outputs(1.00005), Tolerance(versions=(tight, None))).different


def test_answers_without_floats_have_no_largest_difference() -> None:
    whole = {"n": np.array([7])}
    found = compared(whole, whole, Tolerance())
    assert (found.different, found.largest) == ((), "")


def test_signatures_differ_where_a_client_would_see_it() -> None:
    x = TensorSpec("x", F32, (None, 4))
    live = Signature("serving_default", {"x": x}, {"y": x})
    assert signature_difference(live, live) == ""
    wider = Signature("serving_default", {"x": TensorSpec("x", F32, (None, 5))}, {"y": x})
    assert signature_difference(live, wider) == "input is x: float32[?, 5], was x: float32[?, 4]"
    renamed = Signature("serving_default", {"x": x}, {"z": x})
    assert signature_difference(live, renamed) == "outputs are ['z'], were ['y']"
