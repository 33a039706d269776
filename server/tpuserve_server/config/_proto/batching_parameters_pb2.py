"""Generated from batching_parameters.proto by tpuserve_server.config._proto.generate. DO NOT EDIT."""

from google.protobuf import descriptor_pool as _descriptor_pool
from google.protobuf import message_factory as _message_factory
from google.protobuf import wrappers_pb2 as _wrappers_pb2  # noqa: F401

DESCRIPTOR = _descriptor_pool.Default().AddSerializedFile(
    b'\n7tpuserve_server/config/_proto/batching_parameters.proto\x12\x12tenso'
    b'rflow.serving\x1a\x1egoogle/protobuf/wrappers.proto"\xa6\x05\n\x12BatchingParame'
    b'ters\x12A\n\x0emax_batch_size\x18\x01 \x01(\x0b2\x1b.google.protobuf.Int64ValueR\x0cmaxBa'
    b'tchSize\x12M\n\x14batch_timeout_micros\x18\x02 \x01(\x0b2\x1b.google.protobuf.Int64Val'
    b'ueR\x12batchTimeoutMicros\x12M\n\x14max_enqueued_batches\x18\x03 \x01(\x0b2\x1b.google.pr'
    b'otobuf.Int64ValueR\x12maxEnqueuedBatches\x12G\n\x11num_batch_threads\x18\x04 \x01(\x0b'
    b'2\x1b.google.protobuf.Int64ValueR\x0fnumBatchThreads\x12F\n\x10thread_pool_na'
    b'me\x18\x05 \x01(\x0b2\x1c.google.protobuf.StringValueR\x0ethreadPoolName\x12.\n\x13allowe'
    b'd_batch_sizes\x18\x06 \x03(\x03R\x11allowedBatchSizes\x12;\n\x1apad_variable_length_in'
    b'puts\x18\x07 \x01(\x08R\x17padVariableLengthInputs\x12[\n\x1cenable_large_batch_splitt'
    b'ing\x18\x08 \x01(\x0b2\x1a.google.protobuf.BoolValueR\x19enableLargeBatchSplitting'
    b'\x12T\n\x18max_execution_batch_size\x18\t \x01(\x0b2\x1b.google.protobuf.Int64ValueR'
    b'\x15maxExecutionBatchSizeb\x06proto3'
)

BatchingParameters = _message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["BatchingParameters"])
