"""Reports of an export's outcome: on the terminal, on standard output, in report files, and as the exit code."""

import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from tpuserve_exporter.errors import BROKEN_OFF, ExportError
from tpuserve_exporter.reports.shown_progress import RecordedProgress, choose_progress

if TYPE_CHECKING:
    from tpuserve_exporter.stages.job import Exported

_BROKEN_OFF_DOCUMENT = {"ok": False, "error": "interrupted", "kind": "BrokenOff", "exit_code": BROKEN_OFF}
# The width of tables in a file or a pipe, in columns.
_LOG_WIDTH = 120


class Reporter:
    """A reporter that prints the outcome in the requested form and returns the exit code."""

    def __init__(self, name: str, as_json: bool, reports: Sequence[Path], *, verbose: bool = False) -> None:
        self._name = name
        self._as_json = as_json
        self._reports = reports
        self._console = Console()
        self.progress = RecordedProgress(choose_progress(as_json, self._console, verbose=verbose))

    def output(self) -> contextlib.AbstractContextManager[object]:
        """Redirect a builder's output to standard error if standard output is JSON."""
        return contextlib.redirect_stdout(sys.stderr) if self._as_json else contextlib.nullcontext()

    def break_off(self) -> int:
        self._write(_BROKEN_OFF_DOCUMENT)
        click.echo("interrupted", err=True)
        return BROKEN_OFF

    def succeed(self, exported: "Exported", seconds: float) -> int:
        from tpuserve_exporter.reports.summary import print_success, success_document

        self._write(success_document(exported, seconds, self.progress.steps))
        if not self._as_json:
            print_success(self._console, exported, seconds, len(self.progress.steps))
        return 0

    def fail(self, error: ExportError) -> int:
        from tpuserve_exporter.reports.summary import failure_document, print_failure

        self._write(failure_document(self._name, error, self.progress.steps))
        if not self._as_json:
            print_failure(Console(stderr=True, width=None if sys.stderr.isatty() else _LOG_WIDTH), error)
        return error.exit_code

    def _write(self, document: dict[str, Any]) -> None:
        for path in self._reports:
            try:
                write_report(path, document)
            except OSError as error:  # the exit code is that of the export
                click.echo(f"warning: cannot write {path}: {error.strerror}", err=True)
        if self._as_json:
            click.echo(json.dumps(document, indent=2))


_PAGES = (".html", ".htm")


def write_report(path: Path, document: Mapping[str, Any]) -> None:
    """Write the report. Raises OSError."""
    path.write_text(_render(path, document), encoding="utf-8")


def _render(path: Path, document: Mapping[str, Any]) -> str:
    if path.suffix.lower() not in _PAGES:
        return json.dumps(document, indent=2) + "\n"
    from tpuserve_exporter.reports.page import render_page

    return render_page(document)
