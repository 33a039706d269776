"""The command group: built-in commands, companions, and a hint for unknown names."""

import io
import sys
from difflib import get_close_matches

import click

import tpuserve_client
from tpuserve_client.cli.companion import COMPANIONS, companion_command
from tpuserve_client.cli.predict import predict
from tpuserve_client.cli.status import status


class _SuggestingGroup(click.Group):
    """A group that suggests the nearest command for an unknown name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            nearest = get_close_matches(name, self.list_commands(ctx), n=1, cutoff=0.4)
            hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
            ctx.fail(f"Unknown command {name!r}.{hint}")
        return super().resolve_command(ctx, args)


@click.group(cls=_SuggestingGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(tpuserve_client.__version__, "--version", message="tpuserve %(version)s")
def tpuserve() -> None:
    """Export, check, serve, call and load-test TPU-trained models."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # The locale's encoding may lack characters of a model's strings, and the "…" of cut tables.
        sys.stdout.reconfigure(errors="backslashreplace")


tpuserve.add_command(predict)
tpuserve.add_command(status)
for _companion in COMPANIONS:
    tpuserve.add_command(companion_command(_companion))
