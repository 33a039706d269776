"""Tests that Orbax checkpoints of JAX models become versions that match JAX."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.exporter.conftest import Finished, read_manifest
from tests.exporter.served import call

pytestmark = [pytest.mark.xdist_group(__name__)]

Export = Callable[..., Finished]
MODELS = "tests.exporter.flax_builders"
FEATURES = ("--input", "features:float32[batch,3]", "--batch-sizes", "1,2")
ROWS = np.random.default_rng(5).random((2, 3)).astype(np.float32)


@pytest.fixture(scope="session")
def scorer_state(tensorflow: None) -> dict[str, Any]:
    """Return the state of a Flax linen and Optax run.

    It has parameters, statistics, an average, optimizer state and a step.
    """
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
    """Save a CheckpointManager's directory with steps 5 and 10."""
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


def test_the_latest_step_becomes_a_version(
    export: Export, scorer_state: dict[str, Any], scorer_steps: Path, tmp_path: Path
) -> None:
    finished = export(scorer_steps, tmp_path / "scorer", "--model", f"{MODELS}:scorer", *FEATURES)
    assert finished.code == 0, finished.err
    assert "8 matched, 13 of optimizer state not used" in finished.out
    manifest = read_manifest(tmp_path / "scorer/1")
    assert manifest["source"]["kind"] == "orbax"
    assert (manifest["source"]["name"], manifest["source"]["step"]) == ("steps/10", 10)
    assert manifest["compute_dtype"] == "float32"
    assert manifest["signatures"]["serving_default"]["inputs"]["features"]["shape"] == [None, 3]
    assert manifest["signatures"]["serving_default"]["rows_independent"]
    outputs = call(tmp_path / "scorer/1", features=ROWS)["outputs"]
    np.testing.assert_allclose(outputs, answer(scorer_state), atol=1e-6)


def test_an_nnx_model_is_made_without_values(export: Export, tensorflow: None, tmp_path: Path) -> None:
    from flax import nnx

    from tests.exporter import flax_builders

    model = flax_builders.Tower(nnx.Rngs(2))
    source = save(tmp_path / "tower", {"model": nnx.state(model), "step": 12}, use_ocdbt=False, use_zarr3=False)
    finished = export(source, tmp_path / "base", "--model", f"{MODELS}:abstract_tower", *FEATURES)
    assert finished.code == 0, finished.err
    assert "orbax tower at step 12; 10 matched" in finished.out
    model.eval()
    outputs = call(tmp_path / "base/1", features=ROWS)["outputs"]
    np.testing.assert_allclose(outputs, np.asarray(model(ROWS)), atol=1e-6)


def test_inputs_and_outputs_have_the_names_of_the_function(export: Export, tensorflow: None, tmp_path: Path) -> None:
    """Export a named item of a step. The rows are the first dimension of both inputs."""
    import orbax.checkpoint as ocp

    kernel = np.arange(6, dtype=np.float32).reshape(3, 2)
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        items = {"params": ocp.args.StandardSave({"kernel": kernel}), "notes": ocp.args.JsonSave({"by": "test"})}
        manager.save(3, args=ocp.args.Composite(**items))
        manager.wait_until_finished()
    inputs = ("--input", "x:float32[batch,3]", "--input", "scale:float32[batch]", "--batch-sizes", "2")
    finished = export(tmp_path / "run/3", tmp_path / "base", "--model", f"{MODELS}:applied", *inputs)
    assert finished.code == 0, finished.err
    outputs = call(tmp_path / "base/1", x=ROWS, scale=np.array([1, 2], np.float32))
    np.testing.assert_allclose(outputs["scores"], ROWS @ kernel * [[1], [2]], rtol=1e-5)
    assert outputs["rows"].tolist() == [1, 2]


