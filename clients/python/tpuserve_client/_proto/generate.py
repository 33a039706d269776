"""Renews serving_pb2.py and serving_pb2.pyi from serving.proto: `python -m tpuserve_client._proto.generate`.

Needs grpcio-tools. protoc's own Python output carries a guard that refuses every protobuf runtime older than the
compiler, and every one two major versions newer. The descriptor itself has no such limit, so the module written here
holds just that and makes its classes through protobuf's public API: one committed file for every protobuf release.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from google.protobuf import descriptor_pb2

PACKAGE_ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path("tpuserve_client/_proto/serving.proto")
MODULE = PACKAGE_ROOT / SOURCE.with_name("serving_pb2.py")

_HEADER = '''"""Generated from serving.proto by tpuserve_client._proto.generate. DO NOT EDIT."""

from google.protobuf import any_pb2 as _any_pb2  # noqa: F401  (its descriptor must be in the pool first)
from google.protobuf import descriptor_pool as _descriptor_pool
from google.protobuf import message_factory as _message_factory
from google.protobuf import wrappers_pb2 as _wrappers_pb2  # noqa: F401  (likewise)

DESCRIPTOR = _descriptor_pool.Default().AddSerializedFile(
'''


def compiled(directory: Path) -> descriptor_pb2.FileDescriptorProto:
    """The descriptor of serving.proto; leaves serving_pb2.pyi under `directory`. CalledProcessError if protoc refuses."""
    descriptor_set = directory / "serving.binpb"
    # A process of its own: protoc's C++ protobuf and tensorflow's cannot share one.
    command = [
        *(sys.executable, "-m", "grpc_tools.protoc"),
        f"--proto_path={PACKAGE_ROOT}",
        f"--descriptor_set_out={descriptor_set}",
        f"--pyi_out={directory}",
        str(PACKAGE_ROOT / SOURCE),
    ]
    subprocess.run(command, check=True)
    return descriptor_pb2.FileDescriptorSet.FromString(descriptor_set.read_bytes()).file[0]


def module_text(file: descriptor_pb2.FileDescriptorProto) -> str:
    """The Python module that defines the messages and top-level enum values of `file`."""
    raw = file.SerializeToString(deterministic=True)
    lines = [f"    {raw[start : start + 64]!r}" for start in range(0, len(raw), 64)]
    messages = [
        f'{message.name} = _message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name["{message.name}"])'
        for message in file.message_type
    ]
    values = [f"{value.name} = {value.number}" for enum in file.enum_type for value in enum.value]
    return _HEADER + "\n".join([*lines, ")", "", *messages, "", *values, ""])


def main() -> None:
    """Write both files beside serving.proto."""
    with tempfile.TemporaryDirectory() as scratch:
        MODULE.write_text(module_text(compiled(Path(scratch))))
        stub = Path(scratch) / SOURCE.with_name("serving_pb2.pyi")
        MODULE.with_suffix(".pyi").write_text(stub.read_text())
    sys.stdout.write(f"wrote {MODULE} and its .pyi\n")


if __name__ == "__main__":
    main()
