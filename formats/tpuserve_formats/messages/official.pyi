from google.protobuf.descriptor import EnumDescriptor, ServiceDescriptor
from grpc_health.v1.health_pb2 import (
    HealthCheckRequest as HealthCheckRequest,
)
from grpc_health.v1.health_pb2 import (
    HealthCheckResponse as HealthCheckResponse,
)
from tensorflow.core.example.example_pb2 import Example as Example
from tensorflow.core.framework.attr_value_pb2 import (
    AttrValue as AttrValue,
)
from tensorflow.core.framework.attr_value_pb2 import (
    NameAttrList as NameAttrList,
)
from tensorflow.core.framework.function_pb2 import FunctionDef as FunctionDef
from tensorflow.core.framework.graph_pb2 import GraphDef as GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef as NodeDef
from tensorflow.core.framework.tensor_pb2 import TensorProto as TensorProto
from tensorflow.core.framework.tensor_shape_pb2 import TensorShapeProto as TensorShapeProto
from tensorflow.core.protobuf.config_pb2 import (
    CallableOptions as CallableOptions,
)
from tensorflow.core.protobuf.config_pb2 import (
    ConfigProto as ConfigProto,
)
from tensorflow.core.protobuf.config_pb2 import (
    RunOptions as RunOptions,
)
from tensorflow.core.protobuf.meta_graph_pb2 import (
    AssetFileDef as AssetFileDef,
)
from tensorflow.core.protobuf.meta_graph_pb2 import (
    MetaGraphDef as MetaGraphDef,
)
from tensorflow.core.protobuf.meta_graph_pb2 import (
    SignatureDef as SignatureDef,
)
from tensorflow.core.protobuf.meta_graph_pb2 import (
    TensorInfo as TensorInfo,
)
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig as RewriterConfig
from tensorflow.core.protobuf.saved_object_graph_pb2 import SavedObject as SavedObject
from tensorflow.tsl.profiler.protobuf.profiler_options_pb2 import ProfileOptions as ProfileOptions
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace as XSpace
from tensorflow_serving.apis.classification_pb2 import (
    ClassificationRequest as ClassificationRequest,
)
from tensorflow_serving.apis.classification_pb2 import (
    ClassificationResponse as ClassificationResponse,
)
from tensorflow_serving.apis.get_model_metadata_pb2 import (
    GetModelMetadataRequest as GetModelMetadataRequest,
)
from tensorflow_serving.apis.get_model_metadata_pb2 import (
    GetModelMetadataResponse as GetModelMetadataResponse,
)
from tensorflow_serving.apis.get_model_metadata_pb2 import (
    SignatureDefMap as SignatureDefMap,
)
from tensorflow_serving.apis.get_model_status_pb2 import (
    GetModelStatusRequest as GetModelStatusRequest,
)
from tensorflow_serving.apis.get_model_status_pb2 import (
    GetModelStatusResponse as GetModelStatusResponse,
)
from tensorflow_serving.apis.get_model_status_pb2 import (
    ModelVersionStatus as ModelVersionStatus,
)
from tensorflow_serving.apis.inference_pb2 import (
    InferenceTask as InferenceTask,
)
from tensorflow_serving.apis.inference_pb2 import (
    MultiInferenceRequest as MultiInferenceRequest,
)
from tensorflow_serving.apis.logging_pb2 import LogMetadata as LogMetadata
from tensorflow_serving.apis.model_management_pb2 import (
    ReloadConfigRequest as ReloadConfigRequest,
)
from tensorflow_serving.apis.model_management_pb2 import (
    ReloadConfigResponse as ReloadConfigResponse,
)
from tensorflow_serving.apis.model_pb2 import ModelSpec as ModelSpec
from tensorflow_serving.apis.predict_pb2 import (
    PredictRequest as PredictRequest,
)
from tensorflow_serving.apis.predict_pb2 import (
    PredictResponse as PredictResponse,
)
from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog as PredictionLog
from tensorflow_serving.apis.regression_pb2 import (
    RegressionRequest as RegressionRequest,
)
from tensorflow_serving.apis.regression_pb2 import (
    RegressionResponse as RegressionResponse,
)
from tensorflow_serving.apis.status_pb2 import StatusProto as StatusProto
from tensorflow_serving.config.file_system_storage_path_source_pb2 import (
    FileSystemStoragePathSourceConfig as FileSystemStoragePathSourceConfig,
)
from tensorflow_serving.config.logging_config_pb2 import LoggingConfig as LoggingConfig
from tensorflow_serving.config.model_server_config_pb2 import (
    ModelConfig as ModelConfig,
)
from tensorflow_serving.config.model_server_config_pb2 import (
    ModelServerConfig as ModelServerConfig,
)

DATA_TYPE: EnumDescriptor
MODEL_TYPE: EnumDescriptor
MODEL_SERVICE: ServiceDescriptor
PREDICTION_SERVICE: ServiceDescriptor
NAMES: frozenset[str]
