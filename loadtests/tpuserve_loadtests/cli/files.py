"""The outputs of a report, standard output and files such as those of `--html` and `--csv`, and the settings in it."""

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, TypeAlias

import click
import psutil
from rich.console import Console

from tpuserve_client.errors import TpuserveError
from tpuserve_formats.counted import counted
from tpuserve_formats.manifest import MANIFEST_FILE
from tpuserve_formats.version_reports import MOST_REPORT_BYTES, REPORTS_FOLDER
from tpuserve_loadtests.cli.options import HEADER, FileOptions, PageOptions
from tpuserve_loadtests.judgement.exit_codes import EXIT_FAILED
from tpuserve_loadtests.rendering.exports import csv_text, hdr_log, junit_xml, percentile_distribution
from tpuserve_loadtests.rendering.github import annotations, summary
from tpuserve_loadtests.rendering.page import render_page
from tpuserve_loadtests.rendering.report import Report
from tpuserve_loadtests.rendering.result_file import result_json
from tpuserve_loadtests.rendering.terminal import print_report
from tpuserve_loadtests.requests.protocols import GRPC_CONNECTIONS, shown_address

if TYPE_CHECKING:
    from tpuserve_loadtests.traffic.target import Target

Forms: TypeAlias = Iterator[tuple[Path | None, Callable[[], str]]]

# A server that is slow to describe a model must not delay the report.
_VERSION_TIMEOUT_S: Final = 2.0
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
    check_version(files.attach_to, "--attach-to")
    for name in ("json_file", "html", "junit", "csv", "hdr"):
        _check_writable(getattr(files, name, None), f"--{name.replace('_', '-')}")


def refuse_distribution(files: FileOptions) -> None:
    """Raise a usage error for `--hdr FILE.hgrm`, which holds a single run. Commands with several runs call this."""
    if files.hdr is not None and files.hdr.suffix == DISTRIBUTION:
        raise click.BadParameter(
            f"{files.hdr.name} contains one run, but the command has several. Set a log, as --hdr FILE.hdr.",
            param_hint="--hdr",
        )


def forms(report: Report, files: PageOptions) -> Forms:
    now = datetime.now(UTC)
    yield files.json_file, lambda: document_of(report, with_runs=True)
    yield files.junit, lambda: junit_xml(report)
    yield files.html, lambda: render_page(report.page(), now)
    if files.attach_to is not None:
        # Names of one kind of report sort by time.
        name = f"{report.kind.replace(' ', '-')}-{now:%Y%m%d-%H%M%S}.html"
        yield files.attach_to / REPORTS_FOLDER / name, lambda: checked_page(render_page(report.page(), now))
    if isinstance(files, FileOptions):
        yield files.csv, lambda: csv_text(report.rows())
        yield files.hdr, lambda: _latencies(report, files.hdr)


def _latencies(report: Report, file: Path | None) -> str:
    if file is not None and file.suffix == DISTRIBUTION:
        (measured,) = report.runs.values()
        return percentile_distribution(measured)
    return hdr_log(report.runs, in_windows=report.in_windows)


def publish(report: Report, files: PageOptions, *, as_json: bool, stderr: bool = False) -> NoReturn:
    """Output the report like `output`, and exit with its exit code."""
    sys.exit(output(report, files, as_json=as_json, stderr=stderr))


def output(report: Report, files: PageOptions, *, as_json: bool = False, stderr: bool = False) -> int:
    """Print the report and write its files. Return its exit code, or EXIT_FAILED if a file cannot be written."""
    show(report, as_json=as_json, stderr=stderr)
    annotate(report, files)
    # These files follow the printed report.
    is_written = all(try_to_write(path, content()) for path, content in forms(report, files) if path is not None)
    return report.exit_code if is_written else EXIT_FAILED


def show(report: Report, *, as_json: bool, stderr: bool = False) -> None:
    """Print the report as a JSON document, or as tables and lines. `stderr` sends these to standard error."""
    if as_json:
        click.echo(document_of(report))
    else:
        print_report(report, Console(stderr=stderr))


def document_of(report: Report, *, with_runs: bool = False) -> str:
    """Return the JSON document of this process's report, with the time of its start."""
    began = datetime.fromtimestamp(psutil.Process().create_time(), UTC)
    return result_json(report, began, datetime.now(UTC), with_runs=with_runs)


def annotate(report: Report, files: PageOptions) -> None:
    """Print annotations for GitHub Actions on standard error, and append the tables to the job's summary."""
    is_there = os.environ.get("GITHUB_ACTIONS") == "true"
    if files.annotations == "off" or (files.annotations == "auto" and not is_there):
        return
    for line in annotations(report):
        click.echo(line, err=True)
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        try:
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(summary(report))
        except OSError as error:
            click.echo(f"Warning: Cannot write the job's summary: {error.strerror}", err=True)


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
    limits = {limit: None for target in targets for limit in target.checks.limits(target.workload.lines)}
    return {
        "Model": _joined(str(line.spec) for line in lines),
        "Version": _joined(map(str, _versions(targets))),
        "Signature": _joined(line.signature.name for line in lines),
        "Addresses": _joined(shown_address(*place) for target in targets for place in target.addresses.items()),
        "Requests": f"{max(len(line.exchanges) for line in lines):,} distinct, of {rows_text}",
        "Timeout": f"{targets[0].timeout_s:g} s",
        "Connections": f"{targets[0].connections or f'{GRPC_CONNECTIONS} over gRPC, one for each request over REST'}",
        **({"Headers": ", ".join(headers)} if headers else {}),
        **({"API key": "sent"} if any(target.access.api_key is not None for target in targets) else {}),
        **({"Tolerance": "; ".join(limits)} if limits else {}),
        **describe_command("tpuserve", "loadtest"),
    }


def _versions(targets: "Sequence[Target]") -> Iterator[int]:
    """Yield the versions that answer, as far as the servers report them."""
    for target in targets:
        for spec, protocol in dict.fromkeys((line.spec, line.protocol) for line in target.workload.lines):
            address = target.addresses[protocol]
            with suppress(TpuserveError), target.access.client(address, _VERSION_TIMEOUT_S) as client:
                found = client.metadata(spec.name, version=spec.version, label=spec.label).version
                if found is not None:
                    yield found


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
