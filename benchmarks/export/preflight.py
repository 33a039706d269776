"""Measure the time to check whether a ResNet-50 runs on a TPU: three batch sizes for each of two TPUs.

    python -m benchmarks preflight [--tpu v5e:1x1,v6e:1x1] [--version DIRECTORY]

Exports Keras' ResNet-50 with device programs, which takes some minutes, or uses an existing version. Runs `tpuserve
check` on it in a new process, and measures its seconds, CPU seconds and the resident memory of its largest process.
Exits with 1 if the check takes longer than the limit. Needs libtpu (the exporter's extra tpu) and no TPU.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BATCH_SIZES = "1,8,32"
MOST_SECONDS = 120.0
# The export compares programs with the model on this machine's CPU. 50 layers of other kernels differ slightly more.
_TOLERANCE = ("--atol", "1e-3", "--rtol", "1e-3")
_ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    "JAX_PLATFORMS": "cpu",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


def export(folder: Path) -> Path:
    """Export a ResNet-50 with random weights and a program for each batch size, and return the version."""
    checkpoints, base = folder / "checkpoints", folder / "resnet50"
    models = Path(__file__).with_name("models.py")
    subprocess.run([sys.executable, str(models), str(checkpoints), "resnet50"], check=True, env=_ENVIRONMENT)
    command = [
        sys.executable,
        "-m",
        "tpuserve_exporter.command.exporting",
        str(checkpoints),
        str(base),
        "--device-programs",
    ]
    model = ("--model", "benchmarks.export.models:resnet50", "--batch-sizes", BATCH_SIZES)
    subprocess.run([*command, *model, *_TOLERANCE], check=True, cwd=ROOT, env=_ENVIRONMENT)
    return base / "1"


def check(version: Path, tpu: str) -> float:
    """Print the verdicts and the resources used. Return the seconds, or infinity if a program fails."""
    command = [sys.executable, "-m", "tpuserve_exporter.command.checking", str(version), "--tpu", tpu, "--json"]
    before, started = _cpu_seconds(), time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=_ENVIRONMENT)
    seconds, cpu_seconds = time.monotonic() - started, _cpu_seconds() - before
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    found = json.loads(done.stdout)
    for row in found["preflight"]:
        _print(row)
    print(
        f"{len(found['preflight'])} programs in {seconds:.1f} s ({cpu_seconds:.1f} s of CPU; limit "
        f"{MOST_SECONDS:g} s) on {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}; "
        f"largest process {peak:.2f} GiB"
    )
    return seconds if found["ok"] else float("inf")


def _print(row: Mapping[str, Any]) -> None:
    lower, upper = row["latency_s_estimate"] or (0, 0)
    taken = f"{row['hbm_bytes']['needed'] / 2**20:.0f} MiB, compiled in {row['compile_s']:.1f} s"
    estimate = f"estimated {1e3 * lower:.2f} to {1e3 * upper:.2f} ms"
    print(f"{row['topology']} batch {row['batch_size']}: {row['reason']}, {taken}, {estimate}")


def _cpu_seconds() -> float:
    """Return the CPU seconds of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tpu", default="v5e:1x1,v6e:1x1", help="Comma-separated TPUs (default: %(default)s).")
    parser.add_argument("--version", type=Path, help="Directory of an existing ResNet-50 version with device programs.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seconds = check(options.version or export(Path(folder)), options.tpu)
    return 0 if seconds <= MOST_SECONDS else 1
