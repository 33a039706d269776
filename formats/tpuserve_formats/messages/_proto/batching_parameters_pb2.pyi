from google.protobuf import wrappers_pb2 as _wrappers_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BatchingParameters(_message.Message):
    __slots__ = ("max_batch_size", "batch_timeout_micros", "max_enqueued_batches", "num_batch_threads", "thread_pool_name", "allowed_batch_sizes", "pad_variable_length_inputs", "enable_large_batch_splitting", "max_execution_batch_size", "batching_mode", "latency_objective_ms", "latency_percentile", "batch_padding_policy", "sequence_buckets", "low_priority_max_enqueued_batches", "scheduling_weight")
    class BatchingMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        MODE_UNSPECIFIED: _ClassVar[BatchingParameters.BatchingMode]
        GREEDY: _ClassVar[BatchingParameters.BatchingMode]
        TIMEOUT: _ClassVar[BatchingParameters.BatchingMode]
        OBJECTIVE: _ClassVar[BatchingParameters.BatchingMode]
    MODE_UNSPECIFIED: BatchingParameters.BatchingMode
    GREEDY: BatchingParameters.BatchingMode
    TIMEOUT: BatchingParameters.BatchingMode
    OBJECTIVE: BatchingParameters.BatchingMode
    class PaddingPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        POLICY_UNSPECIFIED: _ClassVar[BatchingParameters.PaddingPolicy]
        PAD_UP: _ClassVar[BatchingParameters.PaddingPolicy]
        BATCH_DOWN: _ClassVar[BatchingParameters.PaddingPolicy]
        MIN_COST: _ClassVar[BatchingParameters.PaddingPolicy]
    POLICY_UNSPECIFIED: BatchingParameters.PaddingPolicy
    PAD_UP: BatchingParameters.PaddingPolicy
    BATCH_DOWN: BatchingParameters.PaddingPolicy
    MIN_COST: BatchingParameters.PaddingPolicy
    MAX_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    BATCH_TIMEOUT_MICROS_FIELD_NUMBER: _ClassVar[int]
    MAX_ENQUEUED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    NUM_BATCH_THREADS_FIELD_NUMBER: _ClassVar[int]
    THREAD_POOL_NAME_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_BATCH_SIZES_FIELD_NUMBER: _ClassVar[int]
    PAD_VARIABLE_LENGTH_INPUTS_FIELD_NUMBER: _ClassVar[int]
    ENABLE_LARGE_BATCH_SPLITTING_FIELD_NUMBER: _ClassVar[int]
    MAX_EXECUTION_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    BATCHING_MODE_FIELD_NUMBER: _ClassVar[int]
    LATENCY_OBJECTIVE_MS_FIELD_NUMBER: _ClassVar[int]
    LATENCY_PERCENTILE_FIELD_NUMBER: _ClassVar[int]
    BATCH_PADDING_POLICY_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_BUCKETS_FIELD_NUMBER: _ClassVar[int]
    LOW_PRIORITY_MAX_ENQUEUED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    SCHEDULING_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    max_batch_size: _wrappers_pb2.Int64Value
    batch_timeout_micros: _wrappers_pb2.Int64Value
    max_enqueued_batches: _wrappers_pb2.Int64Value
    num_batch_threads: _wrappers_pb2.Int64Value
    thread_pool_name: _wrappers_pb2.StringValue
    allowed_batch_sizes: _containers.RepeatedScalarFieldContainer[int]
    pad_variable_length_inputs: bool
    enable_large_batch_splitting: _wrappers_pb2.BoolValue
    max_execution_batch_size: _wrappers_pb2.Int64Value
    batching_mode: BatchingParameters.BatchingMode
    latency_objective_ms: float
    latency_percentile: float
    batch_padding_policy: BatchingParameters.PaddingPolicy
    sequence_buckets: _containers.RepeatedScalarFieldContainer[int]
    low_priority_max_enqueued_batches: int
    scheduling_weight: float
    def __init__(self, max_batch_size: _Optional[_Union[_wrappers_pb2.Int64Value, _Mapping]] = ..., batch_timeout_micros: _Optional[_Union[_wrappers_pb2.Int64Value, _Mapping]] = ..., max_enqueued_batches: _Optional[_Union[_wrappers_pb2.Int64Value, _Mapping]] = ..., num_batch_threads: _Optional[_Union[_wrappers_pb2.Int64Value, _Mapping]] = ..., thread_pool_name: _Optional[_Union[_wrappers_pb2.StringValue, _Mapping]] = ..., allowed_batch_sizes: _Optional[_Iterable[int]] = ..., pad_variable_length_inputs: _Optional[bool] = ..., enable_large_batch_splitting: _Optional[_Union[_wrappers_pb2.BoolValue, _Mapping]] = ..., max_execution_batch_size: _Optional[_Union[_wrappers_pb2.Int64Value, _Mapping]] = ..., batching_mode: _Optional[_Union[BatchingParameters.BatchingMode, str]] = ..., latency_objective_ms: _Optional[float] = ..., latency_percentile: _Optional[float] = ..., batch_padding_policy: _Optional[_Union[BatchingParameters.PaddingPolicy, str]] = ..., sequence_buckets: _Optional[_Iterable[int]] = ..., low_priority_max_enqueued_batches: _Optional[int] = ..., scheduling_weight: _Optional[float] = ...) -> None: ...
