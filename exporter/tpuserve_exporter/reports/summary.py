"""The summary of a finished export: a panel or plain lines for users, and a JSON document for programs."""

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tpuserve_exporter.checks.difference import Tolerance
from tpuserve_exporter.checks.evaluation import UNCHECKED
from tpuserve_exporter.errors import ExportError
from tpuserve_exporter.reports.page import render_page
from tpuserve_exporter.reports.preflight_section import print_preflight, print_suggestion
from tpuserve_exporter.reports.shown_progress import FinishedStep, RecordedProgress
from tpuserve_exporter.stages.job import Exported
from tpuserve_exporter.terms.provenance import origins_to_json
from tpuserve_exporter.terms.restore_report import Entry, RestoreReport
from tpuserve_exporter.terms.texts import first, megabytes
from tpuserve_formats.counted import counted
from tpuserve_formats.manifest.device import ManifestDevice, describe_sizes
from tpuserve_formats.manifest.version import ManifestParity
from tpuserve_formats.version_reports import EXPORT_REPORT

# The most rows of a mismatch table, so that it fits on one screen.
_MOST_ROWS = 30
_PARITY_COLUMNS = ("output", "largest", "mean", "top-1", "largest at")


def success_document(exported: Exported, seconds: float, steps: Sequence[FinishedStep] = ()) -> dict[str, Any]:
    """Return the JSON report of an export that passed every check."""
    return {
        "ok": True,
        "name": exported.name,
        "version": exported.version,
        "published": exported.published and exported.version is not None,
        "path": None if exported.path is None else str(exported.path),
        "seconds": round(seconds, 3),
        "warnings": list(exported.warnings),
        "warmup_records": exported.warmup_records,
        "preflight_advice": [] if exported.preflight is None else list(exported.preflight.advice),
        "suggested_batch_sizes": [] if exported.preflight is None else list(exported.preflight.batch_sizes),
        "serve_check": None if exported.serve_check is None else asdict(exported.serve_check),
        "preprocessing": list(exported.preprocessing),
        "examples": exported.examples,
        "samples": [one.to_json() for one in exported.samples],
        "steps": [asdict(step) for step in steps],
        "restore": None if exported.restore is None else exported.restore.to_json(),
        "tables": [asdict(one) for one in exported.tables],
        "provenance": origins_to_json(exported.origins),
        "variables": [{"name": one.name, "model": str(one)} for one in exported.variables],
        "manifest": exported.manifest.model_dump(mode="json"),
    }


def failure_document(name: str, error: ExportError, steps: Sequence[FinishedStep] = ()) -> dict[str, Any]:
    """Return the JSON report of a failed export, which published nothing."""
    details = {key: _to_json(value) for key, value in error.details.items()}
    known = {"ok": False, "name": name, "error": str(error), "kind": error.kind, "exit_code": error.exit_code}
    return {**known, "steps": [asdict(step) for step in steps], **details}


def _to_json(value: Any) -> Any:  # noqa: ANN401 - details are any JSON value or a report
    return value.to_json() if isinstance(value, RestoreReport) else value


def print_success(console: Console, exported: Exported, seconds: float, steps: int) -> None:
    """Print a panel on a terminal, or lines elsewhere. `steps` is the number of steps."""
    if exported.preflight is not None:
        print_preflight(console, exported.preflight)
        print_suggestion(console, exported.preflight)
    facts = _facts(exported, seconds, steps)
    title, next_steps = _title(exported), _next_steps(exported)
    if not console.is_terminal:
        console.print(title, highlight=False)
        for name, value in facts:
            console.print(f"  {name}: {value}", highlight=False, soft_wrap=True, markup=False)
        for name, largest, mean, top1, _ in _parity_rows(exported.manifest.parity):
            agreement = "" if top1 == "-" else f", top-1 agreement {top1}"
            console.print(
                f"{name}: largest difference {largest}, mean {mean}{agreement}",
                soft_wrap=True,
                markup=False,
                highlight=False,
            )
        for name, value in next_steps:
            console.print(f"  {name}: {value}", highlight=False, soft_wrap=True, markup=False)
        return
    body = Group(_grid(facts), _parity_table(exported.manifest.parity))
    console.print(Panel(body, title=title, title_align="left", border_style="green", expand=False))
    for name, value in next_steps:
        console.print(f"{name}: {value}", highlight=False, soft_wrap=True, markup=False)


