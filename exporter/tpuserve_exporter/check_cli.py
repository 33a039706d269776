"""The command line: `tpuserve check VERSION_DIR --tpu ...`. Compiles and tells; changes nothing."""

import json
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from rich.console import Console
from rich.text import Text

from tpuserve_exporter.cli_types import MESH, SHARD, TOPOLOGIES
from tpuserve_exporter.command_run import report_failure, run_program
from tpuserve_exporter.errors import CannotLower, ExportError
from tpuserve_exporter.options.device_mesh import DeviceMesh, ShardRule
from tpuserve_exporter.options.tpu_topology import TpuTopology
from tpuserve_exporter.reporting.shown_progress import choose_progress

if TYPE_CHECKING:
    from tpuserve_exporter.preflight.preflight import PreflightReport

PROG_NAME = "tpuserve check"
_LOG_WIDTH = 150

_EPILOG = """\b
Examples:
  # would it run on one chip of these?
  tpuserve check models/digits/3 --tpu v5e:1x1,v6e:1x1
\b
  # with its weights cut over four chips
  tpuserve check models/search/7 --tpu v5litepod-4 --mesh model=4 --shard 'embedding/.*=model,-'

\b
Exit codes:
  0  every program compiles and fits, and all of them together
  1  an error nobody foresaw
  2  wrong usage, or a rule that does not fit the weights
  4  a program does not fit, does not compile or could not be checked, or all together do not fit
  6  no version with device programs, or a damaged one
  10  the compiler is not installed
  130  broken off
"""


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.argument("version", type=click.Path(path_type=Path))
@click.option(
    "--tpu",
    "topologies",
    type=TOPOLOGIES,
    required=True,
    help="TPUs to compile for: v5e:1x1,v6e:2x2, or by their machines' names, v5litepod-4.",
)
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
    version: Path, topologies: tuple[TpuTopology, ...], mesh: DeviceMesh, rules: tuple[ShardRule, ...], as_json: bool
) -> int:
    """Tell whether the device programs of VERSION compile for TPUs and fit, each and together.

    No TPU is needed: libtpu compiles.
    """
    console = Console(width=None if sys.stdout.isatty() else _LOG_WIDTH, highlight=False)
    try:
        report = _run(version, topologies, mesh, rules, as_json, console)
    except ExportError as error:
        return report_failure(error, as_json)
    except Exception as error:  # the top of the process
        traceback.print_exc()
        return report_failure(ExportError(f"{type(error).__name__}: {error}"), as_json)
    code = 0 if report.passed else CannotLower.exit_code
    if as_json:
        click.echo(json.dumps(_document(report, code), indent=2))
    else:
        _print(console, report)
    return code


def _run(
    version: Path,
    topologies: tuple[TpuTopology, ...],
    mesh: DeviceMesh,
    rules: tuple[ShardRule, ...],
    as_json: bool,
    console: Console,
) -> "PreflightReport":
    from tpuserve_exporter.preflight.preflight import Preflight
    from tpuserve_exporter.preflight.version_programs import VersionPrograms

    for rule in rules:
        rule.check(mesh)
    preflight = Preflight(topologies, mesh, rules, choose_progress(as_json, console))
    return preflight.run(VersionPrograms.read(version))


def _print(console: Console, report: "PreflightReport") -> None:
    from tpuserve_exporter.reporting.preflight_table import print_preflight, print_suggestion

    print_preflight(console, report)
    for sentence in report.advice:
        console.print(Text(f"! {sentence}", style="yellow"), soft_wrap=True)
    print_suggestion(console, report)


def _document(report: "PreflightReport", code: int) -> dict[str, Any]:
    return {
        "ok": report.passed,
        "exit_code": code,
        "compiler": report.compiler,
        "suggested_batch_sizes": list(report.batch_sizes),
        "advice": list(report.advice),
        "preflight": report.to_json(),
        "preflight_together": report.together_to_json(),
    }


def main() -> NoReturn:
    """The `tpuserve-check` program, which users reach as `tpuserve check`."""
    run_program(command, PROG_NAME)


if __name__ == "__main__":
    main()
