"""Readiness and metadata of the server and of models, for both protocols."""

from importlib.metadata import version
from typing import Final

from tpuserve_server.core.models.model_config import ENSEMBLE_PLATFORM
from tpuserve_server.core.serving.service import InferenceService
from tpuserve_server.core.terms.errors import FailedPrecondition, NotFound, Unavailable
from tpuserve_server.core.terms.types import ModelSpec
from tpuserve_server.protocols.oip.models import available_versions, choose_signature, find_metadata
from tpuserve_server.protocols.oip.options import SERVER_NAME
from tpuserve_server.wire.oip.metadata import PLATFORM, ModelDescription, ServerDescription

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
    metadata = find_metadata(service, spec)
    signature = metadata.signatures[choose_signature(spec.name, metadata.signatures)]
    versions = available_versions(service, spec.name) if spec.version is None else (spec.version,)
    platform = ENSEMBLE_PLATFORM if metadata.is_ensemble else PLATFORM
    return ModelDescription(metadata.servable.name, versions, platform, signature)


def why_model_not_ready(service: InferenceService, spec: ModelSpec) -> str:
    """Return why the model, or the version that the spec names, does not answer requests, or "" if it does."""
    try:
        servable_id = find_metadata(service, spec).servable
    except (NotFound, Unavailable, FailedPrecondition) as error:
        # FailedPrecondition: the signatures of an ensemble's steps do not fit.
        return error.message
    return service.why_hung(servable_id)
