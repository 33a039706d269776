"""ConfiguredModels: which models there are, and every change of that while the server runs."""

import logging
import threading
from collections.abc import Callable, Sequence

from tpuserve_server.core.deadline import Clock, Deadline
from tpuserve_server.core.errors import FailedPrecondition
from tpuserve_server.core.manager import VersionManager
from tpuserve_server.core.model_config import ModelConfig
from tpuserve_server.core.model_config_rules import check_list, check_platforms, check_same_platforms
from tpuserve_server.core.registry import ModelRegistry
from tpuserve_server.core.source import Source
from tpuserve_server.core.storage import Storage
from tpuserve_server.core.transition import Transition
from tpuserve_server.core.types import ServableId

logger = logging.getLogger(__name__)


class ConfiguredModels:
    """Behind start-up, the poll of --model_config_file and HandleReloadConfigRequest alike.

    A configuration is checked as a whole and refused as a whole. `_configs` is guarded by `_lock`, which is held
    through one change but not while that waits for models.
    """

    def __init__(
        self,
        registry: ModelRegistry,
        manager: VersionManager,
        source: Source,
        storage: Storage,
        clock: Clock,
        *,
        allow_labels_for_unavailable: bool,
        checks: Sequence[Callable[[Sequence[ModelConfig]], None]] = (),
    ) -> None:
        """No model is configured yet, but those that `registry` was made with are expected.

        `allow_labels_for_unavailable`: a label that stands for nothing yet may be given to any version, upstream's
        --allow_version_labels_for_unavailable_models. `checks` raise ServingError at what other parts cannot do.
        """
        self._registry = registry
        self._manager = manager
        self._source = source
        self._storage = storage
        self._clock = clock
        self._allow_labels_for_unavailable = allow_labels_for_unavailable
        self._checks = checks
        self._lock = threading.Lock()
        self._configs: dict[str, ModelConfig] = {}
        self._listeners: list[Callable[[Sequence[ModelConfig]], None]] = []

    def start(self, configs: Sequence[ModelConfig]) -> None:
        """Take the first configuration, whose labels may wait for versions that nobody has seen yet; load nothing yet.

        Raises:
            InvalidArgument: as `begin`.
        """
        check_list(configs)
        check_platforms(configs)
        self._check_otherwise(configs)
        with self._lock:
            self._put_in_force(configs)

    def begin(self, configs: Sequence[ModelConfig]) -> Transition:
        """Take a new configuration in the place of the one there is. Looks at base paths, but waits for no load.

        Raises:
            InvalidArgument: it breaks a rule of `core.model_config_rules`; nothing was changed.
            FailedPrecondition: a label is for a version that is neither available nor about to be; likewise.
        """
        with self._lock:
            check_list(configs)
            check_same_platforms(configs, self._configs)
            labelled = [servable_id for config in configs for servable_id in self._check_labels(config)]
            check_platforms(configs)
            self._check_otherwise(configs)
            new = [config.name for config in configs if config.name not in self._configs]
            self._put_in_force(configs)
        return Transition(self._registry, new, labelled, self._clock)

    def apply(self, configs: Sequence[ModelConfig], *, deadline: Deadline) -> None:
        """`begin`, then block until the models that are new and the versions that labels wait for have come.

        Raises:
            ServingError: as `begin`; or, the configuration being in force, as `Transition.wait`.
        """
        self.begin(configs).wait(deadline)

    def observe(self, on_configured: Callable[[Sequence[ModelConfig]], None]) -> None:
        """Call `on_configured` with each configuration as it comes into force, and now if there is one."""
        with self._lock:
            self._listeners.append(on_configured)
            if self._configs:
                on_configured(tuple(self._configs.values()))

    def _check_otherwise(self, configs: Sequence[ModelConfig]) -> None:
        for check in self._checks:
            check(configs)

    def _put_in_force(self, configs: Sequence[ModelConfig]) -> None:
        names = [config.name for config in configs]
        logger.info("Configured models: %s", ", ".join(names) or "none")
        self._configs = {config.name: config for config in configs}
        # What goes is no longer watched before it is unloaded, and what comes is known before it is watched.
        self._source.watch([config for config in configs if config.name in self._registry.model_names()])
        self._manager.configure(names)
        for config in configs:
            self._assign_labels(config)
        self._source.watch(configs)
        for listener in self._listeners:
            listener(configs)

    def _assign_labels(self, config: ModelConfig) -> None:
        self._registry.assign_labels(
            config.name, config.version_labels, even_if_unavailable=self._allow_labels_for_unavailable
        )

    def _check_labels(self, config: ModelConfig) -> list[ServableId]:
        """The versions that the model's labels have to wait for. Raises FailedPrecondition."""
        current = self._registry.labels(config.name)
        absent = {
            label: number
            for label, number in config.version_labels.items()
            if not self._registry.is_available(ServableId(config.name, number))
            and not (self._allow_labels_for_unavailable and current.get(label, number) == number)
        }
        coming = self._find_coming(config) if absent else []
        for number in absent.values():
            if number not in coming:
                raise FailedPrecondition(
                    f"Request to assign label to version {number} of model {config.name}, which is not currently "
                    "available for inference"
                )
        return [ServableId(config.name, number) for number in set(absent.values())]

    def _find_coming(self, config: ModelConfig) -> list[int]:
        """The versions that the source is going to report, as far as the base path can be read now."""
        try:
            present = self._storage.find_versions(config.base_path) or {}
        except OSError:
            logger.warning("Model %s: its base path %s cannot be read", config.name, config.base_path, exc_info=True)
            return []
        return config.version_policy.choose(present)
