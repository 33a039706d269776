"""External subcommands: executables named `tpuserve-NAME` in the directory of this Python, or on PATH."""

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from tpuserve_client.cli.completion import complete_arguments

EXIT_NOT_INSTALLED = 127  # the shell's exit code for "command not found"


@dataclass(frozen=True, slots=True)
class Companion:
    """A subcommand, the distribution that provides it, and a one-line summary. Most users need its `extra`."""

    name: str
    distribution: str
    summary: str
    extra: str = ""

    @property
    def program(self) -> str:
        return f"tpuserve-{self.name}"

    @property
    def requirement(self) -> str:
        return f"'{self.distribution}[{self.extra}]'" if self.extra else self.distribution


COMPANIONS = (
    Companion("export", "tpuserve-exporter", "Turn a checkpoint into a checked, versioned SavedModel."),
    Companion("inspect", "tpuserve-exporter", "Print the contents of a checkpoint, a graph or a SavedModel."),
    Companion("check", "tpuserve-exporter", "Check without a TPU whether a version compiles for it and fits."),
    Companion("sign", "tpuserve-exporter", "Sign a version, for servers that require signatures."),
    Companion("keygen", "tpuserve-exporter", "Create a key pair to sign versions with."),
    Companion("deploy", "tpuserve-exporter", "Write Kubernetes manifests for a version on a TPU."),
    Companion("serve", "tpuserve-server", "Serve models over gRPC and REST.", "tensorflow"),
    Companion("key", "tpuserve-server", "Make an API key of a client."),
    Companion("loadtest", "tpuserve-loadtests", "Measure a running server under load."),
    Companion("rollout", "tpuserve-loadtests", "Make another version live if it is as good as the current one."),
)


class NotInstalled(click.ClickException):
    """The distribution of a known subcommand is not installed."""

    exit_code = EXIT_NOT_INSTALLED

    def __init__(self, companion: Companion) -> None:
        super().__init__(
            f"`tpuserve {companion.name}` requires {companion.distribution}, which is not installed: "
            f"pip install {companion.requirement}"
        )


def find_program(name: str) -> str | None:
    """Return the path of an executable, or None. Searches the directory of this Python first, then PATH.

    The virtual environment of this Python need not be active.
    """
    sibling = Path(sys.executable).parent / name
    return str(sibling) if os.access(sibling, os.X_OK) else shutil.which(name)


class _CompanionCommand(click.Command):
    """A command whose options are known to its program only."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the completions of an option."""
        return self.params[0].shell_complete(ctx, incomplete)


def companion_command(companion: Companion) -> click.Command:
    """Return a command that runs the companion's program with all arguments, including --help, unchanged.

    The program replaces this process. It receives the signals, and its exit code is the command's.
    """

    def run_program(arguments: tuple[str, ...]) -> None:
        program = find_program(companion.program)
        if program is None:
            raise NotInstalled(companion)
        os.execv(program, [program, *arguments])

    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        program = find_program(companion.program)
        arguments = ctx.params.get("arguments") or ()
        return (
            [] if program is None else complete_arguments(program, f"tpuserve {companion.name}", arguments, incomplete)
        )

    return _CompanionCommand(
        companion.name,
        callback=run_program,
        params=[click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED, shell_complete=complete)],
        short_help=companion.summary,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []},
    )
