"""Tests that the `.proto` files for other languages are those of the server."""

import subprocess
import sys

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import Message

from tpuserve_formats.messages.generate_protos import OIP_FILE, PROTOS, proto_files
from tpuserve_formats.messages.oip import oip_pool
from tpuserve_formats.messages.pool import official_pool


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FileDescriptorProto]:
    """Return what protoc reads in the committed files, by name."""
    found = tmp_path_factory.mktemp("protos") / "all.binpb"
    names = [str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto")]
    # A separate process, because the C++ protobuf of protoc conflicts with tensorflow's.
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTOS}", f"--descriptor_set_out={found}", *names]
    subprocess.run(command, check=True)
    return {file.name: file for file in FileDescriptorSet.FromString(found.read_bytes()).file}


def test_committed_files_are_what_the_descriptors_make() -> None:
    committed = {str(path.relative_to(PROTOS)): path.read_text() for path in PROTOS.rglob("*.proto")}
    assert committed == proto_files()


def test_files_of_tensorflow_serving_equal_the_servers_descriptors(compiled: dict[str, FileDescriptorProto]) -> None:
    of_server = {}
    for name in set(compiled) - {OIP_FILE}:
        of_server[name] = FileDescriptorProto()
        official_pool().FindFileByName(name).CopyToProto(of_server[name])
    assert len(of_server) > 30
    assert {name: _wire(file) for name, file in compiled.items() if name != OIP_FILE} == {
        name: _wire(file) for name, file in of_server.items()
    }


def test_open_inference_protocol_is_a_part_of_the_servers_descriptors(compiled: dict[str, FileDescriptorProto]) -> None:
    of_server = FileDescriptorProto()
    oip_pool().FindFileByName("grpc_service.proto").CopyToProto(of_server)
    messages = {one.name: _wire(one) for one in of_server.message_type}
    file = compiled[OIP_FILE]
    assert [_wire(one) for one in file.message_type] == [messages[one.name] for one in file.message_type]
    [service], [whole] = file.service, of_server.service
    methods = {one.name: _wire(one) for one in whole.method}
    assert [_wire(one) for one in service.method] == [methods[one.name] for one in service.method]
    assert (service.name, file.package, len(service.method)) == (whole.name, of_server.package, 6)
    assert not file.dependency


def _wire(message: Message) -> Message:
    """Return a copy without empty options, and without names in JSON, which gRPC does not use and protoc adds."""
    copy = type(message).FromString(message.SerializeToString())
    for field, value in copy.ListFields():
        if field.name == "json_name" or (field.name == "options" and not value.ListFields()):
            copy.ClearField(field.name)
        elif field.message_type is not None and field.is_repeated:
            parts = [_wire(part) for part in value]
            if field.name == "nested_type":  # protoc puts the entries of maps where their fields are
                parts.sort(key=lambda part: part.SerializeToString(deterministic=True))
            copy.ClearField(field.name)
            getattr(copy, field.name).extend(parts)
    return copy
