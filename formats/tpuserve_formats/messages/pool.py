"""The official messages in a separate descriptor pool.

Importing the official Python modules of these messages imports all of TensorFlow: seconds and 500 MB. This package
ships their descriptors in `official.binpb` instead (see `generate.py`).

The pool is separate because protobuf's default pool allows one definition of a name. The process may import TensorFlow
later, which needs that definition.

A file enters the pool with the first message that needs it. The client needs less than half of the files, and starts
for every command line.
"""

from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import any_pb2, descriptor_pool, message_factory, wrappers_pb2
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

_DESCRIPTORS = Path(__file__).with_name("official.binpb")
# Files of the installed protobuf that the official files import.
_IMPORTED = (any_pb2.DESCRIPTOR, wrappers_pb2.DESCRIPTOR)

_POOL = descriptor_pool.DescriptorPool()
for _file in _IMPORTED:
    _POOL.AddSerializedFile(_file.serialized_pb)
_FILES = {file.name: file for file in FileDescriptorSet.FromString(_DESCRIPTORS.read_bytes()).file}


@cache
def _load(name: str) -> None:
    """Add an official file to the pool after its imports. The cache makes later calls no-ops."""
    if (file := _FILES.get(name)) is not None:
        for imported in file.dependency:
            _load(imported)
        _POOL.AddSerializedFile(file.SerializeToString())


def official_pool() -> descriptor_pool.DescriptorPool:
    """Return the pool with every official file and every added file."""
    for name in _FILES:
        _load(name)
    return _POOL


def add_file(file: FileDescriptorProto) -> FileDescriptor:
    """Add a file of tpuserve to the pool. Its fields may use official messages."""
    for imported in file.dependency:
        _load(imported)
    return _POOL.AddSerializedFile(file.SerializeToString())


def find_file(name: str) -> FileDescriptor:
    """Return an official file or an added one."""
    _load(name)
    return _POOL.FindFileByName(name)


def message_class(file: str, name: str) -> type[Any]:
    """Return the class of a message. It has the official name, and serializes to the same bytes.

    The class exists only at run time and has no static type. `official.pyi` has the types.
    """
    return message_factory.GetMessageClass(find_file(file).message_types_by_name[name])
