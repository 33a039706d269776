"""Administration: the parts of the protocol that need more than the service. Both protocols share one object."""

from tpuserve_server.core.configured_models import ConfiguredModels
from tpuserve_server.core.deadline import Clock
from tpuserve_server.core.service import InferenceService
from tpuserve_server.core.statistics import VersionStatistics
from tpuserve_server.core.types import ModelSpec, ServableId
from tpuserve_server.frontends.oip.describing import EXTENSIONS, describe_server
from tpuserve_server.frontends.oip.options import SERVER_NAME
from tpuserve_server.frontends.oip.reporting import StatisticsSource, find_statistics
from tpuserve_server.frontends.oip.repository import Repository
from tpuserve_server.frontends.oip.shared_memory import SharedMemoryRegions


class Administration:
    """Changes of the models, statistics, and shared memory."""

    def __init__(
        self,
        service: InferenceService,
        clock: Clock,
        statistics: StatisticsSource,
        regions: SharedMemoryRegions,
        models: ConfiguredModels | None = None,
        server_name: str = SERVER_NAME,
    ) -> None:
        """`models` are what clients may load and unload. None refuses that."""
        self.service = service
        self.models = models
        self._statistics = statistics
        self.regions = regions
        self.repository = Repository(service, models, clock)
        self.server = describe_server(server_name, self._extensions())

    def statistics(self, spec: ModelSpec) -> dict[ServableId, VersionStatistics]:
        """Return the statistics that include every answered request. Raises the errors of `find_statistics`."""
        return find_statistics(self.service, self._statistics, spec)

    def _extensions(self) -> tuple[str, ...]:
        """Return Triton's names of all extensions of this server."""
        shared_memory = ("system_shared_memory",) if self.regions.are_enabled else ()
        return (
            *EXTENSIONS,
            "model_repository",
            "model_repository(unload_dependents)",
            "model_configuration",
            *shared_memory,
            "statistics",
            "trace",
            "logging",
        )
