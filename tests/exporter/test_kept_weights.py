"""Tests that nothing from optimizer state is served unless it is named, and that what is named is weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpuserve_exporter.errors import CheckpointMismatch, OptionConflict
from tpuserve_exporter.options.export_options import InputNaming, ModelOptions
from tpuserve_exporter.terms.restore_report import RestoreReport

pytest.importorskip("optax")
pytest.importorskip("orbax.checkpoint")

Array = np.ndarray[Any, Any]


def restore(path: Path, weights: str = "auto", decay: float | None = None) -> tuple[Mapping[str, Array], RestoreReport]:
    """Return the values that an export of the checkpoint would serve, and the report."""
    from tpuserve_exporter.models.jax_model import build_jax_model, read_inputs
    from tpuserve_exporter.sources.trees import restore as restoring
    from tpuserve_exporter.sources.trees.orbax import OrbaxTree

    builder = "tests.exporter.kept_weights:mlp"
    inputs = (InputNaming.parse("x:float32[batch,6]"),)
    options = ModelOptions(builder=builder, inputs=inputs, weights=weights, weights_decay=decay)
    model = build_jax_model(builder, options, read_inputs(options))
    _, variables, report = restoring.restore(model, OrbaxTree(path), options)
    return {name: np.asarray(value) for name, value in variables.arrays().items()}, report


def assert_same(values: Mapping[str, Array], expected: Mapping[str, Any], rtol: float = 0) -> None:
    assert values.keys() == expected.keys()
    for name, value in values.items():
        np.testing.assert_allclose(value, expected[name], rtol=rtol, atol=0)


def parts(report: RestoreReport) -> set[tuple[str, str]]:
    return {(one.kind.value, one.part) for one in report.origins.values()}


@pytest.fixture(scope="module")
def gradients(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Save a training state whose optimizer averages gradients. Return it with its parameters."""
    import optax

    from tests.exporter import kept_weights

    trained, state = kept_weights.train(optax.chain(optax.clip(1.0), optax.ema(0.9), optax.scale(-1e-2)))
    tree = {"params": trained, "opt_state": state, "step": 20}
    return kept_weights.save(tmp_path_factory.mktemp("gradients") / "ck", tree), trained


def test_the_parameters_are_served_beside_an_average_of_gradients(gradients: tuple[Path, Any]) -> None:
    path, trained = gradients
    values, report = restore(path)
    assert_same(values, trained)
    assert parts(report) == {("parameters", "params")}
    assert report.notes == (
        "did not use 'opt_state/1/ema', because it may be an average of gradients. If it is one of weights, use "
        "--weights opt_state/1/ema",
    )
    assert restore(path, "raw")[1].notes == ()


@pytest.mark.parametrize(
    ("weights", "decay", "message"),
    [
        ("ema", None, "no moving average.*Optimizer state that fits: 'opt_state/1/ema'"),
        ("opt_state/1/ema", None, r"'opt_state/1/ema' is far from 'params': .*, cosine 0\.\d+\. An average of weights"),
        ("opt_state/1", 0.9, "'opt_state/1/ema' is far from 'params'"),
        ("nothing", None, "no part of this name that fits the model. These fit: .*'params'"),
    ],
)
def test_an_average_of_gradients_is_refused_even_by_name(
    gradients: tuple[Path, Any], weights: str, decay: float | None, message: str
) -> None:
    with pytest.raises(CheckpointMismatch, match=message):
        restore(gradients[0], weights, decay)


def test_moments_are_no_weights(tmp_path: Path) -> None:
    import optax

    from tests.exporter import kept_weights

    trained, state = kept_weights.train(optax.adam(1e-2))
    path = kept_weights.save(tmp_path / "ck", {"params": trained, "opt_state": state})
    with pytest.raises(CheckpointMismatch, match="'opt_state/0/mu' is optimizer state, and neither an average nor"):
        restore(path, "opt_state/0/mu")
    with pytest.raises(OptionConflict, match=r"--weights-decay applies only to an average of optax\.ema"):
        restore(path, decay=0.9)


@pytest.mark.parametrize("place", ["ema", "opt_state/0/ema", "1/0/ema"])
def test_an_average_of_weights_is_debiased_as_optax_does(tmp_path: Path, place: str) -> None:
    from tests.exporter import kept_weights

    trained = kept_weights.params()
    debiased, state = kept_weights.average(trained, 0.999, steps=100)
    trees: dict[str, Any] = {
        "ema": {"params": trained, "ema": state},
        "opt_state/0/ema": {"params": trained, "opt_state": (state, state.count)},
        "1/0/ema": (trained, (state,)),
    }
    path = kept_weights.save(tmp_path / "ck", trees[place])
    assert_same(restore(path)[0], trained)
    with pytest.raises(CheckpointMismatch, match=r"after 100 updates.*Add --weights-decay.*was near 0\.999$"):
        restore(path, place)
    with pytest.raises(CheckpointMismatch, match=r"ema' is biased towards zero: .* but is 0\.15 times their length"):
        restore(path, place, 0.99)
    values, report = restore(path, place, 0.999)
    assert_same(values, debiased, rtol=1e-6)
    (origin,) = {(one.kind, one.detail) for one in report.origins.values()}
    assert origin[0] == "average"
    assert origin[1].startswith("debiased with the decay 0.999 after 100 updates; the checkpoint does not show whether")


