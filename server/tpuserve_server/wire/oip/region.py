"""RegionStatus: a region of shared memory. RegionWindow: the part that a request names for the data of a tensor.

Source: Triton's shared memory extension, grpc_utils.cc (ParseSharedMemoryParams) and http_server.cc.
"""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from tpuserve_server.core.terms.errors import InvalidArgument, shown

if TYPE_CHECKING:
    from tpuserve_formats.messages.oip import InferParameter

REGION: Final = "shared_memory_region"
BYTE_SIZE: Final = "shared_memory_byte_size"
OFFSET: Final = "shared_memory_offset"


class RegionStatus(NamedTuple):
    """A registered region: a window of `byte_size` bytes at `offset` in the object `key`."""

    name: str
    key: str
    offset: int
    byte_size: int


class RegionWindow(NamedTuple):
    """`byte_size` bytes of a registered region. `offset` counts from the start of the region."""

    region: str
    byte_size: int
    offset: int = 0


def read_window(name: str, parameters: "Mapping[str, InferParameter]") -> RegionWindow | None:
    """Return the window of the tensor `name` over gRPC, or None if its parameters name none.

    Raises:
        InvalidArgument: a parameter is missing, or has the wrong type.
    """
    if REGION not in parameters:
        for other in (OFFSET, BYTE_SIZE):
            if other in parameters:
                raise InvalidArgument(
                    f"'{other}' can not be specified without '{REGION}' parameter for tensor '{name}'"
                )
        return None
    if BYTE_SIZE not in parameters:
        raise InvalidArgument(f"'{BYTE_SIZE}' must be specified along with '{REGION}' parameter for tensor '{name}'")
    return RegionWindow(_text(name, parameters), _size(name, parameters, BYTE_SIZE), _size(name, parameters, OFFSET))


def check_only_region(name: str, others: Collection[str]) -> None:
    """Check that an output in shared memory has no other form. Raises InvalidArgument."""
    for other in others:
        raise InvalidArgument(f"Output can't set both '{REGION}' and '{other}': output '{name}'")


def _text(name: str, parameters: "Mapping[str, InferParameter]") -> str:
    parameter = parameters[REGION]
    if parameter.WhichOneof("parameter_choice") != "string_param":
        raise _wrong_type(name, REGION, "string_param")
    return shown(parameter.string_param)


def _size(name: str, parameters: "Mapping[str, InferParameter]", key: str) -> int:
    if key not in parameters:
        return 0
    parameter = parameters[key]
    if parameter.WhichOneof("parameter_choice") != "int64_param":
        raise _wrong_type(name, key, "int64_param")
    if parameter.int64_param < 0:
        raise InvalidArgument(f"invalid value for '{key}' of tensor '{name}', expected >= 0")
    return parameter.int64_param


def _wrong_type(name: str, key: str, expected: str) -> InvalidArgument:
    return InvalidArgument(f"invalid value type for '{key}' parameter for tensor '{name}', expected {expected}.")
