"""Orbax checkpoints that are damaged, do not match the model, or belong to models that cannot become programs."""

import functools
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from tests.exporter.bad_inputs.case import Case, Section, cut, remove
from tests.exporter.bad_inputs.tf2_checkpoint import MODELS, NO_TORCH

_FEATURES = "--input 'features:float32[batch,3]'"
_EXPORT = f"checkpoints models/scorer {_FEATURES}"
_SCORER = f"{_EXPORT} --model models:scorer"
_POSITIONS = "checkpoints models/scorer --input 'ids:int32[batch,length]' --model models:positions"
_STEP = "checkpoints/10/default"


def make(folder: Path) -> None:
    """Save a CheckpointManager's `checkpoints/` with step 10."""
    _save(folder, _state())
    shutil.copy(MODELS / "flax_models.py", folder / "models.py")


def _state() -> dict[str, Any]:
    import jax
    import optax

    from tests.exporter import flax_builders

    rows = np.ones((2, 3), np.float32)
    variables = flax_builders.scorer().init(jax.random.key(1), rows, train=False)
    return {**variables, "opt_state": optax.adam(1e-3).init(variables["params"]), "step": np.int32(10)}


def _save(folder: Path, state: dict[str, Any]) -> None:
    import orbax.checkpoint as ocp

    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    with ocp.CheckpointManager(folder / "checkpoints") as manager:
        manager.save(10, args=ocp.args.StandardSave(state))
        manager.wait_until_finished()


def _diverge(folder: Path) -> None:
    state = _state()
    state["params"]["scores"]["kernel"] = np.full((8, 2), np.nan, np.float32)
    _save(folder, state)


def _other(folder: Path) -> None:
    state = _state()
    state["params"]["extra"] = {"kernel": np.zeros((2, 2), np.float32)}
    state["params"]["scores"] = {"kernel": np.zeros((8, 2), np.int32)}
    _save(folder, state)


def _keep_average(folder: Path, of_gradients: bool) -> None:
    """Save the state of optax.ema after 100 steps with the decay 0.999: of the weights, or of gradients."""
    import jax

    state = _state()
    generator = np.random.default_rng(1)

    def average(one: Any) -> Any:  # noqa: ANN401 - an array of jax
        return 1e-3 * generator.normal(size=one.shape).astype(np.float32) if of_gradients else 0.0952 * one

    kept = {"count": np.int32(100), "ema": jax.tree.map(average, state["params"])}
    _save(folder, state | {"opt_state": (kept,)})


def _host(folder: Path) -> None:
    _save(folder, {"params": {"kernel": np.ones((3, 2), np.float32)}})


def _positions(folder: Path) -> None:
    _save(folder, {"words": np.ones((9, 2), np.float32), "positions": np.ones((12, 2), np.float32)})


def _break_off(folder: Path) -> None:
    (folder / "checkpoints/10").rename(folder / "checkpoints/10.orbax-checkpoint-tmp")


def _cut_arrays(folder: Path) -> None:
    for file in (folder / _STEP).rglob("d/*"):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


SECTION = Section(
    "Orbax checkpoints",
    "`checkpoints` is the directory of a CheckpointManager. It contains step 10 of a Flax linen module with the layers "
    "`hidden`, `norm` and `scores`, and its optimizer.",
    make,
    (
        Case("No finished step", 6, _SCORER, _break_off),
        Case("Missing manifest of the store", 6, _SCORER, remove(f"{_STEP}/manifest.ocdbt")),
        Case("Missing tree description", 6, _SCORER, remove(f"{_STEP}/_METADATA")),
        Case("Truncated tree description", 6, _SCORER, cut(f"{_STEP}/_METADATA", 300)),
        Case("Truncated arrays", 6, _SCORER, _cut_arrays),
        Case("Missing builder", 2, _EXPORT),
        Case("Missing inputs", 2, "checkpoints models/scorer --model models:scorer"),
        Case("Unknown builder module", 7, f"{_EXPORT} --model model:scorer"),
        Case("Unknown builder function", 7, f"{_EXPORT} --model models:score"),
        Case("Exception in the builder", 7, f"{_EXPORT} --model models:scorer_of --model-arg features=4"),
        Case("Wrong result of the builder", 7, f"{_EXPORT} --model models:no_model"),
        Case("Inputs that the module rejects", 7, f"{_EXPORT} --model models:other_input"),
        Case("Different shapes", 2, f"{_SCORER} --model-arg units=5"),
        Case("Several differences", 2, f"{_SCORER} --model-arg units=5", _other),
        Case("Missing averages", 2, f"{_SCORER} --weights ema"),
        Case("Average of gradients", 2, f"{_SCORER} --weights opt_state/0/ema",
             functools.partial(_keep_average, of_gradients=True)),
        Case("Average without its decay", 2, f"{_SCORER} --weights opt_state/0/ema",
             functools.partial(_keep_average, of_gradients=False)),
        Case("Optimizer state that has no weights", 2, f"{_SCORER} --weights opt_state/0/mu"),
        Case("NaN weights", 12, _SCORER, _diverge),
        Case("Operation that runs only on the host", 4,
             "checkpoints models/scorer --model models:lookup --input 'x:float32[batch,3]'", _host),
        Case("Length that the model limits", 4, _POSITIONS, _positions),
        Case("Sequence bucket that exceeds the model's limit", 7, f"{_POSITIONS} --sequence-buckets 8,16", _positions),
        Case("Missing JAX", 10, _SCORER, without=("jax", "flax", "orbax")),
        Case("Wrong kind: `--from tf2-ckpt`", 6, f"{_SCORER} --from tf2-ckpt"),
        Case("Wrong kind: `--from torch`", 6, f"{_SCORER} --from torch", without=NO_TORCH),
    ),
    packages=("flax", "orbax"),
)  # fmt: skip
