"""ConfiguredModels: the configured models, and every change to them while the server runs."""

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from tpuserve_server.core.batching.parameters import UNSET_PARAMETERS, BatchingParameters
from tpuserve_server.core.models.change_record import ChangeRecord, Changes
from tpuserve_server.core.models.configuration_rules import ConfigurationRules
from tpuserve_server.core.models.ensemble_source import EnsembleSource
from tpuserve_server.core.models.manager import VersionManager
from tpuserve_server.core.models.model_config import ModelConfig
from tpuserve_server.core.models.registry import ModelRegistry
from tpuserve_server.core.models.source import Source
from tpuserve_server.core.models.transition import ModelLoad, Transition
from tpuserve_server.core.terms.deadline import Clock, Deadline
from tpuserve_server.core.terms.errors import FailedPrecondition, Internal, InvalidArgument
from tpuserve_server.core.terms.name_rules import check_name
from tpuserve_server.core.terms.options import LoadPolicy
from tpuserve_server.core.terms.storage import Storage
from tpuserve_server.core.terms.types import ServableId


def find_composing(name: str, configs: Mapping[str, ModelConfig]) -> tuple[str, ...]:
    """Return the models that an ensemble needs. Empty for any other model, and for an unknown one."""
    found: dict[str, None] = {}
    rest = [name]
    while rest:
        new = [each for each in _step_models(rest.pop(), configs) if each not in found]
        found.update(dict.fromkeys(new))
        rest.extend(new)
    return tuple(found)


def find_released(name: str, configs: Mapping[str, ModelConfig], loaded_along: Collection[str]) -> set[str]:
    """Return a model to remove and those of `loaded_along` that no remaining ensemble in `configs` needs without it."""
    removed = {name}
    rest = [name]
    while rest:
        for model in _step_models(rest.pop(), configs) & set(loaded_along) - removed:
            if not any(model in _step_models(other, configs) for other in configs.keys() - removed):
                removed.add(model)
                rest.append(model)
    return removed


def find_on_demand(configs: Sequence[ModelConfig], policy: LoadPolicy) -> set[str]:
    """Return the models that load on demand. `policy` is that of models whose configuration has none.

    Ensembles and the models of their steps always stay loaded: the signature of an ensemble comes from its steps.
    """
    ensembles = [config for config in configs if config.ensemble is not None]
    stay = {config.name for config in ensembles}.union(*(_models_of(config) for config in ensembles))
    on_demand = LoadPolicy.ON_DEMAND
    return {config.name for config in configs if (config.load_policy or policy) is on_demand} - stay


def _models_of(config: ModelConfig) -> frozenset[str]:
    return config.ensemble.models if config.ensemble is not None else frozenset()


def _step_models(name: str, configs: Mapping[str, ModelConfig]) -> frozenset[str]:
    config = configs.get(name)
    return _models_of(config) if config is not None else frozenset()


logger = logging.getLogger(__name__)


