"""The `tpuserve check VERSION_DIR` command. It sends recorded requests and compiles for TPUs, and changes nothing."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from rich.console import Console
from rich.text import Text

from tpuserve_exporter.command.labelled_options import labelled_options, read_labelled
from tpuserve_exporter.command.parameter_types import MESH, SHARD, TOPOLOGIES
from tpuserve_exporter.command.running import report_error, run_program
from tpuserve_exporter.errors import CannotLower, ExpectationFailed, ParityFailed, SourceUnreadable
from tpuserve_exporter.options.expectation import LabelledOptions
from tpuserve_exporter.options.tpu import DeviceMesh, ShardRule, TpuTopology
from tpuserve_exporter.reports.shown_progress import choose_progress
from tpuserve_exporter.terms.progress import Progress

if TYPE_CHECKING:
    from tpuserve_exporter.checks.recorded_requests import RecordedCheck
    from tpuserve_exporter.programs.preflight import PreflightReport
    from tpuserve_formats.manifest.version import ManifestEvaluation

PROG_NAME = "tpuserve check"
_LOG_WIDTH = 150

_EPILOG = """\b
Examples:
  # compare answers on this machine with those recorded by the export
  tpuserve check models/digits/3
\b
  # compare answers with those of version 2
  tpuserve check models/digits/3 --against models/digits/2
\b
  # evaluate on held-out rows with labels
  tpuserve check models/digits/3 --labelled held_out.npz --expect "accuracy>=0.97"
\b
  # compile for one chip of these TPUs
  tpuserve check models/digits/3 --tpu v5e:1x1,v6e:1x1
\b
  # compile for four chips, with sharded weights
  tpuserve check models/search/7 --tpu v5litepod-4 --mesh model=4 --shard 'embedding/.*=model,-'

\b
Exit codes:
  0  every answer agrees; every metric meets its bound; every program compiles and fits, and all of them together
  1  unexpected error
  2  wrong usage, or a rule that does not fit the weights
  3  an answer differs by more than the tolerance
  4  a program does not fit, does not compile or could not be checked, or all programs together do not fit
  6  no version with device programs or recorded answers, or a damaged one
  8  the version does not load
  9  the version does not take the recorded requests, or the rows of --labelled
  10  the compiler is not installed
  13  the graph reads or writes files, runs Python, or has unknown operations
  14  a metric does not meet its --expect
  130  interrupted
