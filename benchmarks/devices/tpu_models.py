"""Export, check, serve with PJRT and compare models for TPUs, on a machine without a TPU. Linux only.

Run: `.venv/bin/python -m benchmarks tpu_models` for all models, or `--only digits,lstm`. `--quick` uses smaller models.
Prints one table, and then checks a model that is too large for one v5e chip and fits on four. `--work FOLDER` keeps
models and logs, and the next run reuses its versions.
"""

import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.devices.tpu_cases import ONE_CHIP, Tensors, TpuCase, cases
from benchmarks.harness.process_tree import ServerDied, exit_on_sigterm
from benchmarks.harness.targets import ROOT, Target, http_get, model_server
from tpuserve_client import Client, TpuserveError

TOO_LARGE = "too_large"
READY_TIMEOUT_S = 600.0
REQUEST_TIMEOUT_S = 120.0
LOG_WIDTH = 200
_ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    # With libtpu installed, JAX would search for a TPU.
    "JAX_PLATFORMS": "cpu",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


class StepFailed(Exception):
    """A step of one model failed. The benchmark continues with the other models."""


@dataclass(slots=True)
class Outcome:
    """Progress of one model. `verdicts` are by family, for all its programs. Differences are absolute maxima."""

    title: str
    export_s: float | None = None
    programs: int = 0
    program_difference: float | None = None
    verdicts: dict[str, str] = field(default_factory=dict)
    fits: bool = False
    check_s: float | None = None
    device: str = ""
    imports_tensorflow: bool | None = None
    served_difference: float | None = None
    served_equal: bool = False
    error: str = ""

    @property
    def ok(self) -> bool:
        return self.served_equal and self.fits and not self.error


def take(case: TpuCase, folder: Path, families: Sequence[str], outcome: Outcome) -> None:
    """Take one model through all steps. Raises StepFailed."""
    folder.mkdir(parents=True, exist_ok=True)
    version = folder / "versions" / case.name / "1"
    if not version.exists():
        outcome.export_s = export(case, folder)
    manifest = json.loads((version / "assets.extra/tpuserve/manifest.json").read_text())
    read_parity(manifest, outcome)
    check(case, version, families, outcome)
    requests = case.requests()
    answers = run_tensorflow(version, requests, folder)
    served = serve(case, folder, requests, outcome)
    parity = manifest["parity"]
    compare(answers, served, parity["atol"], parity["rtol"], outcome)


def export(case: TpuCase, folder: Path) -> float:
    """Train or initialise the weights, and export. Returns the seconds of `tpuserve export`, which compares every
    program.
    """
    checkpoints = folder / "checkpoints"
    if case.name == "digits":
        run(folder / "train.log", "examples/digits/train.py", "--out", str(checkpoints))
    else:
        run(folder / "train.log", "benchmarks/devices/tpu_builders.py", str(checkpoints), case.builder)
    rows = []
    if case.check_rows is not None:
        # Arrays of bytes, because reading object arrays needs pickle.
        strings: dict[str, Any] = {name: np.array(list(one)) for name, one in case.check_rows().items()}
        np.savez(folder / "check.npz", **strings)
        rows = ["--check", str(folder / "check.npz")]
    base = folder / "versions" / case.name
    command = [
        "-m",
        "tpuserve_exporter.command.exporting",
        str(checkpoints),
        str(base),
        "--device-programs",
        "--model",
        case.model,
    ]
    started_s = time.monotonic()
    run(folder / "export.log", *command, *case.options, *rows)
    return time.monotonic() - started_s


def read_parity(manifest: Mapping[str, Any], outcome: Outcome) -> None:
    """Read the number of programs, and their largest difference from the source model, from the manifest."""
    outcome.programs = sum(len(part["programs"]) for part in manifest["device"]["parts"].values())
    buckets = [
        bucket
        for signature in manifest["parity"]["signatures"].values()
        for bucket in signature["buckets"]
        if bucket["loaded_by"].startswith("program")
    ]
    if len({(bucket["batch_size"], bucket["loaded_by"]) for bucket in buckets}) < outcome.programs:
        raise StepFailed("The export did not compare every program with the source.")
    outcome.program_difference = max(
        output["max_abs_difference"] for bucket in buckets for output in bucket["outputs"].values()
    )


def check(case: TpuCase, version: Path, families: Sequence[str], outcome: Outcome) -> None:
    """Run `tpuserve check` for each TPU. Raises StepFailed if it prints no result."""
    topologies = {case.topologies[family]: family for family in families}
    command = [
        sys.executable,
        "-m",
        "tpuserve_exporter.command.checking",
        str(version),
        "--tpu",
        ",".join(topologies),
        "--json",
    ]
    command += ["--mesh", case.mesh] if case.mesh else []
    started_s = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=_ENVIRONMENT, capture_output=True, text=True, check=False)
    outcome.check_s = time.monotonic() - started_s
    found = json.loads(done.stdout or "{}")
    if "preflight" not in found:
        raise StepFailed(f"tpuserve check failed: {found.get('error') or done.stderr[-400:]}")
    outcome.fits = found["ok"]
    for topology, family in topologies.items():
        outcome.verdicts[family] = summarise([one for one in found["preflight"] if one["topology"] == topology])


