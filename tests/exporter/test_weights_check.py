"""Tests that the export finds all NaN and infinite weights and publishes them only on request."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.exporter import builders
from tests.exporter.conftest import Finished, save_checkpoint
from tpuserve_exporter import export as export_live
from tpuserve_exporter.errors import WeightsNotFinite
from tpuserve_exporter.models.weights_check import find_not_finite, not_finite

pytestmark = [pytest.mark.xdist_group(__name__)]

Export = Callable[..., Finished]
TINY = ("--model", "tests.exporter.builders:tiny")


def test_every_variable_that_is_not_finite_is_named_with_counts() -> None:
    import ml_dtypes

    fine = np.ones(3, np.float32)
    bad = np.array([np.nan, np.inf, -np.inf, 1], ml_dtypes.bfloat16)
    pairs = [("a", fine), ("b", bad), ("c", np.array([[np.nan]])), ("ids", np.array([1])), ("words", np.array([b"x"]))]
    error = not_finite(find_not_finite(pairs))
    assert "b (1 NaN, 2 infinite of 4), c (1 NaN of 1). " in str(error)
    assert error.details["variables"][1] == {"name": "c", "nan": 1, "infinite": 0, "size": 1}
    assert find_not_finite(pairs[:1]) == []


def test_a_long_list_is_cut_in_the_message_and_whole_in_the_report() -> None:
    error = not_finite(find_not_finite((f"v{index}", np.array([np.inf])) for index in range(12)))
    assert "v9 (1 infinite of 1) and 2 more" in str(error)
    assert len(error.details["variables"]) == 12


def test_no_variable_at_all_is_nothing_wrong() -> None:
    assert find_not_finite([("empty", np.zeros((0, 3), np.float32))]) == []


@pytest.fixture(scope="module")
def diverged(tensorflow: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a checkpoint of `builders.tiny` with a NaN in one variable and infinities in another."""
    model = builders.tiny()
    model.weights[1].assign([np.nan, 0, 0, 0])
    model.weights[3].assign([np.inf, -np.inf])
    return _save(tmp_path_factory.mktemp("diverged"), model)


def _save(directory: Path, model: Any) -> Path:  # noqa: ANN401 - a Keras model
    import tensorflow as tf

    tf.train.Checkpoint(model=model).save(str(directory / "ckpt"))
    return directory


def test_numbers_in_a_tree_of_jax_are_weights_too(tensorflow: None, tmp_path: Path) -> None:
    """Check a learned temperature, which is a JAX array without dimensions or a Python number."""
    import jax.numpy as jnp

    def apply(params: Any, x: Any) -> Any:  # noqa: ANN401 - arrays of jax
        return x * params["w"] / params["temperature"]

    for temperature, text in ((jnp.asarray(float("nan")), "1 NaN of 1"), (float("inf"), "1 infinite of 1")):
        params = {"w": np.ones(3, np.float32), "temperature": temperature}
        with pytest.raises(WeightsNotFinite, match=rf"temperature \({text}\)"):
            export_live((apply, params), tmp_path / "base", input="x:float32[batch,3]", progress=False)


def test_allowed_it_is_published_with_a_warning(export: Export, diverged: Path, tmp_path: Path) -> None:
    finished = export(diverged, tmp_path / "tiny", *TINY, "--allow-nan")
    assert finished.code == 0, finished.err
    assert "warning: some weights are not finite: hidden/bias (1 NaN of 4)" in finished.out
    again = export(tmp_path / "tiny/1", tmp_path / "again", "--json")
    assert again.code == 12
    assert len(again.document["variables"]) == 2


def test_weights_of_a_sound_checkpoint_are_not_remarked_on(export: Export, tmp_path: Path) -> None:
    source = save_checkpoint(tmp_path / "checkpoints", builders.tiny())
    finished = export(source, tmp_path / "tiny", *TINY)
    assert finished.code == 0, finished.err
    assert "not finite" not in finished.out


@pytest.mark.parametrize(
    ("rename", "message"),
    [("a", "'a' is not of the form REGEX=REPLACEMENT"), ("(=b", "unterminated subpattern"), ("a=\\1", "invalid group")],
)
def test_renames_that_cannot_be_are_wrong_usage(export: Export, tmp_path: Path, rename: str, message: str) -> None:
    finished = export(tmp_path, tmp_path / "tiny", *TINY, "--rename", rename)
    assert (finished.code, message in finished.err) == (2, True), finished.err
