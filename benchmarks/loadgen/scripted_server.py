"""`tpuserve serve` on a device of known speed: the real host and batcher, and the model's own outputs.

Run like `tpuserve serve`, with a batch's fixed time and its time per row, in milliseconds, before the flags: `python
benchmarks/loadgen/scripted_server.py 60 2 --model_name=digits --model_base_path=...`.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tpuserve_server.core.system.memory import HostMemory
from tpuserve_server.core.terms.servable import DeviceMetrics, Servable, VersionFiles
from tpuserve_server.core.terms.tracer import Tracer
from tpuserve_server.core.terms.types import ServableId, Signature, Tensors
from tpuserve_server.executors.tensorflow import TensorFlowOptions, on_demand
from tpuserve_server.executors.tensorflow.on_demand import TensorFlowOnDemand
from tpuserve_server.hosts import supervisor
from tpuserve_server.startup.command import main as serve
from tpuserve_server.startup.serve import main as serve_models
from tpuserve_server.startup.settings import SETTINGS_VARIABLE

# Environment variable with the two costs.
COSTS = "SCRIPTED_DEVICE_MS"


@dataclass
class ScriptedServable:
    """A servable on a device that runs batches without a gap, like a TPU: the next batch is dispatched while one runs.

    `dispatch` runs the model itself, in less than the scripted time of the device.
    """

    model: Servable
    cost_s: Callable[[int], float]
    max_in_flight: int = 2
    free_s: float = field(default=0.0, init=False)

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """The model's signatures."""
        return self.model.signatures

    @property
    def device(self) -> str:
        """Name of the device, which is not the model's."""
        return "scripted"

    @property
    def unrepeatable(self) -> str:
        """The model's."""
        return self.model.unrepeatable

    @property
    def never_blocks(self) -> bool:
        """False, because a run sleeps."""
        return False

    def dispatch(self, signature_name: str, inputs: Tensors, output_names: Sequence[str]) -> "ScriptedRun":
        """Start after all earlier dispatches have finished. Only the thread of the model's device share calls this."""
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
    """An executor that moves the models of another executor to the scripted device."""

    executor: TensorFlowOnDemand
    cost_s: Callable[[int], float]
    name: str = "a scripted device"
    kind: str = "cpu"

    def load(self, servable_id: ServableId, version: VersionFiles) -> ScriptedServable:
        """Load with the wrapped executor."""
        model = self.executor.load(servable_id, version)
        return ScriptedServable(model, self.cost_s)

    def tracer(self) -> Tracer | None:
        """Return the tracer of the wrapped executor."""
        return self.executor.tracer()


def script_device(t0_ms: float, per_row_ms: float) -> None:
    """Move the models of this process to the scripted device."""

    def scripted(
        options: TensorFlowOptions, memory: HostMemory, metrics: DeviceMetrics | None = None
    ) -> ScriptedExecutor:
        model = TensorFlowOnDemand(options, memory, metrics)
        return ScriptedExecutor(model, lambda rows: (t0_ms + per_row_ms * rows) / 1000)

    # The object graph must not know this device. The executor's package creates the candidate by this name.
    on_demand.TensorFlowOnDemand = scripted  # type: ignore[assignment,misc]


def main() -> None:
    """Serve until SIGTERM. The supervisor runs this program, too, as the process of the models."""
    if SETTINGS_VARIABLE in os.environ:
        script_device(*map(float, os.environ[COSTS].split()))
        serve_models()
        return
    os.environ[COSTS] = f"{sys.argv.pop(1)} {sys.argv.pop(1)}"
    run = supervisor.run
    supervisor.run = lambda _, *arguments: run("benchmarks.loadgen.scripted_server", *arguments)
    serve()


if __name__ == "__main__":
    main()
