"""Tests for the signature of an ensemble, and for connections that do not fit the steps' signatures."""

import numpy as np
import pytest

from tests.support.ensembles import make_ensemble
from tpuserve_server.core.terms.ensemble import Ensemble
from tpuserve_server.core.terms.errors import FailedPrecondition
from tpuserve_server.core.terms.types import ServableId, Signature, TensorSpec
from tpuserve_server.ensembles.runner import BoundStep, connect

FLOAT, UINT8, STRING = (np.dtype(kind) for kind in (np.float32, np.uint8, object))

SIGNATURES = {
    "decode": Signature(
        "serving_default",
        {"jpeg": TensorSpec("jpeg", STRING, (None,))},
        {"image": TensorSpec("image", FLOAT, (None, 28, 28, 1)), "raw": TensorSpec("raw", UINT8, None)},
    ),
    "classify": Signature(
        "serving_default",
        {"image": TensorSpec("image", FLOAT, (None, 28, None, 1)), "scale": TensorSpec("scale", FLOAT, ())},
        {"scores": TensorSpec("scores", FLOAT, (None, 4))},
        defaults={"scale": np.ones((), np.float32)},
    ),
    "wide": Signature(
        "serving_default",
        {"image": TensorSpec("image", FLOAT, (None, None, 30, 1))},
        {"y": TensorSpec("y", FLOAT, (None,))},
    ),
    "any": Signature("serving_default", {"x": TensorSpec("x", FLOAT, None)}, {"y": TensorSpec("y", FLOAT, None)}),
}


def signature_of(ensemble: Ensemble) -> Signature:
    return connect(
        ensemble,
        [BoundStep(step, ServableId(step.model.name, 3), SIGNATURES[step.model.name]) for step in ensemble.steps],
    )


def test_inputs_and_outputs_have_the_specs_of_their_steps() -> None:
    signature = signature_of(make_ensemble("decode jpeg=photo -> image=image", "classify image=image -> scores=kinds"))
    assert signature.name == "serving_default"
    assert signature.inputs == {"photo": TensorSpec("photo", STRING, (None,), "photo")}
    assert signature.outputs == {"kinds": TensorSpec("kinds", FLOAT, (None, 4), "kinds")}


def test_an_input_of_several_steps_has_the_known_dimensions_of_all() -> None:
    signature = signature_of(make_ensemble("any x=i -> y=a", "classify image=i -> scores=b", "wide image=i -> y=c"))
    assert signature.inputs["i"].shape == (None, 28, 30, 1)


def test_an_output_can_feed_a_step_too() -> None:
    ensemble = make_ensemble("decode jpeg=j -> image=i", "classify image=i -> scores=s", inputs="j", outputs="i s")
    assert list(signature_of(ensemble).outputs) == ["i", "s"]


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (
            ["decode png=j -> image=i"],
            "step 1 (decode version 3) has no input png. Its inputs are jpeg; "
            "input jpeg of step 1 (decode version 3) is not connected",
        ),
        (
            ["decode jpeg=j -> pixels=i"],
            "step 1 (decode version 3) has no output pixels. Its outputs are image, raw",
        ),
        (["classify scale=s -> scores=y"], "input image of step 1 (classify version 3) is not connected"),
        (
            ["decode jpeg=j -> raw=i", "classify image=i -> scores=y"],
            "step 1 (decode version 3) produces tensor i as uint8 any shape, but step 2 (classify version 3) takes it "
            "as float32 [-1, 28, -1, 1]",
        ),
        (
            ["decode jpeg=j -> image=i", "wide image=i -> y=y"],
            "step 1 (decode version 3) produces tensor i as float32 [-1, 28, 28, 1], but step 2 (wide version 3) takes "
            "it as float32 [-1, -1, 30, 1]",
        ),
        (
            ["decode jpeg=j -> image=i", "classify image=j -> scores=y"],
            "step 1 (decode version 3) takes tensor j as string [-1], but step 2 (classify version 3) takes it as "
            "float32 [-1, 28, -1, 1]",
        ),
    ],
)
def test_a_connection_that_does_not_fit_is_refused_with_steps_and_tensor(steps: list[str], message: str) -> None:
    with pytest.raises(FailedPrecondition) as caught:
        signature_of(make_ensemble(*steps))
    assert caught.value.message == message


def test_a_message_lists_only_some_problems() -> None:
    keys = " ".join(f"k{number}=t{number}" for number in range(100))
    with pytest.raises(FailedPrecondition, match=r"; 97 more$"):
        signature_of(make_ensemble(f"any {keys} -> y=y"))
