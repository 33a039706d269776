"""Generated from serving.proto by tpuserve_client._proto.generate. DO NOT EDIT."""

from google.protobuf import any_pb2 as _any_pb2  # noqa: F401  (its descriptor must be in the pool first)
from google.protobuf import descriptor_pool as _descriptor_pool
from google.protobuf import message_factory as _message_factory
from google.protobuf import wrappers_pb2 as _wrappers_pb2  # noqa: F401  (likewise)

DESCRIPTOR = _descriptor_pool.Default().AddSerializedFile(
    b'\n$tpuserve_client/_proto/serving.proto\x12\x12tpuserve.client.v1\x1a\x19goog'
    b'le/protobuf/any.proto\x1a\x1egoogle/protobuf/wrappers.proto"\xa0\x01\n\x10Tensor'
    b'ShapeProto\x12:\n\x03dim\x18\x02 \x03(\x0b2(.tpuserve.client.v1.TensorShapeProto.Di'
    b'mR\x03dim\x12!\n\x0cunknown_rank\x18\x03 \x01(\x08R\x0bunknownRank\x1a-\n\x03Dim\x12\x12\n\x04size\x18\x01 \x01(\x03R\x04'
    b'size\x12\x12\n\x04name\x18\x02 \x01(\tR\x04name"\xc2\x04\n\x0bTensorProto\x122\n\x05dtype\x18\x01 \x01(\x0e2\x1c.tpuser'
    b've.client.v1.DataTypeR\x05dtype\x12G\n\x0ctensor_shape\x18\x02 \x01(\x0b2$.tpuserve.cl'
    b'ient.v1.TensorShapeProtoR\x0btensorShape\x12%\n\x0eversion_number\x18\x03 \x01(\x05R\rv'
    b'ersionNumber\x12%\n\x0etensor_content\x18\x04 \x01(\x0cR\rtensorContent\x12\x1b\n\tfloat_val'
    b'\x18\x05 \x03(\x0cR\x08floatVal\x12\x1d\n\ndouble_val\x18\x06 \x03(\x0cR\tdoubleVal\x12\x17\n\x07int_val\x18\x07 \x03(\x0c'
    b'R\x06intVal\x12\x1d\n\nstring_val\x18\x08 \x03(\x0cR\tstringVal\x12!\n\x0cscomplex_val\x18\t \x03(\x0cR\x0bs'
    b'complexVal\x12\x1b\n\tint64_val\x18\n \x03(\x0cR\x08int64Val\x12\x19\n\x08bool_val\x18\x0b \x03(\x0cR\x07boolV'
    b'al\x12!\n\x0cdcomplex_val\x18\x0c \x03(\x0cR\x0bdcomplexVal\x12\x19\n\x08half_val\x18\r \x03(\x0cR\x07halfVal'
    b'\x12\x1d\n\nuint32_val\x18\x10 \x03(\x0cR\tuint32Val\x12\x1d\n\nuint64_val\x18\x11 \x03(\x0cR\tuint64Val\x12\x1d'
    b'\n\nfloat8_val\x18\x12 \x01(\x0cR\tfloat8Val"\xab\x01\n\nTensorInfo\x12\x14\n\x04name\x18\x01 \x01(\tH\x00R\x04na'
    b'me\x122\n\x05dtype\x18\x02 \x01(\x0e2\x1c.tpuserve.client.v1.DataTypeR\x05dtype\x12G\n\x0ctensor'
    b'_shape\x18\x03 \x01(\x0b2$.tpuserve.client.v1.TensorShapeProtoR\x0btensorShapeB'
    b'\n\n\x08encoding"\x9f\x04\n\x0cSignatureDef\x12D\n\x06inputs\x18\x01 \x03(\x0b2,.tpuserve.client.v'
    b'1.SignatureDef.InputsEntryR\x06inputs\x12G\n\x07outputs\x18\x02 \x03(\x0b2-.tpuserve.c'
    b'lient.v1.SignatureDef.OutputsEntryR\x07outputs\x12\x1f\n\x0bmethod_name\x18\x03 \x01(\t'
    b'R\nmethodName\x12J\n\x08defaults\x18\x04 \x03(\x0b2..tpuserve.client.v1.SignatureDef'
    b'.DefaultsEntryR\x08defaults\x1aY\n\x0bInputsEntry\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x124\n\x05val'
    b'ue\x18\x02 \x01(\x0b2\x1e.tpuserve.client.v1.TensorInfoR\x05value:\x028\x01\x1aZ\n\x0cOutputsEn'
    b'try\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x124\n\x05value\x18\x02 \x01(\x0b2\x1e.tpuserve.client.v1.Tensor'
    b'InfoR\x05value:\x028\x01\x1a\\\n\rDefaultsEntry\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x125\n\x05value\x18\x02 \x01('
    b'\x0b2\x1f.tpuserve.client.v1.TensorProtoR\x05value:\x028\x01"\xb8\x01\n\tModelSpec\x12\x12\n\x04n'
    b'ame\x18\x01 \x01(\tR\x04name\x127\n\x07version\x18\x02 \x01(\x0b2\x1b.google.protobuf.Int64ValueH\x00R'
    b'\x07version\x12%\n\rversion_label\x18\x04 \x01(\tH\x00R\x0cversionLabel\x12%\n\x0esignature_nam'
    b'e\x18\x03 \x01(\tR\rsignatureNameB\x10\n\x0eversion_choice"\x97\x02\n\x0ePredictRequest\x12<\n\nm'
    b'odel_spec\x18\x01 \x01(\x0b2\x1d.tpuserve.client.v1.ModelSpecR\tmodelSpec\x12F\n\x06inp'
    b'uts\x18\x02 \x03(\x0b2..tpuserve.client.v1.PredictRequest.InputsEntryR\x06input'
    b's\x12#\n\routput_filter\x18\x03 \x03(\tR\x0coutputFilter\x1aZ\n\x0bInputsEntry\x12\x10\n\x03key\x18\x01 \x01'
    b'(\tR\x03key\x125\n\x05value\x18\x02 \x01(\x0b2\x1f.tpuserve.client.v1.TensorProtoR\x05value:\x02'
    b'8\x01"\xf8\x01\n\x0fPredictResponse\x12J\n\x07outputs\x18\x01 \x03(\x0b20.tpuserve.client.v1.Pre'
    b'dictResponse.OutputsEntryR\x07outputs\x12<\n\nmodel_spec\x18\x02 \x01(\x0b2\x1d.tpuserv'
    b'e.client.v1.ModelSpecR\tmodelSpec\x1a[\n\x0cOutputsEntry\x12\x10\n\x03key\x18\x01 \x01(\tR\x03k'
    b'ey\x125\n\x05value\x18\x02 \x01(\x0b2\x1f.tpuserve.client.v1.TensorProtoR\x05value:\x028\x01"\xd0\x01'
    b'\n\x0fSignatureDefMap\x12Z\n\rsignature_def\x18\x01 \x03(\x0b25.tpuserve.client.v1.Si'
    b'gnatureDefMap.SignatureDefEntryR\x0csignatureDef\x1aa\n\x11SignatureDefEnt'
    b'ry\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x126\n\x05value\x18\x02 \x01(\x0b2 .tpuserve.client.v1.Signatu'
    b'reDefR\x05value:\x028\x01"~\n\x17GetModelMetadataRequest\x12<\n\nmodel_spec\x18\x01 \x01(\x0b2'
    b'\x1d.tpuserve.client.v1.ModelSpecR\tmodelSpec\x12%\n\x0emetadata_field\x18\x02 \x03('
    b'\tR\rmetadataField"\x83\x02\n\x18GetModelMetadataResponse\x12<\n\nmodel_spec\x18\x01 \x01('
    b'\x0b2\x1d.tpuserve.client.v1.ModelSpecR\tmodelSpec\x12V\n\x08metadata\x18\x02 \x03(\x0b2:.'
    b'tpuserve.client.v1.GetModelMetadataResponse.MetadataEntryR\x08metad'
    b'ata\x1aQ\n\rMetadataEntry\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x12*\n\x05value\x18\x02 \x01(\x0b2\x14.google.p'
    b'rotobuf.AnyR\x05value:\x028\x01"k\n\x0bStatusProto\x127\n\nerror_code\x18\x01 \x01(\x0e2\x18.tpus'
    b'erve.client.v1.CodeR\terrorCode\x12#\n\rerror_message\x18\x02 \x01(\tR\x0cerrorMess'
    b'age"U\n\x15GetModelStatusRequest\x12<\n\nmodel_spec\x18\x01 \x01(\x0b2\x1d.tpuserve.clie'
    b'nt.v1.ModelSpecR\tmodelSpec"\x86\x02\n\x12ModelVersionStatus\x12\x18\n\x07version\x18\x01 \x01'
    b'(\x03R\x07version\x12B\n\x05state\x18\x02 \x01(\x0e2,.tpuserve.client.v1.ModelVersionStat'
    b'us.StateR\x05state\x127\n\x06status\x18\x03 \x01(\x0b2\x1f.tpuserve.client.v1.StatusProto'
    b'R\x06status"Y\n\x05State\x12\x11\n\rSTATE_UNKNOWN\x10\x00\x12\t\n\x05START\x10\n\x12\x0b\n\x07LOADING\x10\x14\x12\r\n\t'
    b'AVAILABLE\x10\x1e\x12\r\n\tUNLOADING\x10(\x12\x07\n\x03END\x102"r\n\x16GetModelStatusResponse\x12X\n'
    b'\x14model_version_status\x18\x01 \x03(\x0b2&.tpuserve.client.v1.ModelVersionSta'
    b'tusR\x12modelVersionStatus"\xf1\x03\n!FileSystemStoragePathSourceConfig\x1a\xcb\x03'
    b'\n\x15ServableVersionPolicy\x12l\n\x06latest\x18d \x01(\x0b2R.tpuserve.client.v1.Fil'
    b'eSystemStoragePathSourceConfig.ServableVersionPolicy.LatestH\x00R\x06l'
    b'atest\x12c\n\x03all\x18e \x01(\x0b2O.tpuserve.client.v1.FileSystemStoragePathSou'
    b'rceConfig.ServableVersionPolicy.AllH\x00R\x03all\x12r\n\x08specific\x18f \x01(\x0b2T.t'
    b'puserve.client.v1.FileSystemStoragePathSourceConfig.ServableVers'
    b'ionPolicy.SpecificH\x00R\x08specific\x1a+\n\x06Latest\x12!\n\x0cnum_versions\x18\x01 \x01(\rR\x0b'
    b'numVersions\x1a\x05\n\x03All\x1a&\n\x08Specific\x12\x1a\n\x08versions\x18\x01 \x03(\x03R\x08versionsB\x0f\n\rpo'
    b'licy_choice"Q\n\x12LogCollectorConfig\x12\x12\n\x04type\x18\x01 \x01(\tR\x04type\x12\'\n\x0ffilenam'
    b'e_prefix\x18\x02 \x01(\tR\x0efilenamePrefix"5\n\x0eSamplingConfig\x12#\n\rsampling_rat'
    b'e\x18\x01 \x01(\x01R\x0csamplingRate"\xb6\x01\n\rLoggingConfig\x12X\n\x14log_collector_config\x18'
    b'\x01 \x01(\x0b2&.tpuserve.client.v1.LogCollectorConfigR\x12logCollectorConfi'
    b'g\x12K\n\x0fsampling_config\x18\x02 \x01(\x0b2".tpuserve.client.v1.SamplingConfigR\x0e'
    b'samplingConfig"\xe3\x04\n\x0bModelConfig\x12\x12\n\x04name\x18\x01 \x01(\tR\x04name\x12\x1b\n\tbase_path\x18'
    b'\x02 \x01(\tR\x08basePath\x12<\n\nmodel_type\x18\x03 \x01(\x0e2\x1d.tpuserve.client.v1.ModelTy'
    b'peR\tmodelType\x12%\n\x0emodel_platform\x18\x04 \x01(\tR\rmodelPlatform\x12}\n\x14model_ve'
    b'rsion_policy\x18\x07 \x01(\x0b2K.tpuserve.client.v1.FileSystemStoragePathSou'
    b'rceConfig.ServableVersionPolicyR\x12modelVersionPolicy\x12Y\n\x0eversion_l'
    b'abels\x18\x08 \x03(\x0b22.tpuserve.client.v1.ModelConfig.VersionLabelsEntryR'
    b'\rversionLabels\x12H\n\x0elogging_config\x18\x06 \x01(\x0b2!.tpuserve.client.v1.Logg'
    b'ingConfigR\rloggingConfig\x12X\n\x13batching_parameters\x18\xe9\x07 \x01(\x0b2&.tpuserv'
    b'e.client.v1.BatchingParametersR\x12batchingParameters\x1a@\n\x12VersionLab'
    b'elsEntry\x12\x10\n\x03key\x18\x01 \x01(\tR\x03key\x12\x14\n\x05value\x18\x02 \x01(\x03R\x05value:\x028\x01"J\n\x0fModelCon'
    b'figList\x127\n\x06config\x18\x01 \x03(\x0b2\x1f.tpuserve.client.v1.ModelConfigR\x06config'
    b'"p\n\x11ModelServerConfig\x12Q\n\x11model_config_list\x18\x01 \x01(\x0b2#.tpuserve.clie'
    b'nt.v1.ModelConfigListH\x00R\x0fmodelConfigListB\x08\n\x06config"\x93\x0b\n\x12BatchingP'
    b'arameters\x12A\n\x0emax_batch_size\x18\x01 \x01(\x0b2\x1b.google.protobuf.Int64ValueR\x0c'
    b'maxBatchSize\x12M\n\x14batch_timeout_micros\x18\x02 \x01(\x0b2\x1b.google.protobuf.Int'
    b'64ValueR\x12batchTimeoutMicros\x12M\n\x14max_enqueued_batches\x18\x03 \x01(\x0b2\x1b.goog'
    b'le.protobuf.Int64ValueR\x12maxEnqueuedBatches\x12G\n\x11num_batch_threads\x18'
    b'\x04 \x01(\x0b2\x1b.google.protobuf.Int64ValueR\x0fnumBatchThreads\x12F\n\x10thread_po'
    b'ol_name\x18\x05 \x01(\x0b2\x1c.google.protobuf.StringValueR\x0ethreadPoolName\x12.\n\x13a'
    b'llowed_batch_sizes\x18\x06 \x03(\x03R\x11allowedBatchSizes\x12;\n\x1apad_variable_leng'
    b'th_inputs\x18\x07 \x01(\x08R\x17padVariableLengthInputs\x12[\n\x1cenable_large_batch_s'
    b'plitting\x18\x08 \x01(\x0b2\x1a.google.protobuf.BoolValueR\x19enableLargeBatchSpli'
    b'tting\x12T\n\x18max_execution_batch_size\x18\t \x01(\x0b2\x1b.google.protobuf.Int64V'
    b'alueR\x15maxExecutionBatchSize\x12Y\n\rbatching_mode\x18\xe9\x07 \x01(\x0e23.tpuserve.c'
    b'lient.v1.BatchingParameters.BatchingModeR\x0cbatchingMode\x126\n\x14latenc'
    b'y_objective_ms\x18\xea\x07 \x01(\x01H\x00R\x12latencyObjectiveMs\x88\x01\x01\x123\n\x12latency_percen'
    b'tile\x18\xeb\x07 \x01(\x01H\x01R\x11latencyPercentile\x88\x01\x01\x12g\n\x14batch_padding_policy\x18\xec\x07 \x01'
    b'(\x0e24.tpuserve.client.v1.BatchingParameters.PaddingPolicyR\x12batchP'
    b'addingPolicy\x12*\n\x10sequence_buckets\x18\xed\x07 \x03(\x03R\x0fsequenceBuckets\x12N\n!low_'
    b'priority_max_enqueued_batches\x18\xee\x07 \x01(\x03H\x02R\x1dlowPriorityMaxEnqueuedBa'
    b'tches\x88\x01\x01\x121\n\x11scheduling_weight\x18\xef\x07 \x01(\x01H\x03R\x10schedulingWeight\x88\x01\x01"L\n\x0cB'
    b'atchingMode\x12\x14\n\x10MODE_UNSPECIFIED\x10\x00\x12\n\n\x06GREEDY\x10\x01\x12\x0b\n\x07TIMEOUT\x10\x02\x12\r\n\tOB'
    b'JECTIVE\x10\x03"Q\n\rPaddingPolicy\x12\x16\n\x12POLICY_UNSPECIFIED\x10\x00\x12\n\n\x06PAD_UP\x10\x01\x12\x0e'
    b'\n\nBATCH_DOWN\x10\x02\x12\x0c\n\x08MIN_COST\x10\x03B\x17\n\x15_latency_objective_msB\x15\n\x13_latenc'
    b'y_percentileB$\n"_low_priority_max_enqueued_batchesB\x14\n\x12_schedulin'
    b'g_weight"T\n\x13ReloadConfigRequest\x12=\n\x06config\x18\x01 \x01(\x0b2%.tpuserve.clien'
    b't.v1.ModelServerConfigR\x06config"O\n\x14ReloadConfigResponse\x127\n\x06status'
    b'\x18\x01 \x01(\x0b2\x1f.tpuserve.client.v1.StatusProtoR\x06status".\n\x12HealthCheckRe'
    b'quest\x12\x18\n\x07service\x18\x01 \x01(\tR\x07service"\xbc\x01\n\x13HealthCheckResponse\x12M\n\x06statu'
    b's\x18\x01 \x01(\x0e25.tpuserve.client.v1.HealthCheckResponse.ServingStatusR\x06'
    b'status"V\n\rServingStatus\x12\x12\n\x0eSTATUS_UNKNOWN\x10\x00\x12\x0b\n\x07SERVING\x10\x01\x12\x0f\n\x0bNOT_'
    b'SERVING\x10\x02\x12\x13\n\x0fSERVICE_UNKNOWN\x10\x03*\x9e\x03\n\x08DataType\x12\x0e\n\nDT_INVALID\x10\x00\x12\x0c\n\x08D'
    b'T_FLOAT\x10\x01\x12\r\n\tDT_DOUBLE\x10\x02\x12\x0c\n\x08DT_INT32\x10\x03\x12\x0c\n\x08DT_UINT8\x10\x04\x12\x0c\n\x08DT_INT16'
    b'\x10\x05\x12\x0b\n\x07DT_INT8\x10\x06\x12\r\n\tDT_STRING\x10\x07\x12\x10\n\x0cDT_COMPLEX64\x10\x08\x12\x0c\n\x08DT_INT64\x10\t\x12\x0b'
    b'\n\x07DT_BOOL\x10\n\x12\x0c\n\x08DT_QINT8\x10\x0b\x12\r\n\tDT_QUINT8\x10\x0c\x12\r\n\tDT_QINT32\x10\r\x12\x0f\n\x0bDT_BF'
    b'LOAT16\x10\x0e\x12\r\n\tDT_QINT16\x10\x0f\x12\x0e\n\nDT_QUINT16\x10\x10\x12\r\n\tDT_UINT16\x10\x11\x12\x11\n\rDT_COM'
    b'PLEX128\x10\x12\x12\x0b\n\x07DT_HALF\x10\x13\x12\x0f\n\x0bDT_RESOURCE\x10\x14\x12\x0e\n\nDT_VARIANT\x10\x15\x12\r\n\tDT_UI'
    b'NT32\x10\x16\x12\r\n\tDT_UINT64\x10\x17\x12\x12\n\x0eDT_FLOAT8_E5M2\x10\x18\x12\x14\n\x10DT_FLOAT8_E4M3FN\x10\x19*'
    b'\xb7\x02\n\x04Code\x12\x06\n\x02OK\x10\x00\x12\r\n\tCANCELLED\x10\x01\x12\x0b\n\x07UNKNOWN\x10\x02\x12\x14\n\x10INVALID_ARGUMENT'
    b'\x10\x03\x12\x15\n\x11DEADLINE_EXCEEDED\x10\x04\x12\r\n\tNOT_FOUND\x10\x05\x12\x12\n\x0eALREADY_EXISTS\x10\x06\x12\x15\n\x11'
    b'PERMISSION_DENIED\x10\x07\x12\x16\n\x12RESOURCE_EXHAUSTED\x10\x08\x12\x17\n\x13FAILED_PRECONDITI'
    b'ON\x10\t\x12\x0b\n\x07ABORTED\x10\n\x12\x10\n\x0cOUT_OF_RANGE\x10\x0b\x12\x11\n\rUNIMPLEMENTED\x10\x0c\x12\x0c\n\x08INTERN'
    b'AL\x10\r\x12\x0f\n\x0bUNAVAILABLE\x10\x0e\x12\r\n\tDATA_LOSS\x10\x0f\x12\x13\n\x0fUNAUTHENTICATED\x10\x10*B\n\tMod'
    b'elType\x12\x1a\n\x16MODEL_TYPE_UNSPECIFIED\x10\x00\x12\x0e\n\nTENSORFLOW\x10\x01\x12\t\n\x05OTHER\x10\x02b\x06p'
    b'roto3'
)

