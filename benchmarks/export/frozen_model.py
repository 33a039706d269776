"""Measure the time that --freeze saves per request: MobileNetV2 exported with and without it, on the CPU.

    python -m benchmarks frozen_model

One process runs both versions in turn. The weights are random with statistics like those of trained weights. The time
of a request does not depend on them.
"""

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tpuserve_exporter.models.frameworks import start_tensorflow

SIDE = 96
ROUNDS = 100


def main() -> None:
    start_tensorflow()
    with tempfile.TemporaryDirectory() as folder:
        versions = {name: _export(Path(folder), freeze=name == "frozen") for name in ("default", "frozen")}
        sessions = {name: _open(version) for name, version in versions.items()}
        for rows in (1, 8):
            _compare(sessions, rows)


def _export(folder: Path, *, freeze: bool) -> Path:
    """Export a version into `folder`, and return its directory."""
    from tpuserve_exporter import export

    source = folder / "model.keras"
    if not source.exists():
        _save(source)
    return Path(str(export(source, folder / f"freeze_{freeze}", freeze=freeze, batch_sizes=(1, 8)).path))


def _save(path: Path) -> None:
    import keras

    model = keras.applications.MobileNetV2((SIDE, SIDE, 3), weights=None, classes=10)
    random = np.random.default_rng(1)
    for variable in model.variables:
        if variable.path.endswith(("variance", "gamma")):
            variable.assign(random.uniform(0.5, 1.5, variable.shape))
        elif variable.path.endswith(("beta", "mean")):
            variable.assign(random.normal(0.0, 0.2, variable.shape))
    model.save(path)


def _open(version: Path) -> Any:  # noqa: ANN401 - TensorFlow is untyped
    """Return a callable from images to outputs, with its own session, like in servers."""
    import tensorflow as tf

    graph = tf.Graph()
    with graph.as_default():
        session = tf.compat.v1.Session(graph=graph)
        meta = tf.compat.v1.saved_model.load(session, ["serve"], str(version))
    signature = meta.signature_def["serving_default"]
    (image,), (output,) = signature.inputs.values(), signature.outputs.values()
    return session.make_callable(output.name, [image.name])


def _compare(sessions: dict[str, Any], rows: int) -> None:
    """Return the medians of `ROUNDS` calls each. The calls alternate, so that other load affects both."""
    images = np.random.default_rng(2).random((rows, SIDE, SIDE, 3), np.float32)
    times: dict[str, list[float]] = {name: [] for name in sessions}
    for turn in range(ROUNDS + 5):
        for name, call in sessions.items():
            started = time.perf_counter()
            call(images)
            if turn >= 5:
                times[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(found) * 1e3 for name, found in times.items()}
    figures = ", ".join(f"{name} {median:.2f} ms" for name, median in medians.items())
    print(f"{rows} row(s): {figures}; ratio {medians['frozen'] / medians['default']:.2f}")
