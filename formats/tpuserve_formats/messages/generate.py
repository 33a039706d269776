"""Regenerate `official.binpb` from the installed packages: `python -m tpuserve_formats.messages.generate`.

Needs tensorflow, tensorflow-serving-api and grpcio-health-checking, whose modules contain the descriptors.
"""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet

DESCRIPTORS = Path(__file__).with_name("official.binpb")

# These modules and their imports define every message that a distribution reads or writes.
_MODULES = (
    "grpc_health.v1.health_pb2",
    "tensorflow.core.protobuf.config_pb2",
    "tensorflow.core.protobuf.meta_graph_pb2",
    "tensorflow.tsl.profiler.protobuf.profiler_options_pb2",
    "tensorflow.tsl.profiler.protobuf.xplane_pb2",
    "tensorflow_serving.apis.model_service_pb2",
    "tensorflow_serving.apis.prediction_log_pb2",
    "tensorflow_serving.apis.prediction_service_pb2",
)


def official_files() -> bytes:
    """Return the serialized FileDescriptorSet: each file once, after its imports, without protobuf's own files."""
    found: dict[str, FileDescriptor] = {}
    for module in _MODULES:
        found.update((file.name, file) for file in _in_order(importlib.import_module(module).DESCRIPTOR))
    files = FileDescriptorSet()
    for file in found.values():
        if file.package != "google.protobuf":
            file.CopyToProto(files.file.add())
    return files.SerializeToString(deterministic=True)


def _in_order(file: FileDescriptor) -> Iterator[FileDescriptor]:
    for dependency in file.dependencies:
        yield from _in_order(dependency)
    yield file


def main() -> None:
    """Write the set to the directory of this module."""
    DESCRIPTORS.write_bytes(official_files())
    sys.stdout.write(f"wrote {DESCRIPTORS}\n")


if __name__ == "__main__":
    main()