TensorShapeProto = _message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["TensorShapeProto"])
TensorProto = _message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["TensorProto"])
TensorInfo = _message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["TensorInfo"])
SignatureDef = _message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["SignatureDef"])
ModelSpec = _message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["ModelSpec"])
PredictRequest = _message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["PredictRequest"])
PredictResponse = _message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["PredictResponse"])
SignatureDefMap = _message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["SignatureDefMap"])
GetModelMetadataRequest = _message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["GetModelMetadataRequest"])
GetModelMetadataResponse = _message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["GetModelMetadataResponse"])
StatusProto = _message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["StatusProto"])
GetModelStatusRequest = _message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["GetModelStatusRequest"])
ModelVersionStatus = _message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["ModelVersionStatus"])
GetModelStatusResponse = _message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["GetModelStatusResponse"])
FileSystemStoragePathSourceConfig = _message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["FileSystemStoragePathSourceConfig"])
LogCollectorConfig = _message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["LogCollectorConfig"])
SamplingConfig = _message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["SamplingConfig"])
LoggingConfig = _message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["LoggingConfig"])
ModelConfig = _message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["ModelConfig"])
ModelConfigList = _message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["ModelConfigList"])
ModelServerConfig = _message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["ModelServerConfig"])
BatchingParameters = _message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["BatchingParameters"])
ReloadConfigRequest = _message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["ReloadConfigRequest"])
ReloadConfigResponse = _message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["ReloadConfigResponse"])
HealthCheckRequest = _message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["HealthCheckRequest"])
HealthCheckResponse = _message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["HealthCheckResponse"])

