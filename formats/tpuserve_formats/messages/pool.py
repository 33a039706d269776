"""The official messages in a descriptor pool of their own.

The official Python modules of these messages cannot be imported without the whole of TensorFlow: seconds, and 500 MB.
So their descriptors are shipped, in `official.binpb` (see `generate.py`). The pool is not protobuf's default one: a
name may be defined there once, and by TensorFlow, which a server may import later.
"""

from pathlib import Path
from typing import Any

from google.protobuf import any_pb2, descriptor_pool, message_factory, wrappers_pb2
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

_DESCRIPTORS = Path(__file__).with_name("official.binpb")
# What the official files import of protobuf's own: of the protobuf that is installed.
_IMPORTED = (any_pb2.DESCRIPTOR, wrappers_pb2.DESCRIPTOR)


def _official() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for imported in _IMPORTED:
        pool.AddSerializedFile(imported.serialized_pb)
    # Each file after those that it imports, as they stand in the set.
    for file in FileDescriptorSet.FromString(_DESCRIPTORS.read_bytes()).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


OFFICIAL = _official()


def add_file(file: FileDescriptorProto) -> FileDescriptor:
    """A file of our own beside the official ones, whose messages may be in its fields."""
    return OFFICIAL.AddSerializedFile(file.SerializeToString())


def message_class(full_name: str) -> type[Any]:
    """The class of a message; it goes by its official name, and its bytes are the official one's.

    A class that nobody wrote, so that types end here: `official.pyi` says what it stands for.
    """
    return message_factory.GetMessageClass(OFFICIAL.FindMessageTypeByName(full_name))
