"""Converts the BatchingParameters message of a file or of a model's configuration to the core's type."""

import dataclasses
import enum
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tpuserve_server.core.batching.parameters import (
    DEFAULT_MAX_BATCH_SIZE,
    BatchingMode,
    BatchingParameters,
    PaddingPolicy,
)
from tpuserve_server.core.terms.errors import InvalidArgument

# The core omits the message's other fields: names of thread pools, and settings of TensorFlow Serving's internals.
_FIELDS = frozenset(field.name for field in dataclasses.fields(BatchingParameters))
_ENUMS: dict[str, type[enum.StrEnum]] = {"batching_mode": BatchingMode, "batch_padding_policy": PaddingPolicy}

_Choice = TypeVar("_Choice", bound=enum.StrEnum)


def batching_parameters(message: Message) -> BatchingParameters:
    """Convert `message`, a BatchingParameters of any descriptor pool.

    Raises:
        InvalidArgument: a value is invalid, or the values contradict each other.
    """
    fields = {field.name: _value(field, value) for field, value in message.ListFields() if field.name in _FIELDS}
    if "allowed_batch_sizes" in fields:
        # Upstream's default, which the last of the sizes must then equal.
        fields.setdefault("max_batch_size", DEFAULT_MAX_BATCH_SIZE)
    return BatchingParameters(**fields)


def _value(field: FieldDescriptor, value: Any) -> Any:  # noqa: ANN401 - as wide as the message
    if field.is_repeated:
        return tuple(value)
    if field.message_type is not None:
        # TensorFlow Serving wraps each number in a message { value: … }.
        return value.value
    return _choice(field, _ENUMS[field.name], value) if field.enum_type is not None else value


def _choice(field: FieldDescriptor, kind: type[_Choice], number: int) -> _Choice:
    """Return the enum member for `number`. Enums are open, so a number without a name can arrive."""
    assert field.enum_type is not None
    value = field.enum_type.values_by_number.get(number)
    if value is None:
        raise InvalidArgument(f"{field.name} must be one of {', '.join(each.name for each in kind)}; was {number}")
    return kind[value.name]
