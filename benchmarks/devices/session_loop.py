"""Upper bound for serving: the server's own executor calls a version's signature in a loop, without a server.

`session_loop.py VERSION_DIR bfloat16` (or `float32`) prints `ready`. A third argument, `openvino`, runs the signature
with OpenVINO, whatever a trial would choose. For each line `ROWS SECONDS` on standard input, it
prints the rows per second of a loop with batches of ROWS rows.
"""

import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from benchmarks.devices import resnet_model
from tpuserve_server.core.terms.servable import Servable, VersionFiles
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.executors.openvino.candidate import OpenVinoServable
from tpuserve_server.executors.openvino.model import OpenVinoModel
from tpuserve_server.executors.tensorflow import TensorFlowOptions
from tpuserve_server.executors.tensorflow.executor import TensorFlowExecutor

SIGNATURE = "serving_default"


def rate(servable: Servable, rows: int, seconds: float) -> float:
    """Return the rows per second of sequential calls, without the first call."""
    inputs = {resnet_model.INPUT: resnet_model.images(rows)}
    servable.dispatch(SIGNATURE, inputs, (resnet_model.OUTPUT,)).result()
    began_s = time.monotonic()
    calls = 0
    while (spent_s := time.monotonic() - began_s) < seconds:
        servable.dispatch(SIGNATURE, inputs, (resnet_model.OUTPUT,)).result()
        calls += 1
    return rows * calls / spent_s


def load(path: Path, precision: str, runtime: str) -> Servable:
    """Load the version in `path` with `runtime`: `tensorflow` or `openvino`."""
    is_bfloat16 = precision == "bfloat16"
    options = TensorFlowOptions(mixed_precision="bfloat16" if is_bfloat16 else "")
    servable = TensorFlowExecutor(options).load(ServableId(resnet_model.NAME, 1), VersionFiles(path))
    if runtime == "tensorflow":
        return servable
    model = OpenVinoModel(path, servable.signatures[SIGNATURE], bfloat16=is_bfloat16, num_threads=0)
    servable.close()
    return OpenVinoServable(model, servable.signatures, None, "CPU")


def main() -> None:
    servable = load(Path(sys.argv[1]), sys.argv[2], (*sys.argv[3:], "tensorflow")[0])
    print("ready", flush=True)
    for line in sys.stdin:
        rows, seconds = line.split()
        print(rate(servable, int(rows), float(seconds)), flush=True)
    servable.close()


if __name__ == "__main__":
    main()
