"""The BatchingParameters message, of a file or of a model's configuration, to the core's."""

import enum
from typing import TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tpuserve_server.core.batching.options import BatchingMode, PaddingPolicy
from tpuserve_server.core.batching.parameters import DEFAULT_MAX_BATCH_SIZE, BatchingParameters
from tpuserve_server.core.errors import InvalidArgument

# TensorFlow Serving's numbers, each a message { value: … }.
_WRAPPED = (
    "max_batch_size",
    "batch_timeout_micros",
    "max_enqueued_batches",
    "num_batch_threads",
    "max_execution_batch_size",
    "enable_large_batch_splitting",
)
_LISTS = ("allowed_batch_sizes", "sequence_buckets")
_OURS = ("latency_objective_ms", "latency_percentile", "low_priority_max_enqueued_batches", "scheduling_weight")
_ENUMS: dict[str, type[enum.StrEnum]] = {"batching_mode": BatchingMode, "batch_padding_policy": PaddingPolicy}

_Choice = TypeVar("_Choice", bound=enum.StrEnum)


def batching_parameters(message: Message) -> BatchingParameters:
    """What `message`, a BatchingParameters of whatever descriptor pool, says.

    Raises:
        InvalidArgument: it does not fit together.
    """
    said = {field.name: (field, value) for field, value in message.ListFields()}
    fields = {name: value for name, (_, value) in said.items() if name in _OURS}
    fields |= {name: value.value for name, (_, value) in said.items() if name in _WRAPPED}
    fields |= {name: tuple(value) for name, (_, value) in said.items() if name in _LISTS}
    for name, kind in _ENUMS.items():
        if name in said:
            field, number = said[name]
            fields[name] = _choice(field, kind, number)
    if "allowed_batch_sizes" in fields:
        # As upstream, for which the last of the sizes must be the default then.
        fields.setdefault("max_batch_size", DEFAULT_MAX_BATCH_SIZE)
    # Not a wrapper: false cannot be told from nothing.
    return BatchingParameters(**fields, pad_variable_length_inputs="pad_variable_length_inputs" in said or None)


def _choice(field: FieldDescriptor, kind: type[_Choice], number: int) -> _Choice:
    """Enums are open: a number without a name arrives."""
    assert field.enum_type is not None
    value = field.enum_type.values_by_number.get(number)
    if value is None:
        raise InvalidArgument(f"{field.name} must be one of {', '.join(each.name for each in kind)}; was {number}")
    return kind[value.name]
