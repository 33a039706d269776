"""Messages as JSON in Triton's form, which is not protobuf's: original names, all defaults, and integers as numbers.

Source: Triton's core/src/model_config_utils.cc, ModelConfigToJson.
"""

from typing import Any, TypeAlias

from google.protobuf.message import Message

# protobuf's implementations have different classes of descriptors.
_Field: TypeAlias = Any


def message_to_json(message: Message) -> dict[str, object]:
    """Return a JSON object with every field, except messages and members of a oneof that are not set."""
    return {
        field.name: _field(field, getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
        if field.is_repeated or not field.has_presence or message.HasField(field.name)
    }


def _field(field: _Field, value: Any) -> object:  # noqa: ANN401 (the value of any field)
    if not field.is_repeated:
        return _value(field, value)
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        kind = entry.fields_by_name["value"]
        return {str(key): _value(kind, each) for key, each in value.items()}
    return [_value(field, each) for each in value]


def _value(field: _Field, value: Any) -> object:  # noqa: ANN401 (as above)
    if field.message_type is not None:
        return message_to_json(value)
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    return value
