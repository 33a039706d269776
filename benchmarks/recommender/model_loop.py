"""Upper bound of the recommender: the server's own executor runs batches in a loop, without a server.

`model_loop.py tensorflow|pjrt VERSION_DIR SHAPE` prints `ready`. For each line `ROWS SECONDS` on standard input, it
prints milliseconds of a batch of ROWS rows: the mean, the p99 and the CPU of this process. Each batch has other items.
"""

import os
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from benchmarks.harness.load_tools import percentile
from benchmarks.recommender.dlrm import SCORE, SHAPES, Tensors, requests
from tpuserve_server.core.terms.servable import Servable, VersionFiles
from tpuserve_server.core.terms.types import ServableId

_ITEMS = 4096
SIGNATURE = "serving_default"


def load(runtime: str, version: Path) -> Servable:
    """Load the version with `tensorflow`, or its device programs with `pjrt` on the CPU."""
    if runtime == "pjrt":
        from benchmarks.devices.executor_loop import open_servable

        return open_servable(version, "cpu")
    from tpuserve_server.executors.tensorflow import TensorFlowOptions
    from tpuserve_server.executors.tensorflow.executor import TensorFlowExecutor

    return TensorFlowExecutor(TensorFlowOptions()).load(ServableId("recommender", 1), VersionFiles(version))


def batch_ms(servable: Servable, items: Tensors, rows: int, seconds: float) -> tuple[float, float, float]:
    """Return milliseconds of a batch: the mean, the p99, and the mean CPU of the process. Calls are sequential."""
    _run(servable, items, rows, 0)
    times_s: list[float] = []
    began_cpu_s, began_s = time.process_time(), time.perf_counter()
    while (started_s := time.perf_counter()) - began_s < seconds or not times_s:
        _run(servable, items, rows, len(times_s))
        times_s.append(time.perf_counter() - started_s)
    cpu_s = (time.process_time() - began_cpu_s) / len(times_s)
    return 1e3 * statistics.fmean(times_s), 1e3 * percentile(sorted(times_s), 99), 1e3 * cpu_s


def _run(servable: Servable, items: Tensors, rows: int, number: int) -> None:
    first = number * rows % (_ITEMS - rows)
    batch = {name: value[first : first + rows] for name, value in items.items()}
    servable.dispatch(SIGNATURE, batch, (SCORE,)).result()


def main(runtime: str, version: str, shape: str) -> None:
    servable = load(runtime, Path(version))
    items = requests(SHAPES[shape], _ITEMS)
    print("ready", flush=True)
    for line in sys.stdin:
        rows, seconds = line.split()
        print(*batch_ms(servable, items, int(rows), float(seconds)), flush=True)
    servable.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
