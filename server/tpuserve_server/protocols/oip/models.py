"""Finds the model, version and signature of a request, with Triton's errors for those that do not exist."""

from collections.abc import Iterable

from tpuserve_server.core.serving.service import AcquiredModel, AcquiredVersion, InferenceService
from tpuserve_server.core.terms.errors import FailedPrecondition, InvalidArgument, NotFound, ServingError, Unavailable
from tpuserve_server.core.terms.types import DEFAULT_SIGNATURE_NAME, ModelMetadata, ModelSpec, State


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


def find_metadata(service: InferenceService, spec: ModelSpec) -> ModelMetadata:
    """Return the metadata of the version that a spec resolves to. Raises the errors of `acquire_model`."""
    try:
        return service.metadata(spec)
    except NotFound:
        raise _why_not(service, spec) from None


def choose_signature(model: str, names: Iterable[str], wanted: str = "") -> str:
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
        signature_name = choose_signature(spec.name, version.signatures, spec.signature_name)
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