DT_INVALID = 0
DT_FLOAT = 1
DT_DOUBLE = 2
DT_INT32 = 3
DT_UINT8 = 4
DT_INT16 = 5
DT_INT8 = 6
DT_STRING = 7
DT_COMPLEX64 = 8
DT_INT64 = 9
DT_BOOL = 10
DT_QINT8 = 11
DT_QUINT8 = 12
DT_QINT32 = 13
DT_BFLOAT16 = 14
DT_QINT16 = 15
DT_QUINT16 = 16
DT_UINT16 = 17
DT_COMPLEX128 = 18
DT_HALF = 19
DT_RESOURCE = 20
DT_VARIANT = 21
DT_UINT32 = 22
DT_UINT64 = 23
DT_FLOAT8_E5M2 = 24
DT_FLOAT8_E4M3FN = 25
OK = 0
CANCELLED = 1
UNKNOWN = 2
INVALID_ARGUMENT = 3
DEADLINE_EXCEEDED = 4
NOT_FOUND = 5
ALREADY_EXISTS = 6
PERMISSION_DENIED = 7
RESOURCE_EXHAUSTED = 8
FAILED_PRECONDITION = 9
ABORTED = 10
OUT_OF_RANGE = 11
UNIMPLEMENTED = 12
INTERNAL = 13
UNAVAILABLE = 14
DATA_LOSS = 15
UNAUTHENTICATED = 16
MODEL_TYPE_UNSPECIFIED = 0
TENSORFLOW = 1
OTHER = 2
