"""tensorflow.ProfilerService: its descriptor, its requests, and its response around a trace.

The pip packages have the nested messages, but not the service (tsl/profiler/protobuf/profiler_service.proto). The
descriptor omits the unused fields `tool_options` and `monitor_result`.
"""

from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.message import DecodeError, Message

from tpuserve_formats.messages.official import ProfileOptions, XSpace
from tpuserve_formats.messages.pool import add_file
from tpuserve_formats.varint import read_varint, varint
from tpuserve_server.core.terms.errors import InvalidArgument

_OPTIONS = f".{ProfileOptions.DESCRIPTOR.full_name}"
_XSPACE = f".{XSpace.DESCRIPTOR.full_name}"
_STRING, _BYTES = FieldDescriptorProto.TYPE_STRING, FieldDescriptorProto.TYPE_BYTES
_BOOL, _UINT64, _INT32 = (
    FieldDescriptorProto.TYPE_BOOL,
    FieldDescriptorProto.TYPE_UINT64,
    FieldDescriptorProto.TYPE_INT32,
)

# Fields by message: name, number, type (a message's full name or a scalar). A `*` after the name marks repeated fields.
_MESSAGES: dict[str, tuple[tuple[str, int, Any], ...]] = {
    "ProfileRequest": (
        ("duration_ms", 1, _UINT64),
        ("max_events", 2, _UINT64),
        ("tools*", 3, _STRING),
        ("opts", 4, _OPTIONS),
        ("repository_root", 5, _STRING),
        ("session_id", 6, _STRING),
        ("host_name", 7, _STRING),
        ("emit_xspace", 9, _BOOL),
    ),
    "ProfileToolData": (("name", 1, _STRING), ("data", 2, _BYTES)),
    "ProfileResponse": (
        ("tool_data*", 6, ".tensorflow.ProfileToolData"),
        ("empty_trace", 7, _BOOL),
        ("xspace", 8, _XSPACE),
    ),
    "TerminateRequest": (("session_id", 1, _STRING),),
    "TerminateResponse": (),
    "MonitorRequest": (("duration_ms", 1, _UINT64), ("monitoring_level", 2, _INT32), ("timestamp", 3, _BOOL)),
    "MonitorResponse": (("data", 1, _STRING),),
}
_METHODS = ("Profile", "Terminate", "Monitor")


def parse_profile_request(body: bytes) -> Any:  # noqa: ANN401 (a message whose class is made below)
    """Parse a ProfileRequest. Raises InvalidArgument if `body` is malformed."""
    return _parse("ProfileRequest", body)


def parse_terminate_request(body: bytes) -> Any:  # noqa: ANN401 (as above)
    """Parse a TerminateRequest. Raises InvalidArgument if `body` is malformed."""
    return _parse("TerminateRequest", body)


def encode_profile_response(xspace: bytes, *, as_message: bool) -> bytes:
    """Serialize a ProfileResponse with a serialized XSpace as the tool data "xplane.pb".

    With `as_message`, the XSpace goes into the field `xspace` instead. Clients write tool data into their log directory
    (tsl/profiler/rpc/client/capture_profile.cc). The trace may have hundreds of megabytes, so it is not parsed.
    """
    if is_empty(xspace):
        # empty_trace = 7
        return b"\x38\x01"
    if as_message:
        # xspace = 8
        return b"".join((b"\x42", varint(len(xspace)), xspace))
    data = b"".join((b"\x0a\x09xplane.pb\x12", varint(len(xspace)), xspace))
    # tool_data = 6
    return b"".join((b"\x32", varint(len(data)), data))


def is_empty(xspace: bytes) -> bool:
    """Return whether a serialized XSpace has no event (tsl/profiler/utils/xplane_utils.cc, IsEmpty)."""
    # XSpace.planes = 1, XPlane.lines = 3, XLine.events = 4
    return not _has(xspace, (1, 3, 4), 0, len(xspace))


def _has(data: bytes, path: tuple[int, ...], position: int, end: int) -> bool:
    """Return whether the message between `position` and `end` has a field at the end of `path`. Stop at the first."""
    while position < end:
        tag, position = read_varint(data, position)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == 0:
            _, position = read_varint(data, position)
        elif wire_type == 2:
            size, position = read_varint(data, position)
            if number == path[0] and (len(path) == 1 or _has(data, path[1:], position, position + size)):
                return True
            position += size
        else:
            position += 8 if wire_type == 1 else 4
    return False


def _parse(name: str, body: bytes) -> Any:  # noqa: ANN401 (as above)
    try:
        return _CLASSES[name].FromString(body)
    except DecodeError:
        raise InvalidArgument(f"Malformed {name}") from None


def _file() -> FileDescriptorProto:
    options, xplane = ProfileOptions.DESCRIPTOR.file.name, XSpace.DESCRIPTOR.file.name
    file = FileDescriptorProto(name="tpuserve_server/profiler_service.proto", package="tensorflow", syntax="proto3")
    file.dependency[:] = [options, xplane]
    for name, fields in _MESSAGES.items():
        file.message_type.append(DescriptorProto(name=name, field=[_field(*field) for field in fields]))
    service = file.service.add(name="ProfilerService")
    for method in _METHODS:
        service.method.add(
            name=method, input_type=f".tensorflow.{method}Request", output_type=f".tensorflow.{method}Response"
        )
    return file


def _field(name: str, number: int, kind: Any) -> FieldDescriptorProto:  # noqa: ANN401 (as in the table)
    is_repeated = name.endswith("*")
    label = FieldDescriptorProto.LABEL_REPEATED if is_repeated else FieldDescriptorProto.LABEL_OPTIONAL
    field = FieldDescriptorProto(name=name.rstrip("*"), number=number, label=label)
    if isinstance(kind, str):
        field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, kind
    else:
        field.type = kind
    return field


_DESCRIPTOR = add_file(_file())
_CLASSES: dict[str, type[Message]] = {
    name: message_factory.GetMessageClass(message) for name, message in _DESCRIPTOR.message_types_by_name.items()
}
PROFILER_SERVICE: ServiceDescriptor = _DESCRIPTOR.services_by_name["ProfilerService"]