def summarise(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return `fits 214 MiB` for the program that needs most, or the verdict of the first program that fails."""
    for row in rows:
        if row["verdict"] != "compiles and fits":
            return str(row["verdict"])
    return f"fits {max(row['hbm_bytes']['needed'] for row in rows) / 2**20:.0f} MiB"


def run_tensorflow(version: Path, requests: Sequence[Tensors], folder: Path) -> list[Tensors]:
    """Return TensorFlow's outputs of the SavedModel next to the programs."""
    requests_file, answers_file = folder / "requests.pickle", folder / "answers.pickle"
    requests_file.write_bytes(pickle.dumps(list(requests)))
    arguments = (str(version), str(requests_file), str(answers_file))
    run(folder / "tensorflow.log", "benchmarks/devices/saved_model_answers.py", *arguments)
    answers: list[Tensors] = pickle.loads(answers_file.read_bytes())
    return answers


def serve(case: TpuCase, folder: Path, requests: Sequence[Tensors], outcome: Outcome) -> list[Tensors]:
    """Return the outputs of a server that runs the programs with PJRT on this machine's CPU."""
    flags = ["--device=cpu", f"--compilation_cache_dir={folder / 'compiled'}"]
    # Like `python -X importtime`: the log has a line for each imported module.
    environment = {"PYTHONPROFILEIMPORTTIME": "1"}
    if case.mesh:
        flags.append(f"--mesh={case.mesh}")
        environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={case.devices}"
    base = folder / "versions" / case.name
    server = model_server(
        base, folder, *flags, name=case.name, environment=environment, ready_timeout_s=READY_TIMEOUT_S
    )
    with server as targets, Client(f"127.0.0.1:{targets['grpc'].port}", timeout_s=REQUEST_TIMEOUT_S) as client:
        answers: list[Tensors] = [client.predict(case.name, request) for request in requests]
        outcome.device = read_device(targets["rest"])
        log = targets["grpc"].tree.log.read_text(errors="replace")
    outcome.imports_tensorflow = "tensorflow" in imported(log)
    if "(PJRT" not in outcome.device:
        raise StepFailed(f"The server did not use PJRT. Its device is {outcome.device}.")
    return answers


def read_device(target: Target) -> str:
    """Return the device of the version from the server's status."""
    (model,) = json.loads(http_get(target.port, "/v1/models"))["models"]
    notes: list[str] = model["versions"][0]["notes"]
    return next((note for note in notes if note.startswith("device: ")), "").removeprefix("device: ")


def imported(log: str) -> set[str]:
    """Return the packages in Python's import-time log."""
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in log.splitlines() if "import time:" in line}


def compare(expected: Sequence[Tensors], served: Sequence[Tensors], atol: float, rtol: float, outcome: Outcome) -> None:
    """Raise StepFailed for the first output that differs from TensorFlow's by more than the export's tolerance."""
    outcome.served_difference = 0.0
    for one, other in zip(expected, served, strict=True):
        for name, want in one.items():
            if other[name].shape != want.shape:
                raise StepFailed(f"{name} has shape {list(other[name].shape)}, expected {list(want.shape)}")
            gaps = np.abs(other[name].astype(np.float64) - want.astype(np.float64))
            outcome.served_difference = max(outcome.served_difference, float(gaps.max(initial=0.0)))
            if not np.all(gaps <= atol + rtol * np.abs(want.astype(np.float64))):
                raise StepFailed(f"{name} differs by up to {gaps.max():.3g}")
    outcome.served_equal = True


