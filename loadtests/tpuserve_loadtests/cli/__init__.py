"""The command line of `tpuserve loadtest`. Commands import slow modules only when a run starts."""

from importlib import import_module
from typing import Final

import click

EPILOG = """\b
Exit codes:
   0  all went well
   1  requests failed (the commonest errors are listed), or a search or comparison was interrupted
   2  usage: also a model that the server does not know, and inputs that do not fit it
   3  the server cannot be reached
  98  the load generator was the limit, or a worker of it is gone: the figures say nothing about the server
  99  a gate of --fail-if failed; search: no rate holds; compare: B is worse; soak: drifting; mlperf: INVALID

\b
Examples:
  tpuserve loadtest digits                                          the same as `run digits`
  tpuserve loadtest run digits --rate 500 --fail-if 'p99>20ms' 'error_rate>0.1%'
  tpuserve loadtest sweep digits --rate 100,200,400,800
  tpuserve loadtest search digits --slo 'p99<=20ms'
  tpuserve loadtest compare digits 3 4
  tpuserve loadtest soak digits --rate 200 --duration 4h
  tpuserve loadtest mlperf digits --scenario single-stream
"""


# The order of --help: commands for new users come first.
_COMMANDS: Final = ("run", "sweep", "search", "compare", "soak", "mlperf", "worker")


class Commands(click.Group):
    """Group of subcommands that imports each one on first use.

    Arguments that do not start with a subcommand are arguments of `run`.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, with `tpuserve loadtest digits` as `tpuserve loadtest run digits`."""
        if args and args[0] not in _COMMANDS and args[0] != "--help":
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the subcommands in the order of --help."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a subcommand. Return None for an unknown name."""
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"{__name__}.{cmd_name}_command"), cmd_name)
        return command


@click.group(cls=Commands, epilog=EPILOG, no_args_is_help=True)
def loadtest() -> None:
    """Put a running server under load with predict requests and say what it holds.

    Without a subcommand: run.
    """


def main() -> None:
    """Run the `tpuserve-loadtest` executable, which users start as `tpuserve loadtest`."""
    loadtest(prog_name="tpuserve loadtest")
