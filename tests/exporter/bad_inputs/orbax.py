"""Orbax checkpoints that are damaged, do not match the model, or belong to models that cannot become programs."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from tests.exporter.bad_inputs.case import Case, Section, cut, remove
from tests.exporter.bad_inputs.tf2_checkpoint import MODELS, NO_TORCH

_FEATURES = "--input 'features:float32[batch,3]'"
_EXPORT = f"checkpoints models/scorer {_FEATURES}"
_SCORER = f"{_EXPORT} --model models:scorer"
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


def _host(folder: Path) -> None:
    _save(folder, {"params": {"kernel": np.ones((3, 2), np.float32)}})


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
        Case("No step was finished", 6, _SCORER, _break_off),
        Case("The store's manifest is missing", 6, _SCORER, remove(f"{_STEP}/manifest.ocdbt")),
        Case("The tree's description is missing", 6, _SCORER, remove(f"{_STEP}/_METADATA")),
        Case("The tree's description is cut short", 6, _SCORER, cut(f"{_STEP}/_METADATA", 300)),
        Case("The arrays are cut short", 6, _SCORER, _cut_arrays),
        Case("No builder is named", 2, _EXPORT),
        Case("No inputs are given", 2, "checkpoints models/scorer --model models:scorer"),
        Case("The builder's module is not found", 7, f"{_EXPORT} --model model:scorer"),
        Case("The builder's function is not found", 7, f"{_EXPORT} --model models:score"),
        Case("The builder raises", 7, f"{_EXPORT} --model models:scorer_of --model-arg features=4"),
        Case("The builder returns something else", 7, f"{_EXPORT} --model models:no_model"),
        Case("The module fails for these inputs", 7, f"{_EXPORT} --model models:other_input"),
        Case("Shapes differ", 2, f"{_SCORER} --model-arg units=5"),
        Case("Several things differ at once", 2, f"{_SCORER} --model-arg units=5", _other),
        Case("There are no averages", 2, f"{_SCORER} --weights ema"),
        Case("Weights are NaN", 12, _SCORER, _diverge),
        Case("An operation is of the host alone", 4,
             "checkpoints models/scorer --model models:lookup --input 'x:float32[batch,3]'", _host),
        Case("JAX is not installed", 10, _SCORER, without=("jax", "flax", "orbax")),
        Case("`--from` says it is of TensorFlow", 6, f"{_SCORER} --from tf2-ckpt"),
        Case("`--from` says it is of PyTorch", 6, f"{_SCORER} --from torch", without=NO_TORCH),
    ),
    packages=("flax", "orbax"),
)  # fmt: skip
