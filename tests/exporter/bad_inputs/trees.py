"""Trees of Flax, T5X and .npz that are damaged, and modules whose answers change from call to call."""

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from tests.exporter.bad_inputs.case import Case, Section, cut, remove
from tests.exporter.bad_inputs.tf2_checkpoint import MODELS

_OPTIONS = "models/scorer --input 'x:float32[batch,3]' --model models:"
_KERNEL = np.arange(6, dtype=np.float32).reshape(3, 2)


def make(folder: Path) -> None:
    """Save one parameter in every format."""
    from flax import serialization

    shutil.copy(MODELS / "flax_models.py", folder / "models.py")
    tree = {"params": {"kernel": _KERNEL}}
    (folder / "params.msgpack").write_bytes(serialization.to_bytes(tree))
    (folder / "params.pkl").write_bytes(pickle.dumps(tree))
    arrays: dict[str, Any] = {"params/kernel": _KERNEL}
    np.savez(folder / "params.npz", **arrays)
    step = folder / "run/checkpoint_1000"
    step.mkdir(parents=True)
    reference = _write_zarr(step / "target.kernel")
    content = serialization.msgpack_serialize({"version": 3, "optimizer": {"target": {"kernel": reference}}})
    (step / "checkpoint").write_bytes(content)


def _write_zarr(path: Path) -> dict[str, Any]:
    import tensorstore

    spec: dict[str, Any] = {
        "driver": "zarr", "dtype": "float32", "kvstore": {"driver": "file", "path": str(path)},
        "metadata": {"shape": [3, 2], "chunks": [1, 2], "compressor": {"id": "gzip"}},
    }  # fmt: skip
    tensorstore.open(spec, create=True, open=True).result().write(_KERNEL).result()
    spec["kvstore"]["path"] = path.name
    return spec


SECTION = Section(
    "Flax, T5X and `.npz` checkpoints",
    "`params.msgpack`, `params.npz`, `params.pkl` and `run/checkpoint_1000` contain one parameter, `kernel`.",
    make,
    (
        Case("Truncated Flax file", 6, f"params.msgpack {_OPTIONS}kernel", cut("params.msgpack", 40)),
        Case("Missing file of an array", 6, f"run {_OPTIONS}kernel", remove("run/checkpoint_1000/target.kernel/1.0")),
        Case("Truncated `.npz` file", 6, f"params.npz {_OPTIONS}kernel", cut("params.npz", 100)),
        Case("Python pickle", 11, f"params.pkl {_OPTIONS}kernel"),
        Case("Module with `decode=True`", 7, f"params.msgpack {_OPTIONS}decoder"),
        Case("Dropout in training mode", 7, f"params.msgpack {_OPTIONS}dropout"),
        Case("NNX module that draws random numbers", 3, f"params.msgpack {_OPTIONS}noisy"),
        Case("Argument that is no input", 2, f"params.msgpack {_OPTIONS}repeated"),
    ),
    packages=("flax", "orbax"),
)
