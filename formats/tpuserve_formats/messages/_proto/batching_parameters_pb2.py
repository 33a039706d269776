"""Generated from batching_parameters.proto by tpuserve_formats.messages._proto.generate. DO NOT EDIT."""

from google.protobuf import descriptor_pool as _descriptor_pool
from google.protobuf import message_factory as _message_factory
from google.protobuf import wrappers_pb2 as _wrappers_pb2  # noqa: F401

DESCRIPTOR = _descriptor_pool.Default().AddSerializedFile(
    b'\n:tpuserve_formats/messages/_proto/batching_parameters.proto\x12\x12te'
    b'nsorflow.serving\x1a\x1egoogle/protobuf/wrappers.proto"\x93\x0b\n\x12BatchingPar'
    b'ameters\x12A\n\x0emax_batch_size\x18\x01 \x01(\x0b2\x1b.google.protobuf.Int64ValueR\x0cma'
    b'xBatchSize\x12M\n\x14batch_timeout_micros\x18\x02 \x01(\x0b2\x1b.google.protobuf.Int64'
    b'ValueR\x12batchTimeoutMicros\x12M\n\x14max_enqueued_batches\x18\x03 \x01(\x0b2\x1b.google'
    b'.protobuf.Int64ValueR\x12maxEnqueuedBatches\x12G\n\x11num_batch_threads\x18\x04 '
    b'\x01(\x0b2\x1b.google.protobuf.Int64ValueR\x0fnumBatchThreads\x12F\n\x10thread_pool'
    b'_name\x18\x05 \x01(\x0b2\x1c.google.protobuf.StringValueR\x0ethreadPoolName\x12.\n\x13all'
    b'owed_batch_sizes\x18\x06 \x03(\x03R\x11allowedBatchSizes\x12;\n\x1apad_variable_length'
    b'_inputs\x18\x07 \x01(\x08R\x17padVariableLengthInputs\x12[\n\x1cenable_large_batch_spl'
    b'itting\x18\x08 \x01(\x0b2\x1a.google.protobuf.BoolValueR\x19enableLargeBatchSplitt'
    b'ing\x12T\n\x18max_execution_batch_size\x18\t \x01(\x0b2\x1b.google.protobuf.Int64Val'
    b'ueR\x15maxExecutionBatchSize\x12Y\n\rbatching_mode\x18\xe9\x07 \x01(\x0e23.tensorflow.s'
    b'erving.BatchingParameters.BatchingModeR\x0cbatchingMode\x126\n\x14latency_'
    b'objective_ms\x18\xea\x07 \x01(\x01H\x00R\x12latencyObjectiveMs\x88\x01\x01\x123\n\x12latency_percenti'
    b'le\x18\xeb\x07 \x01(\x01H\x01R\x11latencyPercentile\x88\x01\x01\x12g\n\x14batch_padding_policy\x18\xec\x07 \x01(\x0e'
    b'24.tensorflow.serving.BatchingParameters.PaddingPolicyR\x12batchPad'
    b'dingPolicy\x12*\n\x10sequence_buckets\x18\xed\x07 \x03(\x03R\x0fsequenceBuckets\x12N\n!low_pr'
    b'iority_max_enqueued_batches\x18\xee\x07 \x01(\x03H\x02R\x1dlowPriorityMaxEnqueuedBatc'
    b'hes\x88\x01\x01\x121\n\x11scheduling_weight\x18\xef\x07 \x01(\x01H\x03R\x10schedulingWeight\x88\x01\x01"L\n\x0cBat'
    b'chingMode\x12\x14\n\x10MODE_UNSPECIFIED\x10\x00\x12\n\n\x06GREEDY\x10\x01\x12\x0b\n\x07TIMEOUT\x10\x02\x12\r\n\tOBJE'
    b'CTIVE\x10\x03"Q\n\rPaddingPolicy\x12\x16\n\x12POLICY_UNSPECIFIED\x10\x00\x12\n\n\x06PAD_UP\x10\x01\x12\x0e\n\n'
    b'BATCH_DOWN\x10\x02\x12\x0c\n\x08MIN_COST\x10\x03B\x17\n\x15_latency_objective_msB\x15\n\x13_latency_'
    b'percentileB$\n"_low_priority_max_enqueued_batchesB\x14\n\x12_scheduling_'
    b'weightb\x06proto3'
)

BatchingParameters = _message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["BatchingParameters"])
