"""Configuration and statistics of models, for both protocols."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeAlias

from tpuserve_server.core.models.configured_models import ConfiguredModels
from tpuserve_server.core.serving.service import InferenceService
from tpuserve_server.core.terms.ensemble import EnsembleStep
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.statistics import VersionStatistics
from tpuserve_server.core.terms.types import ModelSpec, ServableId
from tpuserve_server.protocols.oip.models import acquire_version, available_versions, choose_signature
from tpuserve_server.wire.oip.metadata import ModelFacts

StatisticsSource: TypeAlias = Callable[[ServableId], VersionStatistics]


def describe_config(service: InferenceService, models: ConfiguredModels | None, spec: ModelSpec) -> ModelFacts:
    """Return the configuration of the version that a spec resolves to. Raises the errors of `acquire_model`."""
    configured = None if models is None else models.find(spec.name)
    with acquire_version(service, spec) as version:
        name = choose_signature(spec.name, version.signatures)
        return ModelFacts(
            spec.name,
            version.signatures[name],
            bool(version.labels),
            version.batching(name),
            version.default_rows,
            None if configured is None else configured.version_policy,
            version.has_cache,
            steps=() if version.ensemble is None else [_resolve(service, step) for step in version.ensemble.steps],
        )


def _resolve(service: InferenceService, step: EnsembleStep) -> EnsembleStep:
    """Return a step with the number of its version instead of a label, which Triton's steps do not have."""
    model = step.model
    if model.version_label is None:
        return step
    return replace(step, model=ModelSpec(model.name, service.labels(model.name).get(model.version_label)))


def find_statistics(
    service: InferenceService, source: StatisticsSource, spec: ModelSpec
) -> dict[ServableId, VersionStatistics]:
    """Return the statistics of every version that answers requests, of one model or, for an empty name, of all.

    Raises:
        InvalidArgument: the model or the version does not answer requests. Triton's code.
    """
    if not spec.name:
        return _of(
            source, (ServableId(name, each) for name in service.models() for each in available_versions(service, name))
        )
    versions = available_versions(service, spec.name)
    if not versions:
        raise InvalidArgument(f"requested model '{spec.name}' is not available")
    if spec.version is not None:
        if spec.version not in versions:
            raise InvalidArgument(f"requested model version is not available for model '{spec.name}'")
        versions = (spec.version,)
    return _of(source, (ServableId(spec.name, each) for each in versions))


def _of(source: StatisticsSource, servables: Iterable[ServableId]) -> dict[ServableId, VersionStatistics]:
    return {servable: source(servable) for servable in servables}
