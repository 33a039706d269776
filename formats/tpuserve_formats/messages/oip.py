"""Messages and service of the Open Inference Protocol with Triton's extensions, by name. The first use creates them.

`oip.binpb` contains Triton's `grpc_service.proto` and `model_config.proto` (see `generate_oip.py`). They have a
separate descriptor pool: a process may also import tritonclient or kserve, which define the same names in protobuf's
default pool.
"""

from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet

_DESCRIPTORS = Path(__file__).with_name("oip.binpb")
_PACKAGE = "inference"


@cache
def oip_pool() -> descriptor_pool.DescriptorPool:
    """Return the pool with both files."""
    pool = descriptor_pool.DescriptorPool()
    for file in FileDescriptorSet.FromString(_DESCRIPTORS.read_bytes()).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


def __getattr__(name: str) -> Any:  # noqa: ANN401 (`oip.pyi` has the types)
    if name == "GRPC_INFERENCE_SERVICE":
        found: Any = oip_pool().FindServiceByName(f"{_PACKAGE}.GRPCInferenceService")
    else:
        try:
            found = message_factory.GetMessageClass(oip_pool().FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        except KeyError:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    globals()[name] = found
    return found
