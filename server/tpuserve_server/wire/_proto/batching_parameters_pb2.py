"""Generated from batching_parameters.proto by tpuserve_server.wire._proto.generate. DO NOT EDIT."""

from google.protobuf import descriptor_pool as _descriptor_pool
from google.protobuf import message_factory as _message_factory
from google.protobuf import wrappers_pb2 as _wrappers_pb2  # noqa: F401

DESCRIPTOR = _descriptor_pool.Default().AddSerializedFile(
    b'\n5tpuserve_server/wire/_proto/batching_parameters.proto\x12\x12tensorf'
    b'low.serving\x1a\x1egoogle/protobuf/wrappers.proto"\x93\x0b\n\x12BatchingParamete'
    b'rs\x12A\n\x0emax_batch_size\x18\x01 \x01(\x0b2\x1b.google.protobuf.Int64ValueR\x0cmaxBatc'
    b'hSize\x12M\n\x14batch_timeout_micros\x18\x02 \x01(\x0b2\x1b.google.protobuf.Int64Value'
    b'R\x12batchTimeoutMicros\x12M\n\x14max_enqueued_batches\x18\x03 \x01(\x0b2\x1b.google.prot'
    b'obuf.Int64ValueR\x12maxEnqueuedBatches\x12G\n\x11num_batch_threads\x18\x04 \x01(\x0b2\x1b'
    b'.google.protobuf.Int64ValueR\x0fnumBatchThreads\x12F\n\x10thread_pool_name'
    b'\x18\x05 \x01(\x0b2\x1c.google.protobuf.StringValueR\x0ethreadPoolName\x12.\n\x13allowed_'
    b'batch_sizes\x18\x06 \x03(\x03R\x11allowedBatchSizes\x12;\n\x1apad_variable_length_inpu'
    b'ts\x18\x07 \x01(\x08R\x17padVariableLengthInputs\x12[\n\x1cenable_large_batch_splittin'
    b'g\x18\x08 \x01(\x0b2\x1a.google.protobuf.BoolValueR\x19enableLargeBatchSplitting\x12T'
    b'\n\x18max_execution_batch_size\x18\t \x01(\x0b2\x1b.google.protobuf.Int64ValueR\x15m'
    b'axExecutionBatchSize\x12Y\n\rbatching_mode\x18\xe9\x07 \x01(\x0e23.tensorflow.servin'
    b'g.BatchingParameters.BatchingModeR\x0cbatchingMode\x126\n\x14latency_objec'
    b'tive_ms\x18\xea\x07 \x01(\x01H\x00R\x12latencyObjectiveMs\x88\x01\x01\x123\n\x12latency_percentile\x18\xeb\x07'
    b' \x01(\x01H\x01R\x11latencyPercentile\x88\x01\x01\x12g\n\x14batch_padding_policy\x18\xec\x07 \x01(\x0e24.te'
    b'nsorflow.serving.BatchingParameters.PaddingPolicyR\x12batchPaddingP'
    b'olicy\x12*\n\x10sequence_buckets\x18\xed\x07 \x03(\x03R\x0fsequenceBuckets\x12N\n!low_priorit'
    b'y_max_enqueued_batches\x18\xee\x07 \x01(\x03H\x02R\x1dlowPriorityMaxEnqueuedBatches\x88\x01'
    b'\x01\x121\n\x11scheduling_weight\x18\xef\x07 \x01(\x01H\x03R\x10schedulingWeight\x88\x01\x01"L\n\x0cBatching'
    b'Mode\x12\x14\n\x10MODE_UNSPECIFIED\x10\x00\x12\n\n\x06GREEDY\x10\x01\x12\x0b\n\x07TIMEOUT\x10\x02\x12\r\n\tOBJECTIVE'
    b'\x10\x03"Q\n\rPaddingPolicy\x12\x16\n\x12POLICY_UNSPECIFIED\x10\x00\x12\n\n\x06PAD_UP\x10\x01\x12\x0e\n\nBATCH'
    b'_DOWN\x10\x02\x12\x0c\n\x08MIN_COST\x10\x03B\x17\n\x15_latency_objective_msB\x15\n\x13_latency_perce'
    b'ntileB$\n"_low_priority_max_enqueued_batchesB\x14\n\x12_scheduling_weigh'
    b'tb\x06proto3'
)

BatchingParameters = _message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["BatchingParameters"])
