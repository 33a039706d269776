"""Levels of `--help`: the most used options, all options of a group, or all (decision 101)."""

import copy
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

_COMMON: Final = "common"
_ALL: Final = "all"
# Key in the context of the command.
_LEVEL: Final = f"{__name__}.level"


@dataclass(frozen=True, slots=True)
class HelpGroup:
    """Options under a title, by parameter name. `--help=KEY` shows them."""

    key: str
    title: str
    names: Sequence[str]


class LeveledCommand(click.Command):
    """A command with too many options for one screen.

    `--help` shows the options `common` in their groups, each with the first sentence of its help. `--help=KEY` shows a
    group, and `--help=all` every group. Options in no group are in every level, except in that of a group.
    """

    def __init__(self, *args: Any, groups: Sequence[HelpGroup], common: Collection[str], **settings: Any) -> None:  # noqa: ANN401 - click's arguments
        """Create the command. `groups` are in the order of the help."""
        super().__init__(*args, **settings)
        self._groups = groups
        self._common = common
        self._leveled_help: click.Option | None = None

    def get_help_option(self, ctx: click.Context) -> click.Option:
        """Return the option, whose value is the level."""
        if self._leveled_help is None:
            self._leveled_help = click.Option(
                self.get_help_option_names(ctx),
                type=click.Choice([_COMMON, *(group.key for group in self._groups), _ALL]),
                is_flag=False,
                flag_value=_COMMON,
                metavar="GROUP",
                expose_value=False,
                is_eager=True,
                callback=_show_help,
                help="Show this message and exit. --help=GROUP shows all flags of a group, --help=all all groups.",
            )
        return self._leveled_help

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the level that the user chose."""
        level = ctx.meta.get(_LEVEL, _COMMON)
        chosen = [group for group in self._groups if group.key == level]
        if not chosen:
            super().format_help(ctx, formatter)
            return
        self.format_usage(ctx, formatter)
        for group in chosen:
            self._write(ctx, formatter, group.title, group.names)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of every group, or the common ones with the way to the others."""
        is_short = ctx.meta.get(_LEVEL, _COMMON) == _COMMON
        for group in self._groups:
            names = [name for name in group.names if not is_short or name in self._common]
            if names:
                self._write(ctx, formatter, group.title, names, is_short=is_short)
        grouped = {name for group in self._groups for name in group.names}
        self._write(
            ctx, formatter, "About", [one.name or "" for one in self.get_params(ctx) if one.name not in grouped]
        )
        if is_short:
            keys = ", ".join(group.key for group in self._groups)
            more = [
                ("--help=all", f"All {len(grouped)} flags."),
                ("--help=GROUP", f"All flags of a group: {keys}."),
            ]
            with formatter.section("More flags"):
                formatter.write_dl(more)

    def _write(
        self,
        ctx: click.Context,
        formatter: click.HelpFormatter,
        title: str,
        names: Iterable[str],
        *,
        is_short: bool = False,
    ) -> None:
        options = {one.name: one for one in self.get_params(ctx)}
        shown = [_first_sentence(options[name]) if is_short else options[name] for name in names]
        records = [option.get_help_record(ctx) for option in shown]
        with formatter.section(title):
            formatter.write_dl([record for record in records if record is not None])


def _show_help(ctx: click.Context, _option: click.Parameter, level: str | None) -> None:
    if level is not None and not ctx.resilient_parsing:
        ctx.meta[_LEVEL] = level
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def _first_sentence(option: click.Parameter) -> click.Parameter:
    shortened = copy.copy(option)
    if isinstance(shortened, click.Option) and shortened.help:
        sentence, _, rest = shortened.help.partition(". ")
        shortened.help = f"{sentence}." if rest else sentence
    return shortened
