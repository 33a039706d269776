"""gRPC methods of a replica, by service. Ray calls the replica's method of the same name, so names are unique.

Light imports only: every proxy of Ray Serve imports this module.
"""

from collections.abc import Mapping
from typing import Final

# One request, one response.
UNARY: Final[Mapping[str, tuple[str, ...]]] = {
    "tensorflow.serving.PredictionService": ("Predict", "Classify", "Regress", "MultiInference", "GetModelMetadata"),
    "tensorflow.serving.ModelService": ("GetModelStatus", "HandleReloadConfigRequest"),
    "inference.GRPCInferenceService": (
        "ModelInfer",
        "ServerLive",
        "ServerReady",
        "ServerMetadata",
        "ModelReady",
        "ModelMetadata",
        "ModelConfig",
        "ModelStatistics",
        "RepositoryIndex",
        "RepositoryModelLoad",
        "RepositoryModelUnload",
    ),
    "grpc.health.v1.Health": ("Check",),
}
# Streams of requests and responses. Health/Watch is missing: Ray waits for streams before it stops a replica.
STREAMS: Final[Mapping[str, tuple[str, ...]]] = {"inference.GRPCInferenceService": ("ModelStreamInfer",)}

# Methods that change one server. Behind a proxy, they would change any one replica.
SINGLE_REPLICA: Final = frozenset({"HandleReloadConfigRequest", "RepositoryModelLoad", "RepositoryModelUnload"})


def path_of(service: str, method: str) -> str:
    """Return the full path of a method."""
    return f"/{service}/{method}"
