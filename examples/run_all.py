"""Run every example: train, export, serve, query over gRPC and REST, and compare with the source's own outputs.

    make examples                    # all examples
    make examples ONLY=digits        # one, or several separated by commas

Prints one table at the end, and exits with status 1 if anything failed. The output of each step is in
.demo/examples/NAME/*.log.
"""

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

import tpuserve_server

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from examples.difference import Differs, largest_difference  # noqa: E402 - the repository is no package
from examples.example import Example, find_names, load_example  # noqa: E402
from examples.trained import Trained, TrainingFailed, train_apart  # noqa: E402
from tpuserve_client import Client, TpuserveError  # noqa: E402

BIN = Path(sys.executable).parent
REQUEST_TIMEOUT_S = 60.0
# Width of a table written to a file or a pipe, in columns.
LOG_WIDTH = 120


@dataclass(slots=True)
class Outcome:
    """Progress of one example. Differences are the largest absolute ones, or None if the step did not run."""

    name: str
    source: str
    skipped: str = ""
    error: str = ""
    exported: bool = False
    parity_max_difference: float | None = None
    served_equal: bool = False
    grpc_max_difference: float | None = None
    rest_max_difference: float | None = None
    train_seconds: float | None = None
    export_seconds: float | None = None

    @property
    def ok(self) -> bool:
        return bool(self.skipped) or (self.exported and self.served_equal and not self.error)


@dataclass(frozen=True, slots=True)
class Exported:
    """An example with published versions, by model, and the source's outputs."""

    example: Example
    trained: Trained
    base_paths: Mapping[str, Path]
    atol: float
    rtol: float

    def configuration(self) -> str:
        """Return the models in the form of a model configuration file."""
        models = [
            f'config {{ name: "{name}" base_path: "{path}" model_platform: "tensorflow" }}'
            for name, path in self.base_paths.items()
        ]
        if self.example.scheduling is not None:
            steps = self.example.scheduling.read_text()
            models.append(
                f'config {{ name: "{self.example.name}" model_platform: "ensemble" ensemble_scheduling {{\n{steps}}} }}'
            )
        return "\n".join(models)


class StepFailed(Exception):
    """A step of one example failed. The other examples still run."""


def main() -> int:
    """Run the chosen examples. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="Comma-separated names of examples (default: all).")
    parser.add_argument(
        "--work", type=Path, default=ROOT / ".demo" / "examples", help="Directory for sources and models."
    )
    parser.add_argument(
        "--json", action="store_true", help="Print one JSON document on standard output, and nothing else."
    )
    arguments = parser.parse_args()
    names = find_names()
    selected = [name.strip() for name in arguments.only.split(",") if name.strip()] or names
    if unknown := sorted(set(selected) - set(names)):
        parser.error(f"Unknown example {', '.join(unknown)}. The examples are {', '.join(names)}.")
    # Treat SIGTERM like Ctrl-C, so that stopping this program also stops its server.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(stderr=arguments.json, width=None if sys.stdout.isatty() else LOG_WIDTH)
    try:
        outcomes = run_all(selected, arguments.work, console)
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return 130
    ok = all(outcome.ok for outcome in outcomes)
    if arguments.json:
        print(json.dumps({"ok": ok, "examples": [{**asdict(one), "ok": one.ok} for one in outcomes]}, indent=2))
    else:
        print_table(console, outcomes, arguments.work)
    return 0 if ok else 1


def run_all(names: Sequence[str], work: Path, console: Console) -> list[Outcome]:
    """Train and export each example in turn, then serve all of them with one server and query it."""
    outcomes, exported = [], []
    for index, name in enumerate(names, start=1):
        outcome = Outcome(name, "")
        outcomes.append(outcome)
        print_step(console, f"[{index}/{len(names)}] {name}")
        try:
            example = load_example(name)
            outcome.source, outcome.skipped = example.source, example.missing
            if not outcome.skipped:
                exported.append(train_and_export(example, work / name, outcome))
        except (StepFailed, TrainingFailed) as error:
            outcome.error = str(error)
        except Exception as error:  # an example's module must not stop the others
            outcome.error = f"examples/{name}/example.py: {type(error).__name__}: {error}"
        print_step(console, f"      {describe(outcome)}")
    if exported:
        serve_and_compare(exported, {one.name: one for one in outcomes}, work, console)
    return outcomes


def train_and_export(example: Example, folder: Path, outcome: Outcome) -> Exported:
    """Delete `folder`, train into it, and publish each model. Raises StepFailed or TrainingFailed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    trained = train_apart(example.name, folder, folder / "train.log")
    outcome.train_seconds = trained.seconds
    started_s = time.monotonic()
    sources = {part.name: (trained.source / part.name, part.export_options) for part in example.parts}
    sources = sources or {example.name: (trained.source, example.export_options)}
    base_paths = {name: folder / "models" / name for name in sources}
    reports = [
        export(source, options, base_paths[name], folder / f"export-{name}.log")
        for name, (source, options) in sources.items()
    ]
    outcome.exported, outcome.export_seconds = True, time.monotonic() - started_s
    parities = [report["manifest"]["parity"] for report in reports]
    outcome.parity_max_difference = max(parity["max_abs_difference"] for parity in parities)
    atol, rtol = (max(parity[name] for parity in parities) for name in ("atol", "rtol"))
    return Exported(example, trained, base_paths, atol, rtol)


