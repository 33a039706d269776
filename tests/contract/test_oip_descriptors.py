"""The messages of the Open Inference Protocol equal those of the installed tritonclient, in `.oip-clients`."""

import json
import subprocess
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from tests.support.optional import cannot_run, find_oip_clients
from tpuserve_formats.messages.generate_oip import DESCRIPTORS

# Print the files that tritonclient's modules register, each after those that it imports.
PROGRAM = """
import json
from google.protobuf import descriptor_pb2
from tritonclient.grpc import model_config_pb2, service_pb2

files = []
for module in (model_config_pb2, service_pb2):
    file = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)
    files.append(file.SerializeToString().hex())
print(json.dumps(files))
"""


@pytest.fixture(scope="module")
def official() -> FileDescriptorSet:
    python = find_oip_clients() or cannot_run("there is no whole .oip-clients: make oip-clients")
    ended = subprocess.run([str(python), "-c", PROGRAM], capture_output=True, text=True, timeout=100, check=True)
    files = FileDescriptorSet()
    for serialized in json.loads(ended.stdout):
        files.file.add().ParseFromString(bytes.fromhex(serialized))
    return files


@pytest.fixture(scope="module")
def ours() -> FileDescriptorSet:
    return FileDescriptorSet.FromString(DESCRIPTORS.read_bytes())


def messages(files: FileDescriptorSet) -> dict[str, list[tuple[Any, ...]]]:
    """Return the fields of each message by its full name: name, number, label, type and message type."""
    found: dict[str, list[tuple[Any, ...]]] = {}

    def add(prefix: str, message: Any) -> None:  # noqa: ANN401  # a DescriptorProto
        name = f"{prefix}.{message.name}"
        found[name] = [
            (field.name, field.number, field.label, field.type, field.type_name, field.oneof_index)
            for field in message.field
        ]
        for nested in message.nested_type:
            add(name, nested)

    for file in files.file:
        for message in file.message_type:
            add(file.package, message)
    return found


def methods(files: FileDescriptorSet) -> dict[str, tuple[Any, ...]]:
    """Return the request, the response and the streams of each method by its full name."""
    return {
        f"{file.package}.{service.name}/{method.name}": (
            method.input_type,
            method.output_type,
            method.client_streaming,
            method.server_streaming,
        )
        for file in files.file
        for service in file.service
        for method in service.method
    }


def test_messages_have_the_fields_of_tritonclient(ours: FileDescriptorSet, official: FileDescriptorSet) -> None:
    assert len(messages(official)) > 80
    assert messages(ours) == messages(official)


def test_the_service_has_the_methods_of_tritonclient(ours: FileDescriptorSet, official: FileDescriptorSet) -> None:
    assert "inference.GRPCInferenceService/ModelStreamInfer" in methods(official)
    assert methods(ours) == methods(official)


def test_whole_files_are_equal(ours: FileDescriptorSet, official: FileDescriptorSet) -> None:
    # Enumerations and options, too.
    assert list(ours.file) == list(official.file)
