"""Models for both protocols: the version and signature of a request, metadata, readiness, configuration, statistics.

Errors for those that do not exist are Triton's.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib.metadata import version
from typing import Final, TypeAlias

from tpuserve_server.core.models.configured_models import ConfiguredModels
from tpuserve_server.core.models.model_config import ENSEMBLE_PLATFORM
from tpuserve_server.core.serving.service import AcquiredModel, AcquiredVersion, InferenceService
from tpuserve_server.core.terms.ensemble import EnsembleStep
from tpuserve_server.core.terms.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    NotLoaded,
    ServingError,
    Unavailable,
)
from tpuserve_server.core.terms.statistics import VersionStatistics
from tpuserve_server.core.terms.types import DEFAULT_SIGNATURE_NAME, ModelMetadata, ModelSpec, ServableId, State
from tpuserve_server.protocols.options import SERVER_NAME
from tpuserve_server.wire.oip.metadata import PLATFORM, ModelDescription, ModelFacts, ServerDescription


def acquire_model(service: InferenceService, spec: ModelSpec) -> AcquiredModel:
    """Hold the model that a spec resolves to.

    A spec without a signature means `serving_default`, or the only signature of a model that has one.

    Raises:
        NotFound: the model or version does not exist.
        Unavailable: the version is not ready.
        InvalidArgument: the model does not have the signature, or has several and no default.
    """
    try:
        return service.acquire(spec)
    except NotFound:
        raise _why_not(service, spec) from None
    except FailedPrecondition:
        # The only FailedPrecondition here is an unknown signature.
        return _acquire_only_signature(service, spec)


def acquire_version(service: InferenceService, spec: ModelSpec) -> AcquiredVersion:
    """Hold the version that a spec resolves to, and ignore its signature. Raises the errors of `acquire_model`."""
    try:
        return service.acquire_version(spec)
    except NotFound:
        raise _why_not(service, spec) from None


def _find_metadata(service: InferenceService, spec: ModelSpec) -> ModelMetadata:
    """Return the metadata of the version that a spec resolves to. Raises the errors of `acquire_model`."""
    try:
        return service.metadata(spec)
    except NotFound:
        raise _why_not(service, spec) from None


def _choose_signature(model: str, names: Iterable[str], wanted: str = "") -> str:
    """Return the signature that a request means. An empty `wanted` means the default.

    Raises:
        InvalidArgument: `names` do not contain the signature, or contain several and no default.
    """
    known = sorted(names)
    if wanted in known:
        return wanted
    if wanted:
        raise InvalidArgument(f"model '{model}' has no signature '{wanted}', expected one of {known}")
    if DEFAULT_SIGNATURE_NAME in known:
        return DEFAULT_SIGNATURE_NAME
    if len(known) == 1:
        return known[0]
    raise InvalidArgument(
        f"model '{model}' has no signature '{DEFAULT_SIGNATURE_NAME}', so the request parameter 'signature_name' must "
        f"name one of {known}"
    )


def available_versions(service: InferenceService, name: str) -> tuple[int, ...]:
    """Return the versions of a model that answer requests, ascending. Empty for an unknown model."""
    try:
        statuses = service.status(ModelSpec(name))
    except NotFound:
        return ()
    return tuple(sorted(status.servable.version for status in statuses if status.state is State.AVAILABLE))


def _acquire_only_signature(service: InferenceService, spec: ModelSpec) -> AcquiredModel:
    with service.acquire_version(spec) as version:
        signature_name = _choose_signature(spec.name, version.signatures, spec.signature_name)
        return service.acquire(ModelSpec(spec.name, version.servable_id.version, None, signature_name))


def _why_not(service: InferenceService, spec: ModelSpec) -> ServingError:
    """Return Triton's error for a model or version that does not answer (core, model_repository_manager.cc)."""
    unknown = f"Request for unknown model: '{spec.name}'"
    if spec.name not in service.models() and not _has_status(service, spec.name):
        return NotFound(f"{unknown} is not found")
    if spec.version is None:
        return NotFound(f"{unknown} has no available versions")
    try:
        service.status(spec)
    except NotFound:
        return NotFound(f"{unknown} version {spec.version} is not found")
    return Unavailable(f"{unknown} version {spec.version} is not at ready state")


def _has_status(service: InferenceService, name: str) -> bool:
    """Return whether a model that is not configured, such as an unloaded one, had versions."""
    try:
        return bool(service.status(ModelSpec(name)))
    except NotFound:
        return False


# Triton's names of the extensions that need only the service (server/docs/protocol).
EXTENSIONS: Final = ("classification", "binary_tensor_data", "parameters")


def describe_server(name: str = SERVER_NAME, extensions: tuple[str, ...] = EXTENSIONS) -> ServerDescription:
    """Return the server's metadata."""
    return ServerDescription(name, version("tpuserve-server"), extensions)


def describe_model(service: InferenceService, spec: ModelSpec) -> ModelDescription:
    """Return a model's metadata: all versions that answer requests, or only the one that the spec names.

    Raises:
        ServingError: as `acquire_model` for the same model and version.
    """
    metadata = _find_metadata(service, spec)
    signature = metadata.signatures[_choose_signature(spec.name, metadata.signatures)]
    versions = available_versions(service, spec.name) if spec.version is None else (spec.version,)
    platform = ENSEMBLE_PLATFORM if metadata.is_ensemble else PLATFORM
    return ModelDescription(metadata.servable.name, versions, platform, signature)


def why_model_not_ready(service: InferenceService, spec: ModelSpec) -> str:
    """Return why the model, or the version that the spec names, does not answer requests, or "" if it does.

    A model that loads on demand answers.
    """
    try:
        servable_id = service.probe(spec)
    except NotLoaded:
        return ""
    except NotFound:
        return _why_not(service, spec).message
    except (Unavailable, FailedPrecondition) as error:
        # FailedPrecondition: the signatures of an ensemble's steps do not fit.
        return error.message
    return service.why_hung(servable_id)


StatisticsSource: TypeAlias = Callable[[ServableId], VersionStatistics]


def describe_config(service: InferenceService, models: ConfiguredModels | None, spec: ModelSpec) -> ModelFacts:
    """Return the configuration of the version that a spec resolves to. Raises the errors of `acquire_model`."""
    configured = None if models is None else models.find(spec.name)
    with acquire_version(service, spec) as version:
        name = _choose_signature(spec.name, version.signatures)
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
