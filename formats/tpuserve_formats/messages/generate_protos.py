"""Write `.proto` files for clients in other languages: `python -m tpuserve_formats.messages.generate_protos`.

Prints the descriptors that the server uses as source text. `grpc_predict_v2.proto` is the Open Inference Protocol
without Triton's extensions, in one file. The other files are TensorFlow Serving's services with all of their imports.
"""

import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    ServiceDescriptorProto,
)
from google.protobuf.message import Message

from tpuserve_formats.messages.oip import oip_pool
from tpuserve_formats.messages.pool import official_pool

PROTOS = Path(__file__).resolve().parents[1] / "protos"
OIP_FILE = "grpc_predict_v2.proto"

_SERVICES = ("tensorflow_serving/apis/prediction_service.proto", "tensorflow_serving/apis/model_service.proto")
_OIP_METHODS = ("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer")
_HEADERS = {
    "tensorflow": "Copyright The TensorFlow Authors",
    "tensorflow_serving": "Copyright The TensorFlow Serving Authors",
    "xla": "Copyright The OpenXLA Authors",
    OIP_FILE: "The Open Inference Protocol. Copyright The KServe Authors",
}
_LICENCE = """// {copyright}
// SPDX-License-Identifier: Apache-2.0
// Generated from descriptors by tpuserve_formats.messages.generate_protos. DO NOT EDIT.

"""
_TYPES = {
    number: name.removeprefix("TYPE_").lower() for name, number in FieldDescriptorProto.Type.items()
}  # "double", "int64", …


def proto_files() -> dict[str, str]:
    """Return the text of every file by its name, such as `tensorflow_serving/apis/predict.proto`."""
    files = [oip_file(), *_with_imports(_SERVICES, {})]
    return {file.name: _LICENCE.format(copyright=_HEADERS[file.name.split("/")[0]]) + _text(file) for file in files}


def oip_file() -> FileDescriptorProto:
    """Return the methods of the Open Inference Protocol and the messages that they need, as one file."""
    triton = FileDescriptorProto()
    oip_pool().FindFileByName("grpc_service.proto").CopyToProto(triton)
    [service] = [one for one in triton.service if one.name == "GRPCInferenceService"]
    methods = [one for one in service.method if one.name in _OIP_METHODS]
    messages = {f".{triton.package}.{one.name}": one for one in triton.message_type}
    needed: set[str] = set()
    pending = [name for method in methods for name in (method.input_type, method.output_type)]
    while pending:
        if (name := pending.pop()) not in needed:
            needed.add(name)
            pending += [used for used in _used_types(messages[name]) if used in messages]
    return FileDescriptorProto(
        name=OIP_FILE,
        package=triton.package,
        syntax=triton.syntax,
        message_type=[message for name, message in messages.items() if name in needed],
        service=[ServiceDescriptorProto(name=service.name, method=methods)],
    )


def _used_types(message: DescriptorProto) -> Iterator[str]:
    for field in message.field:
        yield field.type_name
    for nested in message.nested_type:
        yield from _used_types(nested)


def _with_imports(names: Sequence[str], found: dict[str, FileDescriptorProto]) -> list[FileDescriptorProto]:
    for name in names:
        if name not in found and not name.startswith("google/protobuf/"):
            found[name] = FileDescriptorProto()
            official_pool().FindFileByName(name).CopyToProto(found[name])
            _with_imports(found[name].dependency, found)
    return list(found.values())


def _text(file: FileDescriptorProto) -> str:
    blocks = [f'syntax = "{file.syntax or "proto2"}";']
    public = [file.dependency[index] for index in file.public_dependency]
    imports = [f'import {"public " if name in public else ""}"{name}";' for name in file.dependency]
    options = [f"option {option};" for option in _options(file.options)]
    blocks += [f"package {file.package};", "\n".join(imports), "\n".join(options)]
    blocks += ["\n".join(_enum(one)) for one in file.enum_type]
    blocks += ["\n".join(_message(one, file.syntax)) for one in file.message_type]
    blocks += ["\n".join(_service(one)) for one in file.service]
    text = "\n\n".join(filter(None, blocks)) + "\n"
    # Names of the file's own package need no package.
    return re.sub(rf"(?<!\w)\.{re.escape(file.package)}\.(?=[A-Z])", "", text)


