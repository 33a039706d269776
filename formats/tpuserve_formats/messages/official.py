"""Every official message, enum and service that a distribution uses, by name. The first use creates the class.

`official.pyi` takes the types from the official packages.
"""

from typing import Any

from tpuserve_formats.messages.pool import find_file, message_class

_MESSAGES = {
    "grpc_health/v1/health.proto": (
        "HealthCheckRequest",
        "HealthCheckResponse",
    ),
    "tensorflow/core/example/example.proto": ("Example",),
    "tensorflow/core/framework/attr_value.proto": (
        "AttrValue",
        "NameAttrList",
    ),
    "tensorflow/core/framework/function.proto": ("FunctionDef",),
    "tensorflow/core/framework/graph.proto": ("GraphDef",),
    "tensorflow/core/framework/node_def.proto": ("NodeDef",),
    "tensorflow/core/framework/tensor.proto": ("TensorProto",),
    "tensorflow/core/framework/tensor_shape.proto": ("TensorShapeProto",),
    "tensorflow/core/protobuf/config.proto": (
        "CallableOptions",
        "ConfigProto",
        "RunOptions",
    ),
    "tensorflow/core/protobuf/meta_graph.proto": (
        "AssetFileDef",
        "MetaGraphDef",
        "SignatureDef",
        "TensorInfo",
    ),
    "tensorflow/core/protobuf/saved_object_graph.proto": ("SavedObject",),
    "tensorflow/core/protobuf/rewriter_config.proto": ("RewriterConfig",),
    "tensorflow_serving/apis/classification.proto": (
        "ClassificationRequest",
        "ClassificationResponse",
    ),
    "tensorflow_serving/apis/get_model_metadata.proto": (
        "GetModelMetadataRequest",
        "GetModelMetadataResponse",
        "SignatureDefMap",
    ),
    "tensorflow_serving/apis/get_model_status.proto": (
        "GetModelStatusRequest",
        "GetModelStatusResponse",
        "ModelVersionStatus",
    ),
    "tensorflow_serving/apis/inference.proto": (
        "InferenceTask",
        "MultiInferenceRequest",
    ),
    "tensorflow_serving/apis/logging.proto": ("LogMetadata",),
    "tensorflow_serving/apis/model.proto": ("ModelSpec",),
    "tensorflow_serving/apis/model_management.proto": (
        "ReloadConfigRequest",
        "ReloadConfigResponse",
    ),
    "tensorflow_serving/apis/predict.proto": (
        "PredictRequest",
        "PredictResponse",
    ),
    "tensorflow_serving/apis/prediction_log.proto": ("PredictionLog",),
    "tensorflow_serving/apis/regression.proto": (
        "RegressionRequest",
        "RegressionResponse",
    ),
    "tensorflow_serving/apis/status.proto": ("StatusProto",),
    "tensorflow_serving/config/file_system_storage_path_source.proto": ("FileSystemStoragePathSourceConfig",),
    "tensorflow_serving/config/logging_config.proto": ("LoggingConfig",),
    "tensorflow_serving/config/model_server_config.proto": (
        "ModelConfig",
        "ModelServerConfig",
    ),
    "tsl/profiler/protobuf/profiler_options.proto": ("ProfileOptions",),
    "tsl/profiler/protobuf/xplane.proto": ("XSpace",),
}
_ENUMS = {
    "DATA_TYPE": ("tensorflow/core/framework/types.proto", "DataType"),
    "MODEL_TYPE": ("tensorflow_serving/config/model_server_config.proto", "ModelType"),
}
_SERVICES = {
    "MODEL_SERVICE": ("tensorflow_serving/apis/model_service.proto", "ModelService"),
    "PREDICTION_SERVICE": ("tensorflow_serving/apis/prediction_service.proto", "PredictionService"),
}
_FILE = {name: file for file, names in _MESSAGES.items() for name in names}
NAMES = frozenset({*_FILE, *_ENUMS, *_SERVICES})


def __getattr__(name: str) -> Any:  # noqa: ANN401 (`official.pyi` has the types)
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: Any
    if name in _FILE:
        found = message_class(_FILE[name], name)
    elif name in _ENUMS:
        file, official_name = _ENUMS[name]
        found = find_file(file).enum_types_by_name[official_name]
    else:
        file, official_name = _SERVICES[name]
        found = find_file(file).services_by_name[official_name]
    globals()[name] = found
    return found
