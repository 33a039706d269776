"""The models of the benchmark device_programs, exported with the exporter's command. Their weights are random."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.process_tree import ServerDied
from benchmarks.harness.targets import ROOT


@dataclass(frozen=True, slots=True)
class Size:
    """A model, the number of rows of its measured batches, and the number of rows of a request.

    `turns` lengthens the rounds. Work in progress at the end of a round does not count, and must be a small share.
    """

    name: str
    title: str
    builder: str
    rows: int
    of_request: int
    turns: int = 1


MLP = Size("mlp", "MLP, 5 x 2048", "benchmarks.devices.tpu_builders:mlp", 64, 8)
RESNET = Size("resnet50", "ResNet-50", "benchmarks.devices.tpu_builders:resnet50", 8, 1, turns=3)
SIZES = (MLP, RESNET)


def find_or_export(size: Size, folder: Path) -> Path:
    """Return the base path of version 1 below `folder`. Exports the model first if it is missing.

    The export takes some minutes for the ResNet-50. Raises ServerDied with the output of a failed step.
    """
    base, checkpoints = folder / size.name, folder / "checkpoints" / size.name
    if (base / "1").exists():
        return base
    name = size.builder.partition(":")[2]
    _run(str(Path(__file__).with_name("tpu_builders.py")), str(checkpoints), name)
    command = [
        "-m",
        "tpuserve_exporter.command.exporting",
        str(checkpoints),
        str(base),
        "--device-programs",
        "--model",
        size.builder,
    ]
    # 50 layers with kernels other than the source's differ slightly more than those of a small model.
    _run(*command, "--batch-sizes", f"1,{size.rows}", "--atol", "1e-3", "--rtol", "1e-3")
    return base


def _run(*arguments: str) -> None:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "JAX_PLATFORMS": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ServerDied(f"The export of the model failed:\n{(done.stdout + done.stderr)[-2000:]}")
