"""The benchmark's model: a float32 MLP 64 -> 128 -> 10 with fixed random weights, as a SavedModel with a manifest.

Writing needs TensorFlow and runs in a separate process (`mlp_model.py BASE [DEEP_LAYERS]`), which keeps the measuring
process small. The weights come from numpy. Checking outputs does not need TensorFlow.
"""

import datetime
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]

FEATURES, HIDDEN, CLASSES = 64, 128, 10
BATCH_SIZES = (1, 2, 4, 8, 16, 32)
INPUT, OUTPUT, SIGNATURE, DEEP_SIGNATURE = "x", "y", "serving_default", "deep"
DEEP_FEATURES = 256
VERSION = 1


def weights() -> tuple[Floats, Floats]:
    """Return the two layers' weights, shapes (64, 128) and (128, 10), the same on every call."""
    random = np.random.default_rng(20)
    hidden = random.normal(0.0, FEATURES**-0.5, (FEATURES, HIDDEN)).astype(np.float32)
    out = random.normal(0.0, HIDDEN**-0.5, (HIDDEN, CLASSES)).astype(np.float32)
    return hidden, out


def example(rows: int = 1) -> Floats:
    """Return an input of shape (rows, 64), the same on every call."""
    return np.random.default_rng(rows).random((rows, FEATURES), np.float32)


def expected(x: Floats) -> Floats:
    """Return the model's output for x of shape (n, 64): shape (n, 10)."""
    hidden, out = weights()
    y: Floats = np.maximum(x @ hidden, np.float32(0)) @ out
    return y


def write(base: Path, deep_layers: int = 0) -> Path:
    """Write version 1 below `base` and return its directory. Imports TensorFlow.

    `deep_layers` adds a second signature, `deep`, with that many layers of 256 by 256. Each layer has 0.26 MB and seven
    graph nodes. Such a version loads slowly, while its first signature stays fast.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    module = tf.Module()
    module.hidden, module.out = (tf.Variable(layer) for layer in weights())

    def serve(x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {OUTPUT: tf.nn.relu(x @ module.hidden) @ module.out}

    random = np.random.default_rng(21)
    module.deep = [
        tf.Variable(random.normal(0.0, 1 / 16, (DEEP_FEATURES, DEEP_FEATURES)).astype(np.float32))
        for _ in range(deep_layers)
    ]
    module.bias = [tf.Variable(np.zeros(DEEP_FEATURES, np.float32)) for _ in range(deep_layers)]

    def serve_deep(x: tf.Tensor) -> dict[str, tf.Tensor]:
        for index in range(deep_layers):
            x = tf.nn.relu(x @ module.deep[index] + module.bias[index])
        return {OUTPUT: x}

    functions = {SIGNATURE: (serve, FEATURES)} | ({DEEP_SIGNATURE: (serve_deep, DEEP_FEATURES)} if deep_layers else {})
    signatures = {
        name: tf.function(function, input_signature=[tf.TensorSpec((None, features), tf.float32, name=INPUT)])
        for name, (function, features) in functions.items()
    }
    version = base / str(VERSION)
    tf.saved_model.save(module, str(version), signatures=signatures)
    write_manifest(version, tuple(functions))
    return version


def write_manifest(version: Path, signatures: tuple[str, ...]) -> None:
    """Write the manifest of a version whose signatures have independent rows."""
    files = sorted(path for path in version.rglob("*") if path.is_file())
    manifest = {
        "format_version": 1,
        "exporter_version": "benchmarks",
        "created_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "source": {"kind": "savedmodel", "name": "mlp"},
        "compute_dtype": "float32",
        "cpu": {"allow_bfloat16_kernels": False},
        "signatures": {name: {"batch_sizes": list(BATCH_SIZES), "rows_independent": True} for name in signatures},
        "parity": {"max_abs_difference": 0.0, "atol": 0.0, "rtol": 0.0, "rows": 0},
        "files": {str(path.relative_to(version)): _fingerprint(path) for path in files},
    }
    target = version / "assets.extra" / "tpuserve" / "manifest.json"
    target.parent.mkdir(parents=True)
    target.write_text(json.dumps(manifest, indent=2))


def _fingerprint(path: Path) -> dict[str, str | int]:
    content = path.read_bytes()
    return {"sha256": hashlib.sha256(content).hexdigest(), "size_bytes": len(content)}


if __name__ == "__main__":
    print(write(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
