"""Options of `tpuserve rollout`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tpuserve_loadtests.cli.command import argument, group, option
from tpuserve_loadtests.cli.files import PageOptions
from tpuserve_loadtests.cli.golden import ToleranceOptions
from tpuserve_loadtests.cli.loads import LoadTerms
from tpuserve_loadtests.cli.options import (
    USERS_HELD_BESIDE,
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
from tpuserve_loadtests.duration import Duration

if TYPE_CHECKING:
    from tpuserve_loadtests.rollout.labels import Apply

_REST: Final = "REST address, for the server's memory in the soak."


@dataclass(frozen=True, slots=True)
class RolloutOptions:
    """Options of `rollout`. `load` applies to the comparison and the soak, `time` to each run of the comparison.

    `soak` is in seconds.
    """

    model: str = argument()
    new: int = option("--to", type=click.IntRange(0), required=True, help="The version that is to be live.")
    config_file: Path = option(
        "--model_config_file",
        "--model-config-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        required=True,
        help="The server's configuration: the labels are changed in it, and nothing else.",
    )
    execute: bool = option(
        "--execute", is_flag=True, help="Do it; without this, the plan is shown and nothing changed."
    )
    apply: "Apply" = option(
        "--apply",
        type=click.Choice(["reload", "poll"]),
        default="reload",
        show_default=True,
        help="Send the file to the server, or wait until it reads it (--model_config_file_poll_wait_seconds).",
    )
    server: ServerOptions = group(ServerOptions, rest_url={"help": _REST})
    metrics: str = metrics_option()
    stable: str = option("--stable", default="stable", show_default=True, help="The label that users ask for.")
    canary: str = option("--canary", default="canary", show_default=True, help="The label that is moved first.")
    parity: bool = option(
        "--parity/--no-parity", default=True, help="Whether both versions must give the same answers."
    )
    tolerance: ToleranceOptions = group(ToleranceOptions)
    load: UsersOrRateOptions = group(UsersOrRateOptions)
    arrivals: ArrivalOptions = group(ArrivalOptions)
    rounds: int = option(
        "--rounds", type=click.IntRange(3), default=6, show_default=True, help="Runs of each version, in turn."
    )
    least_effect: float = least_effect_option(
        "So much worse than the live version, and slower over the soak, it may be; 0.05 is 5 %."
    )
    unclear: str = unclear_option()
    time: TimeOptions = group(TimeOptions)
    soak: float = option(
        "--soak", type=Duration(zero=True), default="5m", show_default=True, help="Afterwards; 0 for none."
    )
    segments: int = option(
        "--segments", type=click.IntRange(LEAST_SEGMENTS, 1000), default=SEGMENTS, help="Of the soak."
    )
    gates: tuple[str, ...] = option(
        "--fail-if", multiple=True, metavar="GATE...", help="Of the soak: 'p99>20ms', 'error_rate>1%'."
    )
    patience: float = option(
        "--patience", type=Duration(), default="60s", show_default=True, help="Time for a label to be moved."
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
        return f"{self.load.rate} requests/s" if self.load.rate else f"{self.load.users or USERS_HELD_BESIDE} users"
