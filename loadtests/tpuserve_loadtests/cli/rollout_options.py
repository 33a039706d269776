"""Options of `tpuserve rollout`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tpuserve_formats.counted import counted
from tpuserve_loadtests.arrivals.duration import Duration
from tpuserve_loadtests.cli.access import CONTROL_KEY_FILE
from tpuserve_loadtests.cli.command import argument, group, option
from tpuserve_loadtests.cli.files import PageOptions
from tpuserve_loadtests.cli.golden import ToleranceOptions
from tpuserve_loadtests.cli.loads import LoadTerms
from tpuserve_loadtests.cli.options import (
    CONTROL_KEY_VARIABLE,
    DEFAULT_COMPARED_USERS,
    ArrivalOptions,
    GeneratorOptions,
    RequestOptions,
    ServerOptions,
    TimeOptions,
    UsersOrRateOptions,
    least_effect_option,
    unclear_option,
)
from tpuserve_loadtests.cli.server_metrics import metrics_option
from tpuserve_loadtests.cli.soak_command import LEAST_SEGMENTS, SEGMENTS

if TYPE_CHECKING:
    from tpuserve_loadtests.rollout.labels import Apply

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
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
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
        show_default=True,
        help="Send the file to the server, or wait until the server polls it (--model_config_file_poll_wait_seconds).",
    )
    server: ServerOptions = group(ServerOptions, rest_url={"help": _REST})
    control_api_key_file: Path | None = option(
        CONTROL_KEY_FILE,
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="File of an API key with the role control, for reloads.  "
        f"[env var of the key: {CONTROL_KEY_VARIABLE}; default: the key for predictions]",
    )
    metrics: str = metrics_option()
    stable: str = option("--stable", default="stable", show_default=True, help="Label that clients request.")
    canary: str = option("--canary", default="canary", show_default=True, help="Label to move first.")
    parity: bool = option(
        "--parity/--no-parity", default=True, help="Require equal responses of both versions, within the tolerance."
    )
    tolerance: ToleranceOptions = group(ToleranceOptions)
    load: UsersOrRateOptions = group(UsersOrRateOptions)
    arrivals: ArrivalOptions = group(ArrivalOptions)
    rounds: int = option(
        "--rounds",
        type=click.IntRange(3),
        default=6,
        show_default=True,
        help="Number of interleaved runs of each version.",
    )
    least_effect: float = least_effect_option(
        "Tolerated deterioration, compared with the live version and over the soak; 0.05 is 5 %."
    )
    unclear: str = unclear_option("an unclear comparison or soak")
    time: TimeOptions = group(TimeOptions)
    soak: float = option(
        "--soak",
        type=Duration(zero=True),
        default="5m",
        show_default=True,
        help="Time under load after the move; 0 for none.",
    )
    segments: int = option(
        "--segments",
        type=click.IntRange(LEAST_SEGMENTS, 1000),
        default=SEGMENTS,
        help="Number of segments of the soak.",
    )
    gates: tuple[str, ...] = option(
        "--fail-if", multiple=True, metavar="GATE...", help="Gates of the soak: 'p99>20ms', 'error_rate>1%'."
    )
    patience: float = option(
        "--patience",
        type=Duration(),
        default="60s",
        show_default=True,
        help="Timeout for the move of a label, and for a server that does not respond.",
    )
    requests: RequestOptions = group(RequestOptions)
    generator: GeneratorOptions = group(GeneratorOptions)
    as_json: bool = option("--json", is_flag=True, help="Print one JSON document; steps go to standard error.")
    files: PageOptions = group(PageOptions)

    @property
    def terms(self) -> LoadTerms:
        """The terms of the comparison's loads."""
        return LoadTerms.of(self.time, self.arrivals, self.generator)

    @property
    def load_words(self) -> str:
        """Text for the load of the comparison and the soak."""
        return (
            f"{self.load.rate} requests/s"
            if self.load.rate
            else counted(self.load.users or DEFAULT_COMPARED_USERS, "user")
        )
