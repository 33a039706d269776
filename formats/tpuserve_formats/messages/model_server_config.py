"""ModelServerConfig with an additional field: the batching parameters of one model.

This module copies the upstream message into a separate descriptor pool, because a pool holds one definition of each
name. It parses the messages of upstream clients, and upstream messages preserve the field as an unknown field.
"""

from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from tpuserve_formats.messages import official
from tpuserve_formats.messages._proto import batching_parameters_pb2

if TYPE_CHECKING:
    from google.protobuf.descriptor import FileDescriptor

# Field of ModelConfig. Its number is far above those that upstream may assign.
BATCHING_PARAMETERS = "batching_parameters"
BATCHING_PARAMETERS_NUMBER = 1001


def _extended() -> type[Any]:
    pool = descriptor_pool.DescriptorPool()
    added: set[str] = set()
    for file in (batching_parameters_pb2.DESCRIPTOR, official.ModelServerConfig.DESCRIPTOR.file):
        _add(file, pool, added)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.serving.ModelServerConfig"))


def _add(file: "FileDescriptor", pool: descriptor_pool.DescriptorPool, added: set[str]) -> None:
    """Add a file to the pool after its dependencies."""
    if file.name in added:
        return
    added.add(file.name)
    for dependency in file.dependencies:
        _add(dependency, pool, added)
    copy = FileDescriptorProto()
    file.CopyToProto(copy)
    if file.name == official.ModelServerConfig.DESCRIPTOR.file.name:
        _extend(copy)
    pool.AddSerializedFile(copy.SerializeToString())


def _extend(file: FileDescriptorProto) -> None:
    file.dependency.append(batching_parameters_pb2.DESCRIPTOR.name)
    [model] = [message for message in file.message_type if message.name == "ModelConfig"]
    model.field.add(
        name=BATCHING_PARAMETERS,
        number=BATCHING_PARAMETERS_NUMBER,
        label=FieldDescriptorProto.LABEL_OPTIONAL,
        type=FieldDescriptorProto.TYPE_MESSAGE,
        type_name=f".{batching_parameters_pb2.BatchingParameters.DESCRIPTOR.full_name}",
    )


# The class exists only at run time, so it has no static type.
ModelServerConfig: type[Any] = _extended()