def test_an_old_average_needs_no_correction(tmp_path: Path) -> None:
    import jax
    import jax.numpy as jnp

    from tests.exporter import kept_weights

    trained = kept_weights.params()
    near = jax.tree.map(lambda one: one * 0.98, trained)
    state = {"count": jnp.asarray(2_000_000, "int32"), "ema": near}
    path = kept_weights.save(tmp_path / "ck", {"params": trained, "opt_state": (state,)})
    values, report = restore(path, "opt_state/0/ema")
    assert_same(values, near)
    assert "as stored after 2000000 updates" in report.origins["w0"].detail
    assert "compared with 'params': 0.98 times their length, cosine 1.00" in report.origins["w0"].detail


def test_part_of_an_average_is_refused(tmp_path: Path) -> None:
    from tests.exporter import kept_weights

    trained = kept_weights.params()
    half = {name: trained[name] for name in ("w0", "b0")}
    path = kept_weights.save(tmp_path / "ck", {"params": trained, "opt_state": {"ema": half}})
    with pytest.raises(CheckpointMismatch, match="does not have the form of the parameters: 2 of 3 have the same"):
        restore(path, "opt_state/ema")


def test_schedule_free_weights_are_those_for_evaluation(tmp_path: Path) -> None:
    from optax import contrib

    from tests.exporter import kept_weights

    trained, state = kept_weights.train(contrib.schedule_free_sgd(0.5))
    path = kept_weights.save(tmp_path / "ck", {"params": trained, "opt_state": state})
    values, report = restore(path)
    assert_same(values, trained)
    assert (
        "because the optimizer is schedule-free. --weights opt_state computes those for evaluation" in report.notes[0]
    )
    values, report = restore(path, "opt_state")
    assert_same(values, contrib.schedule_free_eval_params(state, trained), rtol=1e-5)
    assert parts(report) == {("average", "opt_state/z")}
    assert report.origins["w0"].detail.startswith("computed from 'params' and 'opt_state/z' for evaluation")


def test_slow_weights_of_lookahead_are_named(tmp_path: Path) -> None:
    import jax
    import optax

    from tests.exporter import kept_weights

    both = optax.LookaheadParams.init_synced(kept_weights.params())
    both = both._replace(slow=jax.tree.map(lambda one: one + 0.25, both.slow))
    path = kept_weights.save(tmp_path / "ck", {"params": both})
    with pytest.raises(
        CheckpointMismatch, match=r"'params/fast', 'params/slow'\. Choose the model's part with --weights"
    ):
        restore(path)
    values, report = restore(path, "params/slow")
    assert_same(values, both.slow)
    assert parts(report) == {("parameters", "params/slow")}


def test_averages_of_gradients_have_other_names(tmp_path: Path) -> None:
    import jax

    from tests.exporter import kept_weights

    trained = kept_weights.params()
    small = jax.tree.map(lambda one: one[::-1] * 1e-3, trained)
    path = kept_weights.save(tmp_path / "named", {"params": trained, "grad_ema": small})
    assert_same(restore(path)[0], trained)
    path = kept_weights.save(tmp_path / "unnamed", {"params": trained, "ema": small})
    with pytest.raises(CheckpointMismatch, match=r"'ema' is far from 'params': 0\.001 times their length"):
        restore(path)
    assert_same(restore(path, "raw")[0], trained)


def test_adapters_and_unfilled_averages_beside_the_parameters_are_refused(tmp_path: Path) -> None:
    import jax

    from tests.exporter import kept_weights

    trained = kept_weights.params()
    adapters = {"w0": {"a": np.ones((6, 2), "f"), "b": np.ones((2, 8), "f")}}
    path = kept_weights.save(tmp_path / "adapted", {"params": trained, "lora_params": adapters})
    with pytest.raises(CheckpointMismatch, match=r"2 unused.*merge the adapters"):
        restore(path)
    first = jax.tree.map(lambda one: one[::-1], trained)  # an average that still has the first weights
    path = kept_weights.save(tmp_path / "unfilled", {"params": trained, "swa_params": first})
    with pytest.raises(CheckpointMismatch, match=r"'swa_params' is far from 'params': 1\.00 times their length"):
        restore(path)
    assert_same(restore(path, "ema")[0], first)
