"""Several thresholds after one option, such as `--fail-if 'p99>20ms' 'rate<500'`, which click does not support."""

import re
from typing import TYPE_CHECKING, Final

import click

from tpuserve_loadtests.cli.sections import SectionedCommand

if TYPE_CHECKING:
    from tpuserve_loadtests.judgement.threshold import Threshold

OPTIONS: Final = ("--fail-if", "--slo", "--until")
_LIKE_ONE: Final = re.compile(r"[a-z_0-9. ]+[<>]")


class ThresholdCommand(SectionedCommand):
    """Command that accepts several thresholds after one option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat the option before each further threshold."""
        return super().parse_args(ctx, _spread(args))


def thresholds(texts: tuple[str, ...], option: str) -> "tuple[Threshold, ...]":
    """Parse the thresholds. Raise a usage error for an invalid text."""
    from tpuserve_loadtests.judgement.threshold import Threshold

    try:
        return tuple(Threshold.parse(text) for text in texts)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from None


def thresholds_of_loads(texts: tuple[str, ...], option: str, command: str) -> "tuple[Threshold, ...]":
    """Parse the thresholds of a command without golden responses. Raise a usage error for one that needs them."""
    found = thresholds(texts, option)
    for threshold in found:
        if threshold.is_of_checks:
            raise click.BadParameter(
                f"{threshold} needs golden responses, which {command} does not support.", param_hint=option
            )
    return found


def _spread(args: list[str]) -> list[str]:
    spread: list[str] = []
    option = ""
    for number, arg in enumerate(args):
        if arg in OPTIONS:
            option = arg
        elif option and number >= 2 and args[number - 1] != option and _LIKE_ONE.match(arg):
            spread.append(option)
        elif option and args[number - 1] != option:
            option = ""
        spread.append(arg)
    return spread
