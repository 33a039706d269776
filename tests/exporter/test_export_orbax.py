"""Orbax checkpoints of JAX models become versions that answer as JAX does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.exporter.conftest import Finished, read_manifest

pytestmark = [pytest.mark.xdist_group("exporter"), pytest.mark.timeout(120)]

Export = Callable[..., Finished]
MODELS = "tests.exporter.flax_builders"
FEATURES = ("--input", "features:float32[batch,3]", "--batch-sizes", "1,2")
ROWS = np.random.default_rng(5).random((2, 3)).astype(np.float32)


@pytest.fixture(scope="session")
def scorer_state(tensorflow: None) -> dict[str, Any]:
    """What a run with Flax linen and Optax keeps: parameters, statistics, an average, the optimizer's state, a step."""
    import jax
    import optax

    from tests.exporter import flax_builders

    variables = flax_builders.scorer().init(jax.random.key(1), ROWS, train=False)
    params, statistics = variables["params"], jax.tree.map(lambda leaf: leaf + 0.25, variables["batch_stats"])
    return {
        "params": params,
        "batch_stats": statistics,
        "opt_state": optax.adam(1e-3).init(params),
        "step": np.int32(7),
        "dropout_rng": jax.random.key_data(jax.random.key(3)),
    }


@pytest.fixture(scope="session")
def scorer_steps(scorer_state: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CheckpointManager's directory with steps 5 and 10."""
    import orbax.checkpoint as ocp

    directory = tmp_path_factory.mktemp("orbax") / "steps"
    with ocp.CheckpointManager(directory) as manager:
        for step in (5, 10):
            manager.save(step, args=ocp.args.StandardSave(scorer_state))
        manager.wait_until_finished()
    return directory


def save(directory: Path, tree: Any, **how: Any) -> Path:  # noqa: ANN401 - any tree, any way
    import orbax.checkpoint as ocp

    with ocp.PyTreeCheckpointer(**how) as checkpointer:
        checkpointer.save(directory, tree)
    return directory


def answer(state: dict[str, Any], rows: Any = ROWS) -> Any:  # noqa: ANN401 - arrays
    from tests.exporter import flax_builders

    variables = {"params": state["params"], "batch_stats": state["batch_stats"]}
    return np.asarray(flax_builders.scorer().apply(variables, rows, train=False))


def serve(version: Path, **inputs: Any) -> dict[str, Any]:  # noqa: ANN401 - arrays
    import tensorflow as tf

    outputs = tf.saved_model.load(str(version)).signatures["serving_default"](
        **{name: tf.constant(value) for name, value in inputs.items()}
    )
    return {name: value.numpy() for name, value in outputs.items()}


def test_the_latest_step_becomes_a_version(
    export: Export, scorer_state: dict[str, Any], scorer_steps: Path, tmp_path: Path
) -> None:
    finished = export(scorer_steps, tmp_path / "scorer", "--model", f"{MODELS}:scorer", *FEATURES)
    assert finished.code == 0, finished.err
    assert "8 matched, 13 of optimizer state left out" in finished.out
    manifest = read_manifest(tmp_path / "scorer/1")
    assert manifest["source"]["kind"] == "orbax"
    assert (manifest["source"]["name"], manifest["source"]["step"]) == ("steps/10", 10)
    assert manifest["compute_dtype"] == "float32"
    assert manifest["signatures"]["serving_default"]["inputs"]["features"]["shape"] == [None, 3]
    assert manifest["signatures"]["serving_default"]["rows_independent"]
    outputs = serve(tmp_path / "scorer/1", features=ROWS)["outputs"]
    np.testing.assert_allclose(outputs, answer(scorer_state), atol=1e-6)
