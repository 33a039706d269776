"""`tpuserve serve` before a device that takes a set time: the real host and batcher, and the model's own answers.

Run as `tpuserve serve`, with a batch's fixed time and its time by the row before its flags, in milliseconds:
`python benchmarks/loadgen/scripted_server.py 60 2 --host_backend=python --model_name=digits --model_base_path=...`.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tpuserve_server import app
from tpuserve_server.__main__ import main as serve
from tpuserve_server.core.servable import Servable, VersionFiles
from tpuserve_server.core.tracer import Tracer
from tpuserve_server.core.types import ServableId, Signature, Tensors
from tpuserve_server.executors.tensorflow.on_demand import TensorFlowOnDemand
from tpuserve_server.executors.tensorflow.options import TensorFlowOptions


@dataclass
class ScriptedServable:
    """Batches follow each other on the device without a gap, as on a TPU: one is dispatched while another runs.

    The model itself runs in `dispatch`, in a part of the time that the device is said to take.
    """

    model: Servable
    cost_s: Callable[[int], float]
    max_in_flight: int = 2
    free_s: float = field(default=0.0, init=False)

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """The model's."""
        return self.model.signatures

    @property
    def device(self) -> str:
        """Not the model's."""
        return "scripted"

    def dispatch(self, signature_name: str, inputs: Tensors, output_names: Sequence[str]) -> "ScriptedRun":
        """Begin when all that was dispatched before has finished. One thread alone calls: the model's share of it."""
        rows = len(next(iter(inputs.values())))
        self.free_s = max(self.free_s, time.monotonic()) + self.cost_s(rows)
        return ScriptedRun(self.model.dispatch(signature_name, inputs, output_names).result(), self.free_s)

    def close(self) -> None:
        """Close the model."""
        self.model.close()


@dataclass(frozen=True, slots=True)
class ScriptedRun:
    """A batch on the scripted device."""

    outputs: Tensors
    finish_s: float

    def result(self) -> Tensors:
        """Wait until the device has finished."""
        time.sleep(max(self.finish_s - time.monotonic(), 0.0))
        return self.outputs


@dataclass(frozen=True, slots=True)
class ScriptedExecutor:
    """Puts what another executor loads onto the scripted device."""

    executor: TensorFlowOnDemand
    cost_s: Callable[[int], float]
    name: str = "a scripted device"
    kind: str = "cpu"

    def load(self, servable_id: ServableId, version: VersionFiles) -> ScriptedServable:
        """As the executor."""
        model = self.executor.load(servable_id, version)
        return ScriptedServable(model, self.cost_s)

    def tracer(self) -> Tracer:
        """As the executor."""
        return self.executor.tracer()


def main() -> None:
    """Serve until SIGTERM."""
    t0_ms, per_row_ms = float(sys.argv.pop(1)), float(sys.argv.pop(1))

    def scripted(options: TensorFlowOptions) -> ScriptedExecutor:
        return ScriptedExecutor(TensorFlowOnDemand(options), lambda rows: (t0_ms + per_row_ms * rows) / 1000)

    # The object graph has no place for a device like this one, nor should it: `build` makes its executor by this name.
    app.TensorFlowOnDemand = scripted  # type: ignore[assignment,attr-defined]
    serve()


if __name__ == "__main__":
    main()