class ConfiguredModels:
    """Applies configurations at start-up, from the poll of --model_config_file, and from HandleReloadConfigRequest.

    A configuration is accepted or refused as a whole. It also replaces what `unload` and `load` changed since the last
    one. `_given` is that configuration, whose hash the registry has. `_configs` are the models in force.
    `_loaded_along` are those of them that only the load of an ensemble put back. `_request` is the client's reload in
    force, or None if the configuration is the operator's. `_lock` guards these. A change holds it, except while it
    waits for models.
    """

    def __init__(
        self,
        registry: ModelRegistry,
        manager: VersionManager,
        source: Source,
        ensembles: EnsembleSource,
        storage: Storage,
        clock: Clock,
        rules: ConfigurationRules,
        record: ChangeRecord | None = None,
        load_policy: LoadPolicy = LoadPolicy.ALWAYS,
    ) -> None:
        """Start without configured models, except that those in `registry` are expected.

        `record` keeps the changes of clients for the next process. `load_policy` is that of models whose configuration
        has none.
        """
        self._registry = registry
        self._manager = manager
        self._source = source
        self._ensembles = ensembles
        self._storage = storage
        self._clock = clock
        self._rules = rules
        self._record = record
        self._load_policy = load_policy
        self._request: bytes | None = None
        self._lock = threading.Lock()
        self._given: dict[str, ModelConfig] = {}
        self._configs: dict[str, ModelConfig] = {}
        self._loaded_along: set[str] = set()
        self._listeners: list[Callable[[Sequence[ModelConfig]], None]] = []

    def start(
        self,
        configs: Sequence[ModelConfig],
        changes: Changes | None = None,
        reloaded: Sequence[ModelConfig] | None = None,
        sha256: str = "",
    ) -> None:
        """Take the first configuration without loading anything. Its labels may wait for versions not yet known.

        `changes` are those that clients made in the process before, and `reloaded` are the models of its reload.
        `sha256` is the hash of the configuration that takes effect.

        Raises:
            InvalidArgument: as `begin`.
        """
        self._rules.check(configs, {})
        self._rules.check_otherwise(configs)
        with self._lock:
            self._rules.roots.trust(configs)
            given = configs if reloaded is None else reloaded
            changes = changes or Changes()
            self._given = {config.name: config for config in given}
            self._request = changes.request
            self._put_in_force([config for config in given if config.name not in changes.unloaded])
            self._registry.configuration_sha256 = sha256

    def begin(self, configs: Sequence[ModelConfig], sha256: str = "") -> Transition:
        """Replace the current configuration by the operator's. Reads base paths, but waits for no load.

        `sha256` is the hash of the configuration, or empty without a ModelServerConfig.

        Raises:
            InvalidArgument: the configuration breaks a rule of `configuration_rules.py`. The old one stays in force.
            FailedPrecondition: a label refers to a version that is neither available nor about to be, or all models
                would be removed. The old one stays.
        """
        with self._lock:
            return self._begin(configs, None, sha256)

    def reload(self, configs: Sequence[ModelConfig], request: bytes, sha256: str = "") -> Transition:
        """Replace the current configuration by a client's, as `begin` does. `request` is its message.

        Raises:
            PermissionDenied: a path is outside the roots that the operator allows.
            ServingError: as `begin`.
        """
        with self._lock:
            return self._begin(configs, request, sha256)

    def apply(self, configs: Sequence[ModelConfig], *, deadline: Deadline) -> None:
        """Call `begin`, then block until the new models and the versions that labels wait for are available.

        Raises:
            ServingError: as `begin`, or, with the configuration in force, as `Transition.wait`.
        """
        self.begin(configs).wait(deadline)

    def unload(self, name: str, *, with_dependents: bool = False) -> None:
        """Remove a model until `load` or the next configuration. Its versions unload when their requests have ended.

        Returns at once. A model that is unknown or not loaded stays so. An ensemble stays without a model of its steps,
        and its requests fail until the model returns. `with_dependents` also removes the models of an ensemble that
        only its load put back, and that no other ensemble needs. This is Triton's meaning (model_repository_manager.cc,
        `unload_dependents`).
        """
        with self._lock:
            if name in self._configs:
                along = self._loaded_along if with_dependents else ()
                removed = find_released(name, self._configs, along)
                self._loaded_along -= removed
                self._put_in_force([config for config in self._configs.values() if config.name not in removed])
                self._keep_changes()

    def load(self, name: str, batching: BatchingParameters | None = None) -> ModelLoad:
        """Put an unloaded model back, or poll the base path of a configured one again and retry failed loads.

        `batching` overrides the model's batching parameters until the next load. A model whose parameters change is
        unloaded first. The load of an ensemble does the same for the models of its steps, without changing their
        parameters. Returns at once, without waiting for the load.

        Raises:
            InvalidArgument: the name is empty or a path, the parameters conflict, or an ensemble would get parameters.
            Internal: the configuration does not name the model. Triton's code.
        """
        with self._lock:
            given = self._given.get(name)
            if given is None:
                raise _unknown(name)
            config = _override(given, batching)
            composing = find_composing(name, self._given)
            absent = {each for each in composing if each not in self._configs}
            configs = self._with(config, *(self._given[each] for each in absent))
            self._rules.check_otherwise(configs)
            known = [each for each in composing if each not in absent]
            current = self._configs.get(name)
            if current is not None and current.batching == config.batching:
                known.append(name)
            else:
                # A version that is unloading starts again with the new parameters when it has ended.
                self._put_in_force([other for other in configs if other.name != name])
            self._loaded_along = (self._loaded_along | absent) - {name}
            if absent or name not in known:
                self._put_in_force(configs)
                self._keep_changes()
            self._poll_again(known)
            ensembles = {
                each: ensemble for each in (name, *composing) if (ensemble := self._given[each].ensemble) is not None
            }
        return ModelLoad(self._registry, name, ensembles)

    def unloaded(self) -> list[str]:
        """Return the names of the models that `unload` removed, sorted."""
        with self._lock:
            return self._unloaded()

    def find(self, name: str) -> ModelConfig | None:
        """Return the configuration of a model in force, or None."""
        with self._lock:
            return self._configs.get(name)

    def find_coming(self, config: ModelConfig) -> list[int]:
        """Return the versions that the source will report, or none if the base path cannot be read now. Blocks."""
        try:
            present = self._storage.find_versions(config.base_path) or {}
        except OSError as error:
            logger.warning("Model %s: cannot read base path %s: %s", config.name, config.base_path, error)
            return []
        return config.version_policy.choose(present)

    def observe(self, on_configured: Callable[[Sequence[ModelConfig]], None]) -> None:
        """Call `on_configured` with each configuration when it takes effect, and now if one is in force."""
        with self._lock:
            self._listeners.append(on_configured)
            if self._configs:
                on_configured(tuple(self._configs.values()))

    def _begin(self, configs: Sequence[ModelConfig], request: bytes | None, sha256: str) -> Transition:
        if self._given and not configs and not self._rules.no_models:
            raise FailedPrecondition(
                "The configuration has no models, so the server would stop serving. Start the server with "
                "--allow_reload_without_models to allow this"
            )
        self._rules.check(configs, self._configs)
        if request is not None:
            # Before any check that reads a base path: its outcome would describe other files of the machine.
            self._rules.roots.check(configs)
        labelled = [servable_id for config in configs for servable_id in self._check_labels(config)]
        self._rules.check_otherwise(configs)
        new = [config.name for config in configs if config.name not in self._configs]
        if request is None:
            self._rules.roots.trust(configs)
        self._given = {config.name: config for config in configs}
        self._loaded_along.clear()
        self._request = request
        self._put_in_force(configs)
        # After the labels: a client that sees the hash gets the labels of this configuration.
        self._registry.configuration_sha256 = sha256
        self._keep_changes()
        return Transition(self._registry, new, labelled, self._clock)

    def _unloaded(self) -> list[str]:
        return sorted(self._given.keys() - self._configs.keys())

    def _keep_changes(self) -> None:
        if self._record is not None:
            self._record.write(self._request, self._unloaded())

    def _with(self, *changed: ModelConfig) -> list[ModelConfig]:
        """Return the models in force and the `changed` ones, in the order of the given configuration."""
        configs = {**self._configs, **{config.name: config for config in changed}}
        return [configs[name] for name in self._given if name in configs]

    def _poll_again(self, names: Collection[str]) -> None:
        """Report models in force again, and retry their failed loads."""
        stored = [name for name in names if self._configs[name].ensemble is None]
        if stored:
            # New objects: the source then drops the reports of a poll that has already begun.
            self._configs.update((name, replace(self._configs[name])) for name in stored)
            watched = _stored(self._configs.values())
            self._source.watch([config for config in watched if config.name not in stored])
            for name in stored:
                self._registry.expect_report(name)
                self._manager.retry(name)
            self._source.watch(watched)
        for name in names:
            if name not in stored:
                self._ensembles.report_again(name)

    def _put_in_force(self, configs: Sequence[ModelConfig]) -> None:
        names = [config.name for config in configs]
        logger.info("Configured models: %s", ", ".join(names) or "none")
        self._configs = {config.name: config for config in configs}
        # Stop watching removed models before they are unloaded, and configure new models before watching them.
        stored = _stored(configs)
        self._source.watch([config for config in stored if config.name in self._registry.model_names()])
        self._manager.configure(names, find_on_demand(configs, self._load_policy))
        for config in configs:
            self._registry.assign_labels(
                config.name, config.version_labels, even_if_unavailable=self._rules.labels_for_unavailable
            )
        self._source.watch(stored)
        self._ensembles.configure(configs)
        for listener in self._listeners:
            listener(configs)

    def _check_labels(self, config: ModelConfig) -> list[ServableId]:
        """Return the versions that the model's labels must wait for. Raises FailedPrecondition."""
        current = self._registry.labels(config.name)
        absent = {
            label: number
            for label, number in config.version_labels.items()
            if not self._registry.is_available(ServableId(config.name, number))
            and not (self._rules.labels_for_unavailable and current.get(label, number) == number)
        }
        coming = self.find_coming(config) if absent else []
        for number in absent.values():
            if number not in coming:
                raise FailedPrecondition(
                    f"Request to assign label to version {number} of model {config.name}, which is not currently "
                    "available for inference"
                )
        return [ServableId(config.name, number) for number in set(absent.values())]


def _stored(configs: Iterable[ModelConfig]) -> list[ModelConfig]:
    """Return the models with a base path."""
    return [config for config in configs if config.ensemble is None]


def _override(given: ModelConfig, batching: BatchingParameters | None) -> ModelConfig:
    if batching is None:
        return given
    if given.ensemble is not None:
        raise InvalidArgument(
            f"failed to load '{given.name}', failed to poll from model repository: an ensemble has no batching "
            "parameters. Override those of the models of its steps"
        )
    return replace(given, batching=batching.over(given.batching or UNSET_PARAMETERS))


def _unknown(name: str) -> InvalidArgument | Internal:
    """Return Triton's error for a load of an unknown model (core/src/server.cc, LoadModel)."""
    check_name("Model name", name)
    if not name.strip():
        return InvalidArgument("Model name cannot be empty. Please enter a valid name to deploy.")
    if "/" in name or name == "..":
        return InvalidArgument(f"invalid model name '{name}', model name must not contain path traversal characters")
    return Internal(
        f"failed to load '{name}', failed to poll from model repository: the server's configuration has no such model"
    )
