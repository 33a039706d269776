"""The `tpuserve check VERSION_DIR` command. It sends recorded requests and compiles for TPUs, and changes nothing."""

import json
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from rich.console import Console
from rich.text import Text

from tpuserve_exporter.command.parameter_types import MESH, SHARD, TOPOLOGIES
from tpuserve_exporter.command.running import report_failure, run_program
from tpuserve_exporter.errors import CannotLower, ExportError, ParityFailed, SourceUnreadable
from tpuserve_exporter.options.device_mesh import DeviceMesh, ShardRule
from tpuserve_exporter.options.tpu_topology import TpuTopology
from tpuserve_exporter.progress import Progress
from tpuserve_exporter.reporting.shown_progress import choose_progress

if TYPE_CHECKING:
    from tpuserve_exporter.checks.recorded_requests import RecordedCheck
    from tpuserve_exporter.preflight.preflight import PreflightReport

PROG_NAME = "tpuserve check"
_LOG_WIDTH = 150

_EPILOG = """\b
Examples:
  # does it answer on this machine as it did when it was exported?
  tpuserve check models/digits/3
\b
  # does it answer as version 2 did?
  tpuserve check models/digits/3 --against models/digits/2
\b
  # would it run on one chip of these?
  tpuserve check models/digits/3 --tpu v5e:1x1,v6e:1x1
\b
  # with its weights cut over four chips
  tpuserve check models/search/7 --tpu v5litepod-4 --mesh model=4 --shard 'embedding/.*=model,-'

\b
Exit codes:
  0  every answer agrees; every program compiles and fits, and all of them together
  1  an error nobody foresaw
  2  wrong usage, or a rule that does not fit the weights
  3  an answer differs by more than is allowed
  4  a program does not fit, does not compile or could not be checked, or all together do not fit
  6  no version with device programs or recorded answers, or a damaged one
  8  the version does not load
  9  the version does not take the recorded requests
  10  the compiler is not installed
  130  broken off
"""


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.argument("version", type=click.Path(path_type=Path, readable=False))
@click.option(
    "--tpu",
    "topologies",
    type=TOPOLOGIES,
    help="TPUs to compile for: v5e:1x1,v6e:2x2, or by their machines' names, v5litepod-4. Add --against to "
    "compare answers too.",
)
@click.option(
    "--against",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="VERSION_DIR",
    help="Compare with the answers recorded in this version.  [default: in VERSION itself]",
)
@click.option("--atol", type=click.FloatRange(0), help="Allowed difference.  [default: the wider of the manifests']")
@click.option("--rtol", type=click.FloatRange(0), help="Allowed, relative.  [default: the wider of the manifests']")
@click.option(
    "--mesh",
    type=MESH,
    default="data=1,model=1",
    show_default=True,
    help="Devices to spread a version over: batches over data, weights over model.",
)
@click.option(
    "--shard",
    "rules",
    type=SHARD,
    multiple=True,
    help="Which weights to cut over the mesh, instead of the version's own rules. Repeat.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output, nothing else.")
def command(
    version: Path,
    topologies: tuple[TpuTopology, ...] | None,
    against: Path | None,
    atol: float | None,
    rtol: float | None,
    mesh: DeviceMesh,
    rules: tuple[ShardRule, ...],
    as_json: bool,
) -> int:
    """Check a published VERSION: a directory.

    Without --tpu, its SavedModel answers the requests that its export recorded, on this machine's CPU, and the answers
    are compared with those recorded; the manifests say what may differ. With --tpu, its device programs are compiled,
    each and together; no TPU is needed, libtpu compiles.
    """
    _check_options(topologies, against, atol, rtol, rules)
    console = Console(width=None if sys.stdout.isatty() else _LOG_WIDTH, highlight=False)
    try:
        progress = choose_progress(as_json, console)
        answers = None if topologies and against is None else _ask(version, against or version, atol, rtol, progress)
        report = _compile(version, topologies, mesh, rules, progress) if topologies else None
    except ExportError as error:
        return report_failure(error, as_json)
    except Exception as error:  # the top of the process
        traceback.print_exc()
        return report_failure(ExportError(f"{type(error).__name__}: {error}"), as_json)
    code = _exit_code(answers, report)
    if as_json:
        click.echo(json.dumps(_document(answers, report, code), indent=2))
    else:
        _print(console, answers, report)
    return code


def _check_options(
    topologies: tuple[TpuTopology, ...] | None,
    against: Path | None,
    atol: float | None,
    rtol: float | None,
    rules: tuple[ShardRule, ...],
) -> None:
    """Raise usage errors for options without effect."""
    if topologies is None and rules:
        raise click.UsageError("--shard changes nothing without --tpu")
    if topologies and against is None and (atol is not None or rtol is not None):
        raise click.UsageError("--atol and --rtol change nothing with --tpu alone: give --against, or omit --tpu")


def _ask(version: Path, golden: Path, atol: float | None, rtol: float | None, progress: Progress) -> "RecordedCheck":
    from tpuserve_exporter.tensorflow_start import start_tensorflow

    if not version.is_dir():
        raise SourceUnreadable(f"there is no version directory {version}")
    with progress.step("Start TensorFlow"):
        start_tensorflow()
    from tpuserve_exporter.checks.recorded_requests import check_recorded

    with progress.step("Ask the recorded requests") as step:
        return check_recorded(version, golden, atol, rtol, step.advance)


def _compile(
    version: Path,
    topologies: tuple[TpuTopology, ...],
    mesh: DeviceMesh,
    rules: tuple[ShardRule, ...],
    progress: Progress,
) -> "PreflightReport":
    from tpuserve_exporter.preflight.preflight import Preflight
    from tpuserve_exporter.preflight.version_programs import VersionPrograms

    for rule in rules:
        rule.check(mesh)
    return Preflight(topologies, mesh, rules, progress).run(VersionPrograms.read(version))


def _exit_code(answers: "RecordedCheck | None", report: "PreflightReport | None") -> int:
    if answers is not None and answers.beyond:
        return ParityFailed.exit_code
    return CannotLower.exit_code if report is not None and not report.passed else 0


def _print(console: Console, answers: "RecordedCheck | None", report: "PreflightReport | None") -> None:
    if answers is not None:
        mark, style = ("✗", "red") if answers.beyond else ("✓", "green")
        console.print(Text(f"{mark} {answers}", style=style), soft_wrap=True)
    if report is not None:
        _print_report(console, report)


def _print_report(console: Console, report: "PreflightReport") -> None:
    from tpuserve_exporter.reporting.preflight_table import print_preflight, print_suggestion

    print_preflight(console, report)
    for sentence in report.advice:
        console.print(Text(f"! {sentence}", style="yellow"), soft_wrap=True)
    print_suggestion(console, report)


def _document(answers: "RecordedCheck | None", report: "PreflightReport | None", code: int) -> dict[str, Any]:
    return {
        "ok": code == 0,
        "exit_code": code,
        **({} if answers is None else {"answers": answers.to_json()}),
        **({} if report is None else _report_document(report)),
    }


def _report_document(report: "PreflightReport") -> dict[str, Any]:
    return {
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
