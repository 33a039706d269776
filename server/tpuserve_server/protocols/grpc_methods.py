"""The gRPC methods of this server, one line for each. `rpc_table` has the functions that answer them.

Light imports only: every proxy of Ray Serve imports this module.
"""

from typing import Final, NamedTuple


class GrpcMethod(NamedTuple):
    """A method, and what hosts need to know of it before they read a message."""

    service: str
    name: str
    # Its messages may have the host's maximum size. All other methods take small messages.
    is_large: bool = False
    # Each call waits for a device: hosts refuse it under overload, and limit the rate of calls.
    is_inference: bool = False
    # Replicas of Ray Serve answer it. Ray calls the replica's function of the same name, so these names are unique.
    is_in_ray: bool = False
    # A stream of requests and responses.
    is_stream: bool = False

    @property
    def path(self) -> str:
        """The full path of the method."""
        return f"/{self.service}/{self.name}"


_PREDICTION: Final = "tensorflow.serving.PredictionService"
_MODEL: Final = "tensorflow.serving.ModelService"
_OIP: Final = "inference.GRPCInferenceService"
_HEALTH: Final = "grpc.health.v1.Health"
REFLECTION_V1: Final = "grpc.reflection.v1.ServerReflection"
REFLECTION_V1ALPHA: Final = "grpc.reflection.v1alpha.ServerReflection"
_PROFILER: Final = "tensorflow.ProfilerService"

METHODS: Final = (
    GrpcMethod(_PREDICTION, "Predict", is_large=True, is_inference=True, is_in_ray=True),
    GrpcMethod(_PREDICTION, "Classify", is_large=True, is_inference=True, is_in_ray=True),
    GrpcMethod(_PREDICTION, "Regress", is_large=True, is_inference=True, is_in_ray=True),
    GrpcMethod(_PREDICTION, "MultiInference", is_large=True, is_inference=True, is_in_ray=True),
    GrpcMethod(_PREDICTION, "GetModelMetadata", is_in_ray=True),
    GrpcMethod(_MODEL, "GetModelStatus", is_in_ray=True),
    GrpcMethod(_MODEL, "HandleReloadConfigRequest", is_in_ray=True),
    GrpcMethod(_OIP, "ModelInfer", is_large=True, is_inference=True, is_in_ray=True),
    GrpcMethod(_OIP, "ModelStreamInfer", is_large=True, is_in_ray=True, is_stream=True),
    GrpcMethod(_OIP, "ServerLive", is_in_ray=True),
    GrpcMethod(_OIP, "ServerReady", is_in_ray=True),
    GrpcMethod(_OIP, "ServerMetadata", is_in_ray=True),
    GrpcMethod(_OIP, "ModelReady", is_in_ray=True),
    GrpcMethod(_OIP, "ModelMetadata", is_in_ray=True),
    GrpcMethod(_OIP, "ModelConfig", is_in_ray=True),
    GrpcMethod(_OIP, "ModelStatistics", is_in_ray=True),
    GrpcMethod(_OIP, "RepositoryIndex", is_in_ray=True),
    # The rule of a replica refuses these two and the reload, with a reason: they would change any one replica.
    GrpcMethod(_OIP, "RepositoryModelLoad", is_in_ray=True),
    GrpcMethod(_OIP, "RepositoryModelUnload", is_in_ray=True),
    GrpcMethod(_OIP, "TraceSetting"),
    GrpcMethod(_OIP, "LogSettings"),
    GrpcMethod(_OIP, "SystemSharedMemoryStatus"),
    GrpcMethod(_OIP, "SystemSharedMemoryRegister"),
    GrpcMethod(_OIP, "SystemSharedMemoryUnregister"),
    GrpcMethod(_OIP, "CudaSharedMemoryStatus"),
    GrpcMethod(_OIP, "CudaSharedMemoryRegister"),
    GrpcMethod(_OIP, "CudaSharedMemoryUnregister"),
    GrpcMethod(_HEALTH, "Check", is_in_ray=True),
    # Not in Ray, which waits for streams before it stops a replica.
    GrpcMethod(_HEALTH, "Watch", is_stream=True),
    GrpcMethod(REFLECTION_V1, "ServerReflectionInfo", is_stream=True),
    GrpcMethod(REFLECTION_V1ALPHA, "ServerReflectionInfo", is_stream=True),
    GrpcMethod(_PROFILER, "Profile"),
    GrpcMethod(_PROFILER, "Terminate"),
    GrpcMethod(_PROFILER, "Monitor"),
)

LARGE_PATHS: Final = frozenset(method.path for method in METHODS if method.is_large)
# Methods that run a model are those with large messages. REST requests are reported under the same names.
INFERENCE_NAMES: Final = frozenset(method.name for method in METHODS if method.is_large)
INFERENCE_PATHS: Final = frozenset(method.path for method in METHODS if method.is_inference)
IN_RAY: Final = tuple(method for method in METHODS if method.is_in_ray)
