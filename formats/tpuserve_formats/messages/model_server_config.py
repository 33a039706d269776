"""ModelServerConfig with a field of our own: the batching of one model beside what TensorFlow Serving says of it.

The message is upstream's, copied into a pool of descriptors of our own, for a process holds one definition of a name.
What upstream's clients send is read by it, and upstream's messages carry the field along, as any that they do not know.
"""

from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from tpuserve_formats.messages import official
from tpuserve_formats.messages._proto import batching_parameters_pb2

if TYPE_CHECKING:
    from google.protobuf.descriptor import FileDescriptor

# In ModelConfig. Far from the numbers that upstream may still give away.
BATCHING_PARAMETERS = "batching_parameters"
BATCHING_PARAMETERS_NUMBER = 1001


def _extended() -> type[Any]:
    pool = descriptor_pool.DescriptorPool()
    added: set[str] = set()
    for file in (batching_parameters_pb2.DESCRIPTOR, official.ModelServerConfig.DESCRIPTOR.file):
        _add(file, pool, added)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.serving.ModelServerConfig"))


def _add(file: "FileDescriptor", pool: descriptor_pool.DescriptorPool, added: set[str]) -> None:
    """With what it depends on first."""
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


# A class that nobody wrote, so that types end here.
ModelServerConfig: type[Any] = _extended()
