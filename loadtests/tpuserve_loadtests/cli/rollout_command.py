"""The command `tpuserve rollout`, which tests a new version, makes it live, and restores the old version on failure."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tpuserve_formats.counted import counted
from tpuserve_loadtests.arrivals.duration import Duration
from tpuserve_loadtests.cli import options
from tpuserve_loadtests.cli.command import argument, command, group, option
from tpuserve_loadtests.cli.commands import LEAST_SEGMENTS, SEGMENTS

if TYPE_CHECKING:
    from tpuserve_loadtests.rollout.labels import Apply

EPILOG = """\b
Examples:
  tpuserve rollout digits --to 4 --model_config_file models.config                  print the plan
  tpuserve rollout digits --to 4 --model_config_file models.config --execute --html rollout.html
  tpuserve rollout digits --to 4 --model_config_file models.config --no-parity --rate 200 --soak 30m \\
      --fail-if 'p99>20ms' 'error_rate>0.1%' --execute

Exit codes: 0 the version is live, or the plan is possible, 1 interrupted, or a label could not be moved, 2 usage error,
3 server unreachable, also when the labels are moved back, 98 the load generator was the limit, or the comparison
or the soak is inconclusive, 99 a gate failed.
After every code except 0, the labels in the file are as before. If the server does not have them, the last line reports
it.
"""
_REST: Final = "REST address, to measure the server's memory during the soak."


@dataclass(frozen=True, slots=True)
class RolloutOptions:
    """Options of `rollout`. `load` applies to the comparison and the soak, `time` to each run of the comparison.

    `soak` is in seconds.
    """

    model: str = argument()
    new: int = option("--to", type=click.IntRange(0), required=True, help="Version to make live.")
    config_file: Path = option(
        "--model_config_file",
        "--model-config-file",
        type=options.FILE,
        required=True,
        help="Configuration file of the server, in which the rollout changes only labels.",
    )
    execute: bool = option(
        "--execute", is_flag=True, help="Perform the rollout. Without this option, print the plan and change nothing."
    )
    apply: "Apply" = option(
        "--apply",
        type=click.Choice(["reload", "poll"]),
        default="reload",
        help="Send the file to the server, or wait until the server polls it (--model_config_file_poll_wait_seconds).",
    )
    server: options.ServerOptions = group(options.ServerOptions, rest_url={"help": _REST})
    control_api_key_file: Path | None = option(
        options.CONTROL_KEY_FILE,
        type=options.FILE,
        help="File of an API key with the role control, for reloads.  "
        f"[env var of the key: {options.CONTROL_KEY_VARIABLE}; default: the key for predictions]",
    )
    metrics: str = options.metrics_option()
    stable: str = option("--stable", default="stable", help="Label that clients request.")
    canary: str = option("--canary", default="canary", help="Label to move first.")
    parity: bool = option(
        "--parity/--no-parity",
        default=True,
        help="Require equal responses of both versions, within the tolerance.",
        show_default=False,
    )
    tolerance: options.ToleranceOptions = group(options.ToleranceOptions)
    load: options.UsersOrRateOptions = group(options.UsersOrRateOptions)
    arrivals: options.ArrivalOptions = group(options.ArrivalOptions)
    rounds: int = option(
        "--rounds", type=click.IntRange(3), default=6, help="Number of interleaved runs of each version."
    )
    least_effect: float = options.least_effect_option(
        "Tolerated deterioration, compared with the live version and over the soak; 0.05 is 5 %."
    )
    unclear: str = options.unclear_option("an unclear comparison or soak")
    time: options.TimeOptions = group(options.TimeOptions)
    soak: float = option(
        "--soak", type=Duration(zero=True), default="5m", help="Time under load after the move; 0 for none."
    )
    segments: int = option(
        "--segments",
        type=click.IntRange(LEAST_SEGMENTS, 1000),
        default=SEGMENTS,
        help="Number of segments of the soak.",
        show_default=False,
    )
    gates: tuple[str, ...] = option(
        "--fail-if", multiple=True, metavar="GATE...", help="Gates of the soak: 'p99>20ms', 'error_rate>1%'."
    )
    patience: float = option(
        "--patience",
        type=Duration(),
        default="60s",
        help="Timeout for the move of a label, and for a server that does not respond.",
    )
    requests: options.RequestOptions = group(options.RequestOptions)
    generator: options.GeneratorOptions = group(options.GeneratorOptions)
    as_json: bool = option("--json", is_flag=True, help="Print one JSON document; steps go to standard error.")
    files: options.PageOptions = group(options.PageOptions)

    @property
    def load_words(self) -> str:
        users = counted(self.load.users or options.DEFAULT_COMPARED_USERS, "user")
        return f"{self.load.rate} requests/s" if self.load.rate else users


rollout = command(
    "rollout_job:rollout",
    RolloutOptions,
    epilog=EPILOG,
    help="""Make another version of MODEL live if it passes parity, comparison and soak.

    The rollout checks golden parity and compares the version with the live one under load. It then moves the labels
    canary and stable, and puts the new version under load (soak). A failure before the move changes nothing. After
    the move, a failure, Ctrl-C or SIGTERM moves the labels back. --users and --rate apply to the comparison and the
    soak, --duration to each run of the comparison.
    """,
)


def main() -> None:
    """Run the `tpuserve-rollout` executable, which users start as `tpuserve rollout`."""
    rollout(prog_name="tpuserve rollout")
