"""The command `tpuserve loadtest diff`, and the folder of baselines of `run`."""

import json
import re
from datetime import UTC, datetime

import click

from tpuserve_loadtests.cli import access, files
from tpuserve_loadtests.cli.command import refused
from tpuserve_loadtests.cli.commands import DiffOptions
from tpuserve_loadtests.cli.options import BaselineOptions, DifferenceOptions
from tpuserve_loadtests.judgement.exit_codes import EXIT_GENERATOR, EXIT_INTERRUPTED
from tpuserve_loadtests.judgement.run import Rules
from tpuserve_loadtests.rendering.report import Report
from tpuserve_loadtests.rendering.result_file import BadResult, ResultFile
from tpuserve_loadtests.reports.diff import diff_report, differing, with_baseline


def diff(options: DiffOptions) -> None:
    """Compare two files, and publish the comparison."""
    files.check_files(options.files)
    with refused(BadResult):
        old, new = ResultFile.read(options.old), ResultFile.read(options.new)
        report = _compared(old, new, options.difference)
    files.publish(report, options.files, as_json=options.as_json)


def _compared(old: ResultFile, new: ResultFile, options: DifferenceOptions) -> Report:
    is_failed = options.unclear == "fail"
    return diff_report(old, new, Rules(strict=False, least_effect=options.least_effect, fail_if_unclear=is_failed))


def check_baseline(options: BaselineOptions) -> None:
    """Raise a usage error for options without a directory."""
    for name in ("least_effect", "unclear"):
        if options.baseline is None and name in access.explicit_names():
            raise click.UsageError(f"{access.flag(name)} has no effect without --baseline.")


def checked_against(report: Report, options: BaselineOptions) -> Report:
    """Compare the report of a run with its baseline, and make it the next baseline if both pass.

    A run that was interrupted, or in which the load generator was the limit, does not describe the server.
    """
    folder = options.baseline
    if folder is None or report.exit_code in (EXIT_GENERATOR, EXIT_INTERRUPTED):
        return report
    now = datetime.now(UTC)
    path = folder / f"{now:%Y%m%d-%H%M%S}-{re.sub(r'[^a-zA-Z0-9.]+', '-', report.subject)}.json"
    text = files.document_of(report, with_runs=True)
    new = ResultFile(path, json.loads(text))
    for file in sorted(folder.glob("*.json"), reverse=True):
        try:
            old = ResultFile.read(file)
            if old.passed and not differing(old, new):
                report = with_baseline(report, _compared(old, new, options.difference), file.name)
                break
        except BadResult as error:
            click.echo(f"Warning: {error}", err=True)
    else:
        click.echo(f"Note: {folder} has no passed result with the same model, load and machine", err=True)
    if not report.exit_code:
        files.try_to_write(path, text)
    return report
