"""The outputs of a report: standard output, and the files that options such as `--html` and `--csv` name."""

import json
import os
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, TypeAlias

import click

from tpuserve_formats.manifest import MANIFEST_FILE
from tpuserve_formats.version_reports import MOST_REPORT_BYTES, REPORTS_FOLDER
from tpuserve_loadtests.cli.command import option
from tpuserve_loadtests.judgement.exit_codes import EXIT_FAILED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tpuserve_loadtests.rendering.report import Report

    Forms: TypeAlias = Iterator[tuple[Path | None, Callable[[], str]]]


# A version has at least one of these files.
_MODEL_FILES: Final = ("saved_model.pb", "saved_model.pbtxt", "model.tflite", MANIFEST_FILE.as_posix())


def check_version(version: Path | None, option: str) -> None:
    """Raise a usage error if `version` is not a version directory, or pages cannot be written to it."""
    if version is None:
        return
    if not any((version / name).is_file() for name in _MODEL_FILES):
        problem = "contains no model" if version.is_dir() else "is no directory of this machine"
        raise click.BadParameter(
            f"{version} {problem}. Set a version directory, such as /models/digits/8.", param_hint=option
        )
    folder = version / REPORTS_FOLDER
    existing = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise click.BadParameter(f"Cannot write to {existing}.", param_hint=option)


def attached_page(version: Path, kind: str, now: datetime) -> Path:
    """Return the file for the page of a report of this kind. Names of one kind sort by time."""
    return version / REPORTS_FOLDER / f"{kind.replace(' ', '-')}-{now:%Y%m%d-%H%M%S}.html"


def checked_page(page: str) -> str:
    """Return the page. Warn on standard error if it is too large for a console."""
    size_bytes = len(page.encode())
    if size_bytes > MOST_REPORT_BYTES:
        click.echo(
            f"Warning: The attached page has {size_bytes:,} bytes. The console lists only pages of at most "
            f"{MOST_REPORT_BYTES:,}.",
            err=True,
        )
    return page


# Suffix for HdrHistogram's plotter page, which takes one distribution instead of a log of several.
DISTRIBUTION: Final = ".hgrm"


_PATH: Final = click.Path(path_type=Path)


@dataclass(frozen=True, slots=True)
class PageOptions:
    """The output files that every report supports; None for a file that no option names."""

    junit: Path | None = option("--junit", type=_PATH, metavar="FILE", help="Also write JUnit XML for CI systems.")
    html: Path | None = option(
        "--html", type=_PATH, metavar="FILE", help="Also write a self-contained HTML page with charts."
    )
    attach_to: Path | None = option(
        "--attach-to",
        type=_PATH,
        metavar="VERSION_DIR",
        help="Also write the HTML page into this version directory. The console of its server then links the page.",
    )

    def check(self) -> None:
        """Raise a usage error for a file that cannot be written."""
        _check_writable(self.html, "--html")
        check_version(self.attach_to, "--attach-to")
        _check_writable(self.junit, "--junit")

    def forms(self, report: "Report") -> "Forms":
        """Yield each file and a function that renders its content, in the order of writing."""
        from tpuserve_loadtests.rendering.exports import junit_xml
        from tpuserve_loadtests.rendering.page import render_page

        now = datetime.now(UTC)
        yield self.junit, lambda: junit_xml(report)
        yield self.html, lambda: render_page(report.page(), now)
        if self.attach_to is not None:
            yield attached_page(self.attach_to, report.kind, now), lambda: checked_page(render_page(report.page(), now))


@dataclass(frozen=True, slots=True)
class FileOptions(PageOptions):
    """The output files of commands that only measure loads, with CSV and HdrHistogram's log."""

    csv: Path | None = option(
        "--csv", type=_PATH, metavar="FILE", help="Also write CSV, with a row for each time window or run."
    )
    hdr: Path | None = option(
        "--hdr",
        type=_PATH,
        metavar="FILE",
        help="Also write HdrHistogram's log, or its percentiles if FILE ends in .hgrm.",
    )

    def check(self) -> None:
        """Raise a usage error for a file that cannot be written."""
        super(FileOptions, self).check()
        _check_writable(self.csv, "--csv")
        _check_writable(self.hdr, "--hdr")

    @property
    def wants_distribution(self) -> bool:
        """Whether `--hdr` names a file of one run's percentiles instead of a log."""
        return self.hdr is not None and self.hdr.suffix == DISTRIBUTION

    def refuse_distribution(self) -> None:
        """Raise a usage error for `--hdr FILE.hgrm`, which holds a single run. Commands with several runs call this."""
        if self.hdr is not None and self.wants_distribution:
            raise click.BadParameter(
                f"{self.hdr.name} contains one run, but the command has several. Set a log, as --hdr FILE.hdr.",
                param_hint="--hdr",
            )

    def forms(self, report: "Report") -> "Forms":
        """Yield each file and a function that renders its content, in the order of writing."""
        from tpuserve_loadtests.rendering.exports import csv_text

        yield from super(FileOptions, self).forms(report)
        yield self.csv, lambda: csv_text(report.rows())
        yield self.hdr, lambda: self._latencies(report)

    def _latencies(self, report: "Report") -> str:
        from tpuserve_loadtests.rendering.exports import hdr_log, percentile_distribution

        if self.wants_distribution:
            (measured,) = report.runs.values()
            return percentile_distribution(measured)
        return hdr_log(report.runs, in_windows=report.in_windows)


def publish(report: "Report", files: PageOptions, *, as_json: bool, stderr: bool = False) -> NoReturn:
    """Print the report, write its files and exit with its exit code; EXIT_FAILED if a file cannot be written."""
    show(report, as_json=as_json, stderr=stderr)
    # These files follow the printed report.
    if not all(try_to_write(path, content()) for path, content in files.forms(report) if path is not None):
        sys.exit(EXIT_FAILED)
    sys.exit(report.exit_code)


def show(report: "Report", *, as_json: bool, stderr: bool = False) -> None:
    """Print the report as a JSON document, or as tables and lines. `stderr` sends these to standard error."""
    from rich.console import Console

    from tpuserve_loadtests.rendering.terminal import print_report

    if as_json:
        click.echo(json.dumps(report.document(), indent=2))
    else:
        print_report(report, Console(stderr=stderr))


def _check_writable(path: Path | None, option: str) -> None:
    """Raise a usage error if the file cannot be written, before any load runs."""
    if path is None:
        return
    if not path.parent.is_dir():
        raise click.BadParameter(f"Directory {path.parent} does not exist.", param_hint=option)
    if path.is_dir():
        raise click.BadParameter(f"{path} is a directory. Set the name of a file.", param_hint=option)
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise click.BadParameter(f"Cannot write {path}: permission denied.", param_hint=option)


def try_to_write(path: Path, content: str) -> bool:
    """Write the file. Report success or the error on standard error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)  # the reports of a version
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        click.echo(f"Error: Cannot write {path}: {error.strerror}", err=True)
        return False
    click.echo(f"Wrote {path}", err=True)
    return True
