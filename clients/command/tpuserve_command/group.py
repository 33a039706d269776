"""The command group: help, version, shell completion, and a hint for unknown names."""

from collections.abc import Sequence
from difflib import get_close_matches

import click
from click.shell_completion import CompletionItem

import tpuserve_command
from tpuserve_command.completion import complete_arguments
from tpuserve_command.subcommands import SUBCOMMANDS, Subcommand


class _Group(click.Group):
    """A group that lists missing subcommands separately, and suggests the nearest command for an unknown name."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        installed = [(one.name, one.summary) for one in SUBCOMMANDS.values() if one.find()]
        missing = [(one.name, f"pip install {one.requirement}") for one in SUBCOMMANDS.values() if not one.find()]
        for heading, rows in (("Commands", installed), ("Not installed", missing)):
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            nearest = get_close_matches(name, self.list_commands(ctx), n=1, cutoff=0.4)
            hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
            ctx.fail(f"Unknown command {name!r}.{hint}")
        return super().resolve_command(ctx, args)


class _Command(click.Command):
    """A command whose options are known to its program only."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the completions of an option."""
        return self.params[0].shell_complete(ctx, incomplete)


def _command(subcommand: Subcommand) -> click.Command:
    def run(arguments: Sequence[str]) -> None:
        subcommand.run(arguments)

    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        program = subcommand.find()
        arguments = ctx.params.get("arguments") or ()
        return (
            [] if program is None else complete_arguments(program, f"tpuserve {subcommand.name}", arguments, incomplete)
        )

    return _Command(
        subcommand.name,
        callback=run,
        params=[click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED, shell_complete=complete)],
        short_help=subcommand.summary,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []},
    )


@click.group(
    cls=_Group,
    commands=[_command(subcommand) for subcommand in SUBCOMMANDS.values()],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="`tpuserve COMMAND --help` describes a command.",
)
@click.version_option(tpuserve_command.__version__, "--version", message="tpuserve %(version)s")
def tpuserve() -> None:
    """Export, check, serve, call and load-test TPU-trained models."""
