"""Code that the commands of this distribution share: their end and their failure reports."""

import json
import sys
import traceback
from typing import NoReturn

import click

from tpuserve_exporter.errors import BROKEN_OFF, ExportError


def run_program(command: click.Command, name: str) -> NoReturn:
    """Run `command` with the process's arguments, and exit with the code that it returns.

    `name` is the program's name in its help.
    """
    arguments = sys.argv[1:]
    try:
        code = command.main(arguments, prog_name=name, standalone_mode=False)
    except click.ClickException as error:
        code = _report_usage(error, "--json" in arguments)
    except (click.Abort, KeyboardInterrupt):
        # The interrupt came before the command read its options, or while it reported the outcome.
        click.echo("interrupted", err=True)
        code = BROKEN_OFF
    sys.exit(code)


def report_failure(error: ExportError, as_json: bool) -> int:
    """Print the failure as one line or one JSON document, and return the exit code."""
    if as_json:
        _print_failure(str(error), error.kind, error.exit_code)
    else:
        click.echo(f"error: {error}", err=True)
    return error.exit_code


def report_error(error: Exception, as_json: bool) -> int:
    """Report a failure, or any other error with its traceback, and return the exit code."""
    if isinstance(error, ExportError):
        return report_failure(error, as_json)
    traceback.print_exception(error)
    return report_failure(ExportError(f"{type(error).__name__}: {error}"), as_json)


def _report_usage(error: click.ClickException, as_json: bool) -> int:
    if as_json:
        _print_failure(error.format_message(), "Usage", error.exit_code)
    else:
        error.show()
    return error.exit_code


def _print_failure(message: str, kind: str, code: int) -> None:
    click.echo(json.dumps({"ok": False, "error": message, "kind": kind, "exit_code": code}, indent=2))
