"""What the commands of this distribution have in common: how they end, and how they say that they failed."""

import json
import sys
from typing import NoReturn

import click

from tpuserve_exporter.errors import BROKEN_OFF, ExportError


def run_program(command: click.Command, name: str) -> NoReturn:
    """Run `command`, which returns its exit code, with the process's arguments; users know it as `name`."""
    arguments = sys.argv[1:]
    try:
        code = command.main(arguments, prog_name=name, standalone_mode=False)
    except click.ClickException as error:
        code = _report_usage(error, "--json" in arguments)
    except (click.Abort, KeyboardInterrupt):
        # Before the options were read, or while the outcome was being reported.
        click.echo("broken off", err=True)
        code = BROKEN_OFF
    sys.exit(code)


def report_failure(error: ExportError, as_json: bool) -> int:
    """Say what failed, one line or one document; the exit code."""
    if as_json:
        _print_failure(str(error), error.kind, error.exit_code)
    else:
        click.echo(f"error: {error}", err=True)
    return error.exit_code


def _report_usage(error: click.ClickException, as_json: bool) -> int:
    if as_json:
        _print_failure(error.format_message(), "Usage", error.exit_code)
    else:
        error.show()
    return error.exit_code


def _print_failure(message: str, kind: str, code: int) -> None:
    click.echo(json.dumps({"ok": False, "error": message, "kind": kind, "exit_code": code}, indent=2))
