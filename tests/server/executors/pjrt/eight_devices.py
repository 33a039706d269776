"""Test program of test_mesh.py with eight virtual CPU devices: prints the results of a mesh as JSON."""

import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tpuserve_formats.mesh_shape import MeshShape
from tpuserve_server.core.terms.deadline import SystemClock
from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.core.terms.servable import Executor, VersionFiles
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.executors.pjrt import PjrtOptions
from tpuserve_server.executors.pjrt.executor import PjrtExecutor
from tpuserve_server.observe.metrics.measurements import DeviceMeasurements


def no_host() -> Executor:
    raise AssertionError("nothing here needs TensorFlow")


def run(version: Path, mesh: str, rows: int) -> dict[str, Any]:
    """Return the outputs for `rows` rows of consecutive ids, and each device's share of the weights."""
    before = {id(array) for array in jax.live_arrays()}
    measured = DeviceMeasurements()
    try:
        executor = PjrtExecutor(PjrtOptions("cpu", MeshShape.parse(mesh)), no_host, measured, SystemClock())
        servable = executor.load(ServableId("m", 1), VersionFiles(version))
    except ServingError as error:
        return {"error": error.message}
    held = [array for array in jax.live_arrays() if id(array) not in before]
    shards = {str(array.shape): array.addressable_shards[0].data.shape for array in held}
    ids = np.arange(rows * 3, dtype=np.int64).reshape(rows, 3)
    outputs = servable.dispatch("serving_default", {"ids": ids}, ("pooled", "ids")).result()
    # Convert to lists: arrays may be views of a device's memory.
    answers = {name: array.tolist() for name, array in outputs.items()}
    del outputs, held
    servable.close()
    return {
        "device": servable.device,
        "gauges": [gauge.name for gauge in measured.gauges()],
        "shards": shards,
        **answers,
        "left": len([array for array in jax.live_arrays() if id(array) not in before]),
    }


print(json.dumps([run(Path(version), mesh, int(rows)) for version, mesh, rows in json.loads(sys.argv[1])]))
