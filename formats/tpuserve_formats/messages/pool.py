"""The official messages in a descriptor pool of their own.

The official Python modules of these messages cannot be imported without the whole of TensorFlow: seconds, and 500 MB.
So their descriptors are shipped, in `official.binpb` (see `generate.py`). The pool is not protobuf's default one: a
name may be defined there once, and by TensorFlow, which the process may import later.

A file enters the pool with the first message that needs it: the client needs less than half of the files, and starts
for every command line.
"""

from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import any_pb2, descriptor_pool, message_factory, wrappers_pb2
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

_DESCRIPTORS = Path(__file__).with_name("official.binpb")
# What the official files import of protobuf's own: of the protobuf that is installed.
_IMPORTED = (any_pb2.DESCRIPTOR, wrappers_pb2.DESCRIPTOR)

_POOL = descriptor_pool.DescriptorPool()
for _file in _IMPORTED:
    _POOL.AddSerializedFile(_file.serialized_pb)
_FILES = {file.name: file for file in FileDescriptorSet.FromString(_DESCRIPTORS.read_bytes()).file}


@cache
def _load(name: str) -> None:
    """Add an official file to the pool, after those that it imports; a second addition of the same file is none."""
    if (file := _FILES.get(name)) is not None:
        for imported in file.dependency:
            _load(imported)
        _POOL.AddSerializedFile(file.SerializeToString())


def official_pool() -> descriptor_pool.DescriptorPool:
    """The pool with every official file, and those that were added."""
    for name in _FILES:
        _load(name)
    return _POOL


def add_file(file: FileDescriptorProto) -> FileDescriptor:
    """Add a file of our own beside the official ones, whose messages may be in its fields."""
    for imported in file.dependency:
        _load(imported)
    return _POOL.AddSerializedFile(file.SerializeToString())


def find_file(name: str) -> FileDescriptor:
    """An official file, or one that was added."""
    _load(name)
    return _POOL.FindFileByName(name)


def message_class(file: str, name: str) -> type[Any]:
    """The class of a message of a file; it has the official name, and its bytes are the official one's.

    A class without a definition in Python, so that types end here: `official.pyi` says what it stands for.
    """
    return message_factory.GetMessageClass(find_file(file).message_types_by_name[name])