def test_a_program_for_each_batch_size_where_rows_cannot_be_free(
    export: Export, tensorflow: None, tmp_path: Path
) -> None:
    import tensorflow as tf

    kernel = np.arange(6, dtype=np.float32).reshape(3, 2)
    source = save(tmp_path / "picky", {"params": {"kernel": kernel}})
    inputs = ("--input", "x:float32[batch,3]", "--batch-sizes", "1,4")
    finished = export(source, tmp_path / "base", "--model", f"{MODELS}:row_picky", *inputs)
    assert finished.code == 0, finished.err
    assert "JAX cannot leave the number of rows free (InconclusiveDimensionOperation" in finished.out
    assert "a program for each of the batch sizes 1, 4, and a request can have at most 4 rows" in finished.out
    x = np.random.default_rng(1).random((3, 3)).astype(np.float32)
    np.testing.assert_allclose(call(tmp_path / "base/1", x=x)["outputs"], x @ kernel, rtol=1e-5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="at most 4 rows fit into one batch"):
        call(tmp_path / "base/1", x=np.zeros((5, 3), np.float32))


@pytest.fixture(scope="module")
def positions(tensorflow: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    generator = np.random.default_rng(7)
    params = {"words": generator.random((9, 2), np.float32), "positions": generator.random((12, 2), np.float32)}
    return save(tmp_path_factory.mktemp("positions") / "saved", params), params


IDS = ("--input", "ids:int32[batch,length]", "--batch-sizes", "1,4")


@pytest.mark.parametrize("builder", ["positions", "rows_and_positions"])
def test_learned_positions_take_lengths_up_to_the_largest_bucket(
    export: Export, positions: tuple[Path, dict[str, Any]], tmp_path: Path, builder: str
) -> None:
    import tensorflow as tf

    source, params = positions
    finished = export(source, tmp_path / "base", "--model", f"{MODELS}:{builder}", *IDS, "--sequence-buckets", "4,12")
    assert finished.code == 0, finished.err
    assert "A request can be at most 12 long, the largest of --sequence-buckets" in finished.out
    for length in (1, 3, 4, 11, 12):
        ids = np.arange(2 * length, dtype=np.int32).reshape(2, length) % 9
        outputs = call(tmp_path / "base/1", ids=ids)["outputs"]
        np.testing.assert_allclose(outputs, params["words"][ids] + params["positions"][:length], rtol=1e-6)
    with pytest.raises(tf.errors.InvalidArgumentError, match="input ids can be at most 12 long"):
        call(tmp_path / "base/1", ids=np.zeros((1, 13), np.int32))


@pytest.mark.parametrize(
    ("buckets", "code", "message"),
    [
        ((), 4, "List the lengths that servers pad to, such as --sequence-buckets 64,128"),
        (("--sequence-buckets", "4,16"), 7, "16 is the largest of --sequence-buckets. Is it longer than the model"),
    ],
)
def test_learned_positions_without_a_fitting_limit_are_refused(
    export: Export, positions: tuple[Path, Any], tmp_path: Path, buckets: tuple[str, ...], code: int, message: str
) -> None:
    finished = export(positions[0], tmp_path / "base", "--model", f"{MODELS}:positions", *IDS, *buckets)
    assert finished.code == code
    assert message in finished.err


def test_a_tree_of_haiku_keeps_its_names_everywhere(export: Export, tensorflow: None, tmp_path: Path) -> None:
    """Export from a checkpoint and from memory. The report, variables, programs and weights use the same names."""
    import jax

    from tests.exporter.flax_builders import haiku_like
    from tpuserve_exporter.api import export as export_live
    from tpuserve_exporter.programs.weights_file import WEIGHTS_FILE, map_weights

    apply, shapes = haiku_like()
    random = np.random.default_rng(2)
    params = jax.tree.map(lambda leaf: random.normal(size=leaf.shape).astype(np.float32), shapes)
    source = save(tmp_path / "haiku", {"params": params, "step": 3})
    options = (*FEATURES, "--device-programs", "--json")
    finished = export(source, tmp_path / "base", "--model", f"{MODELS}:haiku_like", *options)
    assert finished.code == 0, finished.err
    live = export_live(
        (apply, params), tmp_path / "live", input=FEATURES[1], batch_sizes=(1, 2), device_programs=True, progress=False
    )
    names = {"mlp/~/linear_0/b", "mlp/~/linear_0/w", "mlp/~/linear_1/w"}
    for version, document in ((tmp_path / "base/1", finished.document), (tmp_path / "live/1", live.report)):
        assert set(read_manifest(version)["device"]["parts"]["device"]["weights"]) == names
        weights = map_weights(version / WEIGHTS_FILE)
        np.testing.assert_array_equal(weights["mlp/~/linear_1/w"], params["mlp/~/linear_1"]["w"])
        assert {variable["name"] for variable in document["variables"]} == names
        outputs = call(version, features=ROWS)["outputs"]
        np.testing.assert_allclose(outputs, apply(params, None, features=ROWS), atol=1e-6)


def test_every_mismatch_is_listed_and_nothing_published(
    export: Export, scorer_state: dict[str, Any], tmp_path: Path
) -> None:
    params = {**scorer_state["params"], "extra": {"kernel": np.zeros((2, 2), np.float32)}}
    params["scores"] = {"kernel": np.zeros((8, 2), np.int32)}
    source = save(tmp_path / "other", {**scorer_state, "params": params})
    finished = export(
        source, tmp_path / "base", "--model", f"{MODELS}:scorer", "--model-arg", "units=5", *FEATURES, "--json"
    )
    assert finished.code == 2
    fates = {entry["name"]: entry["fate"] for entry in finished.document["restore"]["variables"]}
    assert fates == {
        "params/hidden/kernel": "shape differs",
        "params/hidden/bias": "shape differs",
        "params/norm/scale": "shape differs",
        "params/norm/bias": "shape differs",
        "batch_stats/norm/mean": "shape differs",
        "batch_stats/norm/var": "shape differs",
        "params/scores/kernel": "shape differs",
        "params/scores/bias": "missing",
        "params/extra/kernel": "unused",
    }
    assert not (tmp_path / "base").exists()


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--model", f"{MODELS}:scorer", "--input", "x:text[batch]"), 2, "--input x: JAX has no dtype 'text'"),
        (
            ("--model", f"{MODELS}:scorer", *FEATURES, "--compute-dtype", "bfloat16"),
            2,
            "--compute-dtype does not apply",
        ),
        (("--model", f"{MODELS}:scorer", *FEATURES, "--allow-missing", "*"), 2, "--allow-missing does not apply"),
        (
            ("--model", f"{MODELS}:applied", *FEATURES, "--input", "b:int32[batch]", "--input", "c:int32[batch]"),
            2,
            "the model takes x, scale, but --input names features, b, c",
        ),
    ],
)
def test_wrong_use_is_told(
    export: Export, scorer_steps: Path, tmp_path: Path, options: tuple[str, ...], code: int, message: str
) -> None:
    finished = export(scorer_steps, tmp_path / "base", *options)
    assert (finished.code, message in finished.err) == (code, True), finished.err
    assert not (tmp_path / "base").exists()


_SAVE_SHARDED = """
import sys, jax, numpy as np, orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
mesh = Mesh(np.array(jax.devices()), ("model",))
kernel = jax.device_put(np.arange(64, dtype=np.float32).reshape(8, 8), NamedSharding(mesh, PartitionSpec("model")))
assert len(kernel.sharding.device_set) == 4
with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(sys.argv[1], {"params": {"kernel": kernel}})
"""


def test_arrays_sharded_over_devices_that_are_not_here_are_read_whole(tensorflow: None, tmp_path: Path) -> None:
    import jax

    from tpuserve_exporter.sources.trees.orbax import OrbaxTree

    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    arguments = [sys.executable, "-c", _SAVE_SHARDED, str(tmp_path / "sharded")]
    subprocess.run(arguments, env=environment, check=True, timeout=100)
    assert len(jax.devices()) == 1
    tree = OrbaxTree(tmp_path / "sharded")
    values = tree.read({("params", "kernel")})
    np.testing.assert_array_equal(values["params", "kernel"], np.arange(64).reshape(8, 8))
