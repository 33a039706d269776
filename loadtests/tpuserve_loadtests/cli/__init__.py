"""The command line of `tpuserve loadtest`. Commands import slow modules only when a run starts."""

from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Final

import click

from tpuserve_loadtests.cli.command import HELP_OPTIONS

EPILOG = """\b
Exit codes:
   0  success
   1  requests failed (the report lists the most frequent errors)
   2  usage error, including an unknown model and inputs that do not match the model
   3  server unreachable
  97  not enough evidence for a verdict
  98  the load generator was the limit, or lost a worker: the figures do not describe the server
  99  a gate of --fail-if or --slo failed; search: no rate holds; compare: B is worse; soak: drifting; mlperf: INVALID
 130  Ctrl-C or SIGTERM interrupted the load

\b
Examples:
  tpuserve loadtest digits                                          the same as `run digits`
  tpuserve loadtest run digits --rate 500 --fail-if 'p99>20ms' 'error_rate>0.1%'
  tpuserve loadtest sweep digits --rate 100,200,400,800
  tpuserve loadtest search digits --slo 'p99<=20ms'
  tpuserve loadtest compare digits 3 4
  tpuserve loadtest diff monday.json today.json
  tpuserve loadtest soak digits --rate 200 --duration 4h
  tpuserve loadtest mlperf digits --scenario single-stream
"""


# Similarity from which a name is a misspelled subcommand (difflib: 1 is equal), and the same before a second name.
_CLOSE: Final = 0.82
_LOOSE: Final = 0.6
# Entry points of further commands, which this package does not import.
_FURTHER: Final = "tpuserve_loadtests.commands"
# The order of --help: commands for new users come first.
_COMMANDS: Final = ("run", "sweep", "search", "compare", "diff", "soak", "init", "locustfile", "worker")


class Commands(click.Group):
    """Group of subcommands, which it imports on first use.

    Arguments that do not start with a subcommand are arguments of `run`.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, with `tpuserve loadtest digits` as `tpuserve loadtest run digits`.

        Raises a usage error for a misspelled subcommand, which would otherwise be the name of a model.
        """
        if args and args[0] not in (*_COMMANDS, *HELP_OPTIONS, *_further()):
            if meant := _meant(args):
                raise click.UsageError(
                    f"No such command '{args[0]}'. Did you mean '{meant}'? "
                    f"For a model of this name, write: {ctx.command_path} run {args[0]}",
                    ctx,
                )
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_COMMANDS, *_further()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a subcommand. Return None for an unknown name."""
        if cmd_name not in _COMMANDS:
            found = _further().get(cmd_name)
            return None if found is None else found.load()
        command: click.Command = getattr(import_module(f"{__name__}.commands"), cmd_name)
        return command


def _further() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=_FURTHER)}


def _meant(args: list[str]) -> str:
    """Return the subcommand that the first argument resembles, or an empty string.

    Before a second name, the first one is no model, because a run takes a single model.
    """
    is_command = len(args) > 1 and not args[1].startswith("-")
    found = get_close_matches(args[0], [*_COMMANDS, *_further()], 1, _LOOSE if is_command else _CLOSE)
    return found[0] if found else ""


@click.group(
    cls=Commands, epilog=EPILOG, no_args_is_help=True, context_settings={"help_option_names": list(HELP_OPTIONS)}
)
def loadtest() -> None:
    """Load a running server with predict requests and report its throughput and latency.

    Without a subcommand, the command is `run`.
    """


def main() -> None:
    """Run the `tpuserve-loadtest` executable, which users start as `tpuserve loadtest`."""
    loadtest(prog_name="tpuserve loadtest")
