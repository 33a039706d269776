"""Measure memory and time of exports: 2 GB of weights, and a ResNet-50 with parity at three batch sizes.

    python -m benchmarks export_memory [--only wide,orbax,torch,programs,embedding,logits,resnet50]

Writes a checkpoint to a temporary directory and exports it with the exporter's command in a new process. Prints the
peak resident memory of that process relative to the weights. The 2 GB are measured as a checkpoint of TensorFlow 2, of
JAX (orbax) and, if torch is installed, of PyTorch. Two more models have one table of 2.56 GB, and outputs of 0.8 GB a
batch. Needs 8 GB of disk and 12 GB of memory, and leaves no files.
"""

import argparse
import importlib.util
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Case:
    """A model from `module`, and its limits: peak memory in units of its weights or in GB, or seconds.

    A `whole` source file holds its model, so that the command names no builder.
    """

    name: str
    module: str
    model: str
    most_times_weights: float | None = None
    most_gb: float | None = None
    most_seconds: float | None = None
    arguments: tuple[str, ...] = ()
    batch_sizes: str = "1,4,8"
    whole: bool = False
    needs: str = ""


_FEATURES = ("--input", "features:float32[batch,8192]")
CASES = (
    Case("wide", "models", "wide", most_times_weights=2.2),
    Case("orbax", "jax_models", "wide", most_times_weights=2.2, arguments=_FEATURES, needs="jax"),
    # Includes the mapped pages of the file, which the system reclaims when it needs memory.
    Case("torch", "torch_models", "wide", most_times_weights=2.9, arguments=_FEATURES, needs="torch"),
    # Includes the mapped pages of the weights file, which the CPU run of each program uses.
    Case("programs", "models", "wide", most_times_weights=2.9, arguments=("--device-programs",), needs="jax"),
    # The largest variable decides, which the exporter holds twice at most.
    Case("embedding", "models", "embedding", most_times_weights=2.8, whole=True),
    # The largest output decides: one answer of the source, and one of the version.
    Case(
        "logits",
        "jax_models",
        "logits",
        most_gb=4.0,
        batch_sizes="1,2,4,8,16,32",
        arguments=("--input", "ids:int32[batch,128]"),
        needs="jax",
    ),
    Case("resnet50", "models", "resnet50", most_seconds=60.0),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """`weights_bytes` in the version, `peak_bytes` of resident memory, wall seconds, and CPU seconds of all cores."""

    weights_bytes: int
    peak_bytes: int
    seconds: float
    cpu_seconds: float


def measure(case: Case, folder: Path) -> Measured:
    """Save a checkpoint, and export it in a separate process. Raises SystemExit if either fails."""
    checkpoints, base = folder / "checkpoints", folder / "models"
    _run([sys.executable, str(Path(__file__).with_name(f"{case.module}.py")), str(checkpoints), case.model])
    found = [*checkpoints.glob("*.pt"), *checkpoints.glob("*.keras"), checkpoints]
    command = [
        sys.executable,
        "-m",
        "tpuserve_exporter.command.exporting",
        str(found[0]),
        str(base),
        "--batch-sizes",
        case.batch_sizes,
    ]
    if not case.whole:
        command += ["--model", f"benchmarks.export.{case.module}:{case.model}"]
    started = time.monotonic()
    usage = _run([*command, *case.arguments])
    wall = time.monotonic() - started
    weights_bytes = sum(path.stat().st_size for path in base.glob("*/variables/*.data-*"))
    return Measured(weights_bytes, usage.ru_maxrss * 1024, wall, usage.ru_utime + usage.ru_stime)


def _run(command: list[str]) -> resource.struct_rusage:
    """Run the command and return its resource usage, with ru_maxrss in KiB."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    process = subprocess.Popen(command, cwd=ROOT, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{command[1]} exited with status {process.returncode}.")
    return usage


def report(case: Case, measured: Measured) -> bool:
    """Print the measurement. Return whether it is within the limits."""
    ratio = measured.peak_bytes / measured.weights_bytes
    print(
        f"{case.name}: weights {measured.weights_bytes / 1e9:.2f} GB, peak {measured.peak_bytes / 1e9:.2f} GB "
        f"({ratio:.2f} times the weights), {measured.seconds:.1f} s ({measured.cpu_seconds:.1f} s of CPU)"
    )
    within = case.most_times_weights is None or ratio <= case.most_times_weights
    within = within and (case.most_gb is None or measured.peak_bytes <= case.most_gb * 1e9)
    return within and (case.most_seconds is None or measured.seconds <= case.most_seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help=f"Comma-separated cases (default: {','.join(case.name for case in CASES)}).")
    only = parser.parse_args().only
    chosen = [case for case in CASES if only is None or case.name in only.split(",")]
    kept = True
    for case in chosen:
        if case.needs and importlib.util.find_spec(case.needs) is None:
            print(f"{case.name}: not measured, because {case.needs} is not installed")
            continue
        with tempfile.TemporaryDirectory() as folder:
            kept = report(case, measure(case, Path(folder))) and kept
    return 0 if kept else 1
