"""Options of the commands that load one model, or the models of a scenario."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuserve_loadtests.cli.command import group
from tpuserve_loadtests.cli.files import FileOptions
from tpuserve_loadtests.cli.loads import LoadTerms
from tpuserve_loadtests.cli.options import (
    ArrivalOptions,
    GeneratorOptions,
    MeasuredServerOptions,
    ModelOptions,
    RequestOptions,
    TimeOptions,
    VersionOptions,
    json_option,
)
from tpuserve_loadtests.cli.prices import price_option
from tpuserve_loadtests.cli.server_metrics import metrics_option, pids_option

if TYPE_CHECKING:
    from tpuserve_formats.price import Price


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Options that these commands share; each command adds its own."""

    models: ModelOptions = group(ModelOptions)
    server: MeasuredServerOptions = group(MeasuredServerOptions)
    version: VersionOptions = group(VersionOptions)
    arrivals: ArrivalOptions = group(ArrivalOptions)
    time: TimeOptions = group(TimeOptions)
    requests: RequestOptions = group(RequestOptions)
    generator: GeneratorOptions = group(GeneratorOptions)
    metrics: str = metrics_option()
    server_pid: tuple[int, ...] = pids_option()
    price: "Price | None" = price_option()
    as_json: bool = json_option()
    files: FileOptions = group(FileOptions)

    @property
    def terms(self) -> LoadTerms:
        """The settings that all loads of the command share."""
        return LoadTerms.of(self.time, self.arrivals, self.generator)