def _options(options: Message) -> list[str]:
    """Return each set option as `name = value`."""
    found = []
    for field, value in options.ListFields():
        if field.enum_type is not None:
            text = field.enum_type.values_by_number[value].name
        else:
            text = str(value).lower() if isinstance(value, bool) else f'"{value}"'
        found.append(f"{field.name} = {text}")
    return found


def _bracket(options: Sequence[str]) -> str:
    return f" [{', '.join(options)}]" if options else ""


def _indented(lines: Iterator[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)


def _service(service: ServiceDescriptorProto) -> Iterator[str]:
    yield f"service {service.name} {{"
    for method in service.method:
        sent = ("stream " if method.client_streaming else "") + method.input_type
        answered = ("stream " if method.server_streaming else "") + method.output_type
        yield f"  rpc {method.name}({sent}) returns ({answered});"
    yield "}"


def _enum(enum: EnumDescriptorProto) -> Iterator[str]:
    yield f"enum {enum.name} {{"
    for option in _options(enum.options):
        yield f"  option {option};"
    yield from _reserved([(one.start, one.end) for one in enum.reserved_range], enum.reserved_name)
    for value in enum.value:
        yield f"  {value.name} = {value.number}{_bracket(_options(value.options))};"
    yield "}"


def _reserved(ranges: Sequence[tuple[int, int]], names: Sequence[str]) -> Iterator[str]:
    """Yield the lines of reserved numbers, with inclusive ends, and of reserved names."""
    if ranges:
        texts = (str(first) if first == last else f"{first} to {last}" for first, last in ranges)
        yield f"  reserved {', '.join(texts)};"
    if names:
        yield "  reserved " + ", ".join(f'"{name}"' for name in names) + ";"


def _message(message: DescriptorProto, syntax: str) -> Iterator[str]:
    maps = {one.name: one for one in message.nested_type if one.options.map_entry}
    yield f"message {message.name} {{"
    yield from _reserved([(one.start, one.end - 1) for one in message.reserved_range], message.reserved_name)
    for enum in message.enum_type:
        yield from _indented(_enum(enum))
    for nested in message.nested_type:
        if not nested.options.map_entry:
            yield from _indented(_message(nested, syntax))
    opened = None
    for field in message.field:
        of = message.oneof_decl[field.oneof_index].name if _is_in_oneof(field) else None
        if opened not in (None, of):
            yield "  }"
        if of is not None and of != opened:
            yield f"  oneof {of} {{"
        opened = of
        yield f"  {'  ' if of else ''}{_field(field, maps, syntax)}"
    if opened is not None:
        yield "  }"
    yield "}"


def _is_in_oneof(field: FieldDescriptorProto) -> bool:
    return field.HasField("oneof_index") and not field.proto3_optional


def _field(field: FieldDescriptorProto, maps: dict[str, DescriptorProto], syntax: str) -> str:
    label, type_name = "", field.type_name or _TYPES[field.type]
    entry = maps.get(type_name.rpartition(".")[2])
    if entry is not None:
        key, value = entry.field
        type_name = f"map<{_TYPES[key.type]}, {value.type_name or _TYPES[value.type]}>"
    elif field.label == FieldDescriptorProto.LABEL_REPEATED:
        label = "repeated "
    elif field.proto3_optional or (syntax != "proto3" and not _is_in_oneof(field)):
        label = "optional "
    options = _options(field.options)
    if field.HasField("default_value"):
        options.append(f"default = {field.default_value}")
    return f"{label}{type_name} {field.name} = {field.number}{_bracket(options)};"


def main() -> None:
    """Replace the directory with the files."""
    shutil.rmtree(PROTOS, ignore_errors=True)
    for name, text in proto_files().items():
        path = PROTOS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    sys.stdout.write(f"wrote {PROTOS}\n")


if __name__ == "__main__":
    main()
