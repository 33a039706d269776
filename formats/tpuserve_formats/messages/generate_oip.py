"""Regenerate `oip.binpb` and `oip.pyi` from tritonclient: `python -m tpuserve_formats.messages.generate_oip`.

Needs grpcio-tools and tritonclient[grpc], whose modules contain the descriptors of Triton's `grpc_service.proto`. That
file defines the Open Inference Protocol's messages and Triton's extensions of them.
"""

import importlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet

DESCRIPTORS = Path(__file__).with_name("oip.binpb")

_CONFIG = "_model_config_pb2.ModelConfig"
_OLD = "from google.protobuf import descriptor as"
_NEW = "from google.protobuf import descriptor_pool as _descriptor_pool\nfrom google.protobuf import descriptor as"
# Names that oip.py has in addition to the messages.
_MORE = """ModelConfig: type[_Any]
GRPC_INFERENCE_SERVICE: _descriptor.ServiceDescriptor

def oip_pool() -> _descriptor_pool.DescriptorPool: ...
"""


def oip_files() -> bytes:
    """Return the serialized FileDescriptorSet: `model_config.proto`, then `grpc_service.proto`."""
    files = FileDescriptorSet()
    for file in _in_order(importlib.import_module("tritonclient.grpc.service_pb2").DESCRIPTOR):
        file.CopyToProto(files.file.add())
    return files.SerializeToString(deterministic=True)


def _in_order(file: FileDescriptor) -> Iterator[FileDescriptor]:
    for dependency in file.dependencies:
        yield from _in_order(dependency)
    yield file


def oip_types(files: bytes) -> str:
    """Return the stub of `oip.py` for the serialized set `files`. Model configurations have no static type."""
    with tempfile.TemporaryDirectory() as scratch:
        descriptors = Path(scratch, "oip.binpb")
        descriptors.write_bytes(files)
        command = [
            *(sys.executable, "-m", "grpc_tools.protoc"),
            *(f"--descriptor_set_in={descriptors}", f"--pyi_out={scratch}", "grpc_service.proto"),
        ]
        subprocess.run(command, check=True)
        stub = Path(scratch, "grpc_service_pb2.pyi").read_text()
    stub = stub.replace("import model_config_pb2 as _model_config_pb2\n", "")
    stub = stub.replace("DESCRIPTOR: _descriptor.FileDescriptor\n", _MORE)
    return (
        stub.replace("import ClassVar as", "import Any as _Any, ClassVar as")
        .replace(_CONFIG, "_Any")
        .replace(_OLD, _NEW)
    )


def main() -> None:
    """Write the set and the stub to the directory of this module."""
    files = oip_files()
    DESCRIPTORS.write_bytes(files)
    DESCRIPTORS.with_suffix(".pyi").write_text(oip_types(files))
    sys.stdout.write(f"wrote {DESCRIPTORS} and its .pyi\n")


if __name__ == "__main__":
    main()