def run(log: Path, *arguments: str) -> None:
    """Run a Python program of the repository. Raises StepFailed with its last line of output."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=_ENVIRONMENT, capture_output=True, text=True, check=False
    )
    log.write_text(done.stdout + done.stderr)
    if done.returncode:
        last = ((done.stdout + done.stderr).strip().splitlines() or ["no output"])[-1]
        raise StepFailed(f"{Path(arguments[0]).name} exited with status {done.returncode}: {last}")


def show_too_large(folder: Path, console: Console) -> bool:
    """Check a lookup in a table of 40 GiB, built from shapes only, for one chip and for four.

    Return True if the table is too large for one chip and fits on four.
    """
    version = folder / "versions" / TOO_LARGE / "1"
    if not version.exists():
        code = f"from tests.exporter.shaped_versions import write_lookup; import pathlib, sys; {_WRITE_LOOKUP}"
        run_code = subprocess.run([sys.executable, "-c", code, str(version)], cwd=ROOT, env=_ENVIRONMENT, check=False)
        if run_code.returncode:
            return False
    codes = []
    for flags in (
        ("--tpu", "v5e:1x1"),
        ("--tpu", "v5e:2x2", "--mesh", "model=4", "--shard", "^embedding/table$=model,-"),
    ):
        quoted = " ".join(f"'{flag}'" if "$" in flag else flag for flag in flags)
        console.print(f"\n$ tpuserve check {TOO_LARGE}/1 {quoted}", markup=False, highlight=False, soft_wrap=True)
        command = [sys.executable, "-m", "tpuserve_exporter.command.checking", str(version), *flags]
        done = subprocess.run(command, cwd=ROOT, env=_ENVIRONMENT, capture_output=True, text=True, check=False)
        console.print(done.stdout + done.stderr, end="", markup=False, highlight=False, soft_wrap=True)
        console.print(f"exit code {done.returncode}", highlight=False)
        codes.append(done.returncode)
    return codes == [4, 0]


_WRITE_LOOKUP = "write_lookup(pathlib.Path(sys.argv[1]))"


def show(outcomes: Sequence[Outcome], families: Sequence[str], console: Console) -> None:
    """Print one row per model, and the errors below."""
    table = Table(box=box.SIMPLE_HEAD, title="Export, check without a TPU, and serving with PJRT on the CPU")
    for column in ("model", "export", "programs", "difference"):
        table.add_column(column, justify="left" if column == "model" else "right", no_wrap=True)
    for family in families:
        table.add_column(family, no_wrap=True)
    for column in ("check", "served", "difference", "imports TF"):
        table.add_column(column, justify="right", no_wrap=True)
    for one in outcomes:
        table.add_row(
            one.title,
            _seconds(one.export_s),
            str(one.programs),
            _difference(one.program_difference),
            *(one.verdicts.get(family, "-") for family in families),
            _seconds(one.check_s),
            "equal" if one.served_equal else "NO",
            _difference(one.served_difference),
            "-" if one.imports_tensorflow is None else "yes" if one.imports_tensorflow else "no",
        )
    console.print(table)
    console.print(
        "difference: the largest one of any output, between programs and source, and between server and TensorFlow\n"
        "fits: each program compiles and fits; MiB: device memory of the largest program",
        highlight=False,
    )
    for one in outcomes:
        if one.error:
            console.print(f"{one.title}: {one.error}", markup=False)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} s"


def _difference(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"


@click.command(epilog="Exit codes: 0 all outputs match and all programs fit, 1 otherwise.")
@click.option("--only", default="", help=f"Comma-separated names of models. {TOO_LARGE} does not fit on one chip.")
@click.option("--tpus", default=",".join(ONE_CHIP), show_default=True, help="Comma-separated TPU families to check.")
@click.option("--quick", is_flag=True, help="Use a small encoder instead of BERT, and one batch size for large models.")
@click.option("--work", type=click.Path(path_type=Path), help="Directory that keeps models and logs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document. Progress goes to standard error.")
def main(only: str, tpus: str, quick: bool, work: Path | None, as_json: bool) -> None:
    """Export, check, serve and compare."""
    exit_on_sigterm()
    console = Console(stderr=as_json, width=None if sys.stdout.isatty() else LOG_WIDTH)
    selected, families = _names(only, [case.name for case in cases(quick)] + [TOO_LARGE]), _names(tpus, list(ONE_CHIP))
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="tpuserve-tpu-") as scratch:
        folder = (work or Path(scratch)).absolute()
        for case in cases(quick):
            if case.name in selected:
                console.print(f"measuring {case.title}", markup=False)
                outcomes.append(outcome := Outcome(case.title))
                try:
                    take(case, folder / case.name, families, outcome)
                except (StepFailed, ServerDied, TpuserveError, OSError) as error:
                    outcome.error = str(error)
                except Exception as error:  # must not stop the other models
                    traceback.print_exc()
                    outcome.error = f"{type(error).__name__}: {error}"
        if outcomes:
            show(outcomes, families, console)
        refused_then_accepted = TOO_LARGE not in selected or show_too_large(folder / TOO_LARGE, console)
    if as_json:
        print(json.dumps([asdict(one) for one in outcomes], indent=2))
    sys.exit(0 if refused_then_accepted and all(one.ok for one in outcomes) else 1)


def _names(text: str, known: Sequence[str]) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()] or list(known)
    if unknown := [name for name in names if name not in known]:
        raise click.UsageError(f"Unknown name {', '.join(unknown)}. The names are {', '.join(known)}.")
    return names
