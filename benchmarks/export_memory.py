"""How much memory and time an export takes: 2 GB of weights, and a ResNet-50 with parity at three batch sizes.

    python benchmarks/export_memory.py [--only wide|resnet50]

Makes a TF2 checkpoint in a temporary folder, exports it by the real command in a fresh process, and prints the peak of
that process's resident memory in units of the weights. Takes 5 GB of disk and 6 of memory; nothing is left behind.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_SAVE = """
import sys
from tpuserve_exporter.tensorflow_start import start_tensorflow
start_tensorflow()
import tensorflow as tf
from benchmarks import export_models
tf.train.Checkpoint(model=getattr(export_models, sys.argv[1])()).save(sys.argv[2])
"""


@dataclass(frozen=True, slots=True)
class Case:
    """A model of `export_models`, and what is promised: peak memory in units of its weights, or seconds."""

    model: str
    most_times_weights: float | None
    most_seconds: float | None


CASES = (Case("wide", 2.2, None), Case("resnet50", None, 60.0))


@dataclass(frozen=True, slots=True)
class Measured:
    """`weights_bytes` on disk; `peak_bytes` of resident memory; wall and CPU seconds, of all cores together."""

    weights_bytes: int
    peak_bytes: int
    seconds: float
    cpu_seconds: float


def measure(case: Case, folder: Path) -> Measured:
    """Save a checkpoint, and export it in a process of its own. Raises SystemExit where either fails."""
    _run([sys.executable, "-c", _SAVE, case.model, str(folder / "checkpoints" / "ckpt")])
    weights_bytes = sum(path.stat().st_size for path in (folder / "checkpoints").glob("*.data-*"))
    command = [sys.executable, "-m", "tpuserve_exporter.cli", str(folder / "checkpoints"), str(folder / case.model)]
    started = time.monotonic()
    usage = _run([*command, "--model", f"benchmarks.export_models:{case.model}", "--batch-sizes", "1,4,8"])
    wall = time.monotonic() - started
    return Measured(weights_bytes, usage.ru_maxrss * 1024, wall, usage.ru_utime + usage.ru_stime)


def _run(command: list[str]) -> resource.struct_rusage:
    """What the command used, ru_maxrss in KiB."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    process = subprocess.Popen(command, cwd=ROOT, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{command[1]} exited with status {process.returncode}")
    return usage


def report(case: Case, measured: Measured) -> bool:
    """Print what was measured; whether it is within what is promised."""
    ratio = measured.peak_bytes / measured.weights_bytes
    print(
        f"{case.model}: weights {measured.weights_bytes / 1e9:.2f} GB, peak {measured.peak_bytes / 1e9:.2f} GB "
        f"({ratio:.2f} times the weights), {measured.seconds:.1f} s ({measured.cpu_seconds:.1f} s of CPU)"
    )
    within = case.most_times_weights is None or ratio <= case.most_times_weights
    return within and (case.most_seconds is None or measured.seconds <= case.most_seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[case.model for case in CASES])
    only = parser.parse_args().only
    kept = True
    for case in CASES:
        if only in (None, case.model):
            with tempfile.TemporaryDirectory() as folder:
                kept = report(case, measure(case, Path(folder))) and kept
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
