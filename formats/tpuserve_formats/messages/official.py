"""Every official message, enum and service that the server uses, by name.

Types are in `official.pyi`, which takes them from the official packages.
"""

from tpuserve_formats.messages.pool import OFFICIAL, message_class

CallableOptions = message_class("tensorflow.CallableOptions")
ConfigProto = message_class("tensorflow.ConfigProto")
MetaGraphDef = message_class("tensorflow.MetaGraphDef")
ProfileOptions = message_class("tensorflow.ProfileOptions")
RewriterConfig = message_class("tensorflow.RewriterConfig")
RunOptions = message_class("tensorflow.RunOptions")
SignatureDef = message_class("tensorflow.SignatureDef")
TensorInfo = message_class("tensorflow.TensorInfo")
TensorProto = message_class("tensorflow.TensorProto")
TensorShapeProto = message_class("tensorflow.TensorShapeProto")
XSpace = message_class("tensorflow.profiler.XSpace")
ClassificationRequest = message_class("tensorflow.serving.ClassificationRequest")
FileSystemStoragePathSourceConfig = message_class("tensorflow.serving.FileSystemStoragePathSourceConfig")
GetModelMetadataRequest = message_class("tensorflow.serving.GetModelMetadataRequest")
GetModelMetadataResponse = message_class("tensorflow.serving.GetModelMetadataResponse")
GetModelStatusRequest = message_class("tensorflow.serving.GetModelStatusRequest")
GetModelStatusResponse = message_class("tensorflow.serving.GetModelStatusResponse")
InferenceTask = message_class("tensorflow.serving.InferenceTask")
LogMetadata = message_class("tensorflow.serving.LogMetadata")
LoggingConfig = message_class("tensorflow.serving.LoggingConfig")
ModelConfig = message_class("tensorflow.serving.ModelConfig")
ModelServerConfig = message_class("tensorflow.serving.ModelServerConfig")
ModelSpec = message_class("tensorflow.serving.ModelSpec")
ModelVersionStatus = message_class("tensorflow.serving.ModelVersionStatus")
MultiInferenceRequest = message_class("tensorflow.serving.MultiInferenceRequest")
PredictRequest = message_class("tensorflow.serving.PredictRequest")
PredictionLog = message_class("tensorflow.serving.PredictionLog")
ReloadConfigRequest = message_class("tensorflow.serving.ReloadConfigRequest")
ReloadConfigResponse = message_class("tensorflow.serving.ReloadConfigResponse")
SignatureDefMap = message_class("tensorflow.serving.SignatureDefMap")
StatusProto = message_class("tensorflow.serving.StatusProto")

DATA_TYPE = OFFICIAL.FindEnumTypeByName("tensorflow.DataType")
MODEL_TYPE = OFFICIAL.FindEnumTypeByName("tensorflow.serving.ModelType")
MODEL_SERVICE = OFFICIAL.FindServiceByName("tensorflow.serving.ModelService")
PREDICTION_SERVICE = OFFICIAL.FindServiceByName("tensorflow.serving.PredictionService")
