"""The command `tpuserve rollout`, which tests a new version, makes it live, and restores the old version on failure."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tpuserve_formats.counted import counted
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

Exit codes: 0 the version is live, or the plan is possible, 1 requests failed, or a label could not be moved, 2 usage
error, 3 server unreachable, also when the labels are moved back, 97 not enough evidence, 98 the load generator was the
limit, 99 a gate failed, 130 interrupted.
After every code except 0, the labels in the file are as before. If the server does not have them, the last line reports
it.
"""
_REST: Final = "REST address. The loads use it, too, and read the server's metrics."


@dataclass(frozen=True, slots=True)
class RolloutOptions:
    """Options of `rollout`. `load` applies to every load, `time` to each run of the shadow.

    `canary_duration` and `soak` are in seconds.
    """

    model: str = argument()
    new: int = option("--to", type=click.IntRange(0), required=True, help="Version to make live.")
    source: str = option(
        "--source",
        metavar="SOURCE",
        default="file",
        help="Where the servers' configuration is: file, git-patch (a file in a checkout, committed and pushed), "
        "configmap:NAMESPACE/NAME[/KEY] or kserve:NAMESPACE/NAME (both through kubectl).",
    )
    config_file: Path | None = option(
        "--model_config_file",
        "--model-config-file",
        type=options.FILE,
        help="Configuration file of the servers, in which the rollout changes only labels.",
    )
    execute: bool = option(
        "--execute", is_flag=True, help="Perform the rollout. Without this option, print the plan and change nothing."
    )
    apply: "Apply | None" = option(
        "--apply",
        type=click.Choice(["reload", "poll"]),
        help="Send the file to each server, or wait until the servers poll it "
        "(--model_config_file_poll_wait_seconds).  [default: reload for a file, poll for other sources]",
    )
    replicas: tuple[str, ...] = option(
        "--replicas",
        multiple=True,
        metavar="ADDRESS",
        help="All servers that must follow: dns:NAME:PORT for every address of a headless service, or HOST:PORT, "
        "several times. With http:// before the name or host, their REST ports. Without --grpc, all loads use all of "
        "them.  [default: the server of --grpc]",
    )
    allow_missing: int = option(
        "--allow-missing", type=click.IntRange(0), default=0, help="Number of replicas that may not respond."
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
        help="Require equal responses of both versions, within the tolerance. Without it, responses under load are "
        "compared with those of the same version.",
        show_default=False,
    )
    load: options.UsersOrRateOptions = group(options.UsersOrRateOptions)
    arrivals: options.ArrivalOptions = group(options.ArrivalOptions)
    rounds: int = option(
        "--rounds", type=click.IntRange(3), default=6, help="Number of interleaved runs of each version in the shadow."
    )
    least_effect: float = options.least_effect_option(
        "Tolerated deterioration, compared with the live version and over the soak; 0.05 is 5 %."
    )
    unclear: str = options.unclear_option("an unclear shadow or soak")
    time: options.TimeOptions = group(options.TimeOptions)
    canary_duration: float = option(
        "--canary-duration",
        type=options.DURATION,
        default="1m",
        help="Time under load after the canary's move, on every replica, before the next move.",
    )
    soak: float = option(
        "--soak", type=options.DURATION_OR_ZERO, default="5m", help="Time under load after the move; 0 for none."
    )
    segments: int = option(
        "--segments",
        type=click.IntRange(LEAST_SEGMENTS, 1000),
        default=SEGMENTS,
        help="Number of segments of the soak.",
        show_default=False,
    )
    gates: tuple[str, ...] = options.gates_option(" of any load")
    objectives: tuple[str, ...] = options.objectives_option()
    patience: float = option(
        "--patience",
        type=options.DURATION,
        default="60s",
        help="Timeout for every replica to get a label, and for a server that does not respond.",
    )
    # The gates record responses themselves.
    requests: options.RequestOptions = group(
        options.RequestOptions,
        golden={"hidden": True, "default": options.OFF},
        check_share={"default": 1.0, "help": "Share of the loads' responses to compare.", "show_default": True},
    )
    generator: options.GeneratorOptions = group(options.GeneratorOptions)
    as_json: bool = option("--json", is_flag=True, help="Print one JSON document; steps go to standard error.")
    files: options.PageOptions = group(options.PageOptions)

    @property
    def load_words(self) -> str:
        if not self.load.users and not self.load.rate:
            return f"the current rate, or half of what {options.PROBING_USERS} users reach"
        return f"{self.load.rate} requests/s" if self.load.rate else counted(self.load.users or 0, "user")


rollout = command(
    "rollout_job:rollout",
    RolloutOptions,
    epilog=EPILOG,
    help="""Make another version of MODEL live if it passes parity, shadow, canary and soak.

    The rollout checks golden parity, and then sends both versions the same load in turn (shadow). It moves the label
    canary and loads it on every replica, and then moves the label stable and loads that (soak). Every load checks the
    responses and all gates. A failure before the first move changes nothing. After it, a failure, Ctrl-C or SIGTERM
    moves the labels back. --users and --rate apply to every load, --duration to each run of the shadow.
    """,
)


def main() -> None:
    """Run the `tpuserve-rollout` executable, which users start as `tpuserve rollout`."""
    rollout(prog_name="tpuserve rollout")
