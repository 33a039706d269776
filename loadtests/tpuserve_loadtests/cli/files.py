"""The outputs of a report, standard output and files such as those of `--html` and `--csv`, and the settings in it."""

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, TypeAlias

import click
from rich.console import Console

from tpuserve_formats.counted import counted
from tpuserve_formats.manifest import MANIFEST_FILE
from tpuserve_formats.version_reports import MOST_REPORT_BYTES, REPORTS_FOLDER
from tpuserve_loadtests.cli.options import HEADER, FileOptions, PageOptions
from tpuserve_loadtests.judgement.exit_codes import EXIT_FAILED
from tpuserve_loadtests.rendering.exports import csv_text, hdr_log, junit_xml, percentile_distribution
from tpuserve_loadtests.rendering.page import render_page
from tpuserve_loadtests.rendering.report import Report
from tpuserve_loadtests.rendering.terminal import print_report
from tpuserve_loadtests.requests.protocols import shown_address

if TYPE_CHECKING:
    from tpuserve_loadtests.traffic.target import Target

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


def check_files(files: PageOptions) -> None:
    """Raise a usage error for a file that cannot be written."""
    _check_writable(files.html, "--html")
    check_version(files.attach_to, "--attach-to")
    _check_writable(files.junit, "--junit")
    if isinstance(files, FileOptions):
        _check_writable(files.csv, "--csv")
        _check_writable(files.hdr, "--hdr")


def refuse_distribution(files: FileOptions) -> None:
    """Raise a usage error for `--hdr FILE.hgrm`, which holds a single run. Commands with several runs call this."""
    if files.hdr is not None and files.hdr.suffix == DISTRIBUTION:
        raise click.BadParameter(
            f"{files.hdr.name} contains one run, but the command has several. Set a log, as --hdr FILE.hdr.",
            param_hint="--hdr",
        )


def forms(report: Report, files: PageOptions) -> Forms:
    now = datetime.now(UTC)
    yield files.junit, lambda: junit_xml(report)
    yield files.html, lambda: render_page(report.page(), now)
    if files.attach_to is not None:
        yield attached_page(files.attach_to, report.kind, now), lambda: checked_page(render_page(report.page(), now))
    if isinstance(files, FileOptions):
        yield files.csv, lambda: csv_text(report.rows())
        yield files.hdr, lambda: _latencies(report, files.hdr)


def _latencies(report: Report, file: Path | None) -> str:
    if file is not None and file.suffix == DISTRIBUTION:
        (measured,) = report.runs.values()
        return percentile_distribution(measured)
    return hdr_log(report.runs, in_windows=report.in_windows)


def publish(report: Report, files: PageOptions, *, as_json: bool, stderr: bool = False) -> NoReturn:
    """Print the report, write its files and exit with its exit code; EXIT_FAILED if a file cannot be written."""
    show(report, as_json=as_json, stderr=stderr)
    # These files follow the printed report.
    if not all(try_to_write(path, content()) for path, content in forms(report, files) if path is not None):
        sys.exit(EXIT_FAILED)
    sys.exit(report.exit_code)


def show(report: Report, *, as_json: bool, stderr: bool = False) -> None:
    """Print the report as a JSON document, or as tables and lines. `stderr` sends these to standard error."""
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
    try:
        path.parent.mkdir(parents=True, exist_ok=True)  # the reports of a version
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        click.echo(f"Error: Cannot write {path}: {error.strerror}", err=True)
        return False
    click.echo(f"Wrote {path}", err=True)
    return True


def describe_settings(*targets: "Target") -> dict[str, str]:
    lines = [line for target in targets for line in target.workload.lines]
    rows = sorted({count for line in lines for count in line.rows})
    rows_text = f"{rows[0]} to {rows[-1]} rows" if len(rows) > 1 else counted(rows[0], "row")
    headers = dict.fromkeys(name for target in targets for name in target.access.headers)
    return {
        "Model": _joined(str(line.spec) for line in lines),
        "Signature": _joined(line.signature_name for line in lines),
        "Addresses": _joined(shown_address(*place) for target in targets for place in target.addresses.items()),
        "Requests": f"{max(len(line.exchanges) for line in lines):,} distinct, of {rows_text}",
        "Timeout": f"{targets[0].timeout_s:g} s",
        **({"Headers": ", ".join(headers)} if headers else {}),
        **({"API key": "sent"} if any(target.access.api_key is not None for target in targets) else {}),
        **describe_command("tpuserve", "loadtest"),
    }


def describe_command(*program: str) -> dict[str, str]:
    """Return the command line of this process, as `program` and without secrets, and its machine."""
    return {
        "Command": shlex.join([*program, *_redacted(sys.argv[1:])]),
        "Generator machine": counted(os.cpu_count() or 1, "core"),
    }


def _redacted(arguments: Sequence[str]) -> Iterator[str]:
    is_header = False
    for argument in arguments:
        option, equals, text = argument.partition("=")
        if is_header:
            yield _without_value(argument)
        elif option == HEADER and equals:
            yield f"{option}={_without_value(text)}"
        else:
            yield argument
        is_header = argument == HEADER


def _without_value(header: str) -> str:
    return header if header.startswith("@") else f"{header.partition(':')[0]}: …"


def _joined(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(texts))