def export(source: Path, options: Sequence[str], base_path: Path, log: Path) -> dict[str, Any]:
    """Run `tpuserve export` like a user, and return its JSON report. Raises StepFailed."""
    command = [str(BIN / "tpuserve"), "export", str(source), str(base_path), *options, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    log.write_text(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}")
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise StepFailed(f"The export exited with status {done.returncode} and printed no report. See {log}.") from None
    if not report["ok"]:
        raise StepFailed(f"The export exited with status {done.returncode}: {report['error']}")
    return report


def serve_and_compare(exported: Sequence[Exported], outcomes: dict[str, Outcome], work: Path, console: Console) -> None:
    """Query all models on one server. A wrong output fails its model's outcome, a failed start fails every outcome."""
    print_step(console, f"Serving {len(exported)} model(s) and comparing the outputs with those of the sources")
    config = work / "models.config"
    config.write_text(f"model_config_list {{\n{chr(10).join(one.configuration() for one in exported)}\n}}\n")
    try:
        with tpuserve_server.start(model_config_file=config, log_path=work / "server.log", progress=False) as server:
            for one in exported:
                outcome = outcomes[one.example.name]
                try:
                    compare(one, server, outcome)
                except (StepFailed, TpuserveError) as error:
                    outcome.error = str(error)
                print_step(console, f"      {outcome.name}: {describe(outcome)}")
    except tpuserve_server.StartFailed as error:
        for one in exported:
            outcomes[one.example.name].error = str(error)


def compare(one: Exported, server: tpuserve_server.RunningServer, outcome: Outcome) -> None:
    """Send every request over both protocols. Raises StepFailed for the first output that differs from the source's."""
    for protocol, address in (("grpc", server.grpc_address), ("rest", server.rest_address)):
        largest = 0.0
        with Client(address) as client:
            for request, expected in zip(one.trained.requests, one.trained.answers, strict=True):
                served = client.predict(
                    one.example.name, request, signature_name=one.example.signature, timeout_s=REQUEST_TIMEOUT_S
                )
                try:
                    difference = largest_difference(expected, dict(served), one.atol, one.rtol, dtypes=False)
                except Differs as error:
                    raise StepFailed(f"The outputs over {protocol} differ from the source's: {error}") from None
                largest = max(largest, difference)
        setattr(outcome, f"{protocol}_max_difference", largest)
    outcome.served_equal = True


def describe(outcome: Outcome) -> str:
    """Describe the progress in one line."""
    if outcome.skipped:
        return f"skipped: {outcome.skipped}"
    if outcome.error:
        return f"FAILED: {outcome.error}"
    if outcome.served_equal:
        return f"outputs over gRPC and REST match the source's (largest difference {_largest(outcome):.2g})"
    return f"trained in {outcome.train_seconds:.1f} s, exported and checked in {outcome.export_seconds:.1f} s"


def print_table(console: Console, outcomes: Sequence[Outcome], work: Path) -> None:
    """Print one row per example, and the reasons below."""
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("example", "source", "exported", "parity", "outputs match", "difference", "train", "export"):
        table.add_column(column, justify="right" if column in ("parity", "difference", "train", "export") else "left")
    for one in outcomes:
        table.add_row(*map(Text, _cells(one)))
    console.print(table)
    for one in outcomes:
        if one.skipped or one.error:
            console.print(Text(f"{one.name}: {describe(one)}"), soft_wrap=True)
    if any(one.error for one in outcomes):
        console.print(Text(f"Logs: {work}/*/*.log, {work}/server.log"), soft_wrap=True)


def _cells(one: Outcome) -> list[str]:
    if one.skipped:
        return [one.name, one.source, "skipped", "", "", "", "", ""]
    return [
        one.name,
        one.source,
        "yes" if one.exported else "NO",
        _number(one.parity_max_difference),
        "yes" if one.served_equal else "NO",
        _number(_largest(one)),
        *("-" if seconds is None else f"{seconds:.1f} s" for seconds in (one.train_seconds, one.export_seconds)),
    ]


def _largest(one: Outcome) -> float | None:
    found = [gap for gap in (one.grpc_max_difference, one.rest_max_difference) if gap is not None]
    return max(found, default=None)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"


def print_step(console: Console, text: str) -> None:
    """Print a line of progress."""
    console.print(Text(text), soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