def _grid(facts: Sequence[tuple[str, str]]) -> Table:
    grid = Table.grid(padding=(0, 2))
    for name, value in facts:
        grid.add_row(Text(name, style="dim"), Text(value))
    return grid


def _title(exported: Exported) -> str:
    if exported.version is None:
        return "Checked, not published (dry run)"
    if exported.published:
        return f"Published version {exported.version}"
    return f"Not published again: version {exported.version} is identical (--again publishes it anyway)"


def _parity_rows(parity: ManifestParity) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield each output over all comparisons: name, largest and mean difference, top-1, and place of the largest."""
    for name, signature in parity.signatures.items():
        for output, found in signature.outputs.items():
            top1 = "-" if found.top1_agreement is None else f"{found.top1_agreement:.2%}"
            worst = str(signature.worst(output)) if found.max_abs_difference else "-"
            yield (
                f"{name}.{output}",
                _number(found.max_abs_difference),
                _number(found.mean_abs_difference),
                top1,
                worst,
            )


def _number(value: float | None) -> str:
    return "infinite" if value is None else f"{value:.3g}"


def _parity_table(parity: ManifestParity) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for column in _PARITY_COLUMNS:
        table.add_column(column, overflow="fold")
    for row in _parity_rows(parity):
        table.add_row(*map(Text, row))
    return table


def print_failure(console: Console, error: ExportError) -> None:
    """Print the message, and a table of mismatches if the checkpoint does not fit."""
    report = error.details.get("restore")
    text = str(error).rstrip(".")
    message = Text(f"{text}{'' if text.endswith('?') else '.'} Nothing was published.")
    if isinstance(report, RestoreReport):
        console.print(_mismatch_table(report.problems))
    if not console.is_terminal:
        console.print(Text("error: ") + message, soft_wrap=True)
        return
    console.print(Panel(Group(message), title=error.kind, title_align="left", border_style="red", expand=False))


def _facts(exported: Exported, seconds: float, steps: int) -> list[tuple[str, str]]:
    manifest = exported.manifest
    sizes = {size for signature in manifest.signatures.values() for size in signature.batch_sizes}
    independent = all(signature.rows_independent for signature in manifest.signatures.values())
    deterministic = all(signature.deterministic for signature in manifest.signatures.values())
    step = "" if manifest.source.step is None else f" at step {manifest.source.step}"
    restored = "" if exported.restore is None else f"; {exported.restore.summary()}"
    return [
        ("path", "none" if exported.path is None else str(exported.path)),
        ("source", f"{manifest.source.kind} {manifest.source.name}{step}{restored}"),
        ("provenance", "; ".join(map(str, manifest.source.provenance)) or "none"),
        *(("signature", str(signature)) for signature in exported.signatures.values()),
        *(("preprocessing", sentence) for sentence in exported.preprocessing),
        ("batch sizes", ", ".join(str(size) for size in sorted(sizes)) or "no batch dimension"),
        ("rows independent", "yes" if independent else "no, requests do not share batches"),
        *([] if deterministic else [("deterministic", "no, the answer to the same request differs each time")]),
        ("compute dtype", manifest.compute_dtype),
        *([] if manifest.quantized is None else [("quantized", str(manifest.quantized))]),
        *([] if manifest.frozen is None else [("frozen", str(manifest.frozen))]),
        ("largest difference", _describe_parity(manifest.parity)),
        *_describe_tables(exported),
        *_describe_programs(exported),
        *_describe_numerics(exported.manifest.device),
        *([("examples", f"{exported.examples} correct")] if exported.examples else []),
        *_describe_evaluation(exported),
        *([] if exported.serve_check is None else [("served", str(exported.serve_check))]),
        ("warm-up requests", str(exported.warmup_records)),
        ("size", megabytes(sum(file.size_bytes for file in manifest.files.values()))),
        ("time", f"{seconds:.1f} s in {counted(steps, 'step')} (--verbose shows each)"),
    ]


def _next_steps(exported: Exported) -> list[tuple[str, str]]:
    """Return the next commands for the user, or [] after a dry run."""
    if exported.path is None or exported.version is None:
        return []
    base = str(exported.path).rpartition("/")[0]
    serve = f"tpuserve serve --model_name={shlex.quote(exported.name)} --model_base_path={shlex.quote(base)}"
    again = [] if exported.published else [("to publish it again", f"add --again, or --version {exported.version + 1}")]
    return [*again, ("to serve it", serve)]


def _describe_tables(exported: Exported) -> list[tuple[str, str]]:
    """Return the tables with the smallest part of their rows in the samples first."""
    tables = sorted(exported.tables, key=lambda one: one.touched / one.rows)
    return [("tables in the samples", first(tables))] if tables else []


def _describe_programs(exported: Exported) -> list[tuple[str, str]]:
    """Describe the number and sizes of the device programs, with a hint if they were not compiled for a TPU."""
    device = exported.manifest.device
    if device is None:
        return []
    programs = [program for part in device.parts.values() for program in part.programs]
    sizes = describe_sizes((one.batch_size, one.sequence_length) for one in programs)
    known = "" if exported.preflight is not None else "; `tpuserve check` shows whether they fit on a TPU"
    return [("device programs", f"{sizes}{known}")]


def _describe_evaluation(exported: Exported) -> list[tuple[str, str]]:
    """Return a line for each metric of --expect, or the line that names the missing check."""
    found = exported.manifest.evaluation
    if found is None:
        return [] if exported.examples else [("trained", UNCHECKED)]
    return [(one.metric, one.describe(found)) for one in found.metrics]


def _describe_numerics(device: ManifestDevice | None) -> list[tuple[str, str]]:
    """Return a line for each output that --tpu-numerics compared."""
    if device is None or device.numerics is None:
        return []
    outputs = (
        (f"{name}.{output}", found)
        for name, signature in device.numerics.signatures.items()
        for output, found in signature["outputs"].items()
    )
    return [("on a TPU (emulated)", f"{name}: {_describe_output(found)}") for name, found in outputs]


def _describe_output(found: Mapping[str, float | None]) -> str:
    largest, mean = _number(found["max_abs_difference"]), _number(found["mean_abs_difference"])
    top1 = found["top1_agreement"]
    agreement = "" if top1 is None else f", top-1 agreement {top1:.2%}"
    return f"largest difference {largest}, mean {mean}{agreement}"


def _describe_parity(parity: ManifestParity) -> str:
    allowed = Tolerance(parity.atol, parity.rtol)
    return f"{parity.max_abs_difference:.3g} over {parity.rows} row(s), tolerance {allowed}"


def _mismatch_table(problems: list[Entry]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="The checkpoint does not fit the model", title_justify="left")
    for column in ("variable", "what", "model", "checkpoint"):
        table.add_column(column, overflow="fold")
    for entry in problems[:_MOST_ROWS]:
        table.add_row(Text(entry.name), Text(entry.fate), Text(entry.model or "-"), Text(entry.checkpoint or "-"))
    if len(problems) > _MOST_ROWS:
        table.add_row(Text(f"and {len(problems) - _MOST_ROWS} more (--json or --report FILE lists them)"))
    return table


class VersionReport:
    """A writer of the page. `started_s` is the monotonic time at which the export started, in seconds."""

    def __init__(self, progress: RecordedProgress, started_s: float) -> None:
        self._progress = progress
        self._started_s = started_s

    def write(self, exported: Exported, version: Path) -> None:
        """Write the page into the directory `version` before publication, when it has no number. Raises OSError.

        The page contains no samples, because clients of the server must not see the user's data.
        """
        document = success_document(exported, time.monotonic() - self._started_s, self._progress.steps)
        path = version / EXPORT_REPORT
        path.parent.mkdir(parents=True)
        path.write_text(render_page({**document, "published": True, "samples": []}), encoding="utf-8")
