"""Measure what the checks of responses cost the load generator, on a byte echo. Linux only.

Run: `.venv/bin/python -m benchmarks loadtest checks [--rounds N]`. Each round runs the closed load of 32 users without
checks, with them, and with checks that meet no response twice, so that each is parsed or compared from scratch. One
response of a hundred is also compared with the expected values.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final

import click

from benchmarks.harness.load_tools import ToolFailed
from benchmarks.harness.process_tree import ServerDied
from benchmarks.harness.targets import PROTOCOLS, echoes
from benchmarks.loadgen.loadgen import Bench, Turn

# Values of LOADGEN_CHECKS by the responses that a server sends.
_RESPONSES: Final = {"repeated": "on", "all different": "unknown"}
# Numbers of floats in a response.
_SIZES: Final = (10, 100, 1000)
_HEADINGS: Final = ("protocol", "values", "responses", "rate with checks", "requests per CPU-s with checks")


@click.command()
@click.option("--seconds", default=4, show_default=True, type=click.IntRange(1, 60), help="Seconds per run.")
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1, 50), help="Runs of each generator.")
def checks(seconds: int, rounds: int) -> None:
    """Measure what the checks of responses cost the load generator, as shares of a load without checks."""
    click.echo(f"| {' | '.join(_HEADINGS)} |\n|{' --- |' * len(_HEADINGS)}")
    with tempfile.TemporaryDirectory(prefix="tpuserve-checks-") as directory:
        try:
            with echoes(Path(directory)) as targets:
                bench = Bench(targets, seconds, Path(directory))
                for protocol in PROTOCOLS:
                    for values in _SIZES:
                        turns = [
                            bench.with_checks(protocol, values, ("off", *_RESPONSES.values())) for _ in range(rounds)
                        ]
                        for number, name in enumerate(_RESPONSES, 1):
                            cells = (protocol, str(values), name, *shares([(each[0], each[number]) for each in turns]))
                            click.echo(f"| {' | '.join(cells)} |")
        except (ServerDied, ToolFailed) as error:
            raise click.ClickException(str(error)) from None


def shares(pairs: Sequence[tuple[Turn, Turn]]) -> tuple[str, str]:
    """Return the medians of the rate and of the requests per CPU-second, relative to those without checks."""
    rate = median(checked.rate_per_s / plain.rate_per_s for plain, checked in pairs)
    cpu = median(plain.cpu_s_per_1000 / checked.cpu_s_per_1000 for plain, checked in pairs)
    return f"{rate:.2f}", f"{cpu:.2f}"