"""


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.argument("version", type=click.Path(path_type=Path, readable=False))
@click.option(
    "--tpu",
    "topologies",
    type=TOPOLOGIES,
    help="TPUs to compile for, such as v5e:1x1,v6e:2x2, or names of machines, such as v5litepod-4. Add --against to "
    "compare answers too.",
)
@click.option(
    "--against",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="VERSION_DIR",
    help="Version whose recorded answers are compared.  [default: VERSION itself]",
)
@click.option("--atol", type=click.FloatRange(0), help="Absolute tolerance.  [default: the wider of the manifests']")
@click.option("--rtol", type=click.FloatRange(0), help="Relative tolerance.  [default: the wider of the manifests']")
@click.option(
    "--mesh",
    type=MESH,
    default="data=1,model=1",
    show_default=True,
    help="Mesh of devices: batches are split over data, weights over model.",
)
@click.option(
    "--shard",
    "rules",
    type=SHARD,
    multiple=True,
    help="Sharding rule for weights, instead of the version's own rules. Repeatable.",
)
@click.option(
    "--allow-op",
    "allowed_ops",
    metavar="OPERATION",
    multiple=True,
    help="Operation that the graph may have although servers refuse it. Repeatable.",
)
@labelled_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document to standard output, and nothing else.")
def command(
    version: Path,
    topologies: tuple[TpuTopology, ...] | None,
    against: Path | None,
    atol: float | None,
    rtol: float | None,
    mesh: DeviceMesh,
    rules: tuple[ShardRule, ...],
    allowed_ops: tuple[str, ...],
    as_json: bool,
    **labelled: Any,  # noqa: ANN401 - as click passes the options of labelled_options
) -> int:
    """Check the published version in the directory VERSION.

    Without --tpu and --labelled, the command runs the recorded requests of the export on this machine's CPU and
    compares the answers with the recorded ones. The manifests set the tolerance. With --labelled, it runs every row of
    the file on the CPU, and compares each metric with its --expect. With --tpu, it compiles the device programs with
    libtpu and checks that each of them, and all together, fit. This needs no TPU.
    """
    evaluates = labelled["labelled"] is not None
    compares = against is not None or not (topologies or evaluates)
    _check_options(topologies, compares, atol, rtol, rules)
    console = Console(width=None if sys.stdout.isatty() else _LOG_WIDTH, highlight=False)
    try:
        progress = choose_progress(as_json, console)
        _check_operations((version, *([against] if against else [])), allowed_ops)
        options = read_labelled(labelled)
        answers = _compare_answers(version, against or version, atol, rtol, progress) if compares else None
        evaluation = None if options is None else _evaluate(version, options, progress)
        report = _compile(version, topologies, mesh, rules, progress) if topologies else None
    except Exception as error:  # the top of the process
        return report_error(error, as_json)
    code = _exit_code(answers, evaluation, report)
    if as_json:
        click.echo(json.dumps(_document(answers, evaluation, report, code), indent=2))
    else:
        _print(console, answers, evaluation, report)
    return code


def _check_operations(versions: tuple[Path, ...], allowed: tuple[str, ...]) -> None:
    """Check each SavedModel before it runs. Raises UnsafeOperation."""
    from tpuserve_exporter.sources.saved_model.file import check_operations

    for version in versions:
        if (version / "saved_model.pb").is_file():
            check_operations(version, allowed)


def _check_options(
    topologies: tuple[TpuTopology, ...] | None,
    compares: bool,
    atol: float | None,
    rtol: float | None,
    rules: tuple[ShardRule, ...],
) -> None:
    if topologies is None and rules:
        raise click.UsageError("--shard has no effect without --tpu. Add --tpu")
    if not compares and (atol is not None or rtol is not None):
        alone = "--tpu" if topologies else "--labelled"
        raise click.UsageError(f"--atol and --rtol have no effect with {alone} alone. Add --against, or omit {alone}")


def _start(version: Path, progress: Progress) -> None:
    """Start TensorFlow for an existing version. Raises SourceUnreadable."""
    from tpuserve_exporter.models.frameworks import start_tensorflow

    if not version.is_dir():
        raise SourceUnreadable(f"there is no version directory {version}")
    with progress.step("Start TensorFlow"):
        start_tensorflow(in_command=True)


def _compare_answers(
    version: Path, golden: Path, atol: float | None, rtol: float | None, progress: Progress
) -> "RecordedCheck":
    _start(version, progress)
    from tpuserve_exporter.checks.recorded_requests import check_recorded

    with progress.step("Run the recorded requests") as step:
        return check_recorded(version, golden, atol, rtol, step.advance)


def _evaluate(version: Path, options: LabelledOptions, progress: Progress) -> "ManifestEvaluation":
    _start(version, progress)
    from tpuserve_exporter.checks.evaluation import evaluate_version

    with progress.step(f"Evaluate the version on {options.file.name}") as step:
        return evaluate_version(version, options, step.advance)


def _compile(
    version: Path,
    topologies: tuple[TpuTopology, ...],
    mesh: DeviceMesh,
    rules: tuple[ShardRule, ...],
    progress: Progress,
) -> "PreflightReport":
    from tpuserve_exporter.programs.preflight import Preflight
    from tpuserve_exporter.programs.version_programs import VersionPrograms

    for rule in rules:
        rule.check(mesh)
    return Preflight(topologies, mesh, rules, progress).run(VersionPrograms.read(version))


def _exit_code(
    answers: "RecordedCheck | None", evaluation: "ManifestEvaluation | None", report: "PreflightReport | None"
) -> int:
    if answers is not None and answers.beyond:
        return ParityFailed.exit_code
    if evaluation is not None and not all(one.met for one in evaluation.metrics):
        return ExpectationFailed.exit_code
    return CannotLower.exit_code if report is not None and not report.passed else 0


def _print(
    console: Console,
    answers: "RecordedCheck | None",
    evaluation: "ManifestEvaluation | None",
    report: "PreflightReport | None",
) -> None:
    if answers is not None:
        _print_outcome(console, not answers.beyond, str(answers))
    if evaluation is not None:
        for one in evaluation.metrics:
            _print_outcome(console, one.met, f"{one.metric}: {one.describe(evaluation)}")
    if report is not None:
        _print_report(console, report)


def _print_outcome(console: Console, passed: bool, text: str) -> None:
    mark, style = ("✓", "green") if passed else ("✗", "red")
    console.print(Text(f"{mark} {text}", style=style), soft_wrap=True)


def _print_report(console: Console, report: "PreflightReport") -> None:
    from tpuserve_exporter.reports.preflight_section import print_preflight, print_suggestion

    print_preflight(console, report)
    for sentence in report.advice:
        console.print(Text(f"! {sentence}", style="yellow"), soft_wrap=True)
    print_suggestion(console, report)


def _document(
    answers: "RecordedCheck | None",
    evaluation: "ManifestEvaluation | None",
    report: "PreflightReport | None",
    code: int,
) -> dict[str, Any]:
    return {
        "ok": code == 0,
        "exit_code": code,
        **({} if answers is None else {"answers": answers.to_json()}),
        **({} if evaluation is None else {"evaluation": evaluation.model_dump(mode="json")}),
        **({} if report is None else _report_document(report)),
    }


def _report_document(report: "PreflightReport") -> dict[str, Any]:
    return {
        "fingerprint": report.fingerprint,
        "compiler": report.compiler,
        "suggested_batch_sizes": list(report.batch_sizes),
        "advice": list(report.advice),
        "preflight": report.to_json(),
        "preflight_together": report.together_to_json(),
    }


def main() -> NoReturn:
    """Run the `tpuserve-check` program, which users start as `tpuserve check`."""
    run_program(command, PROG_NAME)


if __name__ == "__main__":
    main()
